"""What `benchmarks.hotkey` counts is what happened."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.hotkey import SETTINGS, SHARES, Point, _config, table
from benchmarks.hotkey_load import SERVICE_S, Phase, World, hot_users
from lbproxy.control.config import loads


async def test_backends_tell_whose_requests_came_to_them() -> None:
    """Without a proxy: all clients ask the first backend, so everybody else's users are away from home there."""
    world = World(4, 200, seed=3)
    await world.start()
    try:
        await world.connect(world.ports[0], 20)
        hot = next(user for user in hot_users(world, 4) if world.owner(user) == 2)
        phase = Phase(hot, 0.5)
        world.begin(phase)
        await asyncio.sleep(2 * SERVICE_S)
        world.count()
        await asyncio.sleep(5 * SERVICE_S)
        world.end()
    finally:
        world.close()
    assert phase.errors == 0
    assert phase.hot_count.share == 1
    assert phase.neighbours.share == 1
    assert 0.5 < phase.others.share < 0.9
    asked = phase.hot_count.requests + phase.neighbours.requests + phase.others.requests
    assert 0.3 < phase.hot_count.requests / asked < 0.7
    assert phase.in_flight == pytest.approx(20, rel=0.2)
    assert max(phase.peak) <= 20
    assert phase.peak[1:] == [0, 0, 0]
    assert phase.busiest_over_mean == pytest.approx(4)
    assert phase.p99_s() >= SERVICE_S


async def test_hot_users_live_apart() -> None:
    world = World(10, 100, seed=1)
    users = hot_users(world, len(SHARES))
    assert len({world.owner(user) for user in users}) == len(SHARES)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_proxy_is_given_ten_backends_and_its_defaults(tmp_path: Path, setting: object) -> None:
    world = World(10, 1, seed=1)
    world.ports.extend(range(20001, 20011))
    [chosen] = [each for each in SETTINGS if each == setting]
    config = loads(_config(chosen, world, tmp_path, 18000, 18001, 2), "hotkey.yaml")
    (pool,) = config.pools
    assert [backend.name for backend in pool.backends] == world.names
    assert pool.bounded_load.factor == 1.25
    assert pool.bounded_load.min_gap == (0 if chosen.is_hard else None)
    assert pool.hot_keys.mode == "spread"


def test_a_figure_that_is_not_as_it_must_be_is_named() -> None:
    good = Point(1000, "0", 0.2, 0.0, 0.001, 0.8, 1000.0, 1.02, 1.25, 125, 210.0, 1.01, 0.5, 4.0, 50_000, 0)
    assert good.complaints() == []
    bad = Point(1000, "0", 0.2, 0.02, 0.001, 0.8, 1000.0, 1.02, 1.31, 131, 410.0, 1.9, 3.0, None, 50_000, 7)
    assert len(bad.complaints()) == 6
    assert (
        table([good]).splitlines()[-1].startswith("| 1000 | 0 | 20% | 0.00 % | 0.10 % | 80.00 % | 1.02 | 1.25 | 125 |")
    )

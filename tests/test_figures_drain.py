"""The figures of draining, replacing and pacing: users go when they must, in the measure asked for, and come home."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lbproxy.control.reach import Admin
from tests.crowd import BackendProcesses, Crowd, backend_processes
from tests.running import Proxy, backend_list, in_thread, until_true

CALM: dict[str, Any] = {"bounded_load": {"factor": None}, "hot_keys": {"mode": "off"}, "ring": {"vnodes": 128}}


class Steered:
    """A proxy, its backends, and its admin API over the Unix socket."""

    def __init__(self, proxy: Proxy, backends: BackendProcesses, admin: Admin) -> None:
        self.proxy = proxy
        self.backends = backends
        self._admin = admin

    async def decide(self, name: str, **wanted: Any) -> None:
        body = json.dumps(wanted).encode()
        await asyncio.to_thread(self._admin.ask, "PATCH", f"/v1/pools/api/backends/{name}", body)

    async def reload(self) -> None:
        """Put the backends in force as they are now."""
        self.proxy.config["pools"]["api"]["backends"] = backend_list(self.backends.ports)
        self.proxy.write_config()
        await asyncio.to_thread(self._admin.ask, "POST", "/v1/reload")

    async def until_empty(self, name: str) -> None:
        def is_empty() -> bool:
            return any(event["backend"] == name for event in self.proxy.named("backend is empty"))

        await until_true(is_empty)

    async def until_up(self, name: str) -> None:
        def is_up() -> bool:
            states = [event["state"] for event in self.proxy.named("backend state") if event["backend"] == name]
            return bool(states) and states[-1] == "up"

        await until_true(is_up)


@asynccontextmanager
async def steered(folder: Path, names: list[str], **pool: Any) -> AsyncIterator[Steered]:
    async with backend_processes(names) as backends:
        path = str(folder / "admin.sock")
        pools = {"api": {**CALM, **pool, "backends": backend_list(backends.ports)}}
        with Proxy(folder, {}, pools=pools, admin={"listen": "127.0.0.1:0", "socket": path}) as proxy:
            yield Steered(proxy, backends, Admin(path=path))


async def test_every_backend_of_a_pool_is_replaced_one_after_the_other(tmp_path: Path) -> None:
    names = ["b1", "b2", "b3"]
    users = [f"user-{number}" for number in range(60)]
    health = {"interval": "100ms", "timeout": "5s", "fall": 2, "rise": 1}
    async with steered(tmp_path, names, health=health) as world:
        proxy = world.proxy
        crowd = Crowd(proxy.port, users, pause_s=0.02)
        await crowd.until_each_answered(2)
        before = {user: answers[-1] for user, answers in crowd.way.items()}
        for name in names:
            await world.decide(name, state="drain")
            await world.until_empty(name)
            await world.backends.end(name, signal.SIGTERM)
            await world.backends.start(name)
            await world.reload()
            await world.decide(name, state="active")
            await world.until_up(name)
            await crowd.until_each_answered(2)
        await crowd.stop()
        lost = await asyncio.to_thread(proxy.metric, "requests_total", code="5xx")
    assert (crowd.failed, lost) == ([], 0)
    assert {user: answers[-1] for user, answers in crowd.way.items()} == before
    for user in users:
        moves = crowd.moves(user)
        # Out and home again when it is its own backend's turn, and at no other time.
        assert len(moves) == 3
        assert moves[0] == moves[2] == before[user]


async def test_a_session_stays_on_a_draining_backend_until_it_is_idle(tmp_path: Path) -> None:
    names = ["b1", "b2", "b3"]
    users = [f"user-{number}" for number in range(60)]
    async with steered(tmp_path, names, session_drain="2s") as world:
        proxy = world.proxy
        crowd = Crowd(proxy.port, users, pause_s=0.02)
        await crowd.until_each_answered(2)
        before = {user: answers[-1] for user, answers in crowd.way.items()}
        await world.decide("b1", state="drain")
        fresh = Crowd(proxy.port, [f"fresh-{number}" for number in range(60)], pause_s=0.02)
        await fresh.until_each_answered(3)
        await crowd.until_each_answered(10)
        # Those who are there stay, and those who come go on.
        assert all(crowd.moves(user) == [before[user]] for user in users)
        assert {name for user in fresh.way for name in fresh.way[user]} == {"b2", "b3"}
        assert not proxy.named("backend is empty")
        began = time.monotonic()
        await crowd.stop()
        await in_thread(proxy, "backend is empty")
        assert time.monotonic() - began > 1.0
        # Whoever comes back after that goes on too.
        late = Crowd(proxy.port, users, pause_s=0.02)
        await late.until_each_answered(2)
        await late.stop()
        await fresh.stop()
        assert {name for user in users for name in late.way[user]} == {"b2", "b3"}
        assert (crowd.failed, fresh.failed, late.failed) == ([], [], [])


async def test_a_paced_weight_moves_its_keys_little_by_little(tmp_path: Path) -> None:
    names = ["b1", "b2", "b3", "b4"]
    users = [f"user-{number}" for number in range(100)]
    async with steered(tmp_path, names, pace="6%/s") as world:
        proxy = world.proxy
        crowd = Crowd(proxy.port, users, pause_s=0.05)
        await crowd.until_each_answered(2)
        began = time.monotonic()
        await world.decide("b1", weight=3)
        await until_true(lambda: crowd_share(crowd, "b1") > 0.4)
        # From a quarter to a half at 6 % a second.
        assert 3.0 < time.monotonic() - began < 12.0
        await crowd.until_each_answered(2)
        await crowd.stop()
        steps = await asyncio.to_thread(proxy.metric, "ring_changes_total", cause="pace")
        assert 3 <= steps <= 10
        assert await asyncio.to_thread(proxy.metric, "ring_last_change_moved_ratio") <= 0.06
    assert crowd.failed == []
    for user in users:
        moves = crowd.moves(user)
        assert len(moves) == 1 or (len(moves) == 2 and moves[1] == "b1")


def crowd_share(crowd: Crowd, name: str) -> float:
    return sum(answers[-1] == name for answers in crowd.way.values()) / len(crowd.way)


async def test_slow_start_gives_a_new_backend_its_keys_in_steps(tmp_path: Path) -> None:
    names = ["b1", "b2", "b3"]
    users = [f"user-{number}" for number in range(100)]
    health = {"interval": "100ms", "timeout": "5s"}
    async with steered(tmp_path, names, health=health, slow_start="4s") as world:
        proxy = world.proxy
        crowd = Crowd(proxy.port, users, pause_s=0.05)
        await crowd.until_each_answered(2)
        await world.backends.start("b4")
        await world.reload()
        weights = set()
        async with asyncio.timeout(20):
            while (weight := await asyncio.to_thread(proxy.metric, "backend_effective_weight", backend="b4")) < 1:
                weights.add(round(weight, 6))
        assert {0.1, 0.5} <= weights <= {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}
        await crowd.until_each_answered(3)
        await crowd.stop()
    assert crowd.failed == []
    for user in users:
        moves = crowd.moves(user)
        assert len(moves) == 1 or (len(moves) == 2 and moves[1] == "b4")
    assert crowd_share(crowd, "b4") > 0.1

"""Snapshots: what is carried over from one generation to the next, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lbproxy.control.config import loads
from lbproxy.core.snapshot import Snapshot, build_snapshot
from lbproxy.core.spec import Address, BoundedLoad, Config, HotKeys, KeySource, Pin, Retry, Sticky
from lbproxy.observe.slabs import Layout
from lbproxy.supervisor import row_keys

CONFIG = loads(
    """
version: 1
listen: 127.0.0.1:0
zone: a
pools:
  api:
    match: {path: /api}
    zone: prefer_local
    backends:
      - {name: b1, url: http://127.0.0.1:9001, zone: a}
      - {name: b2, url: http://127.0.0.1:9002, zone: b}
  web:
    backends: [{name: b1, url: http://127.0.0.1:9003}]
"""
)


def snapshot(config: Config, layout: Layout, previous: Snapshot | None = None) -> Snapshot:
    generation = previous.generation + 1 if previous is not None else 1
    return build_snapshot(config, generation, layout.assign(row_keys(config), generation), previous)


def test_a_pool_in_which_nothing_changed_is_the_same() -> None:
    layout = Layout()
    before = snapshot(CONFIG, layout)
    after = snapshot(CONFIG, layout, before)
    assert [after.pools[name] is before.pools[name] for name in ("api", "web")] == [True, True]


def test_a_proxy_that_turns_out_to_be_elsewhere_prefers_what_is_there() -> None:
    layout = Layout()
    before = snapshot(CONFIG, layout)
    after = snapshot(replace(CONFIG, zone="b"), layout, before)
    owners = [pool.owner(1) for pool in (before.pools["api"], after.pools["api"])]
    assert [owner.name for owner in owners if owner is not None] == ["b1", "b2"]
    assert after.pools["web"] is before.pools["web"]


def in_api(**changes: Any) -> Config:
    """The configuration with this in the first pool."""
    first, *others = CONFIG.pools
    return replace(CONFIG, pools=(replace(first, **changes), *others))


@pytest.mark.parametrize(
    "other",
    [
        replace(CONFIG, zone="b"),
        in_api(prefer_local=False),
        in_api(pins=(Pin("ann", "b2"),)),
        in_api(sticky=Sticky((KeySource("client_ip"),))),
        in_api(bounded_load=BoundedLoad(2.0)),
        in_api(hot_keys=HotKeys("spill")),
        in_api(panic="serve_all"),
        in_api(on_move="pin"),
        in_api(backends=tuple(replace(each, max_in_flight=1) for each in CONFIG.pools[0].backends)),
    ],
)
def test_what_routes_otherwise_has_another_fingerprint(other: Config) -> None:
    assert snapshot(other, Layout()).fingerprint != snapshot(CONFIG, Layout()).fingerprint


@pytest.mark.parametrize(
    "other",
    [
        replace(CONFIG, drain_timeout=1.0, workers=7),
        replace(CONFIG, pools=CONFIG.pools[::-1]),
        in_api(backends=CONFIG.pools[0].backends[::-1]),
        in_api(backends=tuple(replace(each, address=Address("h", 1)) for each in CONFIG.pools[0].backends)),
        in_api(retry=Retry(attempts=1)),
    ],
)
def test_what_routes_alike_has_the_same_fingerprint(other: Config) -> None:
    assert snapshot(other, Layout()).fingerprint == snapshot(CONFIG, Layout()).fingerprint


def test_what_is_known_of_hosts_is_bounded_in_entries_and_in_octets() -> None:
    router = snapshot(CONFIG, Layout()).router
    for number in range(20):
        assert router.find(b"%d" % number + b"x" * 2000, b"/api") is not None
    assert not router._memo
    for number in range(5000):
        router.find(b"%d.example.com" % number, b"/")
    assert 0 < len(router._memo) <= 4096


def test_a_host_may_end_in_the_dot_that_makes_it_absolute() -> None:
    config = loads(
        "listen: 127.0.0.1:0\npools: {exact: {match: {host: a.example.}, backends: [{url: http://a}]}, "
        "wild: {match: {host: '*.b.example'}, backends: [{url: http://a}]}, rest: {backends: [{url: http://a}]}}"
    )
    built = snapshot(config, Layout())
    hosts = {
        b"a.example": "exact",
        b"a.example.": "exact",
        b"x.b.example.": "wild",
        b"a.example..": "rest",
        b".": "rest",
    }
    for host, name in hosts.items():
        assert built.router.find(host, b"/") is built.pools[name]


def test_the_target_that_is_no_path_goes_where_the_root_does() -> None:
    built = snapshot(CONFIG, Layout())
    assert built.router.find(b"a.example", b"*") is built.pools["web"]
    alone = loads("listen: 127.0.0.1:0\npools: {api: {match: {path: /api}, backends: [{url: http://a}]}}")
    assert snapshot(alone, Layout()).router.find(b"a.example", b"*") is None

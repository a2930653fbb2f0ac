"""A plan says what will happen: its shares are those that a crowd of keys then shows, and its text says all of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbproxy.control.config import loads
from lbproxy.control.plan import ADDED, CHANGED, REMOVED, SAME, Side, plan, plan_pool
from lbproxy.control.plan_text import to_json, to_text
from lbproxy.core.hashing import hash_key
from lbproxy.core.sample import Keys
from lbproxy.core.spec import Address, BackendSpec, Config, Pin, PoolSpec, Sticky

HASHES = [hash_key(b"user-%d" % number) for number in range(300_000)]


def spec(zones: str = "", **weights: float) -> PoolSpec:
    backends = [
        BackendSpec(name, Address("127.0.0.1", 80), weight, zones[index : index + 1])
        for index, (name, weight) in enumerate(weights.items())
    ]
    return PoolSpec("api", tuple(backends), vnodes=256)


def side(pool: PoolSpec, *out: str) -> Side:
    weights = {backend.name: backend.weight for backend in pool.backends}
    return Side(pool, weights, [name for name in weights if name not in out])


def owners(of: Side) -> list[str]:
    return [of.ring.names[of.ring.owner(h)] for h in HASHES]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (side(spec(a=1, b=1, c=1, d=1)), side(spec(a=1, b=1, c=1, d=1, e=1))),
        (side(spec(a=1, b=1, c=1, d=1)), side(spec(a=1, b=1, d=1))),
        (side(spec(a=1, b=2, c=1)), side(spec(a=1, b=0.5, c=1))),
        (side(spec(a=1, b=1, c=1)), side(spec(a=1, b=1, c=1), "b")),
        (side(spec(a=1, b=1, c=1), "a"), side(spec(a=1, b=2, c=3))),
    ],
)
def test_predicted_and_observed_moves_agree_within_a_fifth_of_a_point(before: Side, after: Side) -> None:
    found = plan_pool(before, after, Keys(0, frozenset(HASHES)))
    flows = Counter((one, other) for one, other in zip(owners(before), owners(after), strict=True) if one != other)
    assert sum(flows.values()) / len(HASHES) == pytest.approx(found.moves.share, abs=0.002)
    for pair, span in found.moves.flows.items():
        assert flows[pair] / len(HASHES) == pytest.approx(span / found.moves.size, abs=0.002)
    assert set(flows) <= set(found.moves.flows)
    # Of the very keys that were sampled, it is no estimate at all.
    assert found.keys is not None
    assert found.keys.moved == sum(flows.values())
    assert found.moves.needless == 0


def test_backends_that_come_go_and_change() -> None:
    old, new = spec(a=1, b=1, gone=2), spec(a=1, b=3, new=1)
    moved_on = replace(new.backends[0], address=Address("127.0.0.1", 81))
    found = plan_pool(side(old), side(replace(new, backends=(moved_on, *new.backends[1:]))))
    of = {each.name: each for each in found.backends}
    assert {name: (each.change, each.fields) for name, each in of.items()} == {
        "a": (CHANGED, ("address",)),
        "b": (CHANGED, ("weight",)),
        "gone": (REMOVED, ()),
        "new": (ADDED, ()),
    }
    assert (of["gone"].weight_before, of["gone"].weight_after) == (2, None)
    assert (of["b"].expected_before, of["b"].expected_after) == (0.25, 0.6)
    assert of["new"].owned_before == of["gone"].owned_after == 0.0
    assert sum(each.owned_after for each in found.backends) == pytest.approx(1.0)


def test_nothing_changes() -> None:
    found = plan_pool(side(spec(a=1, b=1)), side(spec(b=1, a=1)), Keys(0, frozenset(HASHES[:100])))
    assert not found.is_change
    assert (found.moves.flows, found.warnings, [each.change for each in found.backends]) == ({}, (), [SAME, SAME])
    assert found.keys is not None
    assert (found.keys.seen, found.keys.moved) == (100, 0)


def test_sessions_open_and_sessions_that_stay() -> None:
    pool = replace(spec(a=1, b=1), session_drain=60.0)
    keys = Keys(3, frozenset(HASHES[:1000]), frozenset(HASHES[900:1100]))
    found = plan_pool(side(pool), side(pool, "a"), keys)
    assert found.keys is not None
    homes = dict(zip(HASHES[:1100], owners(side(pool))[:1100], strict=True))
    assert found.keys.moved == found.keys.staying == sum(homes[h] == "a" for h in HASHES[:1000])
    assert (found.keys.open, found.keys.open_moved) == (200, sum(homes[h] == "a" for h in HASHES[900:1100]))
    document = to_json(plan(config(pool), config(pool), {"api": (side(pool), side(pool, "a"))}, {"api": keys}))
    (api,) = document["pools"]
    assert api["sessions_moved_estimate"] == found.keys.moved * 8
    assert api["keys"]["sessions_open"] == 1600
    assert "stay until they are idle" in to_text(document)


def test_near_backends_own_the_keys_of_a_pool_that_prefers_them() -> None:
    pool = replace(spec("aabb", a1=1, a2=1, b1=1, b2=1), prefer_local=True)
    near = Side.of_spec(pool, "a")
    assert set(near.ring.names) == {"a1", "a2"}
    assert set(Side.of_spec(pool).ring.names) == {"a1", "a2", "b1", "b2"}
    weights = {backend.name: backend.weight for backend in pool.backends}
    without = Side(pool, weights, ["b1", "b2"], "a")
    assert set(without.ring.names) == {"b1", "b2"}


def test_warnings() -> None:
    pool = spec(a=1, b=1)
    assert plan_pool(side(pool), side(pool, "a", "b")).warnings == ("no backend would be eligible",)
    others = [
        replace(pool, sticky=Sticky(on_missing="client_ip")),
        replace(pool, vnodes=128),
        replace(pool, pins=(Pin("vip", "a"),)),
    ]
    for other, word in zip(others, ("another way, so every user", "built in another way", "pins"), strict=True):
        (warning,) = plan_pool(side(pool), side(other)).warnings
        assert word in warning


def config(*pools: PoolSpec) -> Config:
    return Config((), pools, ())


OLD = """
version: 1
listen: [127.0.0.1:8080, 127.0.0.1:8081]
workers: 1
pools:
  api:
    match: {path: /api}
    backends: [{name: a, url: "http://127.0.0.1:1"}, {name: b, url: "http://127.0.0.1:2"}]
  web:
    backends: [{name: w, url: "http://127.0.0.1:3"}]
"""
NEW = """
version: 1
listen: [127.0.0.1:8080, 127.0.0.1:8082]
workers: 2
pools:
  api:
    match: {path: /v2}
    retry: {attempts: 5}
    backends: [{name: a, url: "http://127.0.0.1:1"}, {name: b, url: "http://127.0.0.1:2", weight: 2}]
  shop:
    backends: [{name: s, url: "http://127.0.0.1:3"}]
log: {level: debug}
"""


def test_the_whole_configuration_is_compared() -> None:
    document = to_json(plan(loads(OLD), loads(NEW), needs_restart=("workers",)))
    json.dumps(document)
    assert (document["pools_added"], document["pools_removed"]) == (["shop"], ["web"])
    assert (document["listeners_added"], document["listeners_removed"]) == (["127.0.0.1:8082"], ["127.0.0.1:8081"])
    assert (document["settings"], document["needs_restart"]) == (["log", "match"], ["workers"])
    (api,) = document["pools"]
    assert (api["settings"], [flow["from"] for flow in api["flows"]]) == (["retry"], ["a"])
    assert api["moved_share"] == pytest.approx(1 / 6, abs=0.03)
    text = to_text(document)
    for part in (
        "pools that come: shop",
        "pools that go: web",
        "only a restart changes: workers",
        "settings that change: retry",
        "a       -> b      ",
        "1 -> 2",
        "50.00 % -> 66.67 %",
    ):
        assert part in text


def test_an_equal_configuration_is_no_change() -> None:
    document = to_json(plan(loads(OLD), loads(OLD)))
    assert not document["is_change"]
    assert to_text(document) == "nothing changes\n"


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([0.5, 1.0, 2.0]), min_size=1), st.data())
def test_no_plan_moves_a_key_between_two_that_do_not_change(weights: dict[str, float], data: st.DataObject) -> None:
    changed = data.draw(st.sampled_from("abcdef"))
    other = {name: weight for name, weight in weights.items() if name != changed}
    weight = data.draw(st.sampled_from([0.0, 0.5, 1.0, 2.0]))
    if weight:
        other[changed] = weight
    if not other:
        return
    found = plan_pool(side(spec("", **weights)), side(spec("", **other)))
    assert found.moves.needless == 0
    assert all(changed in pair for pair in found.moves.flows)
    before = sum(each.owned_before for each in found.backends)
    assert before == pytest.approx(1.0)

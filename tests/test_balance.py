"""Who serves: the walk along a key's list in every state that backends, bound, zones and hot keys can be in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lbproxy.core.account import CROWD, DRAINING, OUT, SERVING, Account, Backend
from lbproxy.core.balance import Pool
from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import NO_HASH, hash_key
from lbproxy.core.ledger import (
    BACKEND_IN_FLIGHT,
    FAILOVER,
    NO_KEY,
    OWNER,
    POOL_IN_FLIGHT,
    POOL_REQUESTS,
    SPILL_FULL,
    SPILL_HOT,
    row_width,
)
from lbproxy.core.reasons import reasons
from lbproxy.core.recency import SLOTS, Recency
from lbproxy.core.spec import Address, BackendSpec, BoundedLoad, HotKeys, Pin, PoolSpec, Retry

KEYS = [hash_key(b"user-%d" % number) for number in range(2000)]
HARD = BoundedLoad(1.25, 0)
UNBOUNDED = BoundedLoad(None)


def pool_spec(backends: int | Mapping[str, float] | Iterable[BackendSpec] = 4, **changes: Any) -> PoolSpec:
    """A pool of so many backends of weight 1, or of these by weight."""
    if isinstance(backends, int):
        backends = dict.fromkeys([f"b{number}" for number in range(1, backends + 1)], 1.0)
    if isinstance(backends, Mapping):
        backends = [BackendSpec(name, Address("127.0.0.1", 1), weight) for name, weight in backends.items()]
    return PoolSpec("api", tuple(backends), **{"vnodes": 64, **changes})


def in_zones(zones: Mapping[str, str], **changes: Any) -> PoolSpec:
    """A pool of backends by name and zone."""
    return pool_spec([BackendSpec(name, Address("127.0.0.1", 1), zone=zone) for name, zone in zones.items()], **changes)


def machine(spec: PoolSpec, workers: int = 1, zone: str = "") -> list[Pool]:
    """The pool as each of these workers has it."""
    width = row_width("pool") + row_width("sketch") + len(spec.backends) * row_width("backend")
    slabs = [[0] * width for _ in range(workers)]
    return [_pool(spec, slab, [other for other in slabs if other is not slab], zone) for slab in slabs]


def _pool(spec: PoolSpec, slab: list[int], peers: list[list[int]], zone: str) -> Pool:
    first = row_width("pool") + row_width("sketch")
    account = Account(slab, peers, 0, row_width("pool"))
    backends = {
        each.name: Backend(each, first + number * row_width("backend"), each.weight)
        for number, each in enumerate(spec.backends)
    }
    return Pool(spec, account, backends, zone=zone)


def one(spec: PoolSpec, zone: str = "") -> Pool:
    """The pool of a single worker."""
    return machine(spec, zone=zone)[0]


def take(account: Account, backend: Backend, h: int) -> None:
    """Take a seat, of which the other workers know then."""
    account.acquire(backend, h)
    account.tell()


def give_back(account: Account, backend: Backend, h: int) -> None:
    """Give a seat back, of which the other workers know then."""
    account.release(backend, h)
    account.tell()


def fill(pool: Pool, name: str, seats: int) -> None:
    """Let a backend hold so many exchanges without a key."""
    for _ in range(seats):
        take(pool.account, pool.backends[name], -1)


def empty(pool: Pool, name: str) -> None:
    """Let it have answered them all."""
    for _ in range(pool.backends[name].in_flight):
        give_back(pool.account, pool.backends[name], -1)


def picked(pool: Pool, h: int) -> tuple[str, int]:
    """The name of the backend and the decision."""
    backend, decision = pool.pick(h)
    return backend.name if backend is not None else "", decision


def key_of(pool: Pool, owner: str) -> int:
    """A key that this backend owns."""
    return next(h for h in KEYS if names(pool.walk(h))[0] == owner)


def names(backends: Iterable[Backend]) -> list[str]:
    return [backend.name for backend in backends]


class TestPick:
    def test_an_idle_pool_serves_from_the_owner(self) -> None:
        pool = one(pool_spec({"a": 1, "b": 2, "c": 0.5}))
        ring = build_ring([("a", 1), ("b", 2), ("c", 0.5)], 64)
        for h in KEYS:
            assert picked(pool, h) == (ring.names[ring.owner(h)], OWNER)

    def test_from_a_full_owner_to_the_next_of_the_list_and_home_again(self) -> None:
        pool = one(pool_spec(4, bounded_load=HARD))
        h = key_of(pool, "b2")
        order = names(pool.walk(h))
        # Of 12 and the one that is placed, 1.25 times the fair share is 4.06: five slots each.
        fill(pool, order[0], 6)
        for name in order[1:]:
            fill(pool, name, 2)
        assert picked(pool, h) == (order[1], SPILL_FULL)
        fill(pool, order[1], 4)  # of 17 it is 5.3: six slots
        assert picked(pool, h) == (order[2], SPILL_FULL)
        empty(pool, order[0])
        assert picked(pool, h) == (order[0], OWNER)

    def test_its_own_limit_fills_a_backend_too(self) -> None:
        spec = pool_spec(3, bounded_load=UNBOUNDED)
        spec = replace(spec, backends=tuple(replace(each, max_in_flight=2) for each in spec.backends))
        pool = one(spec)
        h = KEYS[0]
        order = names(pool.walk(h))
        for expected in ((order[0], OWNER), (order[1], SPILL_FULL), (order[2], SPILL_FULL)):
            assert picked(pool, h) == expected
            fill(pool, expected[0], 2)
        assert pool.pick(h) == (None, SPILL_FULL)
        assert pool.slots(pool.backends["b1"]) == 2

    def test_when_the_owner_is_out_only_its_own_keys_move(self) -> None:
        pool = one(pool_spec(5))
        before = {h: picked(pool, h)[0] for h in KEYS}
        pool.adopt({"b3": OUT})
        for h in KEYS:
            if before[h] == "b3":
                assert picked(pool, h) == (names(pool.walk(h))[1], FAILOVER)
            else:
                assert picked(pool, h) == (before[h], OWNER)
        pool.adopt({"b3": SERVING})
        assert {h: picked(pool, h)[0] for h in KEYS} == before

    def test_nobody_to_ask(self) -> None:
        pool = one(pool_spec(2))
        pool.adopt({"b1": OUT, "b2": DRAINING})
        assert pool.pick(KEYS[0]) == (None, FAILOVER)
        assert pool.least_loaded() == (None, NO_KEY)
        assert one(pool_spec({"a": 0, "b": 0})).pick(KEYS[0]) == (None, FAILOVER)

    def test_when_an_unrelated_backend_leaves_no_second_choice_changes(self) -> None:
        whole = pool_spec(10, vnodes=256, bounded_load=HARD)
        without = replace(whole, backends=tuple(each for each in whole.backends if each.name != "b7"))
        changed = asked = 0
        for h in KEYS:
            order = names(one_of(whole).walk(h))
            if "b7" in order[:2]:
                continue
            asked += 1
            changed += second_choice(whole, h, order[0]) != second_choice(without, h, order[0])
        assert asked > 1000
        assert changed == 0

    def test_it_is_the_same_when_that_one_only_fails(self) -> None:
        pool = one(pool_spec(10, vnodes=256))
        orders = {h: names(pool.walk(h)) for h in KEYS}
        pool.adopt({"b7": OUT})
        for h, order in orders.items():
            assert names(pool.walk(h)) == order
            following = pool.successor(h, [pool.backends[order[0]]])
            assert following is not None
            assert following.name == next(name for name in order[1:] if name != "b7")

    def test_what_other_workers_hold_counts(self) -> None:
        here, there = machine(pool_spec(4, bounded_load=HARD), workers=2)
        h = key_of(here, "b1")
        order = names(here.walk(h))
        fill(there, order[0], 4)
        for name in order[1:]:
            fill(there, name, 2)
        assert picked(here, h) == (order[1], SPILL_FULL)
        assert here.account.load(here.backends[order[0]]) == 4
        assert here.account.total_with_one_more() == there.account.total_with_one_more() == 11

    def test_the_retry_budget_knows_the_last_seconds_of_traffic_and_keeps_them_in_a_new_configuration(self) -> None:
        pool = one(pool_spec(4, retry=Retry(budget=0.5, min_budget=1)))
        cells, account = pool.account.cells, pool.account

        def left(second: int) -> int:
            return account.budget.left(float(second), account.requests(), 0)

        for second in range(60):
            cells[pool.row + POOL_REQUESTS + 1] += 100 if second < 30 else 0
            pool.tick(float(second))
            if second == 20:
                assert left(second) == 1 + 500
                spec = replace(pool.spec, retry=Retry(budget=0.2, min_budget=3))
                pool = Pool(spec, account, pool.backends, pool)
                assert left(second) == 3 + 200
        assert left(60) == 3

    def test_a_lull_does_not_lower_the_bound_at_once(self) -> None:
        pool = one(pool_spec(4, bounded_load=HARD))
        h = key_of(pool, "b1")
        for name in ("b2", "b3", "b4"):
            fill(pool, name, 12)
        fill(pool, "b1", 4)
        pool.tick(1.0)
        for name in ("b2", "b3", "b4"):
            empty(pool, name)
        assert picked(pool, h) == ("b1", OWNER)
        for tenth in range(11, 100):
            pool.tick(tenth / 10)
        assert picked(pool, h) == (names(pool.walk(h))[1], SPILL_FULL)

    def test_a_failed_attempt_goes_on_where_the_key_will_live(self) -> None:
        pool = one(pool_spec(6))
        for h in KEYS[:200]:
            order = names(pool.walk(h))
            tried: list[Backend] = []
            for name in order[1:]:
                tried.append(pool.backends[order[len(tried)]])
                following = pool.successor(h, tried)
                assert following is not None
                assert following.name == name
            assert pool.successor(h, [*tried, pool.backends[order[-1]]]) is None
            assert pool.has_others(tried)
            assert not pool.has_others(pool.backends.values())


_POOLS: dict[str, Pool] = {}


def one_of(spec: PoolSpec) -> Pool:
    """A pool of that specification, empty, made once."""
    name = repr(spec)
    if name not in _POOLS:
        _POOLS[name] = one(spec)
    return _POOLS[name]


def second_choice(spec: PoolSpec, h: int, owner: str) -> str:
    """Where a key goes while its owner alone is full."""
    pool = one_of(spec)
    seats = 2 * len(pool.backends)
    fill(pool, owner, seats)
    try:
        name, decision = picked(pool, h)
    finally:
        empty(pool, owner)
    assert decision == SPILL_FULL
    return name


class TestHotKeys:
    """`reach` is set by hand here; how it comes about is for the tests of `core/hotkeys.py`."""

    HOT = KEYS[0]

    def hot(self, reach: int = 3, **changes: Any) -> Pool:
        pool = one(pool_spec(changes.pop("backends", 6), bounded_load=HARD, **changes))
        for name in pool.backends:
            fill(pool, name, 5)
        pool.account.hot.reach[self.HOT] = reach
        return pool

    def test_spread_over_the_first_of_its_list_by_load(self) -> None:
        pool = self.hot()
        order = names(pool.walk(self.HOT))
        used = Counter[str]()
        for _ in range(15):
            backend, decision = pool.pick(self.HOT)
            assert backend is not None
            assert decision == (OWNER if backend.name == order[0] else SPILL_HOT)
            take(pool.account, backend, self.HOT)
            used[backend.name] += 1
        assert set(used) >= set(order[:3])
        assert used[order[0]] >= max(used[name] for name in order[3:])

    def test_it_takes_the_least_loaded_by_weight(self) -> None:
        pool = self.hot(reach=2, backends={"a": 1, "b": 1, "c": 4})
        order = names(pool.walk(self.HOT))[:2]
        light, heavy = sorted(order, key=lambda name: pool.backends[name].weight)
        if pool.backends[heavy].weight > pool.backends[light].weight:
            fill(pool, heavy, 3)  # eight at weight 4 are fewer than five at weight 1
            assert picked(pool, self.HOT)[0] == heavy

    def test_never_above_its_fair_share_and_then_the_next(self) -> None:
        pool = self.hot(reach=2)
        order = names(pool.walk(self.HOT))
        for name in order[:2]:
            fill(pool, name, 2)
        # 34 and one more over six backends: 5.8 each, and the first two hold seven.
        assert picked(pool, self.HOT) == (order[2], SPILL_HOT)

    def test_cold_keys_keep_their_owner(self) -> None:
        pool = self.hot(reach=4)
        owner = names(pool.walk(self.HOT))[0]
        cold = next(h for h in KEYS[1:] if names(pool.walk(h))[0] == owner)
        fill(pool, owner, 1)  # at its fair share, and below its bound
        assert picked(pool, self.HOT)[0] != owner
        assert picked(pool, cold) == (owner, OWNER)

    def test_spill_leaves_only_when_the_owner_has_its_share(self) -> None:
        pool = self.hot(reach=4, hot_keys=HotKeys("spill"))
        order = names(pool.walk(self.HOT))
        empty(pool, order[1])
        fill(pool, order[2], 5)
        assert picked(pool, self.HOT) == (order[0], OWNER)  # however empty the next one is
        fill(pool, order[0], 1)
        assert picked(pool, self.HOT) == (order[1], SPILL_HOT)

    def test_off_treats_it_like_any_other(self) -> None:
        pool = self.hot(reach=4, hot_keys=HotKeys("off", max_in_flight=3))
        owner = names(pool.walk(self.HOT))[0]
        fill(pool, owner, 1)
        assert picked(pool, self.HOT) == (owner, OWNER)

    def test_a_replica_that_fails_is_replaced_at_once(self) -> None:
        pool = self.hot(reach=2)
        order = names(pool.walk(self.HOT))
        assert picked(pool, self.HOT)[0] in order[:2]
        pool.adopt({order[0]: OUT})
        for name in order:
            empty(pool, name)
        seen = set()
        for _ in range(2):
            backend, decision = pool.pick(self.HOT)
            assert backend is not None
            assert decision == FAILOVER
            take(pool.account, backend, -1)
            seen.add(backend.name)
        assert seen == set(order[1:3])

    @pytest.mark.parametrize("workers", [1, 3])
    def test_a_key_is_found_and_forgotten_through_the_ticks(self, workers: int) -> None:
        pools = machine(pool_spec(10), workers)
        for number, h in enumerate(KEYS[1:161]):
            pool = pools[number % workers]
            pool.account.seen(h)
            take(pool.account, pool.backends[picked(pool, h)[0]], h)
        held: list[tuple[Pool, Backend]] = []
        for number in range(40):
            pool = pools[number % workers]
            backend, _ = pool.pick(self.HOT)
            assert backend is not None
            pool.account.seen(self.HOT)
            take(pool.account, backend, self.HOT)
            held.append((pool, backend))
        self.ticks(pools, 100.0, 15)
        assert [pool.account.held_by_key(self.HOT) for pool in pools] == [40] * workers
        reaches = {pool.account.hot.reach[self.HOT] for pool in pools}
        assert len(reaches) == 1
        assert reaches.pop() > 2
        for pool, backend in held:
            give_back(pool.account, backend, self.HOT)
        self.ticks(pools, 101.5, 100)
        assert [pool.account.hot.reach for pool in pools] == [{}] * workers
        assert [pool.account.held_by_key(self.HOT) for pool in pools] == [0] * workers

    def asked_for(self, spec: PoolSpec) -> Pool:
        """A pool with a key that is hot by now, and 160 that are not."""
        pool = one(spec)
        for h in (*KEYS[1:161], *[self.HOT] * 40):
            pool.account.seen(h)
            take(pool.account, pool.backends[picked(pool, h)[0]], h)
        self.ticks([pool], 100.0, 15)
        return pool

    @pytest.mark.parametrize("limit", [None, 100])
    def test_none_is_hot_any_more_when_it_is_switched_off(self, limit: int | None) -> None:
        before = self.asked_for(pool_spec(10))
        account = before.account
        assert self.HOT in account.hot.hot
        off = replace(before.spec, hot_keys=HotKeys("off", limit))
        self.ticks([Pool(off, account, before.backends, before)], 101.5, 1)
        assert (account.hot.hot, account.hot.reach) == ({}, {})
        # With a limit one wants to know which keys are near to it.
        assert [row.key for row in account.hot.top.rows[:1]] == ([] if limit is None else [self.HOT])

    def test_what_was_held_while_it_was_off_is_no_work(self) -> None:
        before = self.asked_for(pool_spec(10))
        off = Pool(replace(before.spec, hot_keys=HotKeys("off")), before.account, before.backends, before)
        self.ticks([off], 101.5, 1)
        since = Pool(before.spec, off.account, off.backends, off)
        self.ticks([since], 5000.0, 20)
        assert since.account.hot.top.work <= 200 * 1e6  # 200 seats, remembered for a second
        assert self.HOT in since.account.hot.reach

    @staticmethod
    def ticks(pools: list[Pool], now: float, count: int) -> None:
        for tick in range(count):
            for pool in pools:
                pool.tick(now + tick / 10)


class TestZones:
    THREE = {f"{zone}{number}": zone for zone in "abc" for number in (1, 2, 3)}  # noqa: RUF012 - it is not changed
    LOCAL = in_zones(THREE, prefer_local=True, bounded_load=BoundedLoad())

    def test_replicas_go_to_different_zones_while_there_are_any(self) -> None:
        pool = one(in_zones(self.THREE))
        for h in KEYS:
            replicas = [backend.spec.zone for backend in pool.replicas(h)]
            assert len(set(replicas[:3])) == 3
            assert names(pool.replicas(h))[0] == names(pool.walk(h))[0]
            assert sorted(names(pool.replicas(h))) == sorted(self.THREE)
        pool.adopt({name: OUT for name, zone in self.THREE.items() if zone == "b"})
        for h in KEYS[:100]:
            assert len({backend.spec.zone for backend in list(pool.replicas(h))[:2]}) == 2

    def test_backends_without_a_zone_are_as_they_come(self) -> None:
        pool = one(pool_spec(5))
        for h in KEYS[:100]:
            assert names(pool.replicas(h)) == names(pool.walk(h))

    def test_without_preference_the_proxys_zone_changes_nothing(self) -> None:
        spec = in_zones(self.THREE)
        here, nowhere = one(spec, zone="a"), one(spec)
        for h in KEYS:
            assert names(here.walk(h)) == names(nowhere.walk(h))

    def test_every_proxy_agrees_on_the_ring_and_its_owners(self) -> None:
        """One ring; a proxy's list is that ring's, with those at home first. So two in one zone agree on everything."""
        everywhere = one(replace(self.LOCAL, prefer_local=False))
        pools = {zone: one(self.LOCAL, zone=zone) for zone in "abc"}
        assert {pool.ring.fingerprint for pool in pools.values()} == {everywhere.ring.fingerprint}
        for h in KEYS:
            order = list(everywhere.walk(h))
            for zone, pool in pools.items():
                assert pool.ring.owner(h) == everywhere.ring.owner(h)
                at_home = [each.name for each in order if each.spec.zone == zone]
                elsewhere = [each.name for each in order if each.spec.zone != zone]
                assert names(pool.walk(h)) == at_home + elsewhere
                owner = pool.owner(h)
                assert owner is not None
                assert owner.name == at_home[0]
        assert names(one(self.LOCAL, zone="a").walk(KEYS[0])) == names(pools["a"].walk(KEYS[0]))

    def test_a_proxy_in_no_known_zone_prefers_nobody(self) -> None:
        everywhere = one(replace(self.LOCAL, prefer_local=False))
        for zone in ("", "d"):
            pool = one(self.LOCAL, zone=zone)
            assert all(names(pool.walk(h)) == names(everywhere.walk(h)) for h in KEYS[:100])

    def test_traffic_stays_at_home(self) -> None:
        pool = one(self.LOCAL, zone="a")
        zones = self.load_up(pool, 600)
        assert zones == {"a": 600}
        assert max(pool.backends[name].in_flight for name in ("a1", "a2", "a3")) <= 250

    def test_requests_without_a_key_stay_at_home_too(self) -> None:
        pool = one(self.LOCAL, zone="a")
        for _ in range(60):
            backend, _ = pool.least_loaded()
            assert backend is not None
            take(pool.account, backend, -1)
        assert {name: each.in_flight for name, each in pool.backends.items() if each.in_flight} == dict.fromkeys(
            ("a1", "a2", "a3"), 20
        )
        pool.adopt(dict.fromkeys(("a1", "a2", "a3"), OUT))
        backend, _ = pool.least_loaded()
        assert backend is not None
        assert backend.spec.zone != "a"

    def test_the_bound_forces_out_what_a_failed_backend_leaves_behind(self) -> None:
        pool = one(self.LOCAL, zone="a")
        pool.adopt({"a1": OUT})
        zones = self.load_up(pool, 600)
        assert sum(zones.values()) == 600
        # Two thirds of the zone hold 1.25 times what they held before, the others the rest.
        assert 450 <= zones["a"] <= 500
        assert max(each.in_flight for each in pool.backends.values()) <= 250
        assert max(pool.backends[f"b{number}"].in_flight for number in (1, 2, 3)) < 50

    def test_without_anybody_else_home_carries_all(self) -> None:
        pool = one(self.LOCAL, zone="a")
        pool.adopt({"a1": OUT} | {name: OUT for name, zone in self.THREE.items() if zone != "a"})
        assert self.load_up(pool, 300) == {"a": 300}

    def test_when_home_is_gone_the_order_is_everybodys(self) -> None:
        pool, everywhere = one(self.LOCAL, zone="a"), one(replace(self.LOCAL, prefer_local=False))
        states = dict.fromkeys(("a1", "a2", "a3"), OUT)
        pool.adopt(states)
        everywhere.adopt(states)
        for h in KEYS:
            assert picked(pool, h)[0] == picked(everywhere, h)[0]

    def test_a_limit_forces_out_too(self) -> None:
        limited = tuple(replace(each, max_in_flight=10) for each in self.LOCAL.backends)
        pool = one(replace(self.LOCAL, backends=limited), zone="b")
        assert self.load_up(pool, 60)["b"] == 30

    def test_a_hot_key_is_spread_at_home_first(self) -> None:
        pool = one(self.LOCAL, zone="c")
        for h in KEYS[:100]:
            assert {backend.spec.zone for backend in list(pool.replicas(h))[:3]} == {"c"}

    @staticmethod
    def load_up(pool: Pool, exchanges: int) -> Counter[str]:
        """Place so many of different keys; where they went, by zone."""
        zones = Counter[str]()
        for number in range(exchanges):
            h = hash_key(b"%d" % number)
            backend, _ = pool.pick(h)
            assert backend is not None
            take(pool.account, backend, h)
            zones[backend.spec.zone] += 1
            pool.tick(1000.0)
        return zones


class TestPins:
    def test_exact_before_the_longest_prefix(self) -> None:
        pins = (
            Pin("tenant-", "b1", is_prefix=True),
            Pin("tenant-7", "b2", is_prefix=True, on_down="reject"),
            Pin("tenant-7", "b3"),
        )
        pool = one(pool_spec(4, pins=pins))
        found = {key: pool.pinned(key) for key in (b"tenant-1", b"tenant-71", b"tenant-7", b"other", b"tenant")}
        assert {key: pin.backend if pin else None for key, pin in found.items()} == {
            b"tenant-1": "b1",
            b"tenant-71": "b2",
            b"tenant-7": "b3",
            b"other": None,
            b"tenant": None,
        }
        assert pool.has_guides
        assert not one(pool_spec(4)).has_guides


class TestDraining:
    def drained(self) -> tuple[Pool, int]:
        pool = one(pool_spec(4, session_drain=60.0, bounded_load=HARD))
        pool.account.sessions = Recency(bytearray(SLOTS), 60.0, 1.0)
        return pool, key_of(pool, "b2")

    def test_known_sessions_stay_and_new_ones_do_not_come(self) -> None:
        pool, known = self.drained()
        pool.remember(known)
        pool.adopt({"b2": DRAINING})
        new = next(h for h in KEYS if h != known and names(pool.walk(h))[0] == "b2")
        assert picked(pool, known) == ("b2", OWNER)
        assert picked(pool, new) == (names(pool.walk(new))[1], FAILOVER)
        pool.remember(new)
        assert picked(pool, new)[1] == FAILOVER
        assert [pool.residence(h) for h in (known, new)] == [pool.backends["b2"], None]

    def test_a_session_that_settled_where_it_went_stays_there_when_that_drains_too(self) -> None:
        pool, settled = self.drained()
        second, third = names(pool.walk(settled))[1:3]
        pool.adopt({"b2": DRAINING})
        pool.remember(settled)
        assert picked(pool, settled) == (second, FAILOVER)
        pool.adopt({second: DRAINING})
        new = next(h for h in KEYS if h != settled and names(pool.walk(h))[:3] == ["b2", second, third])
        for _ in range(2):
            assert picked(pool, settled) == (second, FAILOVER)
            assert picked(pool, new) == (third, FAILOVER)
            pool.remember(settled)
            pool.remember(new)
        assert pool.place_of(settled) is pool.backends[second]
        pool.adopt({second: OUT})
        assert picked(pool, settled) == (third, FAILOVER)

    def test_a_session_that_settled_elsewhere_goes_home_when_its_owner_is_back(self) -> None:
        pool, settled = self.drained()
        second = names(pool.walk(settled))[1]
        pool.adopt({"b2": DRAINING})
        pool.remember(settled)
        pool.adopt({"b2": SERVING, second: DRAINING})
        assert picked(pool, settled) == ("b2", OWNER)

    def test_a_session_that_was_idle_for_long_goes(self) -> None:
        pool, known = self.drained()
        pool.remember(known)
        pool.adopt({"b2": DRAINING})
        for second in range(2, 70):
            pool.tick(float(second))
        assert picked(pool, known)[1] == FAILOVER

    def test_the_bound_does_not_drive_a_known_session_away_but_the_limit_does(self) -> None:
        pool, known = self.drained()
        pool.remember(known)
        pool.adopt({"b2": DRAINING})
        fill(pool, "b2", 50)
        assert picked(pool, known) == ("b2", OWNER)
        pool.backends["b2"].limit = 50
        assert picked(pool, known)[1] == FAILOVER

    def test_down_is_down_even_for_known_sessions(self) -> None:
        pool, known = self.drained()
        pool.remember(known)
        pool.adopt({"b2": OUT})
        assert picked(pool, known)[1] == FAILOVER

    def test_without_a_memory_of_sessions_nobody_stays(self) -> None:
        pool = one(pool_spec(4))
        h = key_of(pool, "b2")
        pool.adopt({"b2": DRAINING})
        assert picked(pool, h)[1] == FAILOVER
        assert pool.residence(h) is None


class TestPanic:
    def test_serve_all_asks_the_owner_though_it_is_out(self) -> None:
        pool = one(pool_spec(3, panic="serve_all"))
        everybody_out = dict.fromkeys(pool.backends, OUT)
        owners = {h: picked(pool, h) for h in KEYS[:100]}
        pool.adopt(everybody_out)
        assert pool.is_panicking
        assert pool.eligible == 3
        assert {h: picked(pool, h) for h in KEYS[:100]} == owners
        pool.adopt({"b2": SERVING})
        assert not pool.is_panicking
        assert {picked(pool, h)[0] for h in KEYS[:100]} == {"b2"}

    def test_off_serves_nobody(self) -> None:
        pool = one(pool_spec(3))
        pool.adopt(dict.fromkeys(pool.backends, OUT))
        assert not pool.is_panicking
        assert pool.pick(KEYS[0]) == (None, FAILOVER)


class TestLeastLoaded:
    def test_an_idle_pool_is_used_in_proportion(self) -> None:
        pool = one(pool_spec({"a": 1, "b": 2, "c": 5, "none": 0}))
        served = Counter(self.serve(pool) for _ in range(800))
        assert served == {"a": 100, "b": 200, "c": 500}

    def test_a_busy_one_too(self) -> None:
        pool = one(pool_spec({"a": 1, "b": 2, "c": 5}))
        for _ in range(160):
            backend, decision = pool.least_loaded()
            assert backend is not None
            assert decision == NO_KEY
            take(pool.account, backend, -1)
        assert {name: backend.in_flight for name, backend in pool.backends.items()} == {"a": 20, "b": 40, "c": 100}

    def test_one_that_comes_back_does_not_get_all_that_it_missed(self) -> None:
        pool = one(pool_spec(3))
        pool.adopt({"b3": OUT})
        assert "b3" not in {self.serve(pool) for _ in range(300)}
        pool.adopt({"b3": SERVING})
        assert Counter(self.serve(pool) for _ in range(300)) == {"b1": 100, "b2": 100, "b3": 100}

    def test_nor_does_one_that_is_new(self) -> None:
        spec = pool_spec(2)
        pool = one(spec)
        for _ in range(100):
            self.serve(pool)
        newcomer = BackendSpec("b3", Address("127.0.0.1", 1))
        backends = {**pool.backends, "b3": Backend(newcomer, 0, 1.0)}
        grown = Pool(replace(spec, backends=(*spec.backends, newcomer)), pool.account, backends, pool)
        assert Counter(self.serve(grown) for _ in range(90)) == {"b1": 30, "b2": 30, "b3": 30}

    def test_who_was_tried_full_or_out_is_passed_over(self) -> None:
        pool = one(pool_spec(4))
        pool.adopt({"b1": OUT})
        pool.backends["b2"].limit = 0
        assert {self.serve(pool, [pool.backends["b3"]]) for _ in range(5)} == {"b4"}
        assert pool.least_loaded([pool.backends["b3"], pool.backends["b4"]]) == (None, NO_KEY)

    @staticmethod
    def serve(pool: Pool, tried: Iterable[Backend] = ()) -> str:
        backend, _ = pool.least_loaded(list(tried))
        assert backend is not None
        return backend.name


class TestTelling:
    def test_without_a_crowd_the_others_know_at_once(self) -> None:
        here, there = machine(pool_spec(2), workers=2)
        mine, seen = here.backends["b1"], there.backends["b1"]
        for held in range(1, CROWD):
            assert not here.account.acquire(mine, NO_HASH)
            assert there.account.load(seen) == held
        for held in reversed(range(CROWD - 1)):
            assert not here.account.release(mine, NO_HASH)
            assert there.account.load(seen) == held

    def test_a_crowd_is_told_of_together_and_asked_for_once(self) -> None:
        here, there = machine(pool_spec(2), workers=2)
        fill(here, "b1", CROWD)
        moves = [here.account.acquire(here.backends[name], KEYS[0]) for name in ("b1", "b2", "b1", "b2")]
        moves.append(here.account.release(here.backends["b2"], KEYS[0]))
        assert moves == [True, False, False, False, False]
        assert [there.account.load(backend) for backend in there.backends.values()] == [CROWD, 0]
        here.account.tell()
        assert [there.account.load(backend) for backend in there.backends.values()] == [CROWD + 2, 1]
        assert there.account.total_with_one_more() == CROWD + 4
        assert here.account.acquire(here.backends["b2"], KEYS[0])  # and so on

    def test_where_a_limit_has_to_be_kept_they_know_at_once(self) -> None:
        spec = BackendSpec("b1", Address("127.0.0.1", 1), max_in_flight=50)
        here, there = machine(pool_spec([spec]), workers=2)
        for held in range(1, 2 * CROWD):
            assert not here.account.acquire(here.backends["b1"], NO_HASH)
            assert there.account.load(there.backends["b1"]) == held

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.booleans()), max_size=60))
    def test_once_told_the_others_are_right(self, moves: list[tuple[bool, int, bool]]) -> None:
        here, there = machine(pool_spec(3), workers=2)
        backends = list(here.backends.values())
        for takes, at, tells in moves:
            if takes:
                here.account.acquire(backends[at], NO_HASH)
            elif backends[at].in_flight:
                here.account.release(backends[at], NO_HASH)
            if tells:
                here.account.tell()
                assert [there.account.load(each) for each in there.backends.values()] == [
                    each.in_flight for each in backends
                ]
                assert there.account.total_with_one_more() == here.account.in_flight + 1


class TestTunnels:
    @pytest.mark.parametrize(("weight", "seats"), [(0.0, 0), (0.1, 1), (0.3, 4), (1.0, 14), (2.5, 35)])
    def test_they_count_apart_with_a_weight_of_their_own(self, weight: float, seats: int) -> None:
        here, there = machine(pool_spec(3, bounded_load=BoundedLoad(1.25, 0, weight)), workers=2)
        account, backend = here.account, here.backends["b2"]
        for number in range(14):
            take(account, backend, KEYS[number])
            account.begin_tunnel(backend, KEYS[number], weight)
        take(account, backend, -1)
        assert backend.in_flight == account.in_flight == seats + 1
        assert there.account.load(there.backends["b2"]) == there.account.total_with_one_more() - 1 == seats + 1
        assert account.meter.held == {}
        for _ in range(14):
            account.end_tunnel(backend, weight)
        assert backend.in_flight == account.in_flight == 1
        assert there.account.load(there.backends["b2"]) == 1

    def test_a_new_weight_counts_for_those_that_are_open(self) -> None:
        spec = pool_spec(2, bounded_load=BoundedLoad(tunnel_weight=1.0))
        pool = one(spec)
        backend = pool.backends["b1"]
        for _ in range(10):
            take(pool.account, backend, -1)
            pool.account.begin_tunnel(backend, -1, 1.0)
        heavier = replace(spec, bounded_load=BoundedLoad(tunnel_weight=0.5))
        Pool(heavier, pool.account, pool.backends, pool)
        assert backend.in_flight == pool.account.in_flight == 5
        pool.account.end_tunnel(backend, 0.5)
        assert backend.in_flight == 4

    def test_those_of_weight_turn_requests_away(self) -> None:
        pool = one(pool_spec(4, bounded_load=BoundedLoad(1.25, 0, 0.5)))
        h = key_of(pool, "b1")
        for _ in range(12):
            take(pool.account, pool.backends["b1"], -1)
            pool.account.begin_tunnel(pool.backends["b1"], -1, 0.5)
        assert picked(pool, h) == (names(pool.walk(h))[1], SPILL_FULL)


# The explanation, and everything at once

ZONES = ("", "a", "b", "c")
specs = st.builds(
    lambda weights, zones, limits, factor, gap, mode, local, panic: PoolSpec(
        "api",
        tuple(
            BackendSpec(f"b{number}", Address("127.0.0.1", 1), weight, zone, limit)
            for number, (weight, zone, limit) in enumerate(zip(weights, zones, limits, strict=False))
        ),
        vnodes=16,
        bounded_load=BoundedLoad(factor, gap),
        hot_keys=HotKeys(mode),
        prefer_local=local,
        panic=panic,
    ),
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.0, 3.0]), min_size=1, max_size=7).filter(any),
    st.lists(st.sampled_from(ZONES), min_size=7, max_size=7),
    st.lists(st.sampled_from([None, None, None, 1, 4]), min_size=7, max_size=7),
    st.sampled_from([None, 1.0, 1.25, 2.0]),
    st.sampled_from([None, 0, 2]),
    st.sampled_from(["spread", "spill", "off"]),
    st.booleans(),
    st.sampled_from(["off", "serve_all"]),
)
states_of_seven = st.dictionaries(
    st.sampled_from([f"b{number}" for number in range(7)]), st.sampled_from([SERVING, SERVING, DRAINING, OUT])
)


@given(specs, st.sampled_from(ZONES), states_of_seven, st.lists(st.integers(0, 40), min_size=7, max_size=7), st.data())
@settings(max_examples=100, deadline=None)
def test_explain_agrees_with_pick(
    spec: PoolSpec, zone: str, states: dict[str, int], held: list[int], data: st.DataObject
) -> None:
    here, there = machine(spec, workers=2, zone=zone)
    for pool in (here, there):
        pool.account.sessions = Recency(bytearray(SLOTS), 60.0, 1.0) if data.draw(st.booleans()) else None
        for h in KEYS[:20:2]:
            pool.remember(h)
    for number, (name, count) in enumerate(zip(here.backends, held, strict=False)):
        fill((here, there)[number % 2], name, count)
    for h in KEYS[:8]:
        here.account.hot.reach[h] = data.draw(st.integers(1, 7))
    here.adopt(states)
    for h in KEYS[:60]:
        check_explanation(here, h)


def check_explanation(pool: Pool, h: int) -> None:
    explained = reasons(pool, h)
    assert names(backend for backend, _ in explained) == names(pool.walk(h))
    may = [backend for backend, reason in explained if reason.endswith("may serve")]
    backend, decision = pool.pick(h)
    total = pool.account.total_with_one_more()
    if backend is None:
        assert not may
        assert decision == (SPILL_FULL if pool.eligible else FAILOVER)
    elif not may:  # everybody is at the bound, but not at their limits
        assert all(reason.startswith(("at its", "not eligible", "draining")) for _, reason in explained)
        assert pool.account.load(backend) < backend.limit
    elif any("hot key" in reason for _, reason in explained) and "draining" not in dict(explained)[backend]:
        assert backend in may
    else:
        assert backend is may[0]
    for each, reason in explained:
        if reason == "may serve":
            assert each.eligible
            slots = pool.slots(each)
            assert slots is None or pool.account.load(each) < slots
        elif reason.startswith("at its bound"):
            assert int(reason.split()[-2]) <= pool.account.load(each)
            assert not pool.bound.has_room(each.member, pool.account.load(each), total)


class Balancing(RuleBasedStateMachine):
    """Two workers place exchanges of hot and cold keys while backends come and go; all counts are fresh."""

    @initialize(spec=specs, zone=st.sampled_from(ZONES))
    def start(self, spec: PoolSpec, zone: str) -> None:
        self.spec = spec
        self.pools = machine(spec, workers=2, zone=zone)
        self.held: list[tuple[int, Backend, int]] = []
        self.now = 1.0

    @rule(worker=st.integers(0, 1), key=st.integers(0, 40), burst=st.integers(1, 12))
    def arrive(self, worker: int, key: int, burst: int) -> None:
        pool = self.pools[worker]
        for step in range(burst):
            # Few keys come often, so that some become hot.
            h = KEYS[key if key < 3 else key + step]
            pool.account.seen(h)
            self.place(worker, h)

    def place(self, worker: int, h: int) -> None:
        pool = self.pools[worker]
        account = pool.account
        before = {name: account.load(backend) for name, backend in pool.backends.items()}
        check_explanation(pool, h)
        backend, decision = pool.pick(h)
        if backend is None:
            assert all(
                not each.eligible or not each.weight or before[each.name] >= each.limit
                for each in pool.backends.values()
            )
            return
        assert backend.eligible
        assert before[backend.name] < backend.limit
        assert (decision == OWNER) <= (backend is pool.owner(h) or h in account.hot.reach)
        slots = pool.bound.slots(backend.member, account.total_with_one_more())
        is_limited = any(each.limit < 1000 for each in pool.backends.values())
        if slots is not None and not is_limited:
            assert before[backend.name] < slots, "the bound holds, strictly"
        take(account, backend, h)
        self.held.append((worker, backend, h))

    @rule(worker=st.integers(0, 1))
    def arrive_without_a_key(self, worker: int) -> None:
        pool = self.pools[worker]
        backend, decision = pool.least_loaded()
        assert decision == NO_KEY
        if backend is not None:
            assert backend.eligible
            take(pool.account, backend, -1)
            self.held.append((worker, backend, -1))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), share=st.floats(0, 1))
    def leave(self, data: st.DataObject, share: float) -> None:
        for _ in range(max(1, int(len(self.held) * share))):
            at = data.draw(st.integers(0, len(self.held) - 1)) if len(self.held) < 10 else 0
            worker, backend, h = self.held.pop(at)
            give_back(self.pools[worker].account, backend, h)

    @rule(states=states_of_seven)
    def adopt(self, states: dict[str, int]) -> None:
        for pool in self.pools:
            pool.adopt(states)

    @rule(steps=st.integers(1, 20))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self.now += 0.1
            for pool in self.pools:
                pool.tick(self.now)

    @invariant()
    def counts_add_up(self) -> None:
        if not hasattr(self, "pools"):
            return
        for worker, pool in enumerate(self.pools):
            mine = [backend for at, backend, _ in self.held if at == worker]
            assert pool.account.in_flight == len(mine) == sum(each.in_flight for each in pool.backends.values())
            cells = pool.account.cells
            assert cells[POOL_IN_FLIGHT] == len(mine)
            for backend in pool.backends.values():
                assert backend.in_flight == mine.count(backend) == cells[backend.row + BACKEND_IN_FLIGHT]
                assert pool.account.load(backend) == sum(each.name == backend.name for _, each, _ in self.held)
            assert pool.account.meter.held == Counter(h for at, _, h in self.held if at == worker and h >= 0)

    @invariant()
    def nobody_is_at_zero(self) -> None:
        if not hasattr(self, "pools"):
            return
        for pool in self.pools:
            total = pool.account.total_with_one_more()
            for backend in pool.backends.values():
                slots = pool.bound.slots(backend.member, total)
                if backend.eligible and backend.weight and slots is not None:
                    assert slots >= 1


TestBalancing = Balancing.TestCase
TestBalancing.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)

"""Finding hot keys and sizing their spread. What that is for, tests/test_simulate.py shows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbproxy.core.hashing import hash_key
from lbproxy.core.hotkeys import (
    HOLD_S,
    LONGEST_HOLD_S,
    MEMORY_S,
    HotKeys,
    Meter,
    Parts,
    Room,
)
from lbproxy.core.sketch import STALE_S, Row, Table

HOT = 1
TICK_S = 0.1


class TestMeter:
    def test_the_bound_append_survives_a_fold(self) -> None:
        meter = Meter()
        saw = meter.seen.append
        saw(7)
        assert meter.fold(1.0).requests == 1000
        saw(8)
        assert {row.key for row in meter.fold(1.0).rows} == {7, 8}

    def test_requests_and_work_are_told_apart(self) -> None:
        meter = Meter()
        meter.fold(1.0)
        meter.seen.extend([5] * 90 + [6] * 10)
        meter.held.update({5: 1, 6: 9})
        table = meter.fold(1.1)
        parts = {row.key: (row.requests / table.requests, row.work / table.work, row.held) for row in table.rows}
        assert parts[5] == pytest.approx((0.9, 0.1, 1))
        assert parts[6] == pytest.approx((0.1, 0.9, 9))

    def test_work_is_seats_over_time(self) -> None:
        meter = Meter()
        meter.fold(5.0)
        meter.held[9] = 4
        assert meter.fold(5.25).work == 1_000_000
        now = 5.25
        for _ in range(100):
            now += TICK_S
            table = meter.fold(now)
        assert table.work / 1e6 / MEMORY_S == pytest.approx(4, rel=0.06)

    def test_the_greater_of_both_shares_ranks_a_key(self) -> None:
        meter = Meter()
        meter.fold(1.0)
        for h in range(100):
            meter.seen.extend([h] * 1000)
        meter.held[500] = 1
        assert meter.fold(1.1).rows[0].key == 500
        del meter.held[500]
        meter.held.update(dict.fromkeys(range(100), 1000))
        meter.seen.extend([600] * 200_000)
        assert meter.fold(1.2).rows[0].key == 600

    def test_keys_of_a_single_seat_among_thousands_count_into_the_whole(self) -> None:
        meter = Meter(capacity=64)
        meter.fold(1.0)
        meter.held.update(dict.fromkeys(range(3000), 1))
        meter.held[-1] = 1000
        table = meter.fold(1.1)
        assert table.work == pytest.approx(400_000_000, rel=1e-6)
        assert table.rows[0] == Row(-1, 0, 100_000_000, 1000)

    def test_a_key_that_ended_fades(self) -> None:
        meter = Meter()
        meter.fold(1.0)
        meter.seen.extend([3] * 1000)
        first = meter.fold(1.1).requests
        assert meter.fold(1.1 + MEMORY_S).requests == pytest.approx(first / 2.718, rel=0.01)

    def test_memory_is_bounded_and_a_heavy_key_is_not_lost_in_it(self) -> None:
        meter = Meter(capacity=64)
        now = 1.0
        for step in range(50):
            meter.seen.extend(range(step * 1000, step * 1000 + 900))
            meter.seen.extend([-1] * 100)
            now += TICK_S
            table = meter.fold(now)
        assert len(table.rows) <= 64
        assert table.rows[0].key == -1
        assert table.rows[0].requests / table.requests == pytest.approx(0.1, abs=1 / 64)


def equal(backends: int) -> Parts:
    """Every key's list has so many backends of one weight."""
    return lambda _: [1 / backends] * backends


class TestRoom:
    """Mostly of 2,000 seats under the hard bound, where neither the gap nor the fewest seats have a part in it."""

    @pytest.mark.parametrize("factor", [1.1, 1.25, 2.0])
    @pytest.mark.parametrize("part", [0.08, 0.1, 0.5])
    def test_a_key_is_hot_when_it_takes_more_than_half_of_its_owners_room(self, part: float, factor: float) -> None:
        room = Room(2000, factor, 0)
        share = room.threshold(part)
        assert share + (1 - share) * part == pytest.approx(part * (1 + (factor - 1) / 2))

    @pytest.mark.parametrize(("seats", "gap", "above"), [(100, None, 5 / 4), (100, 20, 10), (10_000, None, 25 / 2)])
    def test_half_of_the_gap_if_that_is_more(self, seats: int, gap: int | None, above: float) -> None:
        fair = seats / 100
        assert Room(seats, 1.25, gap).above(1 / 100) * fair == pytest.approx(max(above, 2))

    def test_a_light_backend_can_carry_less(self) -> None:
        room = Room(2000, 1.25, 0)
        assert room.threshold(0.1) > 3 * room.threshold(0.02)

    def test_alone_nothing_is_hot(self) -> None:
        assert Room(2000, 1.25, 0).threshold(1.0) > 1
        assert Room(0, 1.25, 0).threshold(0.1) > 1

    @given(st.floats(0.001, 1), st.integers(2, 100), st.floats(1.05, 4))
    def test_spread_so_far_half_the_room_is_left(self, share: float, backends: int, factor: float) -> None:
        needed = Room(1e6, factor, 0).needed(share, equal(backends)(0))
        assert share / needed + (1 - share) / backends == pytest.approx((1 + (factor - 1) / 2) / backends)

    @given(st.floats(0.01, 1), st.lists(st.floats(0.01, 1), min_size=1, max_size=20))
    def test_each_backend_takes_its_weights_part(self, share: float, weights: list[float]) -> None:
        parts = [weight / sum(weights) for weight in weights]
        needed = Room(1e6, 1.25, 0).needed(share, parts)
        whole = int(needed)
        together = sum(parts[:whole]) + (needed - whole) * (parts[whole] if whole < len(parts) else 0)
        assert share / together + 1 - share == pytest.approx(1.125)

    def test_nothing_needs_nobody(self) -> None:
        assert Room(1000, 1.25, 0).needed(0.0, [0.5, 0.5]) == 0
        assert Room(1000, 1.25, 0).needed(0.5, []) == 0


def table_at(now: float, work: dict[int, float], total: float = 200.0) -> Table:
    """A table that says each key holds so many of `total` seats, and has the same part of the requests."""
    rows = tuple(Row(key, int(seats * 1e4), int(seats * MEMORY_S * 1e6), round(seats)) for key, seats in work.items())
    return Table(int(now * 1e6), int(total * 1e4), int(total * MEMORY_S * 1e6), rows)


@dataclass
class Watch:
    """Judges a pool of ten every tick and writes down each change of the hot key's reach."""

    seats: Callable[[float], float]
    backends: int = 10
    total: float = 200.0
    now: float = 100.0
    keys: HotKeys = field(default_factory=HotKeys)
    changes: list[tuple[float, int]] = field(default_factory=list)

    def run(self, seconds: float) -> list[int]:
        """The reaches that the key had in this time, one per change, 0 for not hot."""
        before = len(self.changes)
        end = self.now + seconds
        while self.now < end:
            self.now += TICK_S
            seats = self.seats(self.now - 100.0)
            last = self.keys.reach.get(HOT, 0)
            self.keys.judge(self.now, [table_at(self.now, {HOT: seats}, self.total)], equal(self.backends), 1.25, 0)
            reach = self.keys.reach.get(HOT, 0)
            if reach != last:
                self.changes.append((self.now, reach))
        return [reach for _, reach in self.changes[before:]]


class TestJudgement:
    def test_reach_follows_the_share(self) -> None:
        level = 20.0
        watch = Watch(lambda _: level)
        assert watch.run(1) == [5]
        level = 40.0
        assert watch.run(1) == [7]
        level = 80.0
        assert watch.run(1) == [8]
        level = 20.0
        assert watch.run(HOLD_S + 1) == [5]
        level = 0.0
        assert watch.run(1) == [0]

    def test_a_little_below_is_no_reason_to_shrink(self) -> None:
        watch = Watch(lambda at: 40.0 if at < 1 else 34.0)
        assert watch.run(60) == [7]

    def test_cold_again_only_after_a_while_below_half(self) -> None:
        watch = Watch(lambda at: 10.0 if at < 1 else 3.5)
        assert watch.run(30) == [3, 2]
        for seats in (1.9, 1.0, 0.5):
            watch = Watch(lambda at, seats=seats: 10.0 if at < 1 else seats)  # type: ignore[misc]
            assert watch.run(30) == [3, 0]
            assert HOLD_S < watch.changes[-1][0] - 101 < HOLD_S + 1

    @given(st.floats(8, 120), st.floats(0, 0.08), st.integers(0, 2**32))
    @settings(max_examples=40, deadline=None)
    def test_no_flapping_under_noise(self, level: float, noise: float, seed: int) -> None:
        rnd = random.Random(seed)
        watch = Watch(lambda _: level * (1 + rnd.uniform(-noise, noise)))
        watch.run(10)
        assert len(watch.run(120)) <= 1

    def test_a_key_that_is_hot_only_where_it_is_gathered_is_left_alone_longer_each_time(self) -> None:
        watch = Watch(lambda _: 1.9 if watch.keys.reach else 10.0)
        watch.run(200)
        ends = [at for at, reach in watch.changes if not reach]
        assert len(ends) < 8
        spans = [later - sooner for sooner, later in pairwise(ends)]
        assert spans == sorted(spans)
        assert spans[1] - spans[0] == pytest.approx(2 * HOLD_S, abs=0.3)
        assert spans[-1] >= LONGEST_HOLD_S - 1

    def test_a_few_seats_in_a_quiet_pool_are_nobodys_trouble(self) -> None:
        assert Watch(lambda _: 3.0, total=6.0).run(10) == []
        assert Watch(lambda _: 10.0, total=20.0).run(10) == [4]

    def test_one_backend_has_nowhere_to_spread_to(self) -> None:
        assert Watch(lambda _: 150.0, backends=1).run(10) == []

    def test_a_pool_that_shrinks_takes_the_reach_along(self) -> None:
        watch = Watch(lambda _: 80.0)
        watch.run(1)
        watch.backends = 4
        assert watch.run(1) == [4]

    def test_a_larger_factor_lets_a_key_be(self) -> None:
        for factor, reach in ((1.25, {HOT: 5}), (None, {HOT: 5}), (1.5, {HOT: 3}), (2.0, {HOT: 2}), (3.0, {})):
            keys = HotKeys()
            keys.judge(1.0, [table_at(1.0, {HOT: 20.0})], equal(10), factor, 0)
            assert keys.reach == reach

    def test_one_share_is_hot_on_a_light_backend_and_not_on_a_heavy_one(self) -> None:
        for parts, reach in (([0.05, 0.05, 0.9], {HOT: 3}), ([0.9, 0.05, 0.05], {})):
            keys = HotKeys()
            keys.judge(1.0, [table_at(1.0, {HOT: 20.0})], lambda _, parts=parts: parts, 1.25, 0)  # type: ignore[misc]
            assert keys.reach == reach

    def test_with_nobody_eligible_nothing_is_hot(self) -> None:
        keys = HotKeys()
        keys.judge(1.0, [table_at(1.0, {HOT: 90.0})], lambda _: [], 1.25, 0)
        assert not keys.reach

    def test_without_traffic_nothing_is_hot(self) -> None:
        keys = HotKeys()
        for tables in ([], [Table(1_000_000)]):
            keys.judge(1.0, tables, equal(10), 1.25, None)
            assert not keys.reach

    def test_the_sum_of_the_workers_decides(self) -> None:
        """One connection, and so the whole of a hot key, is with one worker; the cold keys are with all."""
        one, all_of_it = HotKeys(), HotKeys()
        alone = [table_at(1.0, {HOT: 20.0}, 50.0), *[table_at(1.0, {}, 50.0)] * 3]
        one.judge(1.0, alone, equal(10), 1.25, 0)
        all_of_it.judge(1.0, [table_at(1.0, {HOT: 20.0}, 200.0)], equal(10), 1.25, 0)
        assert one.reach == all_of_it.reach == {HOT: 5}
        assert one.hot[HOT].work == pytest.approx(0.1)

    def test_a_dead_workers_table_does_not_count(self) -> None:
        keys = HotKeys()
        dead, alive = table_at(1.0, {HOT: 90.0}), table_at(2.0 + STALE_S, {2: 20.0})
        keys.judge(2.0 + STALE_S, [dead, alive], equal(10), 1.25, 0)
        assert keys.reach == {2: 5}
        assert keys.top == alive

    def test_several_hot_users_at_once(self) -> None:
        """Popularity as it falls in the wild: the k-th key has a part of 1/k of the first one's."""
        keys = [hash_key(b"user-%d" % i) for i in range(1000)]
        popularity = [1 / (rank + 1) for rank in range(len(keys))]
        rnd = random.Random(4)
        meter, hot_keys = Meter(), HotKeys()
        for step in range(1, 100):
            meter.held.clear()
            meter.held.update(Counter(rnd.choices(keys, popularity, k=400)))
            hot_keys.judge(step * TICK_S, [meter.fold(step * TICK_S)], equal(10), 1.25, 0)
        assert set(keys[:6]) <= set(hot_keys.reach) <= set(keys[:12])
        reaches = [hot_keys.reach[key] for key in keys[:6]]
        assert reaches == sorted(reaches, reverse=True)

"""The bound against rational arithmetic, and what it promises while exchanges come and go."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, gcd

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lbproxy.core.bound import Bound, Smoothed, gap_seats, scaled

weights = st.one_of(st.integers(0, 20).map(float), st.decimals("0.01", "50", places=2).map(float), st.floats(1e-3, 1e3))
pools = st.lists(weights, min_size=1, max_size=8).filter(any)
factors = st.one_of(st.sampled_from([1.0, 1.1, 1.25, 1.5, 2.0]), st.floats(1, 10))
gaps = st.none() | st.integers(0, 20)


def written(value: float) -> Fraction:
    """The decimal fraction that a float is written as."""
    return Fraction(repr(value))


def fair_share(pool: Sequence[float], member: int, total: int) -> Fraction:
    return written(pool[member]) / sum(written(weight) for weight in pool) * total


def plain_slots(pool: Sequence[float], member: int, total: int, factor: float, gap: int | None) -> int:
    """The definition, word for word; the root is avoided by looking for the first number that is large enough."""
    share = fair_share(pool, member, total)
    if not share:
        return 0
    if gap is not None:
        return ceil(max(written(factor) * share, share + gap))
    slots = ceil(share)
    while (slots - share) ** 2 < Fraction(25, 4) * share:
        slots += 1
    return max(slots, ceil(written(factor) * share))


class TestScaled:
    @pytest.mark.parametrize(
        ("floats", "whole"),
        [
            ([1, 1, 1], [1, 1, 1]),
            ([2, 4, 6], [1, 2, 3]),
            ([0.1, 0.25], [2, 5]),
            ([0.1, 0.2, 0.3], [1, 2, 3]),
            ([1, 0, 0.5], [2, 0, 1]),
            ([0, 0], [0, 0]),
            ([], []),
        ],
    )
    def test_decimals_become_the_smallest_whole_numbers(self, floats: list[float], whole: list[int]) -> None:
        assert scaled(floats) == whole

    @given(pools)
    def test_the_proportion_is_exact(self, pool: list[float]) -> None:
        whole = scaled(pool)
        assert gcd(*whole) == 1
        assert all(
            written(one) * other_whole == written(other) * one_whole
            for one, one_whole in zip(pool, whole, strict=True)
            for other, other_whole in zip(pool, whole, strict=True)
        )


class TestSlots:
    @given(pools, st.integers(0, 3000), factors, gaps)
    @settings(max_examples=300)
    def test_as_rational_arithmetic_has_it(self, pool: list[float], total: int, factor: float, gap: int | None) -> None:
        bound = Bound(pool, factor, gap)
        for member in range(len(pool)):
            assert bound.slots(member, total) == plain_slots(pool, member, total, factor, gap)

    @given(pools, st.integers(1, 3000), factors, gaps, st.integers(-3, 3))
    @settings(max_examples=300)
    def test_room_is_fewer_than_slots_and_never_one_more(
        self, pool: list[float], total: int, factor: float, gap: int | None, off: int
    ) -> None:
        bound = Bound(pool, factor, gap)
        for member in range(len(pool)):
            slots = bound.slots(member, total)
            assert slots is not None
            in_flight = max(0, slots + off)
            assert bound.has_room(member, in_flight, total) == (in_flight < slots)

    @given(pools, st.integers(1, 3000), factors, gaps)
    def test_nobody_at_zero_and_always_a_seat(
        self, pool: list[float], total: int, factor: float, gap: int | None
    ) -> None:
        slots = [Bound(pool, factor, gap).slots(member, total) or 0 for member in range(len(pool))]
        assert sum(slots) >= total
        assert [each > 0 for each in slots] == [weight > 0 for weight in pool]

    @given(pools, st.integers(1, 3000), st.integers(0, 400))
    def test_below_share_is_the_hard_bound_of_factor_one(self, pool: list[float], total: int, held: int) -> None:
        bound, hard = Bound(pool), Bound(pool, factor=1, min_gap=0)
        for member in range(len(pool)):
            assert bound.below_share(member, held, total) == (held < fair_share(pool, member, total))
            assert bound.below_share(member, held, total) == hard.has_room(member, held, total)

    @given(pools, st.data(), st.integers(1, 3000), factors, gaps)
    def test_parts_of_different_wholes(
        self, pool: list[float], data: st.DataObject, total: int, factor: float, gap: int | None
    ) -> None:
        """Every group is a pool of its own, as far as its members' parts go; each has a seat for whatever there is."""
        groups = data.draw(st.lists(st.integers(0, 1), min_size=len(pool), max_size=len(pool)))
        members = {
            group: [each for each in range(len(pool)) if groups[each] == group and pool[each]] for group in groups
        }
        wholes = [
            sum((written(pool[other]) for other in members[group]), start=Fraction(0)) or Fraction(1)
            for group in groups
        ]
        bound = Bound(pool, factor, gap, wholes)
        for group, inside in members.items():
            if inside:
                alone = Bound([pool[each] if groups[each] == group else 0.0 for each in range(len(pool))], factor, gap)
                slots = [bound.slots(each, total) for each in inside]
                assert slots == [alone.slots(each, total) for each in inside]
                assert sum(each or 0 for each in slots) >= total
                assert [bound.share(each) for each in inside] == pytest.approx([alone.share(each) for each in inside])

    @pytest.mark.parametrize(
        ("total", "gap", "slots"),
        [
            (1, 0, 1),
            (8, 0, 3),
            (9, 0, 3),
            (80, 0, 25),
            (81, 0, 26),
            (80, 4, 25),
            (8, 4, 6),
            (80, 12, 32),
            (80, None, 32),
            (400, None, 125),
        ],
    )
    def test_four_equal_backends_and_a_factor_of_a_quarter_more(self, total: int, gap: int | None, slots: int) -> None:
        assert Bound([1.0] * 4, 1.25, gap).slots(2, total) == slots

    def test_rounding_never_decides(self) -> None:
        # 1.1 * 1.1 * 100 is 121, but 121.00000000000001 in binary floats.
        assert ceil(1.1 * 1.1 * 100) == 122
        assert Bound([1.1, 8.9], 1.1, 0).slots(0, 1000) == 121

    def test_the_smallest_share_there_is_has_its_gap(self) -> None:
        bound = Bound([1.0, 5.0], 1.25, 2)
        assert [bound.has_room(0, held, 1) for held in range(5)] == [True, True, True, False, False]

    def test_no_factor_is_no_bound(self) -> None:
        bound = Bound([1.0, 1.0], factor=None)
        assert bound.slots(0, 10) is None
        assert bound.has_room(0, 10**6, 10)

    @pytest.mark.parametrize(
        ("factor", "gap", "complaint"),
        [(0.99, 0, "balance factor"), (float("inf"), 0, "factor"), (float("nan"), 0, "factor"), (1.25, -1, "gap")],
    )
    def test_what_is_no_bound(self, factor: float, gap: int, complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint):
            Bound([1.0], factor, gap)

    @given(st.integers(1, 500), gaps)
    def test_the_gap_in_seats(self, fair: int, gap: int | None) -> None:
        assert Bound([1.0] * 3, 1.0, gap).slots(0, 3 * fair) == ceil(fair + gap_seats(fair, gap))


class TestSmoothed:
    def test_up_at_once_and_down_slowly(self) -> None:
        level = Smoothed(time_s=1.0)
        assert level.update(100, 10.0) == 100
        assert level.update(0, 10.5) == 66
        assert level.update(0, 20.5) < 10
        assert level.update(80, 20.6) == 80

    @given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 5)), max_size=30))
    def test_never_below_what_is_nor_above_what_was(self, steps: list[tuple[int, float]]) -> None:
        level, now, highest = Smoothed(), 0.0, 0
        for value, elapsed in steps:
            now += elapsed
            highest = max(highest, value)
            assert value <= level.update(value, now) <= highest


class Placing(RuleBasedStateMachine):
    """Exchanges come, walk from a random backend clockwise to the first with room, and go in any order."""

    @initialize(pool=pools, factor=factors, gap=gaps)
    def start(self, pool: list[float], factor: float, gap: int | None) -> None:
        self.pool = pool
        self.factor, self.gap = factor, gap
        self.bound = Bound(pool, factor, gap)
        self.held = [0] * len(pool)

    def place(self, start: int, has_room: str) -> None:
        total = sum(self.held) + 1
        order = [(start + step) % len(self.pool) for step in range(len(self.pool))]
        ask = getattr(self.bound, has_room)
        member = next((each for each in order if ask(each, self.held[each], total)), None)
        assert member is not None, "there is always a seat"
        self.held[member] += 1
        assert self.held[member] <= plain_slots(self.pool, member, total, self.factor, self.gap)

    @rule(start=st.integers(0, 7), burst=st.integers(1, 20))
    def cold_keys(self, start: int, burst: int) -> None:
        for _ in range(burst):
            self.place(start, "has_room")

    @rule(start=st.integers(0, 7), burst=st.integers(1, 20))
    def a_hot_key(self, start: int, burst: int) -> None:
        for _ in range(burst):
            self.place(start, "below_share")

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def one_ends(self, data: st.DataObject) -> None:
        self.held[data.draw(st.sampled_from([m for m, held in enumerate(self.held) if held]))] -= 1

    @invariant()
    def weight_zero_holds_nothing(self) -> None:
        assert all(weight or not held for weight, held in zip(self.pool, self.held, strict=True))


TestPlacing = Placing.TestCase
TestPlacing.settings = settings(max_examples=60, stateful_step_count=30)


@given(pools, st.integers(1, 2000), factors)
def test_weights_may_be_given_in_any_unit(pool: list[float], total: int, factor: float) -> None:
    doubled = [weight * 2 for weight in pool]
    assume(all(written(two) == 2 * written(one) for one, two in zip(pool, doubled, strict=True)))
    for member in range(len(pool)):
        assert Bound(pool, factor).slots(member, total) == Bound(doubled, factor).slots(member, total)

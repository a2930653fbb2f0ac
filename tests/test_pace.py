"""Paced moves: every minute keeps to its share, the way ends where it should, and nothing moves that need not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbproxy.core.forge import build_ring, ring_in_pieces
from lbproxy.core.moves import moved
from lbproxy.core.pace import Pace, rounded
from lbproxy.core.pieces import Pieces, at_once
from lbproxy.core.ring import Ring

Weights = Mapping[str, float]


def walk(
    present: Weights, wanted: Weights, rate: float, vnodes: int, until_s: float, every_s: float = 0.5
) -> list[tuple[float, dict[str, float], float]]:
    """Each step that is taken: when, the weights, and the share that it moved."""

    ring = build_ring(present.items(), vnodes)
    steps = []
    pace, now = Pace(vnodes, 1), 1000.0
    while now < 1000.0 + until_s and present != wanted:
        weights = pace.step(now, present, wanted, rate)
        if weights is not None:
            before, ring = ring, build_ring(weights.items(), vnodes, reuse=ring)
            change = moved(before, ring)
            assert change.needless == 0
            steps.append((now, weights, change.share))
            present = weights
        now += every_s
    return steps


def largest_minute(steps: list[tuple[float, dict[str, float], float]]) -> float:
    return max(sum(share for at, _, share in steps if 0 <= at - start < 60) for start, _, _ in steps)


def test_a_join_takes_its_time_and_gets_there() -> None:
    present = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "new": 0.0}
    wanted = present | {"new": 1.0}
    steps = walk(present, wanted, 0.05 / 60, 256, 600)
    assert steps[-1][1] == wanted
    assert largest_minute(steps) <= 0.05
    # A fifth of the keys at a twentieth a minute.
    assert 200 < steps[-1][0] - steps[0][0] < 350
    weights = [weights["new"] for _, weights, _ in steps]
    assert weights == sorted(weights)
    assert all(each["a"] == 1.0 for _, each, _ in steps)


def test_a_small_change_is_one_step() -> None:
    present = {"a": 1.0, "b": 1.0}
    ((_, weights, share),) = walk(present, {"a": 1.0, "b": 1.001}, 0.05 / 60, 4096, 60)
    assert weights == {"a": 1.0, "b": 1.001}
    assert 0 < share < 0.05 / 60


def test_coarse_tokens_move_one_by_one_as_they_are_earned() -> None:
    present = dict.fromkeys("abcde", 1.0)
    steps = walk(present, present | {"e": 2.0}, 0.10 / 60, 8, 3600)
    assert steps[-1][1]["e"] == 2.0
    assert 4 <= len(steps) <= 10
    for (before, _, _), (at, _, share) in pairwise(steps):
        assert share <= 0.10 / 60 * (at - before) + 1e-9


def test_a_rest_saves_nothing_up() -> None:
    pace, present = Pace(8, 1), dict.fromkeys("abcde", 1.0)
    assert pace.step(1.0, present, present, 0.10 / 60) is None
    assert pace.step(5000.0, present, present | {"e": 2.0}, 0.10 / 60) is None
    assert pace.step(5000.5, present, present | {"e": 2.0}, 0.10 / 60) is None
    assert pace.step(5100.0, present, present | {"e": 2.0}, 0.10 / 60) is not None


def test_nothing_to_do() -> None:
    assert walk({"a": 1.0}, {"a": 1.0}, 0.05 / 60, 64, 10) == []


def test_what_changes_no_owner_is_taken_at_once() -> None:
    ((_, weights, share),) = walk({"a": 1.0}, {"a": 5.0}, 0.001 / 3600, 64, 10)
    assert (weights, share) == ({"a": 5.0}, 0.0)


@pytest.mark.parametrize(
    ("weight", "text"), [(0.30000000000000004, 0.3), (1 / 3, 0.333333), (1e6 / 3, 333333.0), (0, 0)]
)
def test_rounded(weight: float, text: float) -> None:
    assert rounded(weight) == text


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.sampled_from([0.0, 0.25, 1.0, 2.0])), min_size=2, max_size=5
    ),
    st.sampled_from([0.02, 0.1, 0.5]),
    st.sampled_from([16, 128]),
)
def test_no_minute_moves_more_than_its_share(pairs: list[tuple[float, float]], share: float, vnodes: int) -> None:
    present = {f"b{index}": before for index, (before, _) in enumerate(pairs)}
    wanted = {f"b{index}": after for index, (_, after) in enumerate(pairs)}
    if not any(present.values()) or not any(wanted.values()):
        return
    steps = walk(present, wanted, share / 60, vnodes, 90, every_s=1.0)
    coarse = [moved for _, _, moved in steps if moved > share / 60]
    assert not steps or largest_minute(steps) <= share + max(coarse, default=0.0) + 1e-9


def test_on_a_large_ring_a_long_way_is_begun_without_measuring_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred of 120 backends grow threefold: the ring of the end has three times the tokens, and is never built."""
    present = {f"b{number}": 1.0 for number in range(120)}
    wanted = {name: 3.0 if int(name[1:]) < 100 else weight for name, weight in present.items()}
    built: list[int] = []

    def build(members: Iterable[tuple[str, float]], *rest: Any, **more: Any) -> Pieces[Ring]:
        ring = yield from ring_in_pieces(members, *rest, **more)
        built.append(len(ring.tokens))
        return ring

    monkeypatch.setattr("lbproxy.core.pace.ring_in_pieces", build)
    way = Pace(1024, 1)
    stepped = way.step(1000.0, present, wanted, 0.05 / 60)
    assert stepped is not None
    assert stepped["b5"] > 1.0
    share = moved(build_ring(present.items()), build_ring(stepped.items())).share
    assert 0.0001 < share <= 0.05 / 60
    assert max(built) < 1.1 * 120 * 1024


@settings(deadline=None, max_examples=30)
@given(
    weights=st.lists(st.tuples(st.floats(0.0, 4.0), st.floats(0.0, 4.0)), min_size=2, max_size=6),
    share=st.floats(0.001, 0.5),
    vnodes=st.sampled_from((16, 1024, 8192)),
)
def test_a_step_that_is_planned_ahead_is_the_same(
    weights: list[tuple[float, float]], share: float, vnodes: int
) -> None:
    present = {f"b{number}": rounded(before) for number, (before, _) in enumerate(weights)}
    wanted = {f"b{number}": rounded(after) for number, (_, after) in enumerate(weights)}
    present["b0"], wanted["b0"] = max(present["b0"], 1.0), max(wanted["b0"], 1.0)
    one, other, now = Pace(vnodes, 1), Pace(vnodes, 1), 1000.0
    for _ in range(6):
        at_once(one.plan(present, wanted, share / 60))
        assert one.is_ready(present, wanted, share / 60)
        step = one.step(now, present, wanted, share / 60)
        assert step == other.step(now, present, wanted, share / 60)
        present = step or present
        now += 1.5


def test_on_a_large_ring_a_step_is_planned_in_pieces() -> None:
    present = {f"b{number}": 1.0 for number in range(100)}
    wanted = {name: 0.5 if int(name[1:]) < 20 else weight for name, weight in present.items()}
    pace = Pace(1024, 1)
    assert pace.is_ready(present, present, 0.01)
    assert not pace.is_ready(present, wanted, 0.01)
    assert len(list(pace.plan(present, wanted, 0.01))) > 50
    assert pace.is_ready(present, wanted, 0.01)
    assert not pace.is_ready(present, wanted, 0.02)
    assert list(pace.plan(present, wanted, 0.01)) == []
    assert pace.copy().is_ready(present, wanted, 0.01)
    few = dict(list(present.items())[:8])
    assert Pace(1024, 1).is_ready(few, few | {"b1": 0.5}, 0.01)

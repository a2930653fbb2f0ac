"""The memory of keys seen: known within the window, forgotten after it, never mistaken after the stamps come round."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lbproxy.core.recency import SLOTS, Recency, carry_over

HASHES = st.integers(0, 2**64 - 1)


@settings(max_examples=20, deadline=None)
@given(st.lists(HASHES, min_size=1, max_size=20, unique_by=lambda h: h % SLOTS), st.floats(0, 1e6))
def test_a_key_is_known_for_the_window_and_not_much_longer(hashes: list[int], start: float) -> None:
    window = 1800.0
    recency = Recency(bytearray(SLOTS), window, start)
    for h in hashes:
        assert not recency.has_seen(h)
        recency.mark(h)
    recency.tick(start + window * 0.98)
    assert all(recency.has_seen(h) for h in hashes)
    recency.tick(start + window * 1.03)
    assert not any(recency.has_seen(h) for h in hashes)


def test_old_marks_are_swept_before_their_stamps_come_round() -> None:
    table = bytearray(SLOTS)
    recency = Recency(table, 100.0, 0.0)
    for h in range(0, SLOTS, 9973):
        recency.mark(h)
    now = 0.0
    while now < 180.0:  # a tick a second is enough: 64 slices
        now += 1.0
        recency.tick(now)
    assert not any(table)
    for _ in range(1000):
        now += 1.0
        recency.tick(now)
        assert not recency.has_seen(0)


def test_workers_share_what_they_know() -> None:
    table = bytearray(SLOTS)
    here, there = Recency(table, 60.0, 5.0), Recency(table, 60.0, 5.0)
    here.mark(42)
    assert there.has_seen(42)
    assert not there.has_seen(43)


def test_a_clock_that_ticks_later_knows_what_another_has_just_marked() -> None:
    table = bytearray(SLOTS)
    ahead, behind = Recency(table, 5.0, 100.0), Recency(table, 5.0, 100.0)
    ahead.tick(101.0)
    ahead.mark(42)
    assert behind.has_seen(42)
    behind.tick(100.9)
    assert behind.has_seen(42)


def test_a_short_window_is_swept_faster() -> None:
    table = bytearray(SLOTS)
    recency = Recency(table, 1.0, 0.0)
    for step in range(60):
        recency.mark(step)
        recency.tick((step + 1) / 10)
        assert recency.has_seen(step)
        assert not any(map(recency.has_seen, range(step - 11)))
    for step in range(60, 90):
        recency.tick(step / 10)
    assert not any(table)


@settings(max_examples=40, deadline=None)
@given(st.floats(1, 5000), st.floats(1, 5000), st.floats(0, 1e6), st.floats(0.02, 0.95))
def test_another_window_knows_the_same_keys_and_forgets_them_in_its_own_time(
    before: float, after: float, start: float, age: float
) -> None:
    source, target = bytearray(SLOTS), bytearray(SLOTS)
    known = Recency(source, before, start)
    known.mark(42)
    since = age * before
    known.tick(start + since)
    assert known.has_seen(42)
    carry_over(source, before, target, after, start + since)
    heir = Recency(target, after, start + since)
    assert not heir.has_seen(43)
    slack = 0.03 * max(before, after)
    if since < after - slack:
        assert heir.has_seen(42)
        heir.tick(start + after - slack)
        assert heir.has_seen(42)
        heir.tick(start + after + slack)
    if since > after + slack or since < after - slack:
        assert not heir.has_seen(42)


def test_what_another_workers_clock_has_marked_ahead_is_seen_now() -> None:
    source, target = bytearray(SLOTS), bytearray(SLOTS)
    ahead = Recency(source, 5.0, 100.1)
    ahead.mark(42)
    carry_over(source, 5.0, target, 10.0, 100.0)
    assert Recency(target, 10.0, 100.0).has_seen(42)

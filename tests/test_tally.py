"""Gathered counts against counts made one by one."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core import ledger
from lbproxy.core.tally import Tally

_EDGES = [bound + by for bound in ledger.DURATION_BOUNDS for by in (-1, 0, 1)]
_DURATIONS = st.one_of(st.integers(0, 40_000_000), st.sampled_from(_EDGES))
_CODES = st.integers(0, len(ledger.CODE_CLASSES) - 1)
_SIZES = st.integers(0, 1 << 40)
_REQUESTS = st.one_of(
    st.tuples(_CODES, _DURATIONS, _DURATIONS, _SIZES),
    st.builds(lambda code, micros, size: (code, micros, micros, size), _CODES, _DURATIONS, _SIZES),
)


def _one_by_one(cells: list[int], pool: int, backend: int, requests: list[tuple[int, int, int, int]]) -> None:
    for code, micros, attempt, size in requests:
        for cell in (
            pool + ledger.POOL_REQUESTS + code,
            pool + ledger.POOL_DECISIONS + ledger.OWNER,
            backend + ledger.BACKEND_REQUESTS + code,
            backend + ledger.BACKEND_OWNED,
        ):
            cells[cell] += 1
        cells[pool + ledger.POOL_RESPONSE_BYTES] += size
        for histogram, duration in (
            (pool + ledger.POOL_DURATION, micros),
            (pool + ledger.POOL_FIRST_BYTE, attempt),
            (backend + ledger.BACKEND_DURATION, attempt),
        ):
            cells[histogram + bisect_left(ledger.DURATION_BOUNDS, duration)] += 1
            cells[histogram + ledger.DURATION_SUM] += duration


@given(st.lists(st.lists(_REQUESTS, min_size=1, max_size=40), max_size=4))
def test_what_is_gathered_is_what_was_counted_one_by_one(turns: list[list[tuple[int, int, int, int]]]) -> None:
    pool, backend = 3, 3 + ledger.row_width("pool")
    width = backend + ledger.row_width("backend")
    gathered, counted = [0] * width, [0] * width
    tally = Tally()
    for requests in turns:
        for code, micros, attempt, size in requests:
            tally.add(code, micros, attempt, size)
        tally.count(gathered, pool, backend)
        assert (tally.codes, tally.durations, tally.attempts, tally.has_waited, tally.size) == ([], [], [], False, 0)
        _one_by_one(counted, pool, backend, requests)
        assert gathered == counted

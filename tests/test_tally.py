"""Gathered counts against counts made one by one."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core import ledger
from lbproxy.core.tally import Tally

_EDGES = [bound + by for bound in ledger.DURATION_BOUNDS for by in (-1, 0, 1)]
_REQUESTS = st.tuples(
    st.integers(0, len(ledger.CODE_CLASSES) - 1),
    st.one_of(st.integers(0, 40_000_000), st.sampled_from(_EDGES)),
    st.integers(0, 1 << 40),
)


def _one_by_one(cells: list[int], pool: int, backend: int, requests: list[tuple[int, int, int]]) -> None:
    for code, micros, size in requests:
        for cell in (
            pool + ledger.POOL_REQUESTS + code,
            pool + ledger.POOL_DECISIONS + ledger.OWNER,
            backend + ledger.BACKEND_REQUESTS + code,
            backend + ledger.BACKEND_OWNED,
        ):
            cells[cell] += 1
        cells[pool + ledger.POOL_RESPONSE_BYTES] += size
        bucket = bisect_left(ledger.DURATION_BOUNDS, micros)
        for histogram in (
            pool + ledger.POOL_DURATION,
            pool + ledger.POOL_FIRST_BYTE,
            backend + ledger.BACKEND_DURATION,
        ):
            cells[histogram + bucket] += 1
            cells[histogram + ledger.DURATION_SUM] += micros


@given(st.lists(st.lists(_REQUESTS, min_size=1, max_size=40), max_size=4))
def test_what_is_gathered_is_what_was_counted_one_by_one(turns: list[list[tuple[int, int, int]]]) -> None:
    pool, backend = 3, 3 + ledger.row_width("pool")
    width = backend + ledger.row_width("backend")
    gathered, counted = [0] * width, [0] * width
    tally = Tally()
    for requests in turns:
        for code, micros, size in requests:
            tally.codes.append(code)
            tally.durations.append(micros)
            tally.size += size
        tally.count(gathered, pool, backend)
        assert (tally.codes, tally.durations, tally.size) == ([], [], 0)
        _one_by_one(counted, pool, backend, requests)
        assert gathered == counted

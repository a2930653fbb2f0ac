"""Gathered counts against counts made one by one."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core import ledger
from lbproxy.core.account import Backend
from lbproxy.core.spec import Address, BackendSpec
from lbproxy.core.tally import Tally

_EDGES = [bound + by for bound in ledger.DURATION_BOUNDS for by in (-1, 0, 1)]
_DURATIONS = st.one_of(st.integers(0, 40_000_000), st.sampled_from(_EDGES))
_CODES = st.integers(0, len(ledger.CODE_CLASSES) - 1)
_SIZES = st.integers(0, 1 << 40)
_REQUESTS = st.one_of(
    st.tuples(_CODES, _DURATIONS, _DURATIONS, _SIZES),
    st.builds(lambda code, micros, size: (code, micros, micros, size), _CODES, _DURATIONS, _SIZES),
)


def _count_one(cells: list[int], pool: int, backend: int, request: tuple[int, int, int, int]) -> None:
    code, micros, attempt, size = request
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


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), _REQUESTS), min_size=1, max_size=40), max_size=4))
def test_what_is_gathered_is_what_was_counted_one_by_one(
    turns: list[list[tuple[int, tuple[int, int, int, int]]]],
) -> None:
    pool = 3
    first = pool + ledger.row_width("pool")
    width = ledger.row_width("backend")
    gathered, counted = [0] * (first + 3 * width), [0] * (first + 3 * width)
    backends = [Backend(BackendSpec(f"b{at}", Address("127.0.0.1", 1)), first + at * width, 1.0) for at in range(3)]
    tally = Tally()
    for requests in turns:
        for number, (at, request) in enumerate(requests):
            assert tally.add(backends[at], *request) == (number == 0)
        tally.count(gathered, pool)
        for at, request in requests:
            _count_one(counted, pool, first + at * width, request)
        assert gathered == counted


@given(_DURATIONS)
def test_a_bucket_is_the_first_one_whose_bound_is_not_exceeded(micros: int) -> None:
    assert ledger.duration_bucket(micros) == bisect_left(ledger.DURATION_BOUNDS, micros)

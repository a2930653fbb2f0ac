"""The end of an exchange: what is counted, and what the log is told."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from lbproxy.core.ledger import (
    BACKEND_DURATION,
    BACKEND_DURATION_SUM,
    BACKEND_OWNED,
    BACKEND_REQUESTS,
    BACKEND_SPILLS,
    BACKEND_SPILLS_RECEIVED,
    DURATION_BOUNDS,
    POOL_DECISIONS,
    POOL_DURATION,
    POOL_DURATION_SUM,
    POOL_FIRST_BYTE,
    POOL_FIRST_BYTE_SUM,
    POOL_REQUEST_BYTES,
    POOL_REQUESTS,
    POOL_RESPONSE_BYTES,
)

if TYPE_CHECKING:
    from lbproxy.core.balance import Backend, Pool
    from lbproxy.dataplane.relay import Exchange

# Which column of route_spills_total a decision counts into: hot, full, failover or pinned.
_SPILL_COLUMNS: Final = (2, 0, 1, 2, 2, 3, 2)


def settle(exchange: Exchange, now: float) -> None:
    """Count an exchange that has ended at `now` and tell the log. Called exactly once for each."""
    plane = exchange.plane
    micros = exchange.duration_us = int((now - exchange.started) * 1e6)
    pool = exchange.pool
    if pool is not None:
        cells = plane.cells
        row = pool.row
        status = exchange.status
        code = (status if status < 600 else 500) // 100 - 1
        if status:
            cells[row + POOL_REQUESTS + code] += 1
        if exchange.decision >= 0:
            cells[row + POOL_DECISIONS + exchange.decision] += 1
        if exchange.request_bytes:
            cells[row + POOL_REQUEST_BYTES] += exchange.request_bytes
        cells[row + POOL_RESPONSE_BYTES] += exchange.response_bytes
        backend = exchange.backend
        if backend is not None and exchange.first_byte_us >= 0:
            cells[backend.row + BACKEND_REQUESTS + code] += 1
            owner = exchange.owner
            if owner is backend:
                cells[backend.row + BACKEND_OWNED] += 1
            elif owner is not None:
                cells[owner.row + BACKEND_OWNED] += 1
                cells[owner.row + BACKEND_SPILLS + _SPILL_COLUMNS[exchange.decision]] += 1
                cells[backend.row + BACKEND_SPILLS_RECEIVED] += 1
        if status and not exchange.upgraded:
            _observe(exchange, pool, backend, now, micros)
    if exchange.held:
        exchange.held.clear()
    if exchange.tried:
        exchange.tried.clear()
    if plane.log is not None:
        plane.log(exchange)


def _observe(exchange: Exchange, pool: Pool, backend: Backend | None, now: float, micros: int) -> None:
    """Put the durations into their histograms. On a reused connection, with an answer that came in one piece, they are
    all the same, and the bucket is looked up once."""
    cells = exchange.plane.cells
    row = pool.row
    bucket = bisect_left(DURATION_BOUNDS, micros)
    cells[row + POOL_DURATION + bucket] += 1
    cells[row + POOL_DURATION_SUM] += micros
    first_byte_us = exchange.first_byte_us
    if first_byte_us < 0 or backend is None:
        return
    if exchange.sent != exchange.started:
        micros = int((now - exchange.sent) * 1e6)
        bucket = bisect_left(DURATION_BOUNDS, micros)
    cells[backend.row + BACKEND_DURATION + bucket] += 1
    cells[backend.row + BACKEND_DURATION_SUM] += micros
    if first_byte_us != micros:
        bucket = bisect_left(DURATION_BOUNDS, first_byte_us)
    cells[row + POOL_FIRST_BYTE + bucket] += 1
    cells[row + POOL_FIRST_BYTE_SUM] += first_byte_us

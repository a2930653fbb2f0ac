"""The end of an exchange: what is counted, and what the log is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lbproxy.core.ledger import (
    BACKEND_DURATION,
    BACKEND_OWNED,
    BACKEND_REQUESTS,
    BACKEND_SPILLS,
    BACKEND_SPILLS_RECEIVED,
    FAILOVER,
    OWNER,
    PINNED,
    POOL_DECISIONS,
    POOL_DURATION,
    POOL_FIRST_BYTE,
    POOL_REQUEST_BYTES,
    POOL_REQUESTS,
    POOL_RESPONSE_BYTES,
    POOL_RETRIES,
    RETRY,
    RETRY_ABANDONED,
    RETRY_OUTCOMES,
    SPILL_FULL,
    SPILL_HOT,
    SPILL_REASONS,
    count_duration,
)

if TYPE_CHECKING:
    from lbproxy.core.account import Backend
    from lbproxy.core.balance import Pool
    from lbproxy.dataplane.relay import Exchange

# Which of ledger.SPILL_REASONS a decision is, where another backend than the key's owner has served. With all others
# the owner has, or there was no key.
_SPILL_COLUMNS: Final = {
    SPILL_HOT: SPILL_REASONS.index("hot"),
    SPILL_FULL: SPILL_REASONS.index("full"),
    FAILOVER: SPILL_REASONS.index("failover"),
    RETRY: SPILL_REASONS.index("failover"),
    PINNED: SPILL_REASONS.index("pinned"),
}


def settle(exchange: Exchange, now: float) -> None:
    """Count an exchange that has ended at `now`. Called exactly once for each, and so is `tell` afterwards."""
    plane = exchange.plane
    micros = exchange.duration_us = int((now - exchange.started) * 1e6)
    pool = exchange.pool
    if pool is not None:
        backend = exchange.backend
        if exchange.request_bytes:
            plane.cells[pool.row + POOL_REQUEST_BYTES] += exchange.request_bytes
        sent = exchange.sent
        attempt = micros if sent == exchange.started else int((now - sent) * 1e6)
        if (
            exchange.decision == OWNER
            and exchange.first_byte_us == attempt
            and not exchange.upgraded
            and backend is exchange.owner
            and backend is not None
        ):
            code = code_class(exchange.status)
            if pool.account.tally.add(backend, code, micros, attempt, exchange.response_bytes):
                plane.turn.tallied(pool)
        else:
            _count(exchange, pool, backend, attempt, micros)
    if exchange.held:
        exchange.held.clear()
    if exchange.tried:
        exchange.tried.clear()


def tell(exchange: Exchange) -> None:
    """Tell the log of an exchange that has been settled. To make its line takes time, for which nobody has to wait."""
    log = exchange.plane.log
    if log is not None:
        log(exchange)


def end_retry(exchange: Exchange, pool: Pool, outcome: int) -> None:
    """If the current attempt is a further one, count it with what became of it."""
    reason = exchange.retried_for
    if reason >= 0:
        exchange.retried_for = -1
        exchange.plane.cells[pool.row + POOL_RETRIES + reason * len(RETRY_OUTCOMES) + outcome] += 1


def code_class(status: int) -> int:
    """Which of `ledger.CODE_CLASSES` a status is in, as an index; beyond 599 it counts as an error of the backend's."""
    return (status if status < 600 else 500) // 100 - 1


def _count(exchange: Exchange, pool: Pool, backend: Backend | None, attempt: int, micros: int) -> None:
    cells = exchange.plane.cells
    row = pool.row
    end_retry(exchange, pool, RETRY_ABANDONED)  # of one that has already ended there is nothing left to say
    status = exchange.status
    code = code_class(status)
    if status:
        cells[row + POOL_REQUESTS + code] += 1
    if exchange.decision >= 0:
        cells[row + POOL_DECISIONS + exchange.decision] += 1
    cells[row + POOL_RESPONSE_BYTES] += exchange.response_bytes
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
        _observe(exchange, pool, backend, attempt, micros)


def _observe(exchange: Exchange, pool: Pool, backend: Backend | None, attempt: int, micros: int) -> None:
    """Put the durations into their histograms."""
    cells = exchange.plane.cells
    count_duration(cells, pool.row + POOL_DURATION, micros)
    if exchange.first_byte_us < 0 or backend is None:
        return
    count_duration(cells, backend.row + BACKEND_DURATION, attempt)
    count_duration(cells, pool.row + POOL_FIRST_BYTE, exchange.first_byte_us)

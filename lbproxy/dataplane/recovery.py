"""When something goes wrong: an attempt that failed, a deadline that passed, a client that left.

What is still possible follows from how far both sides got, by the tables of `core/exchange.py`; whether it is also
allowed, by `core/retry.py`; where it goes on, by the key's preference list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lbproxy.core.exchange import (
    ABANDON,
    CONNECTING,
    CUT,
    DETACH,
    DONE,
    DOWNSTREAM_STATES,
    FINISHED,
    GONE,
    IMPOSSIBLE,
    NEXT,
    REPEAT,
    RESPONDING,
    SENDING,
    UPSTREAM_STATES,
    WHEN_ATTEMPT_FAILS,
    WHEN_CLIENT_LEAVES,
)
from lbproxy.core.hashing import NO_HASH
from lbproxy.core.ledger import (
    BACKEND_ERRORS,
    BACKEND_LOOPS,
    BACKEND_REQUESTS,
    CLIENT_ABORT,
    CLOSED_EARLY,
    CONNECT_TIMEOUT,
    DRAIN_TIMEOUT,
    FIRST_BYTE_TIMEOUT,
    IDLE_TIMEOUT,
    POOL_ABORTS,
    POOL_RETRIES_REFUSED,
    PROTOCOL,
    RESET,
    RETRY,
    RETRY_CONNECT,
    RETRY_FAILED,
    RETRY_OUT,
    RETRY_RESET,
    RETRY_STALE,
    RETRY_STATUS,
    RETRY_TIMEOUT,
    UPSTREAM_ERRORS,
)
from lbproxy.core.retry import ALLOWED, ANSWERED, NO_BUDGET, SENT, UNSENT
from lbproxy.core.retry import IMPOSSIBLE as NOT_POSSIBLE
from lbproxy.dataplane.deadlines import (
    DUE_BODY,
    DUE_CONNECT,
    DUE_FIRST_BYTE,
    DUE_SEAT,
    DUE_SEND,
    DUE_TRY,
    DUE_TUNNEL,
    DUE_UPSTREAM,
)
from lbproxy.dataplane.placement import may_wait, successor, wait_for_seat
from lbproxy.dataplane.plane import monotonic
from lbproxy.dataplane.settling import code_class, end_retry, settle, tell

if TYPE_CHECKING:
    from lbproxy.core.account import Backend
    from lbproxy.core.balance import Pool
    from lbproxy.dataplane.relay import Exchange

# The reason for another attempt, by index into ledger.UPSTREAM_ERRORS.
_REASONS: Final = (
    RETRY_CONNECT,
    RETRY_CONNECT,
    RETRY_CONNECT,
    RETRY_RESET,
    RETRY_RESET,
    RETRY_RESET,
    RETRY_TIMEOUT,
    RETRY_TIMEOUT,
)
# The answer to a client whose last attempt failed, by the same.
_ANSWERS: Final = (
    (502, "connect_failed"),
    (504, "connect_failed"),
    (502, "connect_failed"),
    (502, "bad_gateway"),
    (502, "bad_gateway"),
    (502, "bad_gateway"),
    (504, "first_byte_timeout"),
    (504, "first_byte_timeout"),
)


def attempt_failed(exchange: Exchange, error: int) -> None:
    """The current attempt failed: `error` is an index into `ledger.UPSTREAM_ERRORS`."""
    action = WHEN_ATTEMPT_FAILS[exchange.down][exchange.up]
    if action == IMPOSSIBLE:
        raise AssertionError(f"an attempt failed in {_states(exchange)}")
    if action == DETACH:
        exchange.drop_upstream()
        exchange.finish(monotonic(), False)
    elif action == CUT:
        pool, backend = exchange.attempting()
        exchange.drop_attempt()
        exchange.reason = UPSTREAM_ERRORS[error]
        _blame(exchange, pool, backend, error)
        cut(exchange)
    elif action in (NEXT, REPEAT):
        upstream = exchange.upstream
        is_sent = action == REPEAT and (upstream is None or not upstream.unsent)
        _go_on(exchange, SENT if is_sent else UNSENT, error)


def _states(exchange: Exchange) -> str:
    return f"{DOWNSTREAM_STATES[exchange.down]}, {UPSTREAM_STATES[exchange.up]}"


def no_resources(exchange: Exchange) -> None:
    """We could not even try: out of descriptors, ports or memory. No backend is to blame."""
    exchange.drop_attempt()
    exchange.refuse(503, "no_resources")


def _go_on(exchange: Exchange, phase: int, error: int) -> None:
    """No answer has come, a part of its head perhaps: try again if that may be, else say that it failed."""
    pool, backend = exchange.attempting()
    upstream = exchange.upstream
    is_closed = error in (RESET, CLOSED_EARLY)
    was_stale = is_closed and upstream is not None and upstream.reused and not upstream.has_answered
    exchange.drop_upstream()
    end_retry(exchange, pool, RETRY_FAILED)
    verdict = NOT_POSSIBLE
    if error not in (PROTOCOL, FIRST_BYTE_TIMEOUT):
        attempts = exchange.attempts - 1 if was_stale else exchange.attempts
        verdict = pool.retry.verdict(phase, exchange.method, attempts, exchange.is_repeatable)
    if was_stale and verdict == ALLOWED:
        # It had been closed before we took it up: that was no attempt, and who makes it now has the seat already.
        exchange.retried_for = RETRY_STALE
        exchange.connect(backend)
        return
    exchange.leave_seat()
    _blame(exchange, pool, backend, error)
    is_news = _note_tried(exchange, backend)
    if verdict == ALLOWED:
        following = _next(exchange, pool)
        if following is not None:
            if _may_draw(exchange, pool, phase, is_news):
                exchange.retried_for = _REASONS[error]
                exchange.attempt_later(following)
                return
        elif may_wait(exchange, exchange.plane.latest(pool)) and _may_draw(exchange, pool, phase, is_news):
            # The others are only full just now: wait, as a request does whose owner is out.
            wait_for_seat(exchange, pool, _REASONS[error])
            return
    elif verdict >= 0 and is_news:
        _count_refused(exchange, pool, verdict)
    exchange.refuse(*_ANSWERS[error])


def try_elsewhere(exchange: Exchange, status: int, is_complete: bool) -> bool:
    """Take note of an answer that is an error, of which nothing has been passed on; `is_complete`: all of it has come.
    True when another backend is asked instead."""
    pool, backend = exchange.attempting()
    # A lower one speaks against the request, and so does a loop: anyone can write a Via field that looks like one.
    if status == 508:
        exchange.plane.cells[backend.row + BACKEND_LOOPS] += 1
    elif status >= 500:
        exchange.plane.note_failure(pool, backend, "status")
    if status not in pool.spec.retry.statuses:
        return False
    following = _following(exchange, pool, backend, ANSWERED, status)
    if following is None:
        return False
    exchange.plane.cells[backend.row + BACKEND_REQUESTS + code_class(status)] += 1
    upstream = exchange.upstream
    if upstream is not None and is_complete and exchange.down == DONE:
        # Nothing is wrong with the connection, and who has too much to do need not open another one as well.
        exchange.upstream = None
        upstream.release(not exchange.has_lost)
    _move_on(exchange, pool, backend, following, RETRY_STATUS)
    return True


def _try_is_over(exchange: Exchange) -> None:
    """The time for one try is over: another backend, if the request may be repeated, else wait on."""
    pool, backend = exchange.attempting()
    upstream = exchange.upstream
    following = None
    if upstream is None or not upstream.has_received:
        following = _following(exchange, pool, backend, SENT)
    if following is None:
        left_s = pool.first_byte_s - (pool.per_try_s or 0.0)
        exchange.downstream.set_deadline(max(0.0, left_s), DUE_FIRST_BYTE)
        return
    _blame(exchange, pool, backend, FIRST_BYTE_TIMEOUT)
    _move_on(exchange, pool, backend, following, RETRY_TIMEOUT)


def backend_is_out(exchange: Exchange) -> None:
    """The backend has been taken out of service while the request is there, perhaps for long if it hangs: ask another
    one at once, if the request may be repeated and nothing has come back. Else wait on, for it may still be answered.
    """
    if exchange.up not in (CONNECTING, SENDING):
        return
    pool, backend = exchange.attempting()
    upstream = exchange.upstream
    if upstream is not None and upstream.has_answered:
        return
    phase = UNSENT if upstream is None or upstream.unsent else SENT
    following = _following(exchange, pool, backend, phase)
    if following is not None:
        _move_on(exchange, pool, backend, following, RETRY_OUT)


def _move_on(exchange: Exchange, pool: Pool, failed: Backend, following: Backend, reason: int) -> None:
    """The current attempt has failed, and another backend has been chosen: ask that one. Who waits for a seat hears of
    the one that is left only then, or might be given the last one of the backend that was chosen."""
    exchange.drop_upstream()
    exchange.has_seat = False
    pool.account.release(failed, exchange.h)
    pool.account.tell()
    end_retry(exchange, pool, RETRY_FAILED)
    exchange.retried_for = reason
    exchange.attempt_later(following)
    exchange.plane.fill_seats(pool)


def _following(exchange: Exchange, pool: Pool, failed: Backend, phase: int, status: int = 0) -> Backend | None:
    """Where the request goes on at once, if it may, anybody is there, and the budget allows it."""
    is_news = _note_tried(exchange, failed)
    verdict = pool.retry.verdict(phase, exchange.method, exchange.attempts, exchange.is_repeatable, status)
    if verdict == ALLOWED:
        following = _next(exchange, pool)
        return following if following is not None and _may_draw(exchange, pool, phase, is_news) else None
    if verdict >= 0 and is_news:
        _count_refused(exchange, pool, verdict)
    return None


def _note_tried(exchange: Exchange, backend: Backend) -> bool:
    """The attempt on this backend has failed, or its time is over. False if that is known already, for the attempt goes
    on where no other one may follow: of that, nothing more is to be counted."""
    if backend in exchange.tried:
        return False
    exchange.tried.append(backend)
    return True


def _next(exchange: Exchange, pool: Pool) -> Backend | None:
    """The next backend that has not been tried and has room."""
    h = exchange.h
    latest = exchange.plane.latest(pool)
    following = successor(exchange, latest)
    if following is not None and latest is not pool and h != NO_HASH:
        exchange.owner = latest.owner(h)  # it may have changed meanwhile
    return following


def _may_draw(exchange: Exchange, pool: Pool, phase: int, is_news: bool) -> bool:
    """Draw a further attempt from the budget, where it is held to it. If it may be made, or waited for, that is how the
    request's backend is chosen from here on. `is_news`: it is refused for the first time, if it is."""
    if pool.retry.is_charged(phase):
        account = pool.account
        if not account.budget.spend(exchange.plane.now, account.requests(), account.in_flight):
            if is_news:
                _count_refused(exchange, pool, NO_BUDGET)
            return False
    exchange.decision = RETRY
    return True


def _blame(exchange: Exchange, pool: Pool, backend: Backend, error: int) -> None:
    """The backend failed, and not the client."""
    exchange.plane.cells[backend.row + BACKEND_ERRORS + error] += 1
    exchange.plane.note_failure(pool, backend, UPSTREAM_ERRORS[error])


def _count_refused(exchange: Exchange, pool: Pool, reason: int) -> None:
    exchange.plane.cells[pool.row + POOL_RETRIES_REFUSED + reason] += 1


def cut(exchange: Exchange) -> None:
    """The answer has begun and cannot be completed: the client must see that. Never fake an end."""
    exchange.keep_alive = False
    settle(exchange, monotonic())
    tell(exchange)
    if exchange.is_close_delimited:
        exchange.downstream.reset()
    else:
        exchange.downstream.close()


def client_left(exchange: Exchange) -> None:
    """The downstream connection is gone."""
    exchange.leave_queue()
    action = WHEN_CLIENT_LEAVES[exchange.down][exchange.up]
    if action == IMPOSSIBLE:
        raise AssertionError(f"a client left in {_states(exchange)}")
    exchange.down = GONE
    if action not in (DETACH, ABANDON):
        return
    if action == ABANDON:
        _count_abort(exchange)
    exchange.drop_attempt()
    settle(exchange, monotonic())
    tell(exchange)


def _count_abort(exchange: Exchange) -> None:
    """The client will not have its answer. Of a request that no pool had yet, there is nothing to say; and when it was
    the proxy that cut it off, nothing against the client."""
    if exchange.pool is None:
        return
    if exchange.plane.is_over:
        exchange.reason = DRAIN_TIMEOUT
    else:
        exchange.reason = CLIENT_ABORT
        exchange.plane.cells[exchange.pool.row + POOL_ABORTS] += 1


def client_failed(exchange: Exchange, status: int, reason: str) -> None:
    """The client sends no more, or what it sends cannot be taken. The backend is not to blame."""
    has_answer = exchange.up in (RESPONDING, FINISHED)
    exchange.drop_attempt()
    if has_answer:
        exchange.reason = reason
        cut(exchange)
    else:
        exchange.refuse(status, reason)


def out_of_time(exchange: Exchange, due: int) -> None:
    """A deadline of the exchange has passed."""
    if due == DUE_CONNECT:
        attempt_failed(exchange, CONNECT_TIMEOUT)
    elif due == DUE_FIRST_BYTE:
        attempt_failed(exchange, FIRST_BYTE_TIMEOUT)
    elif due == DUE_UPSTREAM:
        attempt_failed(exchange, IDLE_TIMEOUT)
    elif due == DUE_TRY:
        _try_is_over(exchange)
    elif due == DUE_SEAT:
        exchange.leave_queue()
        exchange.refuse(503, "queue_timeout")
    elif due == DUE_BODY:
        client_failed(exchange, 408, "body_timeout")
    elif due == DUE_SEND:
        exchange.drop_attempt()
        _count_abort(exchange)
        cut(exchange)
    elif due == DUE_TUNNEL and exchange.tunnel is not None:
        exchange.tunnel.close()

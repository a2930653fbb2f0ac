"""Where a request goes when the ring alone does not decide: cookies, pins, and waiting for a seat."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lbproxy.core.account import OUT
from lbproxy.core.cookies import CookieAffinity
from lbproxy.core.exchange import NONE
from lbproxy.core.hashing import NO_HASH
from lbproxy.core.ledger import PINNED, RETRY
from lbproxy.dataplane.deadlines import DUE_SEAT

if TYPE_CHECKING:
    from lbproxy.core.account import Account, Backend
    from lbproxy.core.balance import Pool
    from lbproxy.core.spec import Pin
    from lbproxy.dataplane.relay import Exchange


def follow_guide(exchange: Exchange, pool: Pool) -> bool:
    """Go where something stronger than the ring says, or refuse if a pin says that. False when there is no such thing,
    or it leads nowhere now."""
    if pool.cookies is not None:
        exchange.cookie_backend = _backend_of_cookie(exchange, pool, pool.cookies)
        exchange.is_cookie_out = False
    backend = _guided(exchange, pool)
    if backend is None:
        return _has_no_other_place(exchange, pool)
    exchange.decision = PINNED
    if exchange.h != NO_HASH:
        exchange.owner = pool.owner(exchange.h)
    exchange.attempt(backend)
    return True


def _guided(exchange: Exchange, pool: Pool) -> Backend | None:
    """Where something stronger than the ring says: an open tunnel of the user, the session's cookie, a pin. None when
    there is no such thing, or it leads nowhere now. The pool may be a newer one than the request began with."""
    if exchange.h != NO_HASH and pool.account.homes is not None:
        home = pool.home(exchange.h)
        if home is not None and _has_room(pool, home):
            return home
    named = exchange.cookie_backend
    if named is not None and pool.cookies is not None:
        backend = pool.backends.get(named.name)
        if backend is not None and _has_room(pool, backend):
            return backend
        exchange.is_cookie_out = backend is None or backend.state == OUT
    pin = _pin_of(exchange, pool)
    if pin is not None:
        backend = pool.backends.get(pin.backend)
        if backend is not None and _has_room(pool, backend):
            return backend
    return None


def _has_room(pool: Pool, backend: Backend) -> bool:
    """Whether a backend can serve whom something sends there, drained or not."""
    return backend.state != OUT and pool.account.load(backend) < backend.limit


def _pin_of(exchange: Exchange, pool: Pool) -> Pin | None:
    """The pin that holds the exchange's key."""
    return pool.pinned(exchange.key) if pool.has_guides and exchange.key is not None else None


def _only_place(exchange: Exchange, pool: Pool) -> Backend | None:
    """The backend that may serve the request when no other one may, for a strict pin says so; else None."""
    pin = _pin_of(exchange, pool)
    return pool.backends.get(pin.backend) if pin is not None and pin.on_down == "reject" else None


def successor(exchange: Exchange, pool: Pool) -> Backend | None:
    """The next backend for the request that has not been tried, may serve it and has room; None: there is none now."""
    only = _only_place(exchange, pool)
    if only is None:
        return pool.successor(exchange.h, exchange.tried)
    return only if only not in exchange.tried and _has_room(pool, only) else None


def may_wait(exchange: Exchange, pool: Pool) -> bool:
    """Whether there is a backend that has not been tried and could serve the request if it had room."""
    only = _only_place(exchange, pool)
    return pool.has_others(exchange.tried) if only is None else only.state != OUT and only not in exchange.tried


def is_choosy(exchange: Exchange, pool: Pool) -> bool:
    """Whether the request may find no seat where others find one."""
    return bool(exchange.tried) or _only_place(exchange, pool) is not None


def _backend_of_cookie(exchange: Exchange, pool: Pool, cookies: CookieAffinity) -> Backend | None:
    """The backend that the session's cookie names, whether it can serve or not. None when there is no such one."""
    positions = exchange.shape.index.get(b"cookie", ())
    name = cookies.backend([exchange.values[at] for at in positions], exchange.plane.unix_time)
    return pool.backends.get(name) if name is not None else None


def _has_no_other_place(exchange: Exchange, pool: Pool) -> bool:
    """Whether a strict pin says where the request is to go, though that cannot serve now; then it waits there, or has
    been refused."""
    only = _only_place(exchange, pool)
    if only is None:
        return False
    if only.state == OUT:
        exchange.refuse(503, "pin_down")
    else:
        wait_for_seat(exchange, pool)
    return True


def has_left(exchange: Exchange) -> bool:
    """Whether the session's cookie is to name the backend that has served the request. Not if the one that it names was
    only full just then: a session does not move for that."""
    named = exchange.cookie_backend
    if named is None or exchange.backend is named:
        return named is None
    return exchange.is_cookie_out or named.state == OUT or named in exchange.tried or exchange.decision == PINNED


def place_of(exchange: Exchange, pool: Pool) -> Backend | None:
    """Where the next request of the exchange's key goes while there is room: where the session's cookie says, or a
    pin, or the ring. None: nobody may be asked. The pool may be a newer one than the exchange began with."""
    if pool.cookies is not None:
        named = exchange.backend if has_left(exchange) else exchange.cookie_backend
        backend = pool.backends.get(named.name) if named is not None else None
        if backend is not None and backend.state != OUT:
            return backend
    pin = _pin_of(exchange, pool)
    backend = pool.backends.get(pin.backend) if pin is not None else None
    if pin is not None and backend is not None:
        if backend.state != OUT:
            return backend
        if pin.on_down == "reject":
            return None
    return pool.place_of(exchange.h)


def has_enough(account: Account, h: int, limit: int) -> bool:
    """Whether a key has as many requests in flight as it may: those that hold a seat, and those that wait for one here.
    (Else the requests of one user could fill the queue, and take every seat that becomes free.)"""
    held = account.held_by_key(h)
    if held < limit and account.waiting:
        held += sum([cast("Exchange", each).h == h for each in account.waiting])
    return held >= limit


def wait_for_seat(exchange: Exchange, pool: Pool, retried_for: int = -1) -> None:
    """Every eligible backend is full: wait, within bounds. `retried_for` is why the attempt that waits is a further
    one, if it is (an index into `ledger.RETRY_REASONS`); one that is never made is none."""
    waiting = pool.account.waiting
    if len(waiting) >= pool.spec.queue.size:
        exchange.refuse(503, "queue_full")
        return
    exchange.is_waiting = True
    exchange.retried_for = retried_for
    exchange.up = NONE  # no attempt is under way: the body that comes meanwhile is kept for the next one
    waiting.append(exchange)
    exchange.downstream.set_deadline(pool.spec.queue.timeout, DUE_SEAT)


def take_seat(exchange: Exchange, pool: Pool) -> bool:
    """A seat may have become free: try again. False when all are still taken."""
    h = exchange.h
    tried = exchange.tried
    backend: Backend | None
    guided = _guided(exchange, pool) if pool.has_guides and not tried else None
    only = _only_place(exchange, pool)
    if guided is not None:
        backend, decision = guided, PINNED
    elif tried or only is not None:
        backend, decision = successor(exchange, pool), RETRY
    elif h != NO_HASH:
        backend, decision = pool.pick(h)
    else:
        backend, decision = pool.least_loaded()
    if backend is None and may_wait(exchange, pool):
        return False
    exchange.is_waiting = False
    exchange.pool = pool
    if backend is None:
        exchange.retried_for = -1
        exchange.refuse(503, "no_backend" if only is None else "pin_down")
    else:
        exchange.decision = decision
        if h != NO_HASH:
            exchange.owner = pool.owner(h)  # it may have changed meanwhile
        exchange.attempt_later(backend)
    return True

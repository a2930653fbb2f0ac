"""Where a request goes when the ring alone does not decide: cookies, pins, and waiting for a seat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbproxy.core.account import OUT
from lbproxy.core.cookies import CookieAffinity
from lbproxy.core.exchange import NONE
from lbproxy.core.hashing import NO_HASH
from lbproxy.core.ledger import PINNED, RETRY
from lbproxy.dataplane.deadlines import DUE_SEAT

if TYPE_CHECKING:
    from lbproxy.core.account import Backend
    from lbproxy.core.balance import Pool
    from lbproxy.dataplane.relay import Exchange


def follow_guide(exchange: Exchange, pool: Pool) -> bool:
    """Go where something stronger than the ring says: an open tunnel of the user, the session's cookie, a pin. False
    when there is no such thing, or it leads nowhere now."""
    if exchange.h != NO_HASH and pool.account.homes is not None and _follow_tunnel(exchange, pool):
        return True
    if pool.cookies is not None and _follow_cookie(exchange, pool, pool.cookies):
        return True
    key = exchange.key
    return key is not None and _follow_pin(exchange, pool, key)


def _follow_cookie(exchange: Exchange, pool: Pool, cookies: CookieAffinity) -> bool:
    """Go where the session's cookie says. False when there is none, or its backend cannot serve it."""
    positions = exchange.shape.index.get(b"cookie", ())
    name = cookies.backend([exchange.values[at] for at in positions], exchange.plane.unix_time)
    backend = pool.backends.get(name) if name is not None else None
    if backend is None:
        return False
    exchange.cookie_backend = backend
    if backend.state == OUT or pool.account.load(backend) >= backend.limit:
        return False
    _go_to(exchange, pool, backend)
    return True


def _follow_tunnel(exchange: Exchange, pool: Pool) -> bool:
    """Go where the user's tunnel is. False when there is none."""
    backend = pool.home(exchange.h)
    if backend is None or pool.account.load(backend) >= backend.limit:
        return False
    _go_to(exchange, pool, backend)
    return True


def _follow_pin(exchange: Exchange, pool: Pool, key: bytes) -> bool:
    """Go where a pin says. False when there is none, or its backend cannot serve and the ring may decide."""
    pin = pool.pinned(key)
    backend = pool.backends.get(pin.backend) if pin is not None else None
    if pin is None or backend is None:
        return False
    if backend.state != OUT and pool.account.load(backend) < backend.limit:
        _go_to(exchange, pool, backend)
        return True
    if pin.on_down == "reject":
        exchange.refuse(503, "pin_down")
        return True
    return False


def _go_to(exchange: Exchange, pool: Pool, backend: Backend) -> None:
    """Attempt this backend, and note whose key it is."""
    exchange.decision = PINNED
    if exchange.h != NO_HASH:
        exchange.owner = pool.owner(exchange.h)
    exchange.attempt(backend)


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
    if tried:
        backend, decision = pool.successor(h, tried), RETRY
    elif h != NO_HASH:
        backend, decision = pool.pick(h)
    else:
        backend, decision = pool.least_loaded()
    if backend is None and pool.has_others(tried):
        return False
    exchange.is_waiting = False
    exchange.pool = pool
    if backend is None:
        exchange.retried_for = -1
        exchange.refuse(503, "no_backend")
    else:
        exchange.decision = decision
        if h != NO_HASH:
            exchange.owner = pool.owner(h)  # it may have changed meanwhile
        exchange.attempt_later(backend)
    return True

"""An upgraded connection (RFC 9110 7.8): octets both ways until both sides have ended, each in its own time.

A tunnel lives for hours and mostly says nothing, so it does not hold the seat of its request: it gives that back, and
counts as `bounded_load.tunnel_weight` seats from there on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from lbproxy.core.exchange import DONE, RESPONDING
from lbproxy.core.hashing import NO_HASH
from lbproxy.core.headers import Shape, upgrade_protocols
from lbproxy.core.ledger import BACKEND_UPGRADED_OPEN, POOL_UPGRADED, POOL_UPGRADED_OPEN, RETRY_SUCCEEDED
from lbproxy.dataplane import flow
from lbproxy.dataplane.answer import interim_lines
from lbproxy.dataplane.deadlines import DUE_TUNNEL
from lbproxy.dataplane.placement import place_of
from lbproxy.dataplane.plane import monotonic
from lbproxy.dataplane.settling import end_retry

if TYPE_CHECKING:
    from lbproxy.core.balance import Pool
    from lbproxy.core.homes import Homes
    from lbproxy.dataplane.relay import Exchange
    from lbproxy.dataplane.upstream import Upstream
    from lbproxy.dataplane.wire import ResponseParser


@final
class Tunnel:
    """The two transports of an upgraded exchange."""

    __slots__ = (
        "_exchange", "_homes", "_idle_s", "_place", "_pool", "_row", "_upstream", "is_backend_done", "is_client_done",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, pool: Pool, upstream: Upstream) -> None:
        self._exchange: Final = exchange
        self._pool: Final = pool
        self._upstream: Final = upstream
        self._idle_s: Final = pool.spec.timeout.tunnel
        self.is_client_done = False
        self.is_backend_done = False
        account = pool.account
        account.tunnels.add(self)
        # What is entered is left with the same names, whatever the configuration says by then.
        self._homes: Homes | None = None
        self._row: Final = upstream.backend.row
        # Where its key belongs, which need not be here: that backend may have been full.
        self._place = place_of(exchange, pool) if exchange.h != NO_HASH else None
        cells = exchange.plane.cells
        cells[pool.row + POOL_UPGRADED] += 1
        cells[pool.row + POOL_UPGRADED_OPEN] += 1
        cells[self._row + BACKEND_UPGRADED_OPEN] += 1
        self._live_in(account.homes)
        exchange.has_seat = False
        account.begin_tunnel(upstream.backend, exchange.h, self._weight())
        exchange.plane.fill_seats(pool)

    def _weight(self) -> float:
        """What a tunnel of the pool counts as, as the configuration in force has it: all of a backend's count alike."""
        pool = self._pool
        return self._exchange.plane.snapshot.pools.get(pool.name, pool).spec.bounded_load.tunnel_weight

    def up(self, data: bytes) -> None:
        """Octets from the client."""
        exchange = self._exchange
        exchange.request_bytes += len(data)
        self.touch()
        self._upstream.transport.write(data)

    def down(self, data: bytes) -> None:
        """Octets from the backend."""
        exchange = self._exchange
        exchange.response_bytes += len(data)
        self.touch()
        exchange.downstream.transport.write(data)

    def touch(self) -> None:
        """Something goes through the tunnel."""
        self._exchange.downstream.set_deadline(self._idle_s, DUE_TUNNEL)

    def up_end(self) -> bool:
        """The client will send no more. True: the other direction goes on."""
        self.is_client_done = True
        if self.is_backend_done:
            self.close()
            return False
        if self._upstream.transport.can_write_eof():
            flow.end(self._upstream.transport)
        return True

    def down_end(self) -> bool:
        """The backend will send no more. True: the other direction goes on."""
        self.is_backend_done = True
        if self.is_client_done:
            self.close()
            return False
        self._exchange.downstream.send_end()
        return True

    def follow(self, pool: Pool) -> None:
        """Something has changed in the pool: let requests find this tunnel if they are to follow it from now on, and
        end if the key has moved and the pool wants its tunnels to move too."""
        h = self._exchange.h
        self._live_in(pool.account.homes)
        if pool.spec.on_move == "close" and h != NO_HASH:
            place = place_of(self._exchange, pool)
            if place is None or place is self._place:
                return  # with nobody to go to, it is best off here
            self._place = place
            if place is not self._upstream.backend:
                self.close()

    def _live_in(self, homes: Homes | None) -> None:
        """Be found among these entries, and no others: the cells of those that nobody reads become somebody else's."""
        before = self._homes
        if homes is before:
            return
        self._homes = homes
        h = self._exchange.h
        if h != NO_HASH:
            if before is not None:
                before.leave(h, self._row)
            if homes is not None:
                homes.enter(h, self._row)

    def close(self) -> None:
        """The tunnel is over, by both ends, an error, a deadline or a move."""
        exchange = self._exchange
        exchange.keep_alive = False
        exchange.tunnel = None
        plane = exchange.plane
        pool = self._pool
        account = pool.account
        account.tunnels.discard(self)
        account.end_tunnel(self._upstream.backend, self._weight())
        plane.cells[pool.row + POOL_UPGRADED_OPEN] -= 1
        plane.cells[self._row + BACKEND_UPGRADED_OPEN] -= 1
        self._live_in(None)
        exchange.finish(monotonic(), False)
        plane.fill_seats(pool)


def switch_protocols(exchange: Exchange, pool: Pool, upstream: Upstream, parser: ResponseParser, shape: Shape) -> bool:
    """Take a 101. False, with nothing done, if the client has not asked for what the backend wants to switch to."""
    protocol = shape.joined(b"upgrade", parser.values)
    asked = exchange.upgrade
    if (
        not asked
        or exchange.down != DONE
        or not protocol
        or not upgrade_protocols(protocol) <= upgrade_protocols(asked)
    ):
        return False
    downstream = exchange.downstream
    exchange.up = RESPONDING
    exchange.status = 101
    exchange.upgraded = True
    exchange.head = b""  # a tunnel may live for hours
    end_retry(exchange, pool, RETRY_SUCCEEDED)
    exchange.first_byte_us = int((monotonic() - exchange.sent) * 1e6)
    lines = interim_lines(shape, parser.values)
    tunnel = exchange.tunnel = Tunnel(exchange, pool, upstream)
    downstream.send(
        b"%b%bConnection: Upgrade\r\nUpgrade: %b\r\n%b\r\n" % (parser.line, lines, protocol, exchange.own_lines(pool))
    )
    rest = upstream.start_tunnel()
    if rest:
        tunnel.down(rest)
    downstream.start_tunnel()
    downstream.set_deadline(pool.spec.timeout.tunnel, DUE_TUNNEL)
    return True

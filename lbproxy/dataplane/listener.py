"""The data plane of one worker: listeners, the tick, the swap of snapshots, draining."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Final, cast, final

from lbproxy.core.account import DRAINING, OUT, Backend
from lbproxy.core.balance import Pool
from lbproxy.core.exchange import Finished
from lbproxy.core.ledger import (
    BACKEND_ACTIVE,
    BACKEND_IDLE,
    REJECTIONS,
    WORKER_GENERATION,
    WORKER_LAG,
    WORKER_REJECTED,
    WORKER_REQUESTS,
    WORKER_TICKS,
    Cells,
)
from lbproxy.core.snapshot import Snapshot, States
from lbproxy.core.spec import ListenerSpec
from lbproxy.dataplane.connections import close_idle, expire_idle, review_idle
from lbproxy.dataplane.deadlines import TICK
from lbproxy.dataplane.downstream import Downstream
from lbproxy.dataplane.plane import Plane, Trust, monotonic
from lbproxy.dataplane.recovery import backend_is_out
from lbproxy.dataplane.tunnel import Tunnel

_BACKLOG: Final = 4096


@final
class Listener:
    """One listening socket's connections and what they need to know of it.

    `line_bytes`, `header_count` and `keep_alive_s` are in `spec` too, but every request asks for them, and what is not
    compiled answers slowly: through `spec` the three take 0.2 microseconds.
    """

    __slots__ = ("connections", "header_count", "keep_alive_s", "line_bytes", "row", "server", "spec", "trust")

    def __init__(self, spec: ListenerSpec, row: int) -> None:
        self.row = row
        self._follow(spec)
        self.connections: Final[set[Downstream]] = set()
        self.server: asyncio.Server | None = None

    def _follow(self, spec: ListenerSpec) -> None:
        self.spec = spec
        self.trust = Trust(spec)
        self.line_bytes = spec.limits.line_bytes
        self.header_count = spec.limits.header_count
        self.keep_alive_s = spec.timeouts.keep_alive

    def take_over(self, spec: ListenerSpec, row: int) -> None:
        """Go on under a new specification of the same name."""
        self.row = row
        if spec != self.spec:
            before = self.spec.timeouts
            self._follow(spec)
            if spec.timeouts != before:
                for connection in self.connections:
                    connection.follow(before, spec.timeouts)

    def stop(self) -> None:
        """Accept no more, and let those go who are here."""
        if self.server is not None:
            self.server.close()
            self.server = None
        self.let_go()

    def let_go(self) -> None:
        """Close the connections, each when it has been answered."""
        for connection in list(self.connections):
            connection.drain()


def _loses_sessions(pool: Pool) -> bool:
    """Whether time alone moves keys to which tunnels are open: sessions that end on a backend that drains."""
    return (
        pool.spec.on_move == "close"
        and pool.account.sessions is not None
        and any(backend.tunnels and backend.state == DRAINING for backend in pool.backends.values())
    )


def _tell_tunnels(pool: Pool) -> None:
    """Tell tunnels that something has changed in their pool."""
    for tunnel in list(pool.account.tunnels):
        cast(Tunnel, tunnel).follow(pool)


@final
class DataPlane:
    """Accepts, relays and accounts. `cells` is the worker's slab, `log` is called once per ended exchange, and
    `report(pool, backend, reason)` when a backend has failed as often in a row as its pool allows."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        snapshot: Snapshot,
        cells: Cells,
        log: Callable[[Finished], None] | None = None,
        report: Callable[[str, str, str], None] | None = None,
        most_clients: int = sys.maxsize,
    ) -> None:
        """At most `most_clients` downstream connections are open at a time, whatever the listeners allow."""
        self._plane: Final = Plane(loop, snapshot, cells, log, report, most_clients)
        self._listeners: Final[dict[str, Listener]] = {}
        # Listeners that the configuration no longer has, as long as connections of theirs are open.
        self._leaving: list[Listener] = []
        self._tick_due = monotonic() + TICK
        self._has_stood_still = False
        self._second = 0
        self._timer = loop.call_later(TICK, self._tick)
        cells[snapshot.row + WORKER_GENERATION] = snapshot.generation
        self._known_rejected = self._rejected()
        # What a worker before this one in the same slot has not come to add up.
        answered = self._known_rejected + sum([pool.account.requests() for pool in snapshot.pools.values()])
        if answered > cells[snapshot.row + WORKER_REQUESTS]:
            cells[snapshot.row + WORKER_REQUESTS] = answered

    async def start(self, sockets: Mapping[str, socket.socket]) -> None:
        """Accept on these listening sockets, by the listeners' names; may be called again for further ones."""
        plane = self._plane
        snapshot = plane.snapshot
        for name, sock in sockets.items():
            listener = Listener(snapshot.listeners[name], snapshot.listener_rows[name])
            self._listeners[name] = listener
            listener.server = await self._serve(listener, sock)

    async def _serve(self, listener: Listener, sock: socket.socket) -> asyncio.Server:
        plane = self._plane

        def new_downstream() -> Downstream:
            return Downstream(plane, listener)

        if sock.family == socket.AF_UNIX:
            return await plane.loop.create_unix_server(
                new_downstream,  # type: ignore[arg-type]
                sock=sock,
                backlog=_BACKLOG,
            )
        return await plane.loop.create_server(new_downstream, sock=sock, backlog=_BACKLOG)  # type: ignore[arg-type]

    def apply(self, snapshot: Snapshot, states: States) -> None:
        """Read this snapshot from now on, and take what the control plane says of its backends: who comes with it may
        not be asked yet. Exchanges that run go on under the one they began with."""
        plane = self._plane
        before = plane.snapshot
        plane.turn.count()
        self._count_requests()
        plane.use(snapshot)
        for name, listener in list(self._listeners.items()):
            spec = snapshot.listeners.get(name)
            if spec is not None:
                listener.take_over(spec, snapshot.listener_rows[name])
            else:
                listener = self._listeners.pop(name)
                listener.stop()
                self._leaving.append(listener)
        staying = {id(backend) for pool in snapshot.pools.values() for backend in pool.backends.values()}
        changed = [pool for name, pool in snapshot.pools.items() if pool is not before.pools.get(name)]
        for pool in changed:
            for backend in pool.backends.values():
                review_idle(backend)
        for pool in before.pools.values():
            for backend in pool.backends.values():
                if id(backend) not in staying:
                    backend.keep = None
                    close_idle(backend)
                    plane.cells[backend.row + BACKEND_IDLE] = plane.cells[backend.row + BACKEND_ACTIVE] = 0
        self.adopt(states)
        for pool in changed:
            _tell_tunnels(pool)
        plane.cells[snapshot.row + WORKER_GENERATION] = snapshot.generation

    def log_to(self, log: Callable[[Finished], None]) -> None:
        """Tell another log of each exchange that ends from now on."""
        self._plane.log = log

    def stop_accepting(self) -> None:
        """Accept no more; running exchanges go on, and their connections close with them."""
        self._plane.draining = True
        for pool in self._plane.snapshot.pools.values():
            for backend in pool.backends.values():
                backend.keep = None
                close_idle(backend)
        for listener in self._listeners.values():
            listener.stop()

    async def drain(self, patience: float) -> int:
        """Stop accepting, close idle connections, wait for running exchanges at most `patience` seconds and cut off the
        rest. Returns how many were cut off."""
        self.stop_accepting()
        deadline = monotonic() + patience
        # An event would have to be set on the way of every request; draining happens once in a worker's life.
        while self.open_connections() and monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        cut = 0
        self._plane.is_over = True
        for listener in self._all_listeners():
            for connection in list(listener.connections):
                cut += 1
                connection.cut()
        self._timer.cancel()
        await asyncio.sleep(0)  # let the transports close
        self._plane.turn.count()  # which the next tick would have done
        self._count_requests()
        return cut

    def _all_listeners(self) -> tuple[Listener, ...]:
        """Those that accept, and those that only let their clients go."""
        return (*self._listeners.values(), *self._leaving)

    def open_connections(self) -> int:
        """Downstream connections that are open now."""
        return sum(len(listener.connections) for listener in self._all_listeners())

    def adopt(self, states: States) -> None:
        """Take what the control plane says of backends."""
        plane = self._plane
        for name, pool in plane.snapshot.pools.items():
            if name in states:
                pool.adopt(states[name])
                self._leave_those_out(pool)
                plane.fill_seats(pool)
                if pool.spec.on_move == "close":
                    _tell_tunnels(pool)

    def _leave_those_out(self, pool: Pool) -> None:
        """Keep no idle connection to a backend that is out of service: a machine that fell silent and comes back does
        not remember them. And tell those who wait for an answer there, again and again, for another backend may come or
        have room later."""
        held: list[Backend] = []
        for backend in pool.backends.values():
            if backend.state == OUT and not backend.eligible:
                close_idle(backend)
                if backend.in_flight > backend.tunnel_seats:
                    held.append(backend)
        if not held:
            return
        for listener in self._all_listeners():
            for exchange in [each.exchange for each in listener.connections if each.exchange.backend in held]:
                if exchange.has_seat:
                    backend_is_out(exchange)

    def _look_after_pools(self) -> None:
        """Expire idle connections, measure keys, and bring up to date what need not be exact to the request."""
        plane = self._plane
        cells = plane.cells
        is_new_second, self._second = plane.date_second != self._second, plane.date_second
        for pool in plane.snapshot.pools.values():
            for backend in pool.backends.values():
                if backend.idle:
                    expire_idle(plane, backend)
                cells[backend.row + BACKEND_IDLE] = len(backend.idle)
                cells[backend.row + BACKEND_ACTIVE] = backend.connections - len(backend.idle)
            pool.tick(plane.now)
            if is_new_second and _loses_sessions(pool):
                _tell_tunnels(pool)
            if pool.account.waiting:
                plane.fill_seats(pool)
            self._leave_those_out(pool)
        for pool in plane.snapshot.leaving.values():
            if pool.account.waiting:  # perhaps for a seat that another worker gives back
                plane.fill_seats(pool)
        self._count_requests()

    def _count_requests(self) -> None:
        """Add up what has been answered since the last time. A pool that goes takes no request of the past with it."""
        plane = self._plane
        snapshot = plane.snapshot
        rejected = self._rejected()
        answered = rejected - self._known_rejected
        self._known_rejected = rejected
        for pools in (snapshot.pools, snapshot.leaving):
            for pool in pools.values():
                answered += pool.account.newly_answered()
        plane.cells[snapshot.row + WORKER_REQUESTS] += answered

    def _rejected(self) -> int:
        """The running count of requests that were refused before a pool was known."""
        first = self._plane.snapshot.row + WORKER_REJECTED
        return sum(self._plane.cells[first : first + len(REJECTIONS)])

    def _tick(self) -> None:
        try:
            self._look_around()
        finally:  # whatever has gone wrong: without ticks nothing would ever be over
            self._tick_due = monotonic() + TICK
            self._timer = self._plane.loop.call_later(TICK, self._tick)

    def _look_around(self) -> None:
        """Bring the clock forward, and see to deadlines that have passed, to listeners that leave, and to the pools."""
        plane = self._plane
        before = plane.now
        plane.tick()
        now = plane.now
        row = plane.snapshot.row
        lag = now - self._tick_due
        plane.cells[row + WORKER_LAG] = max(0, int(lag * 1e6))
        plane.cells[row + WORKER_TICKS] += 1
        # The time in which the loop stood still is nobody's. What was under way could not go on, and what was begun
        # just after took the old time for the present one. But a loop that is always late must keep its deadlines too.
        self._has_stood_still = lag > TICK and not self._has_stood_still
        if self._has_stood_still:
            self._put_off_deadlines(now - before)
        else:
            self._keep_deadlines(now)
        self._leaving = [listener for listener in self._leaving if listener.connections]
        for listener in self._leaving:
            listener.let_go()
        self._look_after_pools()

    def _put_off_deadlines(self, seconds: float) -> None:
        for listener in self._all_listeners():
            for connection in listener.connections:
                connection.deadline += seconds

    def _keep_deadlines(self, now: float) -> None:
        """Tell connections whose deadline has passed."""
        for listener in self._all_listeners():
            late = [connection for connection in listener.connections if connection.deadline < now - TICK]
            for connection in late:
                if connection.deadline >= now - TICK:
                    continue  # it waited for a seat, and has just been given that of another one of them
                try:
                    connection.pass_deadline()
                except Exception as error:
                    connection.fail("a deadline could not be kept", error)

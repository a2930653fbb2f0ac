"""The exchange: joins one request on a downstream connection with its attempts on upstream connections.

It routes, takes a seat, sends, relays both bodies as they come, and settles the account at the end. What goes wrong is
looked up in the tables of `core/exchange.py`. One object serves all requests of a downstream connection, one after the
other; an upstream connection knows its exchange only while it serves it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, final

from lbproxy.core.balance import OUT, Backend, Pool
from lbproxy.core.cookies import CookieAffinity
from lbproxy.core.exchange import (
    ABANDON,
    BODY,
    BROKEN,
    CONNECTING,
    CUT,
    DETACH,
    DONE,
    FINISHED,
    GONE,
    IDLE,
    IMPOSSIBLE,
    NEXT,
    NONE,
    REPEAT,
    RESPONDING,
    SENDING,
    WHEN_ATTEMPT_FAILS,
    WHEN_CLIENT_LEAVES,
)
from lbproxy.core.hashing import hash_key
from lbproxy.core.headers import (
    CHUNKED,
    CHUNKED_LINE,
    CLOSE_LINE,
    KEEP_ALIVE_LINE,
    LENGTH,
    Connection,
    RequestShape,
    Shape,
    Values,
    connection_of,
    trailer_lines,
    upgrade_protocols,
)
from lbproxy.core.ledger import (
    BACKEND_DURATION,
    BACKEND_DURATION_SUM,
    BACKEND_ERRORS,
    BACKEND_OWNED,
    BACKEND_REQUESTS,
    BACKEND_SPILLS,
    BACKEND_SPILLS_RECEIVED,
    DECISIONS,
    DURATION_BOUNDS,
    FAILOVER,
    OWNER,
    PINNED,
    POOL_ABORTS,
    POOL_CONNECT,
    POOL_DECISIONS,
    POOL_DURATION,
    POOL_DURATION_SUM,
    POOL_FIRST_BYTE,
    POOL_FIRST_BYTE_SUM,
    POOL_REJECTED,
    POOL_REQUEST_BYTES,
    POOL_REQUESTS,
    POOL_RESPONSE_BYTES,
    POOL_RETRIES,
    POOL_RETRIES_REFUSED,
    POOL_UPGRADED,
    POOL_UPGRADED_OPEN,
    REJECTIONS,
    UPSTREAM_ERRORS,
    WORKER_REJECTED,
    observe_duration,
)
from lbproxy.core.retry import ALLOWED, ANSWERED, IDEMPOTENT, NO_BUDGET, SENT, UNSENT
from lbproxy.core.retry import IMPOSSIBLE as NOT_POSSIBLE
from lbproxy.dataplane import flow
from lbproxy.dataplane.connections import CONNECT_TIMEOUT, start_connecting, take_idle
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
from lbproxy.dataplane.plane import Plane, monotonic
from lbproxy.dataplane.upstream import CLOSED_EARLY, PROTOCOL, RESET, Upstream
from lbproxy.dataplane.wire import ResponseParser

if TYPE_CHECKING:
    from lbproxy.dataplane.downstream import Downstream

# Indexes into ledger.UPSTREAM_ERRORS and ledger.RETRY_REASONS.
FIRST_BYTE_TIMEOUT: Final = 6
IDLE_TIMEOUT: Final = 7
_RETRY_STALE: Final = 1
_RETRY_STATUS: Final = 3
_RETRY_TIMEOUT: Final = 4
# Which of ledger.RETRY_REASONS an error of ledger.UPSTREAM_ERRORS is.
_RETRY_REASONS: Final = (0, 0, 0, 2, 2, 2, 4, 4)

# Which column of route_spills_total a decision counts into: hot, full or failover.
_SPILL_COLUMNS: Final = (2, 0, 1, 2, 2, 2, 2)

_NO_SHAPE: Final = RequestShape((), frozenset())
_WITHOUT_LENGTH: Final = frozenset((b"content-length",))
_NOTHING: Final[frozenset[bytes]] = frozenset()

# The answer to a client whose last attempt failed: by index into ledger.UPSTREAM_ERRORS.
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


@final
class Exchange:
    """One request with its response. `core.exchange.Finished` says what the attributes that a log reads mean."""

    __slots__ = (
        # for the connection's life
        "downstream", "plane",
        # the request, set by the downstream side
        "client", "down", "head", "host", "is_head", "keep_alive", "key", "method", "minor",
        "path", "request_id", "shape", "target", "upgrade", "values",
        # its body
        "held", "held_size", "is_chunked", "is_repeatable",
        # where it goes
        "attempts", "backend", "connecting", "cookie_backend", "decision", "h", "has_seat", "is_waiting", "owner",
        "pool", "tried", "up", "upstream",
        # the answer
        "is_close_delimited", "is_rechunked", "named", "status", "upgraded",
        # the account
        "connect_us", "duration_us", "first_byte_us", "reason", "request_bytes", "response_bytes", "sent", "started",
    )  # fmt: skip

    def __init__(self, downstream: Downstream, plane: Plane) -> None:
        self.downstream: Final = downstream
        self.plane: Final = plane
        self.client = ""
        self.head = b""
        self.method = b""
        self.target = b""
        self.path = b""
        self.host = b""
        self.minor = 1
        self.shape = _NO_SHAPE
        self.values: Values = ()
        self.request_id = b""
        self.key: bytes | None = None
        self.is_head = False
        self.keep_alive = True
        self.upgrade = b""
        self.is_chunked = False
        self.held: list[bytes] = []
        self.tried: list[Backend] = []
        self.named = _NOTHING
        self.connecting: asyncio.Task[None] | None = None
        self.upstream: Upstream | None = None
        self.down = IDLE
        self.reset()

    def reset(self) -> None:
        """Forget the last request's way and account; the downstream side sets what describes the request itself."""
        self.up = NONE
        self.held_size = 0
        self.is_repeatable = True
        self.attempts = 0
        self.backend: Backend | None = None
        self.cookie_backend: Backend | None = None
        self.owner: Backend | None = None
        self.pool: Pool | None = None
        self.decision = -1
        self.status = 0
        self.is_rechunked = False
        self.is_close_delimited = False
        self.upgraded = False
        self.connect_us = -1
        self.first_byte_us = -1
        self.duration_us = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.reason = ""
        self.has_seat = False
        self.is_waiting = False
        self.h = -1
        self.started = self.sent = monotonic()

    def forget_request(self) -> None:
        """There is no request, only the beginnings of one."""
        self.reset()
        self.shape = _NO_SHAPE
        self.values = ()
        self.method = self.target = self.path = self.host = b""
        self.key = None

    # What an access log reads.

    @property
    def pool_name(self) -> str:
        return self.pool.name if self.pool is not None else ""

    @property
    def backend_name(self) -> str:
        return self.backend.name if self.backend is not None else ""

    def field(self, name: bytes) -> bytes:
        return self.shape.joined(name, self.values)

    # The request's way.

    def start(self) -> None:
        """Route the request whose head the downstream side has just taken in, and make the first attempt."""
        plane = self.plane
        router = plane.snapshot.router
        pool = router.only
        if pool is None:
            pool = router.find(self.host, self.path)
            if pool is None:
                self.refuse(404, "no_route")
                return
        self.pool = pool
        key = self.key = pool.find_key(self.shape, self.values, self.path, self.client)
        if pool.cookies is not None and self._follow_cookie(pool, pool.cookies):
            return
        if key is None:
            if pool.spec.sticky.on_missing == "reject":
                self.refuse(400, "no_key")
            else:
                self._place(pool)
            return
        h = self.h = hash_key(key)
        account = pool.account
        account.meter.seen.append(h)
        if account.sessions is not None:
            account.sessions.mark(h)
        owner = self.owner = pool.owner(h)
        if owner is not None:
            plane.cells[owner.row + BACKEND_OWNED] += 1
        limit = pool.spec.hot_keys.max_in_flight
        if limit is not None and account.held_by_key(h) >= limit:
            self.refuse(429, "key_limit")
        elif not pool.has_pins or not self._follow_pin(pool, key):
            self._place(pool)

    def _place(self, pool: Pool) -> None:
        """Choose a backend and make the first attempt; wait when all are full."""
        h = self.h
        backend, decision = pool.pick(h) if h >= 0 else pool.least_loaded()
        if backend is not None:
            self.decision = decision
            self._attempt(backend)
        elif pool.eligible:
            self._wait(pool)
        else:
            self.refuse(503, "no_backend")

    def _follow_cookie(self, pool: Pool, cookies: CookieAffinity) -> bool:
        """Go where the session's cookie says. False when there is none, or its backend cannot serve it."""
        positions = self.shape.index.get(b"cookie", ())
        name = cookies.backend([self.values[at] for at in positions], self.plane.unix_time)
        backend = pool.backends.get(name) if name is not None else None
        if backend is None:
            return False
        self.cookie_backend = backend
        if backend.state == OUT or pool.account.load(backend) >= backend.limit:
            return False
        self.decision = PINNED
        self._attempt(backend)
        return True

    def _follow_pin(self, pool: Pool, key: bytes) -> bool:
        """Go where a pin says. False when there is none, or its backend is down and the ring may decide."""
        pin = pool.pinned(key)
        backend = pool.backends.get(pin.backend) if pin is not None else None
        if pin is None or backend is None:
            return False
        if backend.state != OUT and pool.account.load(backend) < backend.limit:
            self.decision = PINNED
            self._attempt(backend)
            return True
        if pin.on_down == "reject":
            self.refuse(503, "pin_down")
            return True
        return False

    def _wait(self, pool: Pool) -> None:
        """Every eligible backend is full: wait for a seat, within bounds."""
        waiting = pool.account.waiting
        if len(waiting) >= pool.spec.queue.size:
            self.refuse(503, "queue_full")
            return
        self.is_waiting = True
        waiting.append(self)
        self.downstream.set_deadline(pool.spec.queue.timeout, DUE_SEAT)

    def _leave_queue(self) -> None:
        pool = self.pool
        if self.is_waiting and pool is not None:
            self.is_waiting = False
            pool.account.waiting.remove(self)

    def _attempt(self, backend: Backend) -> None:
        """Take a seat and send, on an idle connection or a new one."""
        plane = self.plane
        pool = self.pool
        assert pool is not None
        self.backend = backend
        self.attempts += 1
        self.has_seat = True
        pool.account.acquire(backend, self.h)
        if backend.idle:
            is_careful = self.down != DONE or self.method not in IDEMPOTENT
            upstream = take_idle(plane, backend, is_careful)
            if upstream is not None:
                self._send(upstream)
                return
        self._connect(backend)

    def _connect(self, backend: Backend) -> None:
        self.up = CONNECTING
        pool = self.pool
        assert pool is not None
        self.sent = monotonic()
        self.downstream.set_deadline(pool.spec.timeout.connect, DUE_CONNECT)
        self.connecting = start_connecting(self.plane, backend, self)

    def connected(self, upstream: Upstream) -> None:
        """A new connection is there."""
        self.connecting = None
        now = monotonic()
        self.connect_us = int((now - self.sent) * 1e6)
        self.sent = now
        pool = self.pool
        assert pool is not None
        observe_duration(self.plane.cells, pool.row + POOL_CONNECT, self.connect_us)
        self._send(upstream)

    def _send(self, upstream: Upstream) -> None:
        """Send the head and what there is of the body."""
        self.upstream = upstream
        self.up = SENDING
        upstream.serve(self)
        downstream = self.downstream
        if self.held_size:
            upstream.transport.write(self.head + b"".join(self.held))
            self._keep_within_buffer()
            if downstream.read_paused and not upstream.write_paused:
                downstream.resume_reading()
        else:
            upstream.transport.write(self.head)
        if downstream.write_paused:
            upstream.pause_reading()
        if self.down == DONE:
            self._await_first_byte()
        else:
            downstream.set_deadline(downstream.listener.spec.timeouts.body_idle, DUE_BODY)

    def _await_first_byte(self) -> None:
        pool = self.pool
        assert pool is not None
        spec = pool.spec
        if spec.retry.per_try is None:
            self.downstream.set_deadline(spec.timeout.first_byte, DUE_FIRST_BYTE)
        else:
            self.downstream.set_deadline(min(spec.retry.per_try, spec.timeout.first_byte), DUE_TRY)

    # The request's body.

    def request_data(self, data: bytes) -> None:
        """Octets of the request's body, without framing."""
        self.request_bytes += len(data)
        self._forward(b"%x\r\n%b\r\n" % (len(data), data) if self.is_chunked else data)

    def request_end(self, trailers: list[tuple[bytes, bytes]]) -> None:
        """The request has ended."""
        self.down = DONE
        if self.is_chunked:
            named = connection_of(self.shape, self.values).named
            self._forward(b"0\r\n%b\r\n" % trailer_lines(trailers, named))
        if self.up == SENDING:
            self._await_first_byte()
        elif self.up == FINISHED:
            self._finish(monotonic(), True)

    def _forward(self, framed: bytes) -> None:
        up = self.up
        if up == SENDING or up == RESPONDING or up == FINISHED:
            upstream = self.upstream
            assert upstream is not None
            upstream.transport.write(framed)
            if self.down == BODY:
                self.downstream.set_deadline(self.downstream.listener.spec.timeouts.body_idle, DUE_BODY)
            if self.is_repeatable:
                self.held.append(framed)
                self.held_size += len(framed)
                self._keep_within_buffer()
        elif up == CONNECTING or up == NONE:
            self.held.append(framed)
            self.held_size += len(framed)
            if self.held_size > flow.HOLD:
                self.downstream.pause_reading()

    def _keep_within_buffer(self) -> None:
        """What has been sent is kept for repetition only up to the pool's buffer."""
        pool = self.pool
        assert pool is not None
        if self.held_size > pool.spec.retry.buffer:
            self.is_repeatable = False
            self.held.clear()
            self.held_size = 0

    # The answer.

    def interim(self, parser: ResponseParser, shape: Shape) -> bool:
        """A 1xx that is not the answer: pass it on to a client that knows them. False if it ended the attempt."""
        if shape.content_length >= 0:
            lines = self._lines(shape, parser.values, _WITHOUT_LENGTH)
        else:
            lines = self._lines(shape, parser.values, _NOTHING)
        if self.minor and self.down != GONE:
            self.downstream.transport.write(b"%b%b\r\n" % (parser.line, lines))
        return self.upstream is not None

    @staticmethod
    def _lines(shape: Shape, values: Values, without: frozenset[bytes]) -> bytes:
        named = connection_of(shape, values).named
        return shape.lines(values, without | named if named else without)

    def respond(
        self,
        parser: ResponseParser,
        shape: Shape,
        connection: Connection,
        framing: int,
        length: int,
        body: bytes,
        is_complete: bool,
    ) -> None:
        """The final head of the answer has come, with the first octets of its body, perhaps all of them."""
        plane = self.plane
        downstream = self.downstream
        status = parser.status
        if status >= 500:
            if self._is_failure(status):
                return
        else:
            backend = self.backend
            if backend is not None and backend.errors:
                backend.errors = 0
        now = monotonic()
        self.first_byte_us = int((now - self.sent) * 1e6)
        self.up = RESPONDING
        self.status = status
        values = parser.values
        without = connection.named
        if shape.content_length >= 0:
            if status == 204:
                without = without | _WITHOUT_LENGTH
            elif framing == LENGTH:
                values = _with_length(shape, values, length)
        lines = shape.template % values if not without else shape.lines(values, without)
        tail = b"" if shape.date else plane.date_line
        if framing >= CHUNKED:
            self.named = connection.named
            if self.minor:
                self.is_rechunked = True
                tail += CHUNKED_LINE
                if body:
                    self.response_bytes = len(body)
                    body = b"%x\r\n%b\r\n" % (len(body), body)
            else:
                self.is_close_delimited = True
                self.keep_alive = False
        if (plane.draining or (self.down != DONE and status >= 400)) and self.keep_alive:
            self.keep_alive = False
        if not self.keep_alive:
            tail += CLOSE_LINE
        elif not self.minor:
            tail += KEEP_ALIVE_LINE
        if downstream.shows_decisions:
            tail += self._debug_lines()
        pool = self.pool
        if pool is not None and pool.cookies is not None and self.backend is not self.cookie_backend:
            tail += pool.cookies.line(self.backend_name, plane.unix_time)
        if not self.is_rechunked:
            self.response_bytes = len(body)
        transport = downstream.transport
        if len(body) <= flow.LOW_WATER:
            transport.write(b"%b%b%b\r\n%b" % (parser.line, lines, tail, body))
        else:
            transport.write(b"%b%b%b\r\n" % (parser.line, lines, tail))
            transport.write(body)
        if is_complete:
            self._answer_ended(now)
        else:
            self._wait_for_more()

    def _is_failure(self, status: int) -> bool:
        """Take note of an answer that speaks against the backend. True when another backend is asked instead."""
        pool, backend = self.pool, self.backend
        assert pool is not None
        assert backend is not None
        self.plane.observe_failure(pool, backend, "status")
        if status not in pool.spec.retry.statuses:
            return False
        verdict = pool.retry.verdict(ANSWERED, self.method, self.attempts, self.is_repeatable, status)
        if verdict != ALLOWED:
            if verdict >= 0:
                self._count_refused(verdict)
            return False
        following = self._following(backend, ANSWERED)
        if following is None:
            return False
        self.plane.cells[backend.row + BACKEND_REQUESTS + 4] += 1
        self._drop_upstream()
        self._leave_seat()
        self._count_retry(_RETRY_STATUS)
        self._attempt(following)
        return True

    def response_data(self, data: bytes) -> None:
        """Octets of the answer's body, without framing."""
        self.response_bytes += len(data)
        transport = self.downstream.transport
        if self.is_rechunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        transport.write(data)
        self._wait_for_more()

    def response_trailers(self, trailers: list[tuple[bytes, bytes]]) -> None:
        """A chunked answer has ended, with these trailer fields."""
        self.response_end(trailer_lines(trailers, self.named) if trailers else b"")

    def response_end(self, trailers: bytes) -> None:
        """The answer has ended."""
        if self.is_rechunked:
            self.downstream.transport.write(b"0\r\n%b\r\n" % trailers)
        self._answer_ended(monotonic())

    def _answer_ended(self, now: float) -> None:
        """The answer is through. If the request is not, and the answer was no refusal, the rest of it still goes on."""
        upstream = self.upstream
        if self.down == BODY and self.status < 400 and upstream is not None and upstream.stay_for_request():
            self.up = FINISHED
            self.downstream.set_deadline(self.downstream.listener.spec.timeouts.body_idle, DUE_BODY)
        else:
            self._finish(now, True)

    def _wait_for_more(self) -> None:
        downstream = self.downstream
        if downstream.write_paused:
            downstream.set_deadline(downstream.listener.spec.timeouts.body_idle, DUE_SEND)
        else:
            pool = self.pool
            assert pool is not None
            downstream.set_deadline(pool.spec.timeout.idle, DUE_UPSTREAM)

    def _debug_lines(self) -> bytes:
        decision = DECISIONS[self.decision] if self.decision >= 0 else ""
        if self.attempts > 1:
            decision = f"retry:{self.attempts - 1}"
        return b"X-LB-Backend: %b\r\nX-LB-Decision: %b\r\n" % (self.backend_name.encode(), decision.encode())

    # Tunnels.

    def switch_protocols(self, parser: ResponseParser, shape: Shape) -> None:
        """The backend answered 101."""
        upstream = self.upstream
        pool = self.pool
        assert upstream is not None
        assert pool is not None
        protocol = shape.joined(b"upgrade", parser.values)
        if (
            not self.upgrade
            or self.down != DONE
            or not protocol
            or not upgrade_protocols(protocol) <= upgrade_protocols(self.upgrade)
        ):
            self.attempt_failed(PROTOCOL, "101 that nobody asked for")
            return
        self.up = RESPONDING
        self.status = 101
        self.upgraded = True
        self.first_byte_us = int((monotonic() - self.sent) * 1e6)
        cells = self.plane.cells
        cells[pool.row + POOL_UPGRADED] += 1
        cells[pool.row + POOL_UPGRADED_OPEN] += 1
        lines = self._lines(shape, parser.values, _WITHOUT_LENGTH)
        debug = self._debug_lines() if self.downstream.shows_decisions else b""
        rest = upstream.tunnel()
        self.downstream.transport.write(
            b"%b%bConnection: Upgrade\r\nUpgrade: %b\r\n%b\r\n%b" % (parser.line, lines, protocol, debug, rest)
        )
        self.response_bytes += len(rest)
        self.touch_tunnel()
        self.downstream.start_tunnel()

    def touch_tunnel(self) -> None:
        """Octets went through the tunnel."""
        pool = self.pool
        assert pool is not None
        self.downstream.set_deadline(pool.spec.timeout.tunnel, DUE_TUNNEL)

    def tunnel_up(self, data: bytes) -> None:
        """Octets from the client to the backend."""
        self.request_bytes += len(data)
        if self.upstream is not None:
            self.upstream.transport.write(data)
            self.touch_tunnel()

    def tunnel_down(self, data: bytes) -> None:
        """Octets from the backend to the client."""
        self.response_bytes += len(data)
        self.downstream.transport.write(data)
        self.touch_tunnel()

    def tunnel_up_end(self) -> bool:
        """The client will send no more. True: the other direction goes on."""
        upstream = self.upstream
        if upstream is None or self.downstream.is_end_sent:
            self.tunnel_broken()
            return False
        if upstream.transport.can_write_eof():
            upstream.transport.write_eof()
        return True

    def tunnel_down_end(self) -> bool:
        """The backend will send no more. True: the other direction goes on."""
        downstream = self.downstream
        if downstream.is_end_seen:
            self.tunnel_broken()
            return False
        downstream.send_end()
        return True

    def tunnel_broken(self) -> None:
        """The tunnel is over."""
        self.keep_alive = False
        self._finish(monotonic(), False)

    # Back-pressure.

    def upstream_full(self) -> None:
        downstream = self.downstream
        downstream.pause_reading()
        if self.up == SENDING:
            pool = self.pool
            assert pool is not None
            downstream.set_deadline(pool.spec.timeout.idle, DUE_UPSTREAM)

    def upstream_drained(self) -> None:
        downstream = self.downstream
        downstream.resume_reading()
        if self.up == SENDING and self.down == BODY:
            downstream.set_deadline(downstream.listener.spec.timeouts.body_idle, DUE_BODY)

    def downstream_full(self) -> None:
        if self.upstream is not None:
            self.upstream.pause_reading()
            if self.up == RESPONDING and not self.upgraded:
                self._wait_for_more()

    def downstream_drained(self) -> None:
        if self.upstream is not None:
            self.upstream.resume_reading()
            if self.up == RESPONDING and not self.upgraded:
                self._wait_for_more()

    # What goes wrong.

    def attempt_failed(self, error: int, detail: str = "") -> None:
        """The current attempt failed: `error` is an index into `ledger.UPSTREAM_ERRORS`."""
        action = WHEN_ATTEMPT_FAILS[self.down][self.up]
        if action == IMPOSSIBLE:
            raise AssertionError(f"an attempt failed in {self.down}, {self.up}")
        upstream = self.upstream
        backend = self.backend
        assert backend is not None
        if action == DETACH:
            self._drop_upstream()
            self._finish(monotonic(), False)
            return
        if action not in (NEXT, REPEAT, CUT):
            return
        was_stale = upstream is not None and upstream.reused and error in (RESET, CLOSED_EARLY)
        has_received = upstream is not None and upstream.has_received
        self._drop_upstream()
        self._leave_seat()
        if action == CUT:
            self.reason = UPSTREAM_ERRORS[error]
            self._blame(backend, error)
            self._cut()
            return
        phase = UNSENT if action == NEXT else SENT
        if has_received or error == FIRST_BYTE_TIMEOUT:
            verdict = NOT_POSSIBLE
        else:
            pool = self.pool
            assert pool is not None
            attempts = self.attempts - 1 if was_stale else self.attempts
            verdict = pool.retry.verdict(phase, self.method, attempts, self.is_repeatable)
        if was_stale and verdict == ALLOWED:
            # An idle connection had been closed while we took it up: the same backend again, on a new one.
            self.attempts -= 1
            self._count_retry(_RETRY_STALE)
            self._attempt_afresh(backend)
            return
        self._blame(backend, error)
        if verdict == ALLOWED:
            self._try_next(backend, error, phase, _RETRY_REASONS[error])
            return
        if verdict >= 0:
            self._count_refused(verdict)
        self._give_up(error)

    def _blame(self, backend: Backend, error: int) -> None:
        """The backend failed, and not the client."""
        self.plane.cells[backend.row + BACKEND_ERRORS + error] += 1
        pool = self.pool
        assert pool is not None
        self.plane.observe_failure(pool, backend, UPSTREAM_ERRORS[error])

    def _attempt_afresh(self, backend: Backend) -> None:
        pool = self.pool
        assert pool is not None
        self.attempts += 1
        self.has_seat = True
        pool.account.acquire(backend, self.h)
        self._connect(backend)

    def _try_next(self, failed: Backend, error: int, phase: int, reason: int) -> None:
        """Go on with the next backend of the preference list, if there is one and the budget allows it."""
        following = self._following(failed, phase)
        if following is None:
            self._give_up(error)
        else:
            self._count_retry(reason)
            self._attempt(following)

    def _following(self, failed: Backend, phase: int) -> Backend | None:
        pool = self.pool
        assert pool is not None
        self.tried.append(failed)
        h = self.h
        following = pool.successor(h, self.tried) if h >= 0 else pool.least_loaded(self.tried)[0]
        if following is None:
            return None
        if pool.retry.is_charged(phase):
            account = pool.account
            if not account.budget.spend(self.plane.now, account.requests(), account.in_flight):
                self._count_refused(NO_BUDGET)
                return None
        if self.decision == OWNER:
            self.decision = FAILOVER
        return following

    def _count_retry(self, reason: int) -> None:
        pool = self.pool
        assert pool is not None
        self.plane.cells[pool.row + POOL_RETRIES + reason] += 1

    def _count_refused(self, reason: int) -> None:
        pool = self.pool
        assert pool is not None
        self.plane.cells[pool.row + POOL_RETRIES_REFUSED + reason] += 1

    def _give_up(self, error: int) -> None:
        status, reason = _ANSWERS[error]
        self.refuse(status, reason)

    def refuse(self, status: int, reason: str) -> None:
        """Answer from here: no backend will. Nothing of the answer has been sent yet."""
        self.reason = reason
        cells = self.plane.cells
        if self.pool is not None:
            cells[self.pool.row + POOL_REJECTED + REJECTIONS.index(reason)] += 1
        else:
            cells[self.plane.snapshot.row + WORKER_REJECTED + REJECTIONS.index(reason)] += 1
        self.status = status
        if self.down != DONE or self.plane.draining:
            self.keep_alive = False
        self.response_bytes = self.downstream.reply(status, self.keep_alive, self.is_head, self.minor)
        self.up = BROKEN
        self._finish(monotonic(), False)

    def _cut(self) -> None:
        """The answer has begun and cannot be completed."""
        self.keep_alive = False
        self._settle(monotonic())
        if self.is_close_delimited:
            flow.reset(self.downstream.transport)
        else:
            self.downstream.close()

    def take_seat(self, pool: Pool) -> bool:
        """A seat may have become free: try again. False when all are still full."""
        h = self.h
        backend, decision = pool.pick(h) if h >= 0 else pool.least_loaded()
        if backend is None and pool.eligible:
            return False
        self.is_waiting = False
        self.pool = pool
        if backend is None:
            self.refuse(503, "no_backend")
        else:
            self.decision = decision
            self._attempt(backend)
        return True

    def client_left(self) -> None:
        """The downstream connection is gone."""
        self._leave_queue()
        action = WHEN_CLIENT_LEAVES[self.down][self.up]
        if action == IMPOSSIBLE:
            raise AssertionError(f"a client left in {self.down}, {self.up}")
        if action == DETACH:
            self.down = GONE
            self._drop_upstream()
            self._leave_seat()
            self._settle(monotonic())
        elif action == ABANDON:
            self.down = GONE
            pool = self.pool
            if pool is not None and not self.upgraded:
                self.reason = "client_abort"
                self.plane.cells[pool.row + POOL_ABORTS] += 1
            self._drop_upstream()
            self._leave_seat()
            self._settle(monotonic())
        self.down = GONE

    def out_of_time(self, due: int) -> bool:
        """A deadline has passed. False: it was the client's, and the downstream side must see to it."""
        if due == DUE_CONNECT:
            self._cancel_connecting()
            self.attempt_failed(CONNECT_TIMEOUT)
        elif due == DUE_FIRST_BYTE:
            self.attempt_failed(FIRST_BYTE_TIMEOUT)
        elif due == DUE_UPSTREAM:
            self.attempt_failed(IDLE_TIMEOUT)
        elif due == DUE_TRY:
            self._try_elsewhere()
        elif due == DUE_SEAT:
            self._leave_queue()
            self.refuse(503, "queue_timeout")
        elif due == DUE_TUNNEL:
            self.tunnel_broken()
        elif due == DUE_BODY:
            self._client_stalled(408, "body_timeout")
        elif due == DUE_SEND:
            self._client_stalled(408, "client_abort")
        else:
            return False
        return True

    def _try_elsewhere(self) -> None:
        """The time for one try is over: another backend, if the request may be repeated, else wait on."""
        pool, backend = self.pool, self.backend
        assert pool is not None
        assert backend is not None
        upstream = self.upstream
        has_received = upstream is not None and upstream.has_received
        verdict = pool.retry.verdict(SENT, self.method, self.attempts, self.is_repeatable)
        following = self._following(backend, SENT) if verdict == ALLOWED and not has_received else None
        if following is None:
            if verdict >= 0:
                self._count_refused(verdict)
            waited = monotonic() - self.started
            self.downstream.set_deadline(max(0.0, pool.spec.timeout.first_byte - waited), DUE_FIRST_BYTE)
            return
        self._drop_upstream()
        self._leave_seat()
        self._blame(backend, FIRST_BYTE_TIMEOUT)
        self._count_retry(_RETRY_TIMEOUT)
        self._attempt(following)

    def _client_stalled(self, status: int, reason: str) -> None:
        """The client sends or takes no more. The backend is not to blame."""
        has_answer = self.up >= RESPONDING
        self._drop_upstream()
        self._leave_seat()
        if has_answer:
            self.reason = reason
            self._cut()
        else:
            self.refuse(status, reason)

    def refuse_body(self, status: int, reason: str) -> None:
        """The request's body cannot be taken further: it is malformed, too long or cut short by the client."""
        self._client_stalled(status, reason)

    # The end.

    def _cancel_connecting(self) -> None:
        connecting, self.connecting = self.connecting, None
        if connecting is not None:
            connecting.cancel()

    def _drop_upstream(self) -> None:
        """Close the upstream connection, or what is becoming one."""
        self._cancel_connecting()
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.close()

    def _leave_seat(self) -> None:
        """The backend holds this exchange no longer."""
        backend = self.backend
        if backend is not None and self.has_seat:
            pool = self.pool
            assert pool is not None
            self.has_seat = False
            self.up = BROKEN
            account = pool.account
            account.release(backend, self.h)
            if account.waiting:
                self.plane.seat_is_free(pool)

    def _finish(self, now: float, is_answered: bool) -> None:
        """The answer has been handed over completely: settle, free the upstream connection, go on with the client."""
        upstream = self.upstream
        if upstream is not None:
            self.upstream = None
            upstream.release(is_answered and self.down == DONE)
        self._leave_seat()
        self.up = FINISHED
        self._settle(now)
        self.downstream.answered(self.keep_alive)

    def _settle(self, now: float) -> None:
        """Count and log."""
        cells = self.plane.cells
        micros = self.duration_us = int((now - self.started) * 1e6)
        pool = self.pool
        if pool is not None:
            row = pool.row
            if self.upgraded:
                cells[row + POOL_UPGRADED_OPEN] -= 1
            status = self.status
            code = (status if status < 600 else 500) // 100 - 1
            if status:
                cells[row + POOL_REQUESTS + code] += 1
            if self.decision >= 0:
                cells[row + POOL_DECISIONS + self.decision] += 1
            if self.request_bytes:
                cells[row + POOL_REQUEST_BYTES] += self.request_bytes
            cells[row + POOL_RESPONSE_BYTES] += self.response_bytes
            backend = self.backend
            if status and not self.upgraded:
                bucket = bisect_left(DURATION_BOUNDS, micros)
                cells[row + POOL_DURATION + bucket] += 1
                cells[row + POOL_DURATION_SUM] += micros
                if self.first_byte_us >= 0 and backend is not None:
                    upstream_micros = micros
                    if self.sent != self.started:
                        upstream_micros = int((now - self.sent) * 1e6)
                        bucket = bisect_left(DURATION_BOUNDS, upstream_micros)
                    cells[backend.row + BACKEND_DURATION + bucket] += 1
                    cells[backend.row + BACKEND_DURATION_SUM] += upstream_micros
                    if self.first_byte_us != upstream_micros:
                        bucket = bisect_left(DURATION_BOUNDS, self.first_byte_us)
                    cells[row + POOL_FIRST_BYTE + bucket] += 1
                    cells[row + POOL_FIRST_BYTE_SUM] += self.first_byte_us
            if self.first_byte_us >= 0 and backend is not None:
                cells[backend.row + BACKEND_REQUESTS + code] += 1
                owner = self.owner
                if owner is not backend and owner is not None:
                    cells[owner.row + BACKEND_SPILLS + _SPILL_COLUMNS[self.decision]] += 1
                    cells[backend.row + BACKEND_SPILLS_RECEIVED] += 1
        if self.held:
            self.held.clear()
        if self.tried:
            self.tried.clear()
        log = self.plane.log
        if log is not None:
            log(self)


def _with_length(shape: Shape, values: Values, length: int) -> Values:
    """The values with a Content-Length made new, if it was not written as we write it."""
    at = shape.content_length
    written = b"%d" % length
    if values[at] == written:
        return values
    return (*values[:at], written, *values[at + 1 :])

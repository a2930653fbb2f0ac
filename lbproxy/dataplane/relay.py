"""The exchange: joins one request on a downstream connection with its attempts on upstream connections.

It routes, takes a seat, sends, relays both bodies as they come, and frees everything at the end. What goes wrong is in
`recovery.py`. One object serves all requests of a downstream connection, one after the other; an upstream connection
knows its exchange only while it serves it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from lbproxy.core.account import CROWD, Backend
from lbproxy.core.balance import Pool
from lbproxy.core.exchange import (
    BODY,
    BROKEN,
    CONNECTING,
    DONE,
    FINISHED,
    GONE,
    IDLE,
    NO_SHAPE,
    NONE,
    RESPONDING,
    SENDING,
    Finished,
)
from lbproxy.core.hashing import NO_HASH, hash_key
from lbproxy.core.headers import CHUNKED, CHUNKED_LINE, CLOSE_LINE, KEEP_ALIVE_LINE, Shape, trailer_lines
from lbproxy.core.ledger import (
    DECISIONS,
    OWNER,
    POOL_CONNECT,
    POOL_REJECTED,
    PROTOCOL,
    REJECTIONS,
    RETRY,
    RETRY_FAILED,
    RETRY_SUCCEEDED,
    WORKER_REJECTED,
    count_duration,
)
from lbproxy.core.retry import IDEMPOTENT
from lbproxy.dataplane import flow
from lbproxy.dataplane.answer import Answer, interim_lines
from lbproxy.dataplane.connections import start_connecting, take_idle
from lbproxy.dataplane.deadlines import (
    DUE_BODY,
    DUE_CONNECT,
    DUE_FIRST_BYTE,
    DUE_SEND,
    DUE_TRY,
    DUE_TUNNEL,
    DUE_UPSTREAM,
)
from lbproxy.dataplane.flow import Octets
from lbproxy.dataplane.placement import follow_guide, has_enough, has_left, wait_for_seat
from lbproxy.dataplane.plane import Plane, monotonic
from lbproxy.dataplane.recovery import attempt_failed, no_resources, try_elsewhere
from lbproxy.dataplane.settling import end_retry, settle, tell
from lbproxy.dataplane.tunnel import Tunnel, switch_protocols
from lbproxy.dataplane.upstream import HEAD, Upstream
from lbproxy.dataplane.wire import ResponseParser

if TYPE_CHECKING:
    from lbproxy.dataplane.downstream import Downstream

_NOTHING: Final[frozenset[bytes]] = frozenset()
# Octets of a body that are copied behind the head, to leave with it at the end of the turn.
_SHORT_BODY: Final = 16_384


def _chunk(data: Octets) -> bytes:
    """The octets as a chunk of a chunked body."""
    return b"".join((b"%x\r\n" % len(data), data, b"\r\n"))


@final
class Exchange(Finished):
    """One request with its response."""

    __slots__ = (
        # for the connection's life
        "downstream", "plane",
        # the request, set by the downstream side
        "down", "head", "is_head", "keep_alive", "request_named", "upgrade",
        # its body
        "held", "held_size", "is_chunked", "is_repeatable",
        # where it goes
        "backend", "connecting", "cookie_backend", "h", "has_lost", "has_seat", "is_cookie_out", "is_waiting", "owner",
        "pool", "retried_for", "tried", "up", "upstream",
        # the answer
        "is_close_delimited", "is_rechunked", "named", "tunnel",
    )  # fmt: skip

    def __init__(self, downstream: Downstream, plane: Plane) -> None:
        super().__init__()
        self.downstream: Final = downstream
        self.plane: Final = plane
        self.head = b""
        self.is_head = False
        self.keep_alive = True
        self.upgrade = b""
        self.is_chunked = False
        self.request_named = _NOTHING
        self.held: list[Octets] = []
        self.tried: list[Backend] = []
        self.named = _NOTHING
        self.connecting: asyncio.Task[None] | None = None
        self.upstream: Upstream | None = None
        self.down = IDLE
        self.is_cookie_out = False  # of `cookie_backend`, when the request was placed; it may be back by the answer
        self.reset()

    def reset(self) -> None:
        """Forget the last request's way and account; the downstream side sets what describes the request itself."""
        self.up = NONE
        self.held_size = 0
        self.is_repeatable = True
        self.attempts = 0
        self.backend: Backend | None = None
        self.backend_name = ""
        self.cookie_backend: Backend | None = None
        self.owner: Backend | None = None
        self.pool: Pool | None = None
        self.pool_name = ""
        self.key = None
        self.decision = -1
        self.retried_for = -1  # index into ledger.RETRY_REASONS if the current attempt is a further one
        self.trace_id = b""
        self.status = 0
        self.is_rechunked = False
        self.is_close_delimited = False
        self.upgraded = False
        self.tunnel: Tunnel | None = None
        self.connect_us = -1
        self.first_byte_us = -1
        self.duration_us = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.reason = ""
        self.has_seat = False
        self.has_lost = False
        self.is_waiting = False
        self.h = NO_HASH
        self.started = self.sent = monotonic()
        downstream = self.downstream
        if downstream.arrived > 0.0:  # the request was put off; its time runs from then
            self.started = downstream.arrived
            downstream.arrived = 0.0

    def forget_request(self) -> None:
        """There is no request, only the beginnings of one."""
        self.reset()
        self.shape = NO_SHAPE
        self.values = ()
        self.method = self.target = self.path = self.host = self.agent = self.referer = b""
        self.client = self.peer
        self.minor = 1

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
        self.pool_name = pool.name
        key = self.key = pool.find_key(self.shape, self.values, self.path, self.client)
        if key is not None:
            h = self.h = hash_key(key)
            account = pool.account
            account.seen(h)
            if account.sessions is not None:
                pool.remember(h)
            if pool.key_limit is not None and has_enough(account, h, pool.key_limit):
                self.refuse(429, "key_limit")
                return
        elif pool.spec.sticky.on_missing == "reject":
            self.refuse(400, "no_key")
            return
        if not pool.has_guides or not follow_guide(self, pool):
            self._place(pool)

    def forget_values(self) -> None:
        """The request is on its way, and its values are in no one's way any more: dozens of small objects, whose memory
        the next request finds still warm (a tenth of a browser's request)."""
        if self.trace is None:
            self.values = ()

    def _place(self, pool: Pool) -> None:
        """Choose a backend and make the first attempt; wait when all are full."""
        h = self.h
        if h != NO_HASH:
            backend, decision = pool.pick(h)
            self.owner = backend if decision == OWNER else pool.owner(h)
        else:
            backend, decision = pool.least_loaded()
        if backend is not None:
            self.decision = decision
            self.attempt(backend)
        elif pool.has_others():
            wait_for_seat(self, pool)
        else:
            self.refuse(503, "no_backend")

    def leave_queue(self) -> None:
        """Wait for a seat no longer."""
        pool = self.pool
        if self.is_waiting and pool is not None:
            self.is_waiting = False
            self.retried_for = -1
            pool.account.waiting.remove(self)

    def attempting(self) -> tuple[Pool, Backend]:
        """The pool and the backend of the current attempt."""
        assert self.pool is not None
        assert self.backend is not None
        return self.pool, self.backend

    def attempt_later(self, backend: Backend) -> None:
        """Make an attempt for which the request had to wait: for a seat, or for the failure of another one."""
        self.sent = monotonic()
        self.connect_us = -1
        self.attempt(backend)

    def attempt(self, backend: Backend) -> None:
        """Take a seat and send, on an idle connection or a new one."""
        plane = self.plane
        pool = self.pool
        assert pool is not None
        self.backend = backend
        self.backend_name = backend.name
        self.attempts += 1
        self.has_seat = True
        account = pool.account
        if account.acquire(backend, self.h):
            plane.turn.moved(account)
        is_careful = self.down != DONE or self.method not in IDEMPOTENT
        upstream = take_idle(plane, backend, is_careful)
        if upstream is not None:
            upstream.is_careful = is_careful
            self._send(upstream)
        else:
            self.connect(backend)

    def connect(self, backend: Backend) -> None:
        """Make the current attempt on a new connection."""
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
        count_duration(self.plane.cells, pool.row + POOL_CONNECT, self.connect_us)
        self._send(upstream)

    def _send(self, upstream: Upstream) -> None:
        """Send the head and what there is of the body."""
        self.upstream = upstream
        self.up = SENDING
        upstream.exchange = self
        upstream.mode = HEAD
        downstream = self.downstream
        if self.down == DONE:
            self._await_first_byte(downstream)
        else:
            downstream.set_deadline(downstream.listener.spec.timeouts.body_idle, DUE_BODY)
        if downstream.write_paused:
            upstream.pause_reading()
        pool = self.pool
        assert pool is not None
        held_size = self.held_size
        in_flight = pool.account.in_flight
        if self.down == DONE and held_size <= _SHORT_BODY and in_flight >= CROWD:
            upstream.unsent = b"".join((self.head, *self.held)) if held_size else self.head
            self.plane.turn.ask(upstream, in_flight)
        elif held_size:
            upstream.transport.writelines([self.head, *self.held])
            self.keep_repeatable()
        else:
            upstream.transport.write(self.head)
        if held_size and downstream.read_paused and not upstream.write_paused:
            downstream.resume_reading()

    def _await_first_byte(self, downstream: Downstream) -> None:
        pool = self.pool
        assert pool is not None
        per_try = pool.per_try_s
        if per_try is None or self.backend in self.tried:  # the time for this try is over already
            downstream.set_deadline(pool.first_byte_s, DUE_FIRST_BYTE)
        else:
            downstream.set_deadline(min(per_try, pool.first_byte_s), DUE_TRY)

    # The request's body.

    def request_data(self, data: Octets) -> None:
        """Octets of the request's body, without framing."""
        self.request_bytes += len(data)
        self._forward(_chunk(data) if self.is_chunked else data)

    def request_end(self, trailers: list[tuple[bytes, bytes]]) -> None:
        """The request has ended."""
        self.down = DONE
        if self.is_chunked:
            self._forward(b"0\r\n%b\r\n" % trailer_lines(trailers, self.request_named))
        if self.up == SENDING:
            self._await_first_byte(self.downstream)
        elif self.up == FINISHED:
            self.finish(monotonic(), True)

    def _forward(self, framed: Octets) -> None:
        up = self.up
        if up == SENDING or up == RESPONDING or up == FINISHED:
            upstream = self.upstream
            assert upstream is not None
            upstream.transport.write(framed)
            if self.down == BODY and not upstream.write_paused:  # else it is the backend's turn
                self.downstream.set_deadline(self.downstream.listener.spec.timeouts.body_idle, DUE_BODY)
            if self.is_repeatable:
                self.held.append(framed)
                self.held_size += len(framed)
                self.keep_repeatable()
        elif up == CONNECTING or up == NONE:
            self.held.append(framed)
            self.held_size += len(framed)
            if self.held_size > flow.HOLD:
                self.downstream.pause_reading()
        else:
            self.has_lost = True

    def keep_repeatable(self) -> None:
        """What there is of the body has been sent: keep it only if it may be repeated, and up to the pool's buffer."""
        pool = self.pool
        assert pool is not None
        if self.held_size > pool.spec.retry.buffer or not pool.retry.may_repeat(self.method):
            self.is_repeatable = False
            self.held.clear()
            self.held_size = 0

    # The answer.

    def interim(self, parser: ResponseParser, shape: Shape) -> None:
        """A 1xx that is not the answer: pass it on to a client that knows them."""
        if self.minor and self.down != GONE:
            self.downstream.send(b"%b%b\r\n" % (parser.line, interim_lines(shape, parser.values)))

    def switch_protocols(self, parser: ResponseParser, shape: Shape) -> None:
        """The backend answered 101."""
        pool, upstream = self.pool, self.upstream
        if pool is None or upstream is None or not switch_protocols(self, pool, upstream, parser, shape):
            self.attempt_failed(PROTOCOL)

    def could_not_try(self) -> None:
        """No connection can be opened, for reasons of our own."""
        no_resources(self)

    def attempt_failed(self, error: int) -> None:
        """The current attempt failed: `error` is an index into `ledger.UPSTREAM_ERRORS`."""
        attempt_failed(self, error)

    def respond(self, answer: Answer, body: Octets, is_complete: bool) -> None:
        """The final head of the answer has come, with the first octets of its body, perhaps all of them."""
        status = answer.status
        if status >= 400 and try_elsewhere(self, status, is_complete):
            return
        plane = self.plane
        downstream = self.downstream
        pool = self.pool
        assert pool is not None
        if self.retried_for >= 0:
            is_good = status < 500 and status not in pool.spec.retry.statuses
            end_retry(self, pool, RETRY_SUCCEEDED if is_good else RETRY_FAILED)
        now = monotonic()
        self.first_byte_us = int((now - self.sent) * 1e6)
        self.up = RESPONDING
        self.status = status
        tail = b"" if answer.is_dated else plane.date_line
        if answer.framing >= CHUNKED:
            self.named = answer.named
            if self.minor:
                self.is_rechunked = True
                tail += CHUNKED_LINE
            else:
                self.is_close_delimited = True
                self.keep_alive = False
        if plane.draining or (self.down != DONE and status >= 400):
            self.keep_alive = False
        if not self.keep_alive:
            tail += CLOSE_LINE
        elif not self.minor:
            tail += KEEP_ALIVE_LINE
        if downstream.shows_decisions or pool.cookies is not None:
            tail += self.own_lines(pool)
        size = self.response_bytes = len(body)
        if self.is_rechunked and size:
            body = _chunk(body)
        if not is_complete:
            downstream.send(b"%b%b\r\n" % (answer.lines, tail))
            if size:
                downstream.transport.write(body)
            self._wait_for_more()
            return
        if isinstance(body, bytes):  # nearly always, and 0.1 microseconds faster
            last = b"%b%b\r\n%b" % (answer.lines, tail, body)
        else:
            last = b"".join((answer.lines, tail, b"\r\n", body))
        if self.down == DONE:
            self.finish(now, True, last)
        else:
            self._answer_ended(now, last)

    def own_lines(self, pool: Pool) -> bytes:
        """What the proxy itself has to say in the head of an answer: the decision, and a new affinity cookie."""
        lines = self._debug_lines() if self.downstream.shows_decisions else b""
        if pool.cookies is not None and has_left(self):
            lines += pool.cookies.line(self.backend_name, self.plane.unix_time)
        return lines

    def _debug_lines(self) -> bytes:
        """Who was asked last, how it was chosen, and why the answer is the proxy's own; what there is of it."""
        lines = b""
        if self.backend_name:
            lines = b"X-LB-Backend: %b\r\n" % self.backend_name.encode()
        if self.attempts > 1 or self.decision == RETRY:  # which may have waited in vain for its first further attempt
            lines += b"X-LB-Decision: retry:%d\r\n" % max(1, self.attempts - 1)
        elif self.decision >= 0:
            lines += b"X-LB-Decision: %b\r\n" % DECISIONS[self.decision].encode()
        if self.reason:
            lines += b"X-LB-Reason: %b\r\n" % self.reason.encode()
        return lines

    def response_data(self, data: bytes) -> None:
        """Octets of the answer's body, without framing."""
        self.response_bytes += len(data)
        transport = self.downstream.transport
        if self.is_rechunked:
            data = _chunk(data)
        transport.write(data)
        self._wait_for_more()

    def response_last(self, data: bytes) -> None:
        """The last octets of an answer whose length is known. They go out when it has been counted."""
        self.response_bytes += len(data)
        self._answer_ended(monotonic(), data)

    def response_trailers(self, trailers: list[tuple[bytes, bytes]]) -> None:
        """A chunked answer has ended, with these trailer fields."""
        self.response_end(trailer_lines(trailers, self.named) if trailers else b"")

    def response_end(self, trailers: bytes) -> None:
        """The answer has ended."""
        self._answer_ended(monotonic(), b"0\r\n%b\r\n" % trailers if self.is_rechunked else b"")

    def _answer_ended(self, now: float, last: bytes) -> None:
        """The answer is through but for its `last` octets. If the request is not, and the answer was no refusal, the
        rest of it still goes on."""
        upstream = self.upstream
        if self.down == BODY and self.status < 400 and upstream is not None and upstream.stay_for_request():
            self.downstream.send(last)
            self.up = FINISHED
            self.downstream.set_deadline(self.downstream.listener.spec.timeouts.body_idle, DUE_BODY)
        else:
            self.finish(now, True, last)

    def _wait_for_more(self) -> None:
        downstream = self.downstream
        if downstream.write_paused:
            downstream.set_deadline(downstream.listener.spec.timeouts.body_idle, DUE_SEND)
        else:
            pool = self.pool
            assert pool is not None
            downstream.set_deadline(pool.spec.timeout.idle, DUE_UPSTREAM)

    # Back-pressure.

    def upstream_full(self) -> None:
        downstream = self.downstream
        downstream.pause_reading()
        pool = self.pool
        assert pool is not None
        if self.tunnel is not None:
            # While we do not read we do not see the client leave either: the time for a standstill is shorter.
            downstream.set_deadline(pool.spec.timeout.idle, DUE_TUNNEL)
        elif self.up == RESPONDING:
            self._wait_for_more()
        else:
            downstream.set_deadline(pool.spec.timeout.idle, DUE_UPSTREAM)

    def upstream_drained(self) -> None:
        downstream = self.downstream
        downstream.resume_reading()
        if self.tunnel is not None:
            self.tunnel.touch()
        elif self.down == BODY:
            downstream.set_deadline(downstream.listener.spec.timeouts.body_idle, DUE_BODY)
        elif self.up == SENDING:
            self._await_first_byte(downstream)

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

    # The end.

    def refuse(self, status: int, reason: str) -> None:
        """Answer from here: no backend will. Nothing of an answer has been sent yet."""
        self.reason = reason
        plane = self.plane
        row = self.pool.row + POOL_REJECTED if self.pool is not None else plane.snapshot.row + WORKER_REJECTED
        plane.cells[row + REJECTIONS.index(reason)] += 1
        self.status = status
        if self.down != DONE or plane.draining:
            self.keep_alive = False
        told = self._debug_lines() if self.downstream.shows_decisions else b""
        self.response_bytes = self.downstream.reply(status, self.keep_alive, self.is_head, self.minor, told)
        self.up = BROKEN
        self.finish(monotonic(), False)

    def drop_attempt(self) -> None:
        """End the current attempt, if there is one: its connection is closed and its seat free."""
        self.drop_upstream()
        self.leave_seat()

    def drop_upstream(self) -> None:
        """Close the upstream connection, or what is becoming one."""
        connecting, self.connecting = self.connecting, None
        if connecting is not None:
            connecting.cancel()
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.close()

    def leave_seat(self) -> None:
        """The backend holds this exchange no longer."""
        backend = self.backend
        if backend is not None and self.has_seat:
            pool = self.pool
            assert pool is not None
            self.has_seat = False
            self.up = BROKEN
            account = pool.account
            if account.release(backend, self.h):
                self.plane.turn.moved(account)
            if account.waiting:
                self.plane.fill_seats(pool)

    def finish(self, now: float, is_answered: bool, last: bytes = b"") -> None:
        """The exchange is over: free the upstream connection and the seat, settle, send the `last` octets of the
        answer, tell the log and go on with the client. What a client has got whole is counted, even if we are killed in
        that moment."""
        upstream = self.upstream
        if upstream is not None:
            self.upstream = None
            if is_answered and self.status < 500:  # a good answer is one that has come whole
                upstream.backend.errors = 0
            upstream.release(is_answered and self.down == DONE and not self.has_lost)
        elif self.is_waiting:
            self.leave_queue()
        self.leave_seat()
        self.up = FINISHED
        settle(self, now)
        downstream = self.downstream
        if last:
            pool = self.pool
            downstream.send_last(last, pool.account.in_flight if pool is not None else 0)
        else:
            self.plane.turn.count()
        tell(self)
        downstream.answered(self.keep_alive)

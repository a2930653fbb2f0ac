"""A connection from a client: takes requests apart, strictly, and hands them to its exchange one after the other.

Nothing of a request goes anywhere before its head has been read and checked as a whole; a request that is refused is
answered, and the connection closed, because after it nobody knows where the next one starts.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast, final

from lbproxy.core import exchange as states
from lbproxy.core.account import CROWD
from lbproxy.core.exchange import NO_SHAPE
from lbproxy.core.headers import CLOSE_LINE, KEEP_ALIVE_LINE, BadMessage
from lbproxy.core.ledger import LISTENER_ACCEPTED, LISTENER_OPEN, LISTENER_REFUSED
from lbproxy.dataplane import flow
from lbproxy.dataplane.chunked import ChunkedDecoder
from lbproxy.dataplane.deadlines import CUT_SHORT, DUE_BODY, DUE_HEAD, DUE_KEEP_ALIVE, DUE_LINGER, DUE_SEND, NEVER
from lbproxy.dataplane.heads import take_head
from lbproxy.dataplane.plane import monotonic
from lbproxy.dataplane.recovery import client_failed, client_left, out_of_time
from lbproxy.dataplane.relay import Exchange
from lbproxy.dataplane.tunnel import Tunnel
from lbproxy.dataplane.wire import END_OF_HEAD, EarlyCheck

if TYPE_CHECKING:
    from lbproxy.core.spec import ListenerTimeouts
    from lbproxy.dataplane.listener import Listener
    from lbproxy.dataplane.plane import Plane

# What arriving octets are.
AWAIT: Final = 0  # a request head
LENGTH: Final = 1  # a body of known length
CHUNKS: Final = 2  # a chunked body
BUSY: Final = 3  # the next requests, to be held until the current one is answered
TUNNEL: Final = 4  # not HTTP any more
LINGER: Final = 5  # nothing anybody wants to know

# A client that stops sending may still want its answer, or may be gone: nothing tells which. Seconds without progress
# after which it is taken for gone, so that nobody's seat is held for it.
HALF_CLOSED_S: Final = 1.0
# Seconds and octets for which a client may go on sending after we have closed our side.
LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 1_048_576
# Empty lines before a request that are skipped (RFC 9112 2.2).
_EMPTY_LINES: Final = 4

# Octets of a request head at the most that stay while nothing is asked.
_LARGE_HEAD: Final = 8192

# As RFC 9110 has them: before 3.13 Python has older names for two.
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus} | {
    413: "Content Too Large",
    414: "URI Too Long",
}


def _reply_head(status: int) -> tuple[bytes, bytes]:
    phrase = _PHRASES.get(status, "")
    body = b"%d %b\n" % (status, phrase.encode())
    head = b"HTTP/1.1 %d %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n" % (
        status,
        phrase.encode(),
        len(body),
    )
    return head, body


@final
class Downstream:
    """One client connection. An `asyncio.Protocol` in all but name: a compiled class cannot inherit from one that is
    not, and the loop only calls the methods."""

    __slots__ = (
        # for the connection's life
        "exchange", "forwarding", "is_trusted", "listener", "plane", "shows_decisions", "snapshot", "transport",
        # what has arrived and was not used yet
        "_at", "_check", "_searched", "_skipped", "arrived", "is_put_off", "pending",
        # the request whose body is arriving
        "decoder", "left", "mode",
        # what is still to be sent at the end of the turn
        "_ends_when_sent", "unsent",
        # flow and time
        "_lingered", "_taken", "deadline", "due", "is_end_seen", "is_end_sent", "read_paused", "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, plane: Plane, listener: Listener) -> None:
        self.plane: Final = plane
        self.listener: Final = listener
        self.arrived = 0.0
        self.exchange = Exchange(self, plane)
        self.snapshot = plane.snapshot
        self.is_trusted = False
        self.shows_decisions = False
        self.forwarding = b""
        self._check: EarlyCheck | None = None
        self._searched = 0
        self._skipped = 0
        self.pending = b""
        self._at = 0
        self.is_put_off = False
        self.unsent = b""
        self._ends_when_sent = False
        self.mode = AWAIT
        self.left = 0
        self.decoder: ChunkedDecoder | None = None
        self.deadline = NEVER
        self.due = DUE_HEAD
        self.read_paused = False
        self.write_paused = False
        self.is_end_seen = False
        self.is_end_sent = False
        self._lingered = 0
        self._taken = -1 << 62

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        listener = self.listener
        cells = self.plane.cells
        cells[listener.row + LISTENER_OPEN] += 1
        listener.connections.add(self)
        plane = self.plane
        plane.clients += 1
        if len(listener.connections) > listener.spec.limits.connections or plane.clients > plane.most_clients:
            cells[listener.row + LISTENER_REFUSED] += 1
            self.transport.abort()
            return
        cells[listener.row + LISTENER_ACCEPTED] += 1
        self.transport.set_write_buffer_limits(flow.HIGH_WATER, flow.LOW_WATER)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.exchange.peer = self.exchange.client = str(peer[0])
        self.adopt_policy()
        self.set_deadline(listener.spec.timeouts.request_head, DUE_HEAD)

    def data_received(self, data: bytes) -> None:
        mode = self.mode
        if mode == AWAIT:
            if self.pending:
                data = self.pending[self._at :] + data
                self.pending = b""
                self._at = 0
            if self.plane.turn.admit():
                self._read_heads(data, 0)
            else:
                self._hold(data, 0)
                self._put_off()
        elif mode == LENGTH:
            self._read_body(data, 0)
        elif mode == CHUNKS:
            self._read_chunks(data)
        elif mode == TUNNEL:
            cast(Tunnel, self.exchange.tunnel).up(data)
        elif mode == BUSY:
            self._hold(self.pending[self._at :] + data if self.pending else data, 0)
        else:
            self._lingered += len(data)
            if self._lingered > _LINGER_BYTES and not self._has_unsent():
                self.transport.abort()

    def eof_received(self) -> bool:
        self.is_end_seen = True
        mode = self.mode
        if mode == TUNNEL:
            return cast(Tunnel, self.exchange.tunnel).up_end()
        if mode == LENGTH or mode == CHUNKS:
            client_failed(self.exchange, 400, "bad_request")  # a request cut short is not one (RFC 9112 8)
            return False
        if mode == BUSY:
            self.set_deadline(self.deadline - self.plane.now, self.due)  # the same, unless it is cut short now
        elif mode == AWAIT and self.pending:
            if not self.is_put_off:  # what was asked before the end is answered, at once or when its turn comes, or
                self.go_on()  # when the client has taken what it got
        else:
            self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline = NEVER
        listener = self.listener
        listener.connections.discard(self)
        plane = self.plane
        plane.clients -= 1
        plane.cells[listener.row + LISTENER_OPEN] -= 1
        tunnel = self.exchange.tunnel
        if tunnel is not None:
            data = flow.rest(self.transport) if exc is not None else b""
            if data:
                tunnel.up(data)
            tunnel.close()
        elif self.mode != LINGER:
            client_left(self.exchange)
        self.mode = LINGER
        # A connection and its exchange make a circle, which only the garbage collector could free: 6 % of all CPU time
        # with a connection for each request. So the circle is cut; one ended exchange will do for all that are gone.
        if plane.ended is None:
            plane.ended = self.exchange
        self.exchange = plane.ended

    def pause_writing(self) -> None:
        self.write_paused = True
        self.exchange.downstream_full()

    def resume_writing(self) -> None:
        self.write_paused = False
        self.exchange.downstream_drained()
        if self.mode == AWAIT:
            self.resume_reading()
            if self.pending and not self.is_put_off:
                self.go_on()

    def adopt_policy(self) -> None:
        """Prepare what this connection adds to the head of each request, under the snapshot that is in force."""
        snapshot = self.snapshot = self.plane.snapshot
        self.exchange.trace = None
        self.exchange.shape = NO_SHAPE
        policy = snapshot.headers
        peer = self.exchange.peer
        self.is_trusted = self.listener.trust.trusts(peer)
        self.shows_decisions = policy.debug and self.is_trusted
        if policy.x_forwarded == "append":
            self.forwarding = b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: " % (
                peer.encode() or b"unknown"
            )
        else:
            self.forwarding = b""

    # Time.

    def set_deadline(self, seconds: float, due: int) -> None:
        """What is waited for now, and for how long at the most."""
        if self.is_end_seen and self.mode == BUSY and seconds > HALF_CLOSED_S:
            seconds = HALF_CLOSED_S
            due |= CUT_SHORT
        self.deadline = self.plane.now + seconds
        self.due = due

    def follow(self, before: ListenerTimeouts, after: ListenerTimeouts) -> None:
        """A client may take more time now than before, or less: what it is taking just now, too."""
        due = self.due
        if due == DUE_KEEP_ALIVE:
            self.deadline += after.keep_alive - before.keep_alive
        elif due == DUE_HEAD:
            self.deadline += after.request_head - before.request_head
        elif due in (DUE_BODY, DUE_SEND):
            self.deadline += after.body_idle - before.body_idle

    def pass_deadline(self) -> None:
        """The sweep found that the deadline has passed."""
        due = self.due & ~CUT_SHORT
        if due in (DUE_SEND, DUE_KEEP_ALIVE, DUE_LINGER) and self._note_taking():
            self.set_deadline(self.listener.spec.timeouts.body_idle, due)
            return
        if self.due & CUT_SHORT:
            self.transport.abort()
            return
        if self.is_put_off:
            return  # the client has done its part
        self.deadline = NEVER
        if due == DUE_LINGER:
            self.transport.abort()
        elif due == DUE_KEEP_ALIVE or (due == DUE_HEAD and not self.pending):
            self._end()
        elif due == DUE_HEAD:
            self._refuse_head(
                BadMessage(408, "request_timeout", "the request head took too long"), self.pending, self._at
            )
        else:
            out_of_time(self.exchange, due)

    def _has_unsent(self) -> bool:
        """Whether the client has not been sent everything yet."""
        return self.transport.get_write_buffer_size() > 0 or flow.unsent(self.transport) > 0

    def _note_taking(self) -> bool:
        """Note how much of the answer has reached the client, counting what the kernel holds; whether that is more than
        when we last looked, however little, or we have not looked yet."""
        waiting = self.transport.get_write_buffer_size() + flow.unsent(self.transport)
        before = self._taken
        self._taken = self.exchange.response_bytes - waiting
        return waiting > 0 and self._taken != before

    # Flow.

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            flow.pause(self.transport)

    def resume_reading(self) -> None:
        """Read on, if no more than may be held of further requests is held, and the client takes what they bring."""
        if (
            self.read_paused
            and len(self.pending) - self._at <= flow.HOLD
            and not (self.write_paused and self.mode == AWAIT)
        ):
            self.read_paused = False
            flow.resume(self.transport)

    # Requests.

    def _read_heads(self, data: bytes, start: int) -> None:
        """Octets of which those from `start` on begin where a request head begins."""
        if data[start] < 32:
            data = self._skip_empty_lines(data[start:])
            start = 0
            if not data:
                self.arrived = 0.0  # of the next request nothing has
                return
        listener = self.listener
        is_parsed = (
            data.endswith(END_OF_HEAD)
            and start == self._searched == 0
            and len(data) <= listener.line_bytes
            and self.plane.requests.parse_whole(data, listener.header_count)
        )
        if is_parsed:
            head, end = data, len(data)
        else:
            end = data.find(END_OF_HEAD, start + self._searched) + 4
            if end == 3:
                self._await_head(data[start:])
                return
            head = data[start:end]
            if len(head) > listener.line_bytes and not self._check_lines(head):
                return
        self._searched = self._skipped = 0
        self._check = None
        try:
            take_head(self, head, is_parsed)
        except BadMessage as bad:
            self._refuse(bad, self.exchange.is_head)
            return
        exchange = self.exchange
        if exchange.down == states.DONE:
            self.mode = BUSY
            if end < len(data):
                self._hold(data, end)
            exchange.start()
            exchange.forget_values()
            return
        self.mode = CHUNKS if exchange.is_chunked else LENGTH
        self.resume_reading()  # which pipelined requests may have stopped; a body stops it again by its own rules
        if end < len(data):  # what is here already goes on in one piece with the head
            if exchange.is_chunked:
                self._read_chunks(data[end:])
            else:
                self._read_body(data, end)
        if exchange.down in (states.BODY, states.DONE):  # and not refused already
            exchange.start()
            exchange.forget_values()

    def _hold(self, data: bytes, start: int) -> None:
        """Keep the octets from `start` on until the current request has been answered, or the next one's turn has come.
        They are not copied for every request among them, and no more are read while they are many."""
        self.pending = data
        self._at = start
        if len(data) - start > flow.HOLD:
            self.pause_reading()

    def _skip_empty_lines(self, data: bytes) -> bytes:
        """Drop the empty lines before a request line; anything else below a space there is an error."""
        while self._skipped < _EMPTY_LINES and data.startswith(b"\r\n"):
            self._skipped += 1
            data = data[2:]
        if data == b"\r":
            self.pending = data
            return b""
        if data and data[0] < 32:
            self._refuse(BadMessage(400, "bad_request", "the request line does not start with a method"), False)
            return b""
        return data

    def _await_head(self, data: bytes) -> None:
        """The head is not complete yet: keep what there is, within bounds, unless it is nonsense already."""
        check = self._check
        if check is None:
            check = self._check = EarlyCheck(self.listener.header_count)
            if self.due != DUE_HEAD:  # the time of a connection's first head runs from its start
                self.set_deadline(self.listener.spec.timeouts.request_head, DUE_HEAD)
        problem = check.look(data)
        if problem is not None:
            self._refuse_head(problem, data)
            return
        limits = self.listener.spec.limits
        is_long = len(data) > limits.head_bytes or len(data) - data.rfind(b"\r\n") > limits.line_bytes
        if is_long and not self._check_lines(data.removesuffix(b"\r")):  # which may be the end of its line
            return
        self._searched = max(0, len(data) - 3)
        self.arrived = 0.0
        self.resume_reading()  # which pipelined requests may have stopped; a head has a limit of its own
        self.pending = data

    def _check_lines(self, head: bytes) -> bool:
        """Hold a head that is longer than one line may be against the limits; False when it was refused."""
        limits = self.listener.spec.limits
        first = head.find(b"\r\n")
        longest = max(map(len, head.split(b"\r\n")))
        if (first if first >= 0 else len(head)) > limits.line_bytes:
            self._refuse_head(BadMessage(414, "uri_too_long", "the request line is too long"), head)
        elif longest > limits.line_bytes or len(head) > limits.head_bytes:
            self._refuse_head(BadMessage(431, "head_too_large", "the request head is too large"), head)
        else:
            return True
        return False

    # Bodies.

    def _read_body(self, data: bytes, start: int) -> None:
        """Octets of which those from `start` on belong to a body, as far as it goes."""
        end = start + self.left
        exchange = self.exchange
        if end > len(data):
            self.left = end - len(data)
            exchange.request_data(flow.part(data, start, len(data)))
            return
        self.left = 0
        self.mode = BUSY
        if end < len(data):
            self._hold(data, end)
        exchange.down = states.DONE
        exchange.request_data(flow.part(data, start, end))
        exchange.request_end([])

    def _read_chunks(self, data: bytes) -> None:
        exchange = self.exchange
        decoder = cast(ChunkedDecoder, self.decoder)
        try:
            body, used = decoder.feed(data)
        except BadMessage as bad:
            client_failed(exchange, bad.status, bad.reason)
            return
        if body:
            piece = body[0] if len(body) == 1 else b"".join(body)
            most = self.listener.spec.limits.body_bytes
            if most is not None and exchange.request_bytes + len(piece) > most:
                client_failed(exchange, 413, "body_too_large")
                return
            exchange.request_data(piece)
        if used >= 0 and self.mode == CHUNKS:
            self.mode = BUSY
            self.decoder = None
            if used < len(data):
                self._hold(data, used)
            exchange.request_end(decoder.trailers)

    # Answers.

    def send(self, data: bytes) -> None:
        """Send octets of an answer behind everything that was to be sent before."""
        self._send_early()
        self.transport.write(data)

    def send_last(self, data: bytes, in_flight: int) -> None:
        """Send the last octets of an answer that has been counted. When enough others are `in_flight` in its pool, they
        can wait for the end of the loop's turn."""
        turn = self.plane.turn
        if in_flight >= CROWD and not self.pending and not self.unsent:
            self.unsent = data
            turn.send(self, in_flight)
        else:
            turn.count()
            self.send(data)

    def send_rest(self) -> None:
        """Send what was left for the end of the turn."""
        data, self.unsent = self.unsent, b""
        flow.send(self.transport, data)
        if self._ends_when_sent:
            self._ends_when_sent = False
            self._end()

    def _send_early(self) -> None:
        """Send what was left for the end of the turn before that, counted all the same."""
        if self.unsent:
            self.plane.turn.count()
            self.send_rest()

    def reply(self, status: int, is_kept: bool, is_head: bool, minor: int, told: bytes) -> int:
        """Send a short answer of the proxy's own, with these lines in its head; returns the octets of its body."""
        head, body = _reply_head(status)
        if is_head:
            body = b""
        extra = b"Retry-After: 1\r\n" if status in (429, 503) else b""
        connection = CLOSE_LINE if not is_kept else b"" if minor else KEEP_ALIVE_LINE
        self.send(b"%b%b%b%b%b\r\n%b" % (head, self.plane.date_line, extra, connection, told, body))
        if self.write_paused:
            self.pause_reading()  # answers of backends are not read while the client is full; ours must not be made
        return len(body)

    def _refuse_head(self, bad: BadMessage, head: bytes, start: int = 0) -> None:
        """Answer a request whose `head`, which begins at `start`, has not been read as one."""
        self._refuse(bad, head.startswith(b"HEAD ", start))

    def _refuse(self, bad: BadMessage, is_head: bool) -> None:
        """Answer a request that cannot be taken, and take no more from this connection."""
        exchange = self.exchange
        if exchange.down == states.IDLE:
            exchange.forget_request()
        exchange.is_head = is_head  # and not what the one before it was
        exchange.request_id = self.plane.ids.request_id()
        exchange.trace = None
        exchange.down = states.HEAD  # the client may be sending: nobody knows how much
        exchange.keep_alive = False
        self.mode = BUSY
        self.pending = b""
        exchange.refuse(bad.status, bad.reason)

    # The end of an exchange.

    def answered(self, is_kept: bool) -> None:
        """The exchange has ended. Wait for the next request, or close."""
        exchange = self.exchange
        was_complete = exchange.down == states.DONE
        exchange.down = states.IDLE
        if not is_kept or not was_complete:
            self._close(was_complete and not self.pending and self.mode != TUNNEL)
            return
        if self.is_end_seen and not self.pending:
            self._end()
            return
        if len(exchange.head) > _LARGE_HEAD or exchange.shape.is_large:
            # With names of its own a head is six times as large when it has been taken apart.
            exchange.forget_request()
        # There are many that wait for their next request, and it is no use to them.
        exchange.head = b""
        exchange.values = ()
        self.mode = AWAIT
        self.deadline = self.plane.now + self.listener.keep_alive_s
        self.due = DUE_KEEP_ALIVE
        if self.read_paused:
            self.resume_reading()
        if self.pending:
            self._put_off()

    def _put_off(self) -> None:
        """Take up what is held when its turn comes."""
        if not self.is_put_off:
            self.is_put_off = True
            self.arrived = monotonic()
            self.plane.turn.put_off(self)

    def go_on(self) -> None:
        """Take up what is held, as far as that can be: the next request, or what there is of it."""
        self.is_put_off = False
        if self.mode == AWAIT and self.pending and not self.transport.is_closing() and not self.write_paused:
            data, start = self.pending, self._at
            self.pending = b""
            self._at = 0
            self._read_heads(data, start)
            is_short = self._check is not None or len(self.pending) - self._at < 2
            if self.is_end_seen and self.mode == AWAIT and is_short:
                self._end()  # no more of a request is there than its beginnings
            elif self.is_end_seen and self.mode in (LENGTH, CHUNKS):
                client_failed(self.exchange, 400, "bad_request")  # its body is cut short, and nobody will say so again
        else:
            self.arrived = 0.0  # from here on it is the client that lets it wait

    def close(self) -> None:
        """Close at once, without a word."""
        self._close(False)

    def reset(self) -> None:
        """Close so that the client sees a reset."""
        self.mode = LINGER
        self.pending = b""
        flow.reset(self.transport)

    def _close(self, is_simple: bool) -> None:
        """Close. While the client may still be sending, close our side only and read on for a moment: octets that
        nobody reads would make the kernel reset the connection and take our last answer with it."""
        self.mode = LINGER
        self.pending = b""
        if is_simple or self.is_end_seen or not self.transport.can_write_eof():
            if self.unsent:
                self._ends_when_sent = True
                self.deadline = NEVER
            else:
                self._end()
            return
        self.send_end()
        self.set_deadline(LINGER_S, DUE_LINGER)
        self.read_paused = True
        self.resume_reading()

    def _end(self) -> None:
        """Close when all has been sent, or when the client takes no more of it."""
        self.mode = LINGER
        self.pending = b""
        self._send_early()
        self.transport.close()
        self.set_deadline(self.listener.spec.timeouts.body_idle, DUE_LINGER)

    def send_end(self) -> None:
        """Say that we will send no more."""
        if not self.is_end_sent and not self.transport.is_closing():
            self.is_end_sent = True
            self._send_early()
            flow.end(self.transport)

    def start_tunnel(self) -> None:
        """From here on octets are no longer requests."""
        self.mode = TUNNEL
        data = self.pending[self._at :]
        self.pending = b""
        self._at = 0
        self.resume_reading()  # which pipelined octets may have stopped
        tunnel = cast(Tunnel, self.exchange.tunnel)
        if data:
            tunnel.up(data)
        if self.is_end_seen:
            tunnel.up_end()

    def drain(self) -> None:
        """Close if idle; a running exchange closes the connection when it has ended."""
        if self.mode == AWAIT and not self.pending:
            self._end()
        else:
            self.exchange.keep_alive = False

    def cut(self) -> None:
        """The time for draining is over."""
        self.transport.abort()

    def fail(self, message: str, error: Exception) -> None:
        """Something has gone wrong that never should: cut this connection, and say so. It is the others' affair no more
        than if this one had been read from."""
        self.cut()
        self.plane.loop.call_exception_handler({"message": message, "exception": error})

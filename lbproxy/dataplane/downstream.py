"""A connection from a client: takes requests apart, strictly, and hands them to its exchange one after the other.

Nothing of a request goes anywhere before its head has been read and checked as a whole; a request that is refused is
answered, and the connection closed, because after it nobody knows where the next one starts.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast, final

from lbproxy.core import exchange as states
from lbproxy.core.headers import (
    CHUNKED_LINE,
    CLOSE_LINE,
    FORWARDING,
    KEEP_ALIVE_LINE,
    ODD_IN_TARGETS,
    BadMessage,
    RequestShape,
    Values,
    connection_of,
    content_length,
    forwarded_element,
    is_chunked,
    is_request_id,
    is_valid_target,
    split_absolute,
    split_authority,
)
from lbproxy.core.ledger import LISTENER_ACCEPTED, LISTENER_OPEN, LISTENER_REFUSED
from lbproxy.dataplane import flow
from lbproxy.dataplane.deadlines import DUE_HEAD, DUE_KEEP_ALIVE, DUE_LINGER, NEVER
from lbproxy.dataplane.recovery import client_failed, client_left, out_of_time
from lbproxy.dataplane.relay import Exchange
from lbproxy.dataplane.tunnel import Tunnel
from lbproxy.dataplane.wire import END_OF_HEAD, ChunkedDecoder, EarlyCheck, as_known_version, with_plain_spaces

if TYPE_CHECKING:
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

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_NO_FIELDS: Final[frozenset[bytes]] = frozenset()
_EXPECT: Final = frozenset((b"expect",))
_REQUEST_ID: Final = frozenset((b"x-request-id",))
_MAX_FORWARDS: Final = frozenset((b"max-forwards",))
_LENGTH_FIELD: Final = frozenset((b"content-length",))


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
class Downstream(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        # for the connection's life
        "_forwarding", "exchange", "is_trusted", "listener", "peer", "plane", "shows_decisions", "transport",
        # what has arrived and was not used yet
        "_check", "_searched", "pending",
        # the request whose body is arriving
        "_decoder", "_left", "mode",
        # flow and time
        "_lingered", "_stalled_at", "deadline", "due", "is_end_seen", "is_end_sent", "read_paused", "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, plane: Plane, listener: Listener) -> None:
        self.plane: Final = plane
        self.listener: Final = listener
        self.exchange: Final = Exchange(self, plane)
        self.peer = ""
        self.is_trusted = False
        self.shows_decisions = False
        self._forwarding = b""
        self._check: EarlyCheck | None = None
        self._searched = 0
        self.pending = b""
        self.mode = AWAIT
        self._left = 0
        self._decoder: ChunkedDecoder | None = None
        self.deadline = NEVER
        self.due = DUE_HEAD
        self.read_paused = False
        self.write_paused = False
        self.is_end_seen = False
        self.is_end_sent = False
        self._lingered = 0
        self._stalled_at = 0

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        listener = self.listener
        cells = self.plane.cells
        cells[listener.row + LISTENER_OPEN] += 1
        listener.connections.add(self)
        if len(listener.connections) > listener.spec.limits.connections:
            cells[listener.row + LISTENER_REFUSED] += 1
            self.transport.abort()
            return
        cells[listener.row + LISTENER_ACCEPTED] += 1
        self.transport.set_write_buffer_limits(flow.HIGH_WATER, flow.LOW_WATER)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer = str(peer[0])
        self.exchange.client = self.peer
        self.is_trusted = listener.trust.trusts(self.peer)
        self._adopt_policy()
        self.set_deadline(listener.spec.timeouts.request_head, DUE_HEAD)

    def data_received(self, data: bytes) -> None:
        mode = self.mode
        if mode == AWAIT:
            if self.pending:
                data = self.pending + data
                self.pending = b""
            self._read_heads(data)
        elif mode == LENGTH:
            self._read_body(data)
        elif mode == CHUNKS:
            self._read_chunks(data)
        elif mode == TUNNEL:
            cast(Tunnel, self.exchange.tunnel).up(data)
        elif mode == BUSY:
            self.pending = self.pending + data if self.pending else data
            if len(self.pending) > flow.HOLD:
                self.pause_reading()
        else:
            self._lingered += len(data)
            if self._lingered > _LINGER_BYTES:
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
            self.set_deadline(HALF_CLOSED_S, self.due)
            return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline = NEVER
        listener = self.listener
        listener.connections.discard(self)
        self.plane.cells[listener.row + LISTENER_OPEN] -= 1
        if self.exchange.tunnel is not None:
            self.exchange.tunnel.close()
        elif self.mode != LINGER:
            client_left(self.exchange)
        self.mode = LINGER

    def pause_writing(self) -> None:
        self.write_paused = True
        self.exchange.downstream_full()

    def resume_writing(self) -> None:
        self.write_paused = False
        self.exchange.downstream_drained()
        if self.mode == AWAIT and self.pending:
            self._go_on()

    def _adopt_policy(self) -> None:
        """Prepare what this connection adds to the head of each request."""
        policy = self.plane.snapshot.headers
        self.shows_decisions = policy.debug and self.is_trusted
        if policy.x_forwarded == "append":
            self._forwarding = b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: " % (
                self.peer.encode() or b"unknown"
            )
        else:
            self._forwarding = b""

    # Time.

    def set_deadline(self, seconds: float, due: int) -> None:
        """What is waited for now, and for how long at the most."""
        if self.is_end_seen and self.mode == BUSY and seconds > HALF_CLOSED_S:
            seconds = HALF_CLOSED_S
        self.deadline = self.plane.now + seconds
        self.due = due

    def pass_deadline(self) -> None:
        """The sweep found that the deadline has passed."""
        due = self.due
        if self.is_end_seen and self.mode == BUSY:
            self.transport.abort()
            return
        waiting = self.transport.get_write_buffer_size()
        if self.write_paused and waiting < self._stalled_at:
            # The client takes what it is sent, only slowly.
            self._stalled_at = waiting
            self.set_deadline(self.listener.spec.timeouts.body_idle, due)
            return
        self._stalled_at = waiting
        self.deadline = NEVER
        if due == DUE_LINGER:
            self.transport.abort()
        elif due == DUE_KEEP_ALIVE or (due == DUE_HEAD and not self.pending):
            self.transport.close()
        elif due == DUE_HEAD:
            self._refuse(BadMessage(408, "request_timeout", "the request head took too long"))
        else:
            out_of_time(self.exchange, due)

    # Flow.

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            flow.pause(self.transport)

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            flow.resume(self.transport)

    # Requests.

    def _read_heads(self, data: bytes) -> None:
        """Octets that start where a request head starts."""
        if data[0] < 32:
            data = self._skip_empty_lines(data)
            if not data:
                return
        end = data.find(END_OF_HEAD, self._searched) + 4
        limits = self.listener.spec.limits
        if end == 3:
            self._await_head(data)
            return
        if end > limits.line_bytes and not self._check_lines(data[:end]):
            return
        self._searched = 0
        self._check = None
        head = data if end == len(data) else data[:end]
        try:
            self._take_head(head)
        except BadMessage as bad:
            self._refuse(bad)
            return
        rest = data[end:]
        exchange = self.exchange
        if exchange.down == states.DONE:
            self.mode = BUSY
            self.pending = rest
            exchange.start()
            return
        self.mode = CHUNKS if exchange.is_chunked else LENGTH
        exchange.start()
        # The answer may be there already, from ourselves, and the connection on its way out.
        if rest and self.mode in (LENGTH, CHUNKS):
            self.data_received(rest)

    def _skip_empty_lines(self, data: bytes) -> bytes:
        """Drop the empty lines before a request line; anything else below a space there is an error."""
        for _ in range(_EMPTY_LINES):
            if not data.startswith(b"\r\n"):
                break
            data = data[2:]
        if data == b"\r":
            self.pending = data
            return b""
        if data and data[0] < 32:
            self._refuse(BadMessage(400, "bad_request", "the request line does not start with a method"))
            return b""
        return data

    def _await_head(self, data: bytes) -> None:
        """The head is not complete yet: keep what there is, within bounds, unless it is nonsense already."""
        check = self._check
        if check is None:
            check = self._check = EarlyCheck()
            if self.due != DUE_HEAD:  # the time of a connection's first head runs from its start
                self.set_deadline(self.listener.spec.timeouts.request_head, DUE_HEAD)
        problem = check.look(data)
        if problem:
            self._refuse(BadMessage(400, "bad_request", problem))
            return
        if len(data) > self.listener.spec.limits.line_bytes and not self._check_lines(data):
            return
        self._searched = max(0, len(data) - 3)
        self.pending = data

    def _check_lines(self, head: bytes) -> bool:
        """Hold a head that is longer than one line may be against the limits; False when it was refused."""
        limits = self.listener.spec.limits
        first = head.find(b"\r\n")
        longest = max(map(len, head.split(b"\r\n")))
        if (first if first >= 0 else len(head)) > limits.line_bytes:
            self._refuse(BadMessage(414, "uri_too_long", "the request line is too long"))
        elif longest > limits.line_bytes or len(head) > limits.head_bytes:
            self._refuse(BadMessage(431, "head_too_large", "the request head is too large"))
        else:
            return True
        return False

    def _take_head(self, head: bytes) -> None:
        """Check a complete head and describe its request to the exchange. Raises `BadMessage`."""
        plane = self.plane
        parser = plane.requests
        exchange = self.exchange
        exchange.reset()
        most = self.listener.spec.limits.header_count
        try:
            parser.parse(head, most)
        except BadMessage as bad:
            exchange.is_head = head.startswith(b"HEAD ")
            known = as_known_version(head) if bad.status == 505 else with_plain_spaces(head)
            if known == head:
                raise
            parser.parse(known, most)
        shapes = plane.trusted_shapes if self.is_trusted else plane.untrusted_shapes
        shape = shapes.known.get(parser.names) or shapes.learn(parser.names)
        parser.is_clean = shape.content_length < 0 and shape.transfer_encoding < 0 and not shape.upgrade
        values = parser.values
        minor = exchange.minor = parser.minor
        method = exchange.method = parser.method
        target = exchange.target = exchange.path = parser.target
        exchange.shape = shape
        exchange.values = values
        exchange.is_head = method == b"HEAD"
        exchange.keep_alive = minor == 1
        exchange.upgrade = b""
        exchange.is_chunked = False
        exchange.down = states.DONE
        exchange.host = b""
        self._left = 0
        if shape.problem:
            raise BadMessage(400, "bad_request", shape.problem)
        if shape.host >= 0:
            host = values[shape.host]
            name = plane.host_names.get(host) or self._host_name(host)
        elif minor:
            raise BadMessage(400, "bad_request", "Host is missing")
        else:
            host = name = b""
        absolute = b""
        if len(target.translate(None, ODD_IN_TARGETS)) != len(target) and not is_valid_target(target):
            raise BadMessage(400, "bad_request", "invalid request target")
        if target[0] != 47:  # "/"
            absolute = self._read_target(method, target)
            if absolute:
                host = absolute
                name = self._host_name(host)
        exchange.host = name
        if shape.special or absolute or not host:
            self._take_special_head(method, minor, shape, values, host, absolute)
            return
        request_id = exchange.request_id = plane.request_id()
        policy = plane.snapshot.headers
        forwarding = self._forwarding
        exchange.head = b"%b %b HTTP/1.1\r\n%b%b%b%b" % (
            method,
            target,
            shape.template % values,
            forwarding and forwarding + host + b"\r\n",
            plane.via_lines[minor],
            b"X-Request-ID: %b\r\n\r\n" % request_id if policy.request_id != "off" else b"\r\n",
        )
        if policy.forwarded:
            self._append_forwarded(host)

    def _append_forwarded(self, host: bytes) -> None:
        exchange = self.exchange
        element = forwarded_element(self.peer, host, b"http")
        exchange.head = exchange.head[:-2] + b"Forwarded: " + element + b"\r\n\r\n"

    def _host_name(self, host: bytes) -> bytes:
        """The host, in lower case and without its port, of a Host value. Raises `BadMessage`."""
        names = self.plane.host_names
        name = names.get(host)
        if name is None:
            found = split_authority(host.strip(b" \t"))
            if found is None:
                raise BadMessage(400, "bad_request", "invalid Host")
            if len(names) >= 4096:
                names.clear()
            name = names[host] = found[0]
        return name

    def _read_target(self, method: bytes, target: bytes) -> bytes:
        """Read a target that is not in origin-form; returns the authority if it is in absolute-form."""
        exchange = self.exchange
        if target == b"*":
            if method != b"OPTIONS":
                raise BadMessage(400, "bad_request", "the target * is for OPTIONS only")
            return b""
        found = split_absolute(target)
        if found is None:
            raise BadMessage(400, "bad_request", "invalid request target")
        authority, path = found
        if method == b"OPTIONS" and path == b"/" and not target.endswith(b"/"):
            path = b"*"  # RFC 9112 3.2.4
        exchange.path = path
        return authority

    def _take_special_head(
        self, method: bytes, minor: int, shape: RequestShape, values: Values, host: bytes, absolute: bytes
    ) -> None:
        """The part of `_take_head` for requests in which a value decides something."""
        plane = self.plane
        exchange = self.exchange
        policy = plane.snapshot.headers
        connection = connection_of(shape, values)
        if connection.close:
            exchange.keep_alive = False
        elif connection.keep_alive and not minor:
            exchange.keep_alive = True
        without: frozenset[bytes] = connection.named
        extra = self._body_lines(shape, values, minor)
        if shape.content_length >= 0:
            without |= _LENGTH_FIELD
        if shape.upgrade and connection.upgrade and minor and exchange.down == states.DONE:
            exchange.upgrade = shape.joined(b"upgrade", values)
            extra += b"Connection: Upgrade\r\nUpgrade: " + exchange.upgrade + b"\r\n"
        if shape.expect and not minor:
            without |= _EXPECT
        if shape.max_forwards and method in (b"TRACE", b"OPTIONS"):
            extra += self._max_forwards(shape, values)
            without |= _MAX_FORWARDS
        if shape.request_id >= 0 and policy.request_id == "keep" and is_request_id(values[shape.request_id]):
            exchange.request_id = values[shape.request_id]
            if len(shape.index[b"x-request-id"]) > 1:
                without |= _REQUEST_ID
                extra += b"X-Request-ID: %b\r\n" % exchange.request_id
        else:
            exchange.request_id = plane.request_id()
            if policy.request_id != "off":
                without |= _REQUEST_ID
                extra += b"X-Request-ID: %b\r\n" % exchange.request_id
        lines = b""
        if absolute or not host:
            without |= frozenset((b"host",))
            lines = b"Host: %b\r\n" % (host or b"localhost")
        if policy.x_forwarded == "append":
            extra += self._forwarding_lines(shape, values, host)
            without |= FORWARDING - {b"forwarded"}
        if policy.forwarded:
            sent = shape.joined(b"forwarded", values) if self.is_trusted else b""
            extra += b"Forwarded: %b\r\n" % b", ".join(
                [element for element in (sent, forwarded_element(self.peer, host, b"http")) if element]
            )
            without |= frozenset((b"forwarded",))
        exchange.head = b"%b %b HTTP/1.1\r\n%b%b%b%b\r\n" % (
            method,
            exchange.path,
            lines,
            shape.lines(values, without),
            extra,
            plane.via_lines[minor],
        )

    def _body_lines(self, shape: RequestShape, values: Values, minor: int) -> bytes:
        """Decide how the request's body is delimited (RFC 9112 6.3), and the line that says so. Raises `BadMessage`."""
        exchange = self.exchange
        if shape.transfer_encoding >= 0:
            if not minor:
                raise BadMessage(400, "bad_request", "Transfer-Encoding in HTTP/1.0")
            if not is_chunked(values[shape.transfer_encoding]):
                raise BadMessage(501, "unsupported", "transfer coding")
            exchange.is_chunked = True
            exchange.down = states.BODY
            self._decoder = ChunkedDecoder(is_request=True)
            return CHUNKED_LINE
        if shape.content_length < 0:
            return b""
        length = content_length(values[shape.content_length])
        if length < 0:
            raise BadMessage(400, "bad_request", "Content-Length is not a number")
        most = self.listener.spec.limits.body_bytes
        if most is not None and length > most:
            raise BadMessage(413, "body_too_large", "the body is too long")
        if length:
            exchange.down = states.BODY
            self._left = length
        return b"Content-Length: %d\r\n" % length

    def _max_forwards(self, shape: RequestShape, values: Values) -> bytes:
        """Count Max-Forwards down (RFC 9110 7.6.2). Raises `BadMessage` when the request ends here."""
        left = content_length(shape.joined(b"max-forwards", values))
        if left < 0:
            raise BadMessage(400, "bad_request", "Max-Forwards is not a number")
        if left == 0:
            if self.exchange.method == b"OPTIONS":
                raise BadMessage(200, "unsupported", "OPTIONS with Max-Forwards 0")
            raise BadMessage(501, "unsupported", "TRACE with Max-Forwards 0")
        return b"Max-Forwards: %d\r\n" % (left - 1)

    def _forwarding_lines(self, shape: RequestShape, values: Values, host: bytes) -> bytes:
        """X-Forwarded-*: what a trusted proxy said, with this hop appended; anyone else's word does not count."""
        peer = self.peer.encode() or b"unknown"
        proto = b"http"
        if self.is_trusted:
            chain = shape.joined(b"x-forwarded-for", values)
            if chain:
                self.exchange.client = self.listener.trust.client_of(chain, self.peer)
                peer = chain + b", " + peer
            proto = shape.joined(b"x-forwarded-proto", values) or proto
            host = shape.joined(b"x-forwarded-host", values) or host
        return b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\n" % (peer, proto, host)

    # Bodies.

    def _read_body(self, data: bytes) -> None:
        left = self._left - len(data)
        exchange = self.exchange
        if left > 0:
            self._left = left
            exchange.request_data(data)
            return
        self._left = 0
        self.mode = BUSY
        if left < 0:
            self.pending = data[left:]
            data = data[:left]
        exchange.down = states.DONE
        exchange.request_data(data)
        exchange.request_end([])

    def _read_chunks(self, data: bytes) -> None:
        exchange = self.exchange
        decoder = cast(ChunkedDecoder, self._decoder)
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
            self._decoder = None
            self.pending = data[used:]
            exchange.request_end(decoder.trailers)

    # Answers from here.

    def reply(self, status: int, is_kept: bool, is_head: bool, minor: int) -> int:
        """Send a short answer of the proxy's own; returns the octets of its body."""
        head, body = _reply_head(status)
        if is_head:
            body = b""
        extra = b"Retry-After: 1\r\n" if status in (429, 503) else b""
        connection = CLOSE_LINE if not is_kept else b"" if minor else KEEP_ALIVE_LINE
        self.transport.write(b"%b%b%b%b\r\n%b" % (head, self.plane.date_line, extra, connection, body))
        return len(body)

    def _refuse(self, bad: BadMessage) -> None:
        """Answer a request that cannot be taken, and take no more from this connection."""
        exchange = self.exchange
        if exchange.down == states.IDLE:
            exchange.forget_request()
        exchange.request_id = self.plane.request_id()
        exchange.down = states.DONE
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
            self._close(was_complete and not self.pending)
            return
        if self.is_end_seen and not self.pending:
            self.transport.close()
            return
        self.mode = AWAIT
        self.deadline = self.plane.now + self.listener.spec.timeouts.keep_alive
        self.due = DUE_KEEP_ALIVE
        if self.read_paused:
            self.resume_reading()
        if self.pending:
            self.plane.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Take up the next pipelined request."""
        if self.mode == AWAIT and self.pending and not self.transport.is_closing() and not self.write_paused:
            data, self.pending = self.pending, b""
            self._read_heads(data)
            if self.is_end_seen and self.mode == AWAIT:
                self.transport.close()

    def close(self) -> None:
        """Close at once, without a word."""
        self._close(False)

    def _close(self, is_simple: bool) -> None:
        """Close. While the client may still be sending, close our side only and read on for a moment: octets that
        nobody reads would make the kernel reset the connection and take our last answer with it."""
        self.mode = LINGER
        self.pending = b""
        if is_simple or self.is_end_seen or not self.transport.can_write_eof():
            self.transport.close()
            self.set_deadline(self.listener.spec.timeouts.body_idle, DUE_LINGER)
            return
        self.send_end()
        self.set_deadline(LINGER_S, DUE_LINGER)
        self.read_paused = True
        self.resume_reading()

    def send_end(self) -> None:
        """Say that we will send no more."""
        if not self.is_end_sent and not self.transport.is_closing():
            self.is_end_sent = True
            self.transport.write_eof()

    def start_tunnel(self) -> None:
        """From here on octets are no longer requests."""
        self.mode = TUNNEL
        data, self.pending = self.pending, b""
        if data:
            cast(Tunnel, self.exchange.tunnel).up(data)

    def drain(self) -> None:
        """Close if idle; a running exchange closes the connection when it has ended."""
        if self.mode == AWAIT and not self.pending:
            self.transport.close()

    def cut(self) -> None:
        """The time for draining is over."""
        self.transport.abort()

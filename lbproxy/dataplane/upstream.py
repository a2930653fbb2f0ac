"""A connection to a backend: takes answers apart and hands them to the exchange that it serves."""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING, Final, cast, final

from lbproxy.core.headers import CHUNKED, LENGTH, NO_BODY, BadMessage, response_framing
from lbproxy.core.ledger import BACKEND_OPENED, CLOSED_EARLY, PROTOCOL, RESET
from lbproxy.dataplane import flow
from lbproxy.dataplane.answer import Answer
from lbproxy.dataplane.chunked import ChunkedDecoder
from lbproxy.dataplane.wire import END_OF_HEAD

if TYPE_CHECKING:
    from lbproxy.core.account import Backend
    from lbproxy.core.spec import UpstreamConnections
    from lbproxy.dataplane.plane import Plane
    from lbproxy.dataplane.relay import Exchange
    from lbproxy.dataplane.tunnel import Tunnel

# Octets of a response head at the most, interim ones included each by itself.
MAX_HEAD_BYTES: Final = 131_072
# How large a head may be that is remembered, for the next one may be the same.
_MEMO_BYTES: Final = 2048
# Interim answers of one attempt at the most.
MAX_INTERIM: Final = 32
# Seconds in which a backend may take what was left to send when a tunnel ended.
LAST_WORD_S: Final = 5.0

# What arriving octets are.
IDLE: Final = 0
HEAD: Final = 1
BODY: Final = 2
CHUNKS: Final = 3
REST: Final = 4
TUNNEL: Final = 5
ANSWERED: Final = 6  # nothing any more, but the request is still being sent
DEAD: Final = 7
LEAVING: Final = 8  # nothing anybody wants to know, while the client's last word is being sent


@final
class Upstream:
    """One connection to one backend. It serves one exchange at a time, or is idle, or dead. Like `Downstream` it is an
    `asyncio.Protocol` in all but name."""

    __slots__ = (
        # for the connection's life
        "_poll", "address", "backend", "is_counted", "opened_at", "plane", "transport",
        # between exchanges
        "idle_since", "idle_until", "reused",
        # for one exchange
        "_buffer", "_decoder", "_interim", "_keep_alive", "_last", "_left", "exchange", "is_careful", "mode",
        "read_paused", "unsent", "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, plane: Plane, backend: Backend) -> None:
        self.plane: Final = plane
        self.backend: Final = backend
        self.address: Final = backend.address
        self.opened_at: Final = plane.now
        self.idle_since = 0.0
        self.idle_until = 0.0
        self.reused = False
        self.is_counted = False
        self._poll: select.poll | None = None
        self.exchange: Exchange | None = None
        # Whether the request is one that could not be repeated, on a connection that may have been closed.
        self.is_careful = False
        self.mode = IDLE
        self.read_paused = False
        self.write_paused = False
        self.unsent = b""
        self._buffer = b""
        self._last: Answer | None = None
        self._interim = 0
        self._left = 0
        self._decoder: ChunkedDecoder | None = None
        self._keep_alive = False

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(flow.HIGH_WATER, flow.LOW_WATER)

    def data_received(self, data: bytes) -> None:
        mode = self.mode
        if mode == HEAD:
            if self.unsent:  # it has not been asked yet: what it says is no answer
                cast("Exchange", self.exchange).attempt_failed(CLOSED_EARLY)
                return
            self._read_head(data)
        elif mode == BODY:
            self._read_body(data)
        elif mode == REST:
            cast("Exchange", self.exchange).response_data(data)
        elif mode == CHUNKS:
            self._read_chunks(data)
        elif mode == TUNNEL:
            cast("Tunnel", cast("Exchange", self.exchange).tunnel).down(data)
        elif mode == ANSWERED:
            cast("Exchange", self.exchange).attempt_failed(PROTOCOL)
        elif mode != LEAVING:
            self.close()  # nobody asked: what it says now must not become the next answer

    def eof_received(self) -> bool:
        exchange = self.exchange
        mode = self.mode
        if exchange is None:
            if mode != LEAVING:
                self.close()
        elif exchange.tunnel is not None:
            return exchange.tunnel.down_end()
        elif mode == REST:
            self._keep_alive = False
            exchange.response_end(b"")
        else:
            exchange.attempt_failed(CLOSED_EARLY)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_counted:
            self.backend.connections -= 1
        if exc is not None and self.exchange is not None:
            self._read_rest()
        exchange = self.exchange
        mode, self.mode = self.mode, DEAD
        if mode == IDLE:
            self._leave_idle()
        if exchange is not None:
            if exchange.tunnel is not None:
                exchange.tunnel.close()
            elif mode == REST and exc is None:
                exchange.response_end(b"")
            else:
                exchange.attempt_failed(RESET if exc is not None else CLOSED_EARLY)

    def _read_rest(self) -> None:
        """Sending has failed, or reading: take what the backend had said before it went."""
        self.write_paused = True  # nobody is to have this connection for another exchange
        data = flow.rest(self.transport)
        if data:
            self.data_received(data)

    def pause_writing(self) -> None:
        self.write_paused = True
        if self.exchange is not None:
            self.exchange.upstream_full()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.exchange is not None:
            self.exchange.upstream_drained()

    # What the exchange calls.

    def count(self) -> None:
        """The connection is there, and somebody has it. (The loop may close one that was given up while it was being
        opened without a further word.)"""
        self.is_counted = True
        backend = self.backend
        backend.connections += 1
        self.plane.cells[backend.row + BACKEND_OPENED] += 1

    def send_rest(self) -> None:
        """Send the request that was left for the end of the turn."""
        exchange = self.exchange
        if self.is_careful and exchange is not None and self.has_news():
            exchange.attempt_failed(CLOSED_EARLY)  # while the request was left; nothing of it has been sent
            return
        data, self.unsent = self.unsent, b""
        flow.send(self.transport, data)
        if exchange is not None and exchange.held_size:
            exchange.keep_repeatable()

    def has_news(self) -> bool:
        """Whether something can be read of which the loop has not told yet: the end, or octets that nobody asked for.
        Asks the kernel, in a microsecond; to say which descriptor is meant would take two more each time."""
        poll = self._poll
        if poll is None:
            poll = self._poll = select.poll()
            poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def stay_for_request(self) -> bool:
        """The answer has ended before the request: go on taking the request, if the connection will last."""
        if self._keep_alive and not self._buffer:
            self.mode = ANSWERED
            return True
        return False

    def start_tunnel(self) -> bytes:
        """Octets are no longer messages. Returns those that came behind the head."""
        self.mode = TUNNEL
        rest, self._buffer = self._buffer, b""
        return rest

    def release(self, is_clean: bool) -> None:
        """The exchange is over: keep the connection for another one if nothing speaks against it, else close it."""
        backend = self.backend
        limits = backend.keep
        if (
            is_clean
            and self._keep_alive
            and not self._buffer
            and not self.write_paused
            and limits is not None
            and self.address is backend.address
        ):
            self.exchange = None
            self.mode = IDLE
            self.reused = True
            self._interim = 0
            self.idle_since = self.plane.now
            self.keep_for(limits)
            if self.read_paused:
                self.resume_reading()
            backend.idle.append(self)
        else:
            self.close()

    def keep_for(self, limits: UpstreamConnections) -> None:
        """Be idle until these limits end it, and not those under which that began."""
        until = self.idle_since + limits.idle_timeout
        oldest = self.opened_at + limits.max_age
        self.idle_until = until if until < oldest else oldest

    def close(self) -> None:
        """Be of no more use to anyone."""
        self.exchange = None
        mode, self.mode = self.mode, DEAD
        if mode == IDLE:
            self._leave_idle()
        transport = self.transport
        if (
            mode == TUNNEL
            and not transport.is_closing()
            and (transport.get_write_buffer_size() or flow.unsent(transport))
        ):
            # What is still to be sent is the client's last word; the backend has a moment to take it. What it says
            # itself is read and dropped: octets that nobody reads would make the kernel reset the connection.
            self.mode = LEAVING
            self.resume_reading()
            flow.end(transport)
            self.plane.loop.call_later(LAST_WORD_S, transport.abort)
        else:
            transport.abort()

    def fail(self, message: str, error: Exception) -> None:
        """Something has gone wrong that never should: cut this connection, and say so; see `Downstream.fail`."""
        self.transport.abort()
        self.plane.loop.call_exception_handler({"message": message, "exception": error})

    def _leave_idle(self) -> None:
        try:
            self.backend.idle.remove(self)
        except ValueError:
            pass  # it has just been taken out

    def pause_reading(self) -> None:
        """The client is full."""
        if not self.read_paused:
            self.read_paused = True
            flow.pause(self.transport)

    def resume_reading(self) -> None:
        """The client takes more."""
        if self.read_paused:
            self.read_paused = False
            flow.resume(self.transport)

    # Taking answers apart.

    def _read_head(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        exchange = cast("Exchange", self.exchange)
        while True:
            answer = self._last
            if answer is not None and data.startswith(answer.head) and not exchange.is_head:
                break  # the same as the last one, to the octet, as from many backends within a second
            end = data.find(END_OF_HEAD) + 4
            if end == 3:
                self._await_head(data)
                return
            if end > MAX_HEAD_BYTES:
                exchange.attempt_failed(PROTOCOL)
                return
            answer = self._parse_head(exchange, data[:end], data)
            if answer is not None:
                break
            if exchange is not self.exchange or self.mode != HEAD:
                return
            data = data[end:]
            if not data:
                return
        self._keep_alive = answer.is_kept
        start = len(answer.head)
        size = len(data) - start
        framing = answer.framing
        if framing == LENGTH:
            length = answer.length
            if size == length:
                exchange.respond(answer, flow.part(data, start, len(data)), True)
            elif size > length:
                self._buffer = data[start + length :]  # whatever lies behind an answer makes the connection unusable
                exchange.respond(answer, data[start : start + length], True)
            else:
                self.mode = BODY
                self._left = length - size
                exchange.respond(answer, flow.part(data, start, len(data)), False)
        elif framing == NO_BODY:
            self._buffer = data[start:]
            exchange.respond(answer, b"", True)
        elif framing == CHUNKED:
            self.mode = CHUNKS
            self._decoder = ChunkedDecoder(is_request=False)
            exchange.respond(answer, b"", False)
            if size and self.mode == CHUNKS:
                self._read_chunks(data[start:])
        else:
            self.mode = REST
            self._keep_alive = False
            exchange.respond(answer, flow.part(data, start, len(data)), False)

    def _parse_head(self, exchange: Exchange, head: bytes, data: bytes) -> Answer | None:
        """Take a complete head apart, with which `data` begins. None when it is not the final one, or ended the attempt
        or the HTTP on this connection."""
        parser = self.plane.responses
        shapes = self.plane.response_shapes
        try:
            parser.parse(head)
            shape = shapes.known.get(parser.names) or shapes.learn(parser.names)
            framing, length = response_framing(shape, parser.values, parser.status, exchange.is_head)
        except BadMessage:
            exchange.attempt_failed(PROTOCOL)
            return None
        status = parser.status
        if status >= 200:
            answer = Answer(head, parser, shape, framing, length)
            if len(head) <= _MEMO_BYTES and not exchange.is_head:
                self._last = answer
            if answer.is_kept and framing == LENGTH and len(data) - len(head) == length:
                parser.skip(data[len(head) :])
            return answer
        if status == 101:
            self._buffer = data[len(head) :]
            exchange.switch_protocols(parser, shape)
            return None
        self._interim += 1
        if self._interim > MAX_INTERIM:
            exchange.attempt_failed(PROTOCOL)
        else:
            exchange.interim(parser, shape)
        return None

    def _await_head(self, data: bytes) -> None:
        """The head is not complete: keep what came, unless it cannot become one."""
        if (not data.startswith(b"HTTP/1.") and not b"HTTP/1.".startswith(data[:7])) or len(data) > MAX_HEAD_BYTES:
            cast("Exchange", self.exchange).attempt_failed(PROTOCOL)
        else:
            self._buffer = data

    def _read_body(self, data: bytes) -> None:
        exchange = cast("Exchange", self.exchange)
        left = self._left - len(data)
        if left > 0:
            self._left = left
            exchange.response_data(data)
            return
        if left < 0:
            self._buffer = data[left:]
            data = data[:left]
        exchange.response_last(data)

    def _read_chunks(self, data: bytes) -> None:
        exchange = cast("Exchange", self.exchange)
        decoder = cast(ChunkedDecoder, self._decoder)
        is_good = True
        try:
            body, used = decoder.feed(data)
        except BadMessage:
            body, used = decoder.salvaged, -1  # the client is to have what came before
            is_good = False
        if body:
            exchange.response_data(body[0] if len(body) == 1 else b"".join(body))
        if used >= 0 and self.exchange is exchange:
            self._buffer = data[used:]
            self._decoder = None
            exchange.response_trailers(decoder.trailers)
        elif not is_good and self.exchange is exchange:
            exchange.attempt_failed(PROTOCOL)

    @property
    def has_received(self) -> bool:
        """Whether octets of a head that is not complete have arrived."""
        return bool(self._buffer)

    @property
    def has_answered(self) -> bool:
        """Whether anything has arrived for the current exchange."""
        return self._interim > 0 or bool(self._buffer)

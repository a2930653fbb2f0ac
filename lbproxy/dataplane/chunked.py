"""Chunked bodies, with a parser for each.

What it is shown is cut at every empty line, for only there can a body end; so where the next message starts is known to
the octet.
"""

from __future__ import annotations

import re
from typing import Final

import httptools

from lbproxy.core.headers import BadMessage
from lbproxy.dataplane.wire import END_OF_HEAD, Parser, error_of

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED: Final = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*+"'
# A chunk's size with extensions, as RFC 9112 7.1.1 has them; and what may become that when more has come.
_SIZE_LINE: Final = re.compile(
    rb"([0-9A-Fa-f]++)(?:[ \t]*;[ \t]*+%b(?:[ \t]*=[ \t]*+(?:%b|%b))?)+" % (_TOKEN, _TOKEN, _QUOTED)
)
_SIZE_LINE_BEGUN: Final = re.compile(rb"[0-9A-Fa-f]++[ \t]*+(?:;[\t -~\x80-\xff]*+)?\r?")
# What a size line that needs a new parser counts for, in octets. It takes as long as some hundred octets of payload.
_COST: Final = 128


class ChunkedDecoder:
    """Takes a chunked body apart (RFC 9112 7.1): payload out, framing and extensions dropped, trailers kept.

    `limit` bounds the octets that are not payload between two pieces of payload, so that endless chunk extensions or
    trailers are refused.

    HTTP allows white space around the `;` and `=` of chunk extensions (RFC 9112 7.1.1), and the parser does not. When
    it refuses a size line for no other reason, a new one is shown the size alone, and goes on behind the line. That is
    dear, so payload must make up for it, or a body of little else would hold up everybody.
    """

    __slots__ = (
        "_debt", "_held", "_is_request", "_is_skipping", "_limit", "_line", "_overhead", "_paid", "_parser", "_sink",
        "_tail", "trailers",
    )  # fmt: skip

    def __init__(self, is_request: bool, limit: int = 16384) -> None:
        # Of a size line that is not complete: what the parser has seen, or what it is not shown yet.
        self._line = b""
        self._held = b""
        self._is_request = is_request
        self._is_skipping = False
        self._limit = limit
        self._overhead = 0
        # What new parsers have cost that payload has not made up for, and the payload that has been counted for it.
        self._debt = 0
        self._paid = 0
        self._tail = b""
        sink = self._sink = _ChunkSink(limit)
        self.trailers: Final = sink.trailers
        self._parser = self._new_parser()

    def _new_parser(self) -> Parser:
        """A parser that waits for a chunk's size."""
        sink = self._sink
        parser: Parser
        if self._is_request:
            parser = httptools.HttpRequestParser(sink)
            parser.feed_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        else:
            parser = httptools.HttpResponseParser(sink)
            parser.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        sink.forget_fields()
        return parser

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """Feed octets of the body. Returns the payload in them, and how many octets were used if the body has ended
        (the rest belongs to what follows) or -1 if it has not. Raises `BadMessage`; the payload before what is wrong is
        then in `salvaged`."""
        held = len(self._held)
        if held:
            data = self._held + data
            self._held = b""
        body, used = self._feed(data)
        return body, used - held if used >= 0 else -1

    @property
    def salvaged(self) -> list[bytes]:
        """The payload in the octets that were fed last, as far as they were understood."""
        return self._sink.body

    def _feed(self, data: bytes) -> tuple[list[bytes], int]:
        start = 0
        sink = self._sink
        body = sink.body = []
        while True:
            stop = self._next_empty_line(data, start)
            if self._is_skipping:
                return body, self._skip_trailers(data, stop)
            piece = data[start:stop] if start or stop < len(data) else data
            before = len(body)
            try:
                self._parse(piece)
            except httptools.HttpParserError as error:
                if self._is_framing_in_trailers(error):
                    self._is_skipping = True
                    self.trailers.clear()
                    return body, self._skip_trailers(data, stop)
                raise BadMessage(400, "bad_request", error_of(error)) from None
            if sink.is_done:
                return body, stop
            self._overhead = self._overhead + len(piece) if len(body) == before else 0
            if self._overhead > self._limit or len(self._held) > self._limit:
                raise BadMessage(400, "bad_request", "chunk extensions or trailers are too long")
            start = stop
            if start >= len(data):
                self._end_piece(data)
                return body, -1
            self._line = b""

    def _end_piece(self, data: bytes) -> None:
        """All of `data` has been parsed, or is held."""
        self._tail = (self._tail + data)[-3:] if len(data) < 3 else data[-3:]
        if self._held:
            self._overhead -= len(self._held)  # they will come again
        elif self._sink.is_at_size:
            line = data.rfind(b"\n") + 1
            self._line = data[line:] if line else self._line + data

    def _parse(self, piece: bytes) -> None:
        """Show the parser a piece, but for what is held. Raises `HttpParserError`, and `BadMessage`."""
        sink = self._sink
        at = 0
        while at < len(piece):
            was_at_size = sink.is_at_size
            sink.begin_piece()
            try:
                self._parser.feed_data(memoryview(piece)[at:] if at else piece)
                return
            except httptools.HttpParserError:
                start = _last_size_line(piece, at, sink.sizes, was_at_size)
                before = self._line if was_at_size and not start else b""
                end = piece.find(b"\r\n", start)
                line = before + (piece[start:end] if end >= 0 else piece[start:])
                found = (_SIZE_LINE if end >= 0 else _SIZE_LINE_BEGUN).fullmatch(line)
                if found is None or not sink.is_at_size:
                    raise
                self._parser = self._new_parser()
                self._line = b""
                if end < 0:
                    self._held = line
                    return
                self._pay()
                self._parser.feed_data(found[1] + b"\r\n")
                at = end + 2

    def _pay(self) -> None:
        """A complete size line has cost a new parser. Raises `BadMessage` when there was too little payload for it."""
        payload = self._sink.payload
        self._debt = max(0, self._debt - (payload - self._paid)) + _COST
        self._paid = payload
        if self._debt > self._limit:
            raise BadMessage(400, "bad_request", "little but chunk extensions with white space")

    def _is_framing_in_trailers(self, error: Exception) -> bool:
        """Whether an answer's trailers name a length or a coding, at which the parser stops. The body is whole then and
        such trailers are dropped anyway; a request that has them is refused."""
        return not self._is_request and str(error).startswith(("Content-Length can't", "Transfer-Encoding can't"))

    def _skip_trailers(self, data: bytes, stop: int) -> int:
        """Nothing counts any more but where the trailers end: `stop`, if there is an empty line."""
        seam = self._tail + data[:stop]
        if seam.endswith(END_OF_HEAD):
            return stop
        self._overhead += len(data)
        if self._overhead > self._limit:
            raise BadMessage(400, "bad_request", "trailers are too long")
        self._tail = seam[-3:]
        return -1

    def _next_empty_line(self, data: bytes, start: int) -> int:
        """Where the next empty line ends at or after `start`, counting what the last call left; else the end."""
        if start == 0 and self._tail:
            seam = self._tail + data[:3]
            found = seam.find(END_OF_HEAD)
            if found >= 0:
                return found + 4 - len(self._tail)
        found = data.find(END_OF_HEAD, start)
        return found + 4 if found >= 0 else len(data)


def _last_size_line(piece: bytes, at: int, sizes: list[int], was_at_size: bool) -> int:
    """Where the last size line begins in a piece that has been parsed from `at` on, so far. `sizes` is how much payload
    of each chunk that has ended there the piece has; `was_at_size` says that at `at` a size line begins, or the rest of
    one."""
    for size in sizes:
        if was_at_size:
            at = piece.find(b"\n", at) + 1
        at = piece.find(b"\n", at + size) + 1
        was_at_size = True
    return at


class _ChunkSink:
    """What the parser of a chunked body calls. It knows nothing of its decoder: with a circle between them only the
    garbage collector could free the two and the parser."""

    def __init__(self, limit: int) -> None:
        self.body: list[bytes] = []
        self.payload = 0
        self.trailers: list[tuple[bytes, bytes]] = []
        # Octets of trailers, and how many there may be: what comes in one piece may be much.
        self._octets = 0
        self._limit = limit
        self.is_at_size = True
        self.is_done = False
        # How much payload this piece has of each chunk that has ended in it, and of the last one.
        self.sizes: list[int] = []
        self._size = 0

    def forget_fields(self) -> None:
        self.trailers.clear()
        self._octets = 0

    def begin_piece(self) -> None:
        self.sizes.clear()
        self._size = 0

    def on_chunk_header(self) -> None:
        self.is_at_size = False
        self._size = 0

    def on_chunk_complete(self) -> None:
        self.is_at_size = True
        self.sizes.append(self._size)

    def on_body(self, data: bytes) -> None:
        self.body.append(data)
        self.payload += len(data)
        self._size += len(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._octets += len(name) + len(value) + 4
        if self._octets > self._limit:
            raise ValueError("trailers are too long")  # which the parser says in its own words
        self.trailers.append((name, value))

    def on_message_complete(self) -> None:
        self.is_done = True

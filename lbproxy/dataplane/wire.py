"""The one seam to the HTTP parser (httptools, which is llhttp).

Heads are collected until their empty line and then parsed in one call, so one parser serves all connections of a
worker and no callback is a Python function: a list's `append` takes the target, a dict's `setdefault` the fields (a
whole small request costs about 1.2 microseconds; with methods as callbacks 2.1). A name that stands on two lines is
noticed by counting lines and re-read by a parser that keeps pairs. A parser that has been promised a body is replaced,
which costs 0.33 microseconds: bodies of known length are counted by us and never shown to a parser.

Chunked bodies go through a parser of their own per body, cut at every empty line, for only there can a body end; so
where the next message starts is known to the octet.

What llhttp lets pass and HTTP does not is refused here: several spaces in the request line, empty lines of a bare LF
or CR before it, versions other than 1.0 and 1.1, transfer codings other than `chunked`, NUL in a reason phrase.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

import httptools

from lbproxy.core.headers import MEMO_BYTES, BadMessage, Names, Values, is_token

END_OF_HEAD: Final = b"\r\n\r\n"
# Header fields that an answer may have.
MAX_ANSWER_FIELDS: Final = 1000
_MEMO_LIMIT: Final = 1024
_BAD_IN_REASON: Final = bytes([c for c in range(256) if (c < 32 and c != 9) or c == 127])

_CHUNKED_IN_TABS: Final = re.compile(rb"(?<=\r\n)(transfer-encoding):[ \t]*chunked[ \t]*(?=\r\n)", re.IGNORECASE)
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED: Final = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*+"'
# A chunk's size, and extensions as RFC 9112 7.1.1 has them; and what may become both when more has come.
_SIZE_LINE: Final = re.compile(
    rb"([0-9A-Fa-f]++)(?:[ \t]*;[ \t]*+%b(?:[ \t]*=[ \t]*+(?:%b|%b))?)+" % (_TOKEN, _TOKEN, _QUOTED)
)
_SIZE_LINE_BEGUN: Final = re.compile(rb"[0-9A-Fa-f]++[ \t]*+(?:;[\t -~\x80-\xff]*+)?\r?")
_KNOWN_METHODS: Final = frozenset(
    (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"PATCH", b"PROPFIND", b"PROPPATCH", b"MKCOL",
     b"COPY", b"MOVE", b"LOCK", b"UNLOCK", b"SEARCH", b"REPORT", b"PURGE", b"LINK", b"UNLINK")
)  # fmt: skip


_Parser: TypeAlias = httptools.HttpRequestParser | httptools.HttpResponseParser


class _Sink:
    """What a parser calls: attributes are C functions, so nothing of ours runs while it parses."""

    def __init__(self) -> None:
        self.fields: dict[bytes, bytes] = {}
        self.targets: list[bytes] = []
        self.on_header: Callable[[bytes, bytes], object] = self.fields.setdefault
        self.on_url: Callable[[bytes], object] = self.targets.append


class _Pairs:
    """The slow sink: keeps every line."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.values: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.names.append(name)
        self.values.append(value)


def _no_tunnel() -> BadMessage:
    """A reverse proxy is no tunnel to anywhere."""
    return BadMessage(501, "unsupported", "CONNECT")


def _error_of(error: Exception) -> str:
    return str(error) or type(error).__name__


def _request_parser(sink: _Sink) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(sink)
    # The messages of many connections pass through it: that one of them said close is no business of the next.
    parser.set_dangerous_leniencies(lenient_keep_alive=True)
    return parser


def _response_parser(sink: _Sink) -> httptools.HttpResponseParser:
    parser = httptools.HttpResponseParser(sink)
    parser.set_dangerous_leniencies(lenient_keep_alive=True)  # for the same reason
    return parser


class RequestParser:
    """Parses complete request heads. After `parse` the attributes describe the request until the next call.

    All connections share it, so what one of them left in the parser must not touch another: after each head the parser
    is given up, unless the caller says by `is_clean` that the head was good and announced no body.
    """

    __slots__ = ("_parser", "_sink", "is_clean", "method", "minor", "names", "target", "values")

    def __init__(self) -> None:
        self._sink = _Sink()
        self.is_clean = True
        self._parser = _request_parser(self._sink)
        self.method = b""
        self.target = b""
        self.minor = 1
        self.names: Names = ()
        self.values: Values = ()

    def parse(self, head: bytes, max_fields: int) -> None:
        """Parse a head that ends with its empty line and has no empty line before it.

        Raises `BadMessage` with the status to answer.
        """
        lines = head.count(b"\r\n") - 2
        if lines > max_fields:
            raise BadMessage(431, "head_too_large", f"more than {max_fields} header fields")
        sink = self._sink
        if not self.is_clean:
            self._parser = _request_parser(sink)
        self.is_clean = False
        sink.fields.clear()
        sink.targets.clear()
        if head.startswith(b"GET "):
            method, space = b"GET", 3
            self._feed(head)
        else:
            space = head.find(b" ")
            method = head[:space]
            if method in _KNOWN_METHODS:
                self._feed(head)
            else:
                if space <= 0 or not is_token(method):
                    raise BadMessage(400, "bad_request", "the request line does not start with a method")
                if method == b"CONNECT":
                    raise _no_tunnel()
                # llhttp knows a list of methods and some have rules of their own; HTTP allows any token (RFC 9110 9.1).
                self._feed(b"POST" + head[space:])
        if not sink.targets:
            raise BadMessage(400, "bad_request", "no request line")
        target = sink.targets[0]
        version = space + 1 + len(target)
        if head.startswith(b" HTTP/1.1\r\n", version) and head.startswith(target, space + 1):
            minor = 1
        elif head.startswith(b" HTTP/1.0\r\n", version) and head.startswith(target, space + 1):
            minor = 0
        else:
            if head.startswith(b" HTTP/", version):
                raise BadMessage(505, "unsupported", "HTTP version")
            raise BadMessage(400, "bad_request", "malformed request line")
        self.method = method
        self.target = target
        self.minor = minor
        fields = sink.fields
        if len(fields) == lines:
            self.names = tuple(fields)
            self.values = tuple(fields.values())
        else:
            self.names, self.values = _pairs(httptools.HttpRequestParser, b"POST" + head[space:])

    def _feed(self, head: bytes) -> None:
        try:
            self._parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as error:
            if isinstance(error, httptools.HttpParserInvalidURLError):
                raise BadMessage(400, "bad_request", "invalid request target") from None
            message = _error_of(error)
            if message == "Invalid HTTP version":
                raise BadMessage(505, "unsupported", "HTTP version") from None
            raise BadMessage(400, "bad_request", message) from None


def with_plain_spaces(head: bytes) -> bytes:
    """A head whose only odd thing is tabs around `chunked`: HTTP allows them (RFC 9110 5.6.3), the parser does not."""
    return _CHUNKED_IN_TABS.sub(rb"\1: chunked", head)


def as_known_version(head: bytes) -> bytes:
    """A head of HTTP/1.2 to 1.9 as one of HTTP/1.1, the highest minor version known (RFC 9110 2.5, 6.2)."""
    end = head.find(b"\r\n")
    if head[end - 9 : end - 1] == b" HTTP/1." and head[end - 1] in b"23456789":
        return head[: end - 1] + b"1" + head[end:]
    return head


class ResponseParser:
    """Parses complete response heads, as `RequestParser` does requests. Nearly every answer announces a body, so the
    next head gets a new parser, unless `skip` has shown this one the whole body (90 ns instead of 330).

    `line` is the status line to send on, made new as HTTP/1.1 with the received reason phrase.
    """

    __slots__ = ("_is_used", "_lines", "_parser", "_sink", "line", "minor", "names", "status", "values")

    def __init__(self) -> None:
        self._sink = _Sink()
        self._parser = _response_parser(self._sink)
        self._is_used = False
        self._lines: dict[bytes, tuple[int, int, bytes]] = {}
        self.status = 0
        self.minor = 1
        self.line = b""
        self.names: Names = ()
        self.values: Values = ()

    def parse(self, head: bytes) -> None:
        """Parse a head that ends with its empty line. Raises `BadMessage`."""
        lines = head.count(b"\r\n") - 2
        if lines > MAX_ANSWER_FIELDS:
            raise BadMessage(502, "bad_gateway", f"more than {MAX_ANSWER_FIELDS} header fields")
        sink = self._sink
        fields = sink.fields
        fields.clear()
        if self._is_used:
            self._parser = _response_parser(sink)
        self._is_used = True
        parser = self._parser
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as error:
            raise BadMessage(502, "bad_gateway", _error_of(error)) from None
        line = head[: head.find(b"\r\n")]
        known = self._lines.get(line)
        if known is None:
            known = self._learn(line, parser)
        self.status, self.minor, self.line = known
        if len(fields) == lines:
            self.names = tuple(fields)
            self.values = tuple(fields.values())
        else:
            self.names, self.values = _pairs(httptools.HttpResponseParser, head)

    def skip(self, body: bytes) -> None:
        """Show the parser the whole body, of the announced length, that follows the head just parsed."""
        self._parser.feed_data(body)
        self._is_used = False

    def _learn(self, line: bytes, parser: httptools.HttpResponseParser) -> tuple[int, int, bytes]:
        status = parser.get_status_code()
        reason = line[13:]
        starts = (b"HTTP/1.0 %d" % status, b"HTTP/1.1 %d" % status)
        if not 100 <= status <= 999 or line[:12] not in starts or line[12:13] not in (b"", b" "):
            raise BadMessage(502, "bad_gateway", "malformed status line")
        if len(reason) != len(reason.translate(None, _BAD_IN_REASON)):
            raise BadMessage(502, "bad_gateway", "control characters in the reason phrase")
        known = (status, line[7] - 48, b"HTTP/1.1 %d %b\r\n" % (status, reason))
        if len(line) <= MEMO_BYTES:
            if len(self._lines) >= _MEMO_LIMIT:
                self._lines.clear()
            self._lines[line] = known
        return known


def _pairs(kind: Callable[[object], _Parser], head: bytes) -> tuple[Names, Values]:
    sink = _Pairs()
    try:
        kind(sink).feed_data(head)
    except httptools.HttpParserUpgrade:
        pass
    return tuple(sink.names), tuple(sink.values)


class EarlyCheck:
    """Looks at a head that is still arriving, so that nonsense is refused at once and not when a deadline ends.

    It judges no more strictly than `RequestParser` will judge the whole: the request line is looked at when it is
    complete, and shown to the parser with a method and a version that it knows.
    """

    __slots__ = ("_is_connect", "_max_fields", "_parser", "_seen", "lines")

    def __init__(self, max_fields: int) -> None:
        self._is_connect = False
        self._parser = httptools.HttpRequestParser(_Sink())
        self._max_fields = max_fields
        self._seen = 0
        self.lines = 0

    def look(self, head: bytes) -> BadMessage | None:
        """Look at what there is of the head by now; returns what is wrong with it."""
        if not self._seen:
            end = head.find(b"\n")
            if end < 0:
                return None
            if head[end - 1 : end] != b"\r":
                return BadMessage(400, "bad_request", "a line that does not end with CR LF")
            line = head[: end - 1]
            version = line.rfind(b" HTTP/")
            if version < 0:
                return BadMessage(400, "bad_request", "no HTTP version in the request line")
            self._seen = end + 1
            self._is_connect = line.startswith(b"CONNECT ")
            self._parser.feed_data(b"GET / HTTP/1.1\r\n")
        news = head[self._seen :]
        self._seen = len(head)
        self.lines += news.count(b"\n")
        if self.lines > self._max_fields:
            return BadMessage(431, "head_too_large", f"more than {self._max_fields} header fields")
        try:
            self._parser.feed_data(news)
        except httptools.HttpParserUpgrade:
            return None
        except httptools.HttpParserError as error:
            return _no_tunnel() if self._is_connect else BadMessage(400, "bad_request", _error_of(error))
        return None


class ChunkedDecoder:
    """Takes a chunked body apart (RFC 9112 7.1): payload out, framing and extensions dropped, trailers kept.

    `limit` bounds the octets that are not payload between two pieces of payload, so that endless chunk extensions or
    trailers are refused.

    HTTP allows white space around the `;` and `=` of chunk extensions (RFC 9112 7.1.1), and the parser does not. When
    it refuses a size line for no other reason, a new one is shown the size alone, and goes on behind the line.
    """

    __slots__ = (
        "_held", "_is_request", "_is_skipping", "_limit", "_line", "_overhead", "_parser", "_sink", "_tail", "trailers",
    )  # fmt: skip

    def __init__(self, is_request: bool, limit: int = 16384) -> None:
        # Of a size line that is not complete: what the parser has seen, or what it is not shown yet.
        self._line = b""
        self._held = b""
        self._is_request = is_request
        self._is_skipping = False
        self._limit = limit
        self._overhead = 0
        self._tail = b""
        sink = self._sink = _ChunkSink()
        self.trailers: Final = sink.trailers
        self._parser = self._new_parser()

    def _new_parser(self) -> _Parser:
        """A parser that waits for a chunk's size."""
        sink = self._sink
        parser: _Parser
        if self._is_request:
            parser = httptools.HttpRequestParser(sink)
            parser.feed_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        else:
            parser = httptools.HttpResponseParser(sink)
            parser.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        sink.trailers.clear()
        return parser

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """Feed octets of the body. Returns the payload in them, and how many octets were used if the body has ended
        (the rest belongs to what follows) or -1 if it has not. Raises `BadMessage`."""
        held = len(self._held)
        if held:
            data = self._held + data
            self._held = b""
        body, used = self._feed(data)
        return body, used - held if used >= 0 else -1

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
                raise BadMessage(400, "bad_request", _error_of(error)) from None
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
        """Show the parser a piece, but for what is held. Raises `HttpParserError`."""
        sink = self._sink
        while piece:
            was_at_size = sink.is_at_size
            sink.begin_piece()
            try:
                self._parser.feed_data(piece)
                return
            except httptools.HttpParserError:
                start = _last_size_line(piece, sink.sizes, was_at_size)
                before = self._line if was_at_size and not start else b""
                end = piece.find(b"\r\n", start)
                line = before + (piece[start:end] if end >= 0 else piece[start:])
                size = _SIZE_LINE.fullmatch(line)
                if not sink.is_at_size or not (size if end >= 0 else _SIZE_LINE_BEGUN.fullmatch(line)):
                    raise
                self._parser = self._new_parser()
                self._line = b""
                if size is None or end < 0:
                    self._held = line
                    return
                self._parser.feed_data(size[1] + b"\r\n")
                piece = piece[end + 2 :]

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


def _last_size_line(piece: bytes, sizes: list[int], was_at_size: bool) -> int:
    """Where the last size line begins in a piece that has been parsed so far. `sizes` is how much payload of each chunk
    that has ended there the piece has; `was_at_size` says that it begins with a size line, or the rest of one."""
    at = 0
    for size in sizes:
        if was_at_size:
            at = piece.find(b"\n", at) + 1
        at = piece.find(b"\n", at + size) + 1
        was_at_size = True
    return at


class _ChunkSink:
    """What the parser of a chunked body calls. It knows nothing of its decoder: with a circle between them only the
    garbage collector could free the two and the parser."""

    def __init__(self) -> None:
        self.body: list[bytes] = []
        self.trailers: list[tuple[bytes, bytes]] = []
        self.is_at_size = True
        self.is_done = False
        # How much payload this piece has of each chunk that has ended in it, and of the last one.
        self.sizes: list[int] = []
        self._size = 0

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
        self._size += len(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.trailers.append((name, value))

    def on_message_complete(self) -> None:
        self.is_done = True

"""The one seam to the HTTP parser (httptools, which is llhttp).

Heads are collected until their empty line and then parsed in one call, so one parser serves all connections of a
worker and no callback is a Python function: a list's `append` takes the target, a dict's `setdefault` the fields (a
whole small request costs about 1.2 microseconds; with methods as callbacks 2.1). A name that stands on two lines is
noticed by counting lines and re-read by a parser that keeps pairs. A parser that has been promised a body is replaced,
which costs 0.33 microseconds: bodies of known length are counted by us and never shown to a parser.

Chunked bodies go through a parser of their own per body, see `chunked.py`.

What llhttp lets pass and HTTP does not is refused here: several spaces in the request line, empty lines of a bare LF
or CR before it, versions other than 1.0 and 1.1, transfer codings other than `chunked`, NUL in a reason phrase.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

import httptools

from lbproxy.core.headers import BadMessage, Names, Values, is_token
from lbproxy.core.memo import keep_short

END_OF_HEAD: Final = b"\r\n\r\n"
# Header fields that an answer may have.
MAX_ANSWER_FIELDS: Final = 1000
_MEMO_LIMIT: Final = 1024
_BAD_IN_REASON: Final = bytes([c for c in range(256) if (c < 32 and c != 9) or c == 127])

_CHUNKED_IN_TABS: Final = re.compile(rb"(?<=\r\n)(transfer-encoding):[ \t]*chunked[ \t]*(?=\r\n)", re.IGNORECASE)
_KNOWN_METHODS: Final = frozenset(
    (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"PATCH", b"PROPFIND", b"PROPPATCH", b"MKCOL",
     b"COPY", b"MOVE", b"LOCK", b"UNLOCK", b"SEARCH", b"REPORT", b"PURGE", b"LINK", b"UNLINK")
)  # fmt: skip


Parser: TypeAlias = httptools.HttpRequestParser | httptools.HttpResponseParser


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


def error_of(error: Exception) -> str:
    """What a parser has to say."""
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
        lines = head.count(b"\n") - 2
        if lines > max_fields:
            raise BadMessage(431, "head_too_large", f"more than {max_fields} header fields")
        self._begin()
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
        self._describe(head, method, space)
        fields = self._sink.fields
        if len(fields) == lines:
            self.names, self.values = _names_and_values(fields)
        else:
            self.names, self.values = _pairs(httptools.HttpRequestParser, b"POST" + head[space:])

    def parse_whole(self, octets: bytes, max_fields: int) -> bool:
        """Parse octets that end with an empty line, if they are nothing but one plain head. False, and nothing is
        decided, if they may be more than that, or less.

        To look where their first empty line is would take as long as to parse them (0.7 us with a browser's fields).
        The numbers tell as much: with a field for every line but two, the first and the last, none in between is empty.
        """
        lines = octets.count(b"\n") - 2
        if lines > max_fields or not octets.startswith(b"GET "):
            return False
        self._begin()
        fields = self._sink.fields
        try:
            self._feed(octets)
            if len(fields) != lines:
                return False
            self._describe(octets, b"GET", 3)
        except BadMessage:
            return False
        self.names, self.values = _names_and_values(fields)
        return True

    def _begin(self) -> None:
        sink = self._sink
        if not self.is_clean:
            self._parser = _request_parser(sink)
        self.is_clean = False
        sink.fields.clear()
        sink.targets.clear()

    def _describe(self, head: bytes, method: bytes, space: int) -> None:
        """Take method, target and version from a request line whose method ends at `space`. Raises `BadMessage`."""
        targets = self._sink.targets
        if not targets:
            raise BadMessage(400, "bad_request", "no request line")
        target = targets[0]
        end = space + 1 + len(target)
        version = head[end : end + 11] if head[space + 1 : end] == target else b""
        if version == b" HTTP/1.1\r\n":
            self.minor = 1
        elif version == b" HTTP/1.0\r\n":
            self.minor = 0
        else:
            if head.startswith(b" HTTP/", end):
                raise BadMessage(505, "unsupported", "HTTP version")
            raise BadMessage(400, "bad_request", "malformed request line")
        self.method = method
        self.target = target

    def _feed(self, head: bytes) -> None:
        try:
            self._parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as error:
            if isinstance(error, httptools.HttpParserInvalidURLError):
                raise BadMessage(400, "bad_request", "invalid request target") from None
            message = error_of(error)
            if message == "Invalid HTTP version":
                raise BadMessage(505, "unsupported", "HTTP version") from None
            raise BadMessage(400, "bad_request", message) from None


def with_plain_spaces(head: bytes) -> bytes:
    """A head whose only odd thing is tabs around `chunked`: HTTP allows them (RFC 9110 5.6.3), the parser does not."""
    return _CHUNKED_IN_TABS.sub(rb"\1: chunked", head)


def as_known_version(head: bytes) -> bytes:
    """A head of HTTP/1.2 to 1.9 as one of HTTP/1.1, the highest minor version known (RFC 9110 2.5, 6.2)."""
    end = head.find(b"\r\n")
    # (Compiled, a slice that ends before it begins is an error.)
    if end > 9 and head[end - 9 : end - 1] == b" HTTP/1." and head[end - 1] in b"23456789":
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
        lines = head.count(b"\n") - 2
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
            raise BadMessage(502, "bad_gateway", error_of(error)) from None
        line = head[: head.find(b"\r\n")]
        known = self._lines.get(line)
        if known is None:
            known = self._learn(line, parser)
        self.status, self.minor, self.line = known
        if len(fields) == lines:
            self.names, self.values = _names_and_values(fields)
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
        keep_short(self._lines, _MEMO_LIMIT, line, known)
        return known


def _names_and_values(fields: dict[bytes, bytes]) -> tuple[Names, Values]:
    """(By way of lists, which are filled in one go when this is compiled: half the time of a walk through the dict.)"""
    return tuple(list(fields.keys())), tuple(list(fields.values()))  # noqa: C414


def _pairs(kind: Callable[[object], Parser], head: bytes) -> tuple[Names, Values]:
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

    __slots__ = ("_max_fields", "_parser", "_seen", "lines")

    def __init__(self, max_fields: int) -> None:
        self._parser = httptools.HttpRequestParser(_Sink())
        self._max_fields = max_fields
        self._seen = 0
        self.lines = 0

    def look(self, head: bytes) -> BadMessage | None:
        """Look at what there is of the head by now; returns what is wrong with it."""
        problem = self._look(head)
        if problem is not None and problem.status == 400 and head.startswith(b"CONNECT "):
            return _no_tunnel()  # whatever else is wrong with it
        return problem

    def _look(self, head: bytes) -> BadMessage | None:
        if not self._seen:
            end = head.find(b"\n")
            if end < 0:
                return None
            if not head.startswith(b"\r", end - 1):
                return BadMessage(400, "bad_request", "a line that does not end with CR LF")
            line = head[: end - 1]
            version = line.rfind(b" HTTP/")
            if version < 0:
                return BadMessage(400, "bad_request", "no HTTP version in the request line")
            self._seen = end + 1
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
            return BadMessage(400, "bad_request", error_of(error))
        return None

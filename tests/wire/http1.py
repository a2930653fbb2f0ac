"""The judge: a strict reader of HTTP/1.1 messages, independent of every parser the proxies under test use.

It reads a connection's octets as a sequence of requests (what a backend received) or of responses (what a client
received), keeps every octet of each message, and says in `trouble` what a conforming sender would not have sent.
It forgives nothing: CRLF ends a line, a field name is a token, there is one Host, one way of framing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Literal

Framing = Literal["none", "length", "chunked", "close", "tunnel"]
Field = tuple[bytes, bytes]

TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9]) ([\t\x20-\x7e\x80-\xff]*)")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00\r\n]*)")
_CHUNK = re.compile(
    rb"([0-9A-Fa-f]+)"
    rb"(?:[ \t]*;[ \t]*[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?:[ \t]*=[ \t]*(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
    rb'|"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*"))?)*'
)
_HOST = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]+\]|\[v[0-9A-Fa-f]+\.[0-9A-Za-z\-._~!$&'()*+,;=:]+\]"
    rb"|(?:[0-9A-Za-z\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
)


_arrivals = itertools.count()


class Violation(Exception):
    """What was received is not what HTTP/1.1 allows a sender to send."""


@dataclass(slots=True)
class Message:
    """One request or response as it was received, as far as it was received; `arrival` orders all of them."""

    raw: bytearray = field(default_factory=bytearray)
    method: bytes = b""
    target: bytes = b""
    minor: int = -1
    status: int = 0
    reason: bytes = b""
    fields: list[Field] = field(default_factory=list)
    framing: Framing = "none"
    body: bytearray = field(default_factory=bytearray)
    trailers: list[Field] = field(default_factory=list)
    has_head: bool = False
    is_complete: bool = False
    arrival: int = field(default_factory=_arrivals.__next__)

    def values(self, name: bytes) -> list[bytes]:
        """The values of all lines of this name, in order."""
        return [value for key, value in self.fields if key.lower() == name.lower()]

    def members(self, name: bytes) -> list[bytes]:
        """The members of a list-based field over all its lines, in order, lower-cased."""
        joined = b",".join(self.values(name))
        return [member.strip(b" \t").lower() for member in joined.split(b",") if member.strip(b" \t")]

    def show(self) -> str:
        """One line for a report."""
        start = (
            f"{self.method.decode('latin-1')} {self.target.decode('latin-1')[:80]}" if self.method else str(self.status)
        )
        end = "" if self.is_complete else " (incomplete)" if self.has_head else f" (head cut: {bytes(self.raw[:60])!r})"
        return f"{start} [{self.framing}, {len(self.body)} octets]{end}"


class Stream:
    """Feed it what arrives on one connection; read `messages`, `trouble`, `surplus` and `tunnel` at any time.

    `methods` None reads requests. Otherwise it reads the responses to requests of these methods; what follows the last
    of them is `surplus`.
    """

    def __init__(self, methods: tuple[bytes, ...] | None = None) -> None:
        self.messages: list[Message] = []
        self.trouble = ""
        self.surplus = bytearray()
        self.tunnel = bytearray()
        self.is_tunnel = False
        self._methods = methods
        self._buffer = bytearray()
        self._has_ended = False
        self._run: Iterator[None] | None = self._responses(methods) if methods is not None else self._requests()

    @property
    def finals(self) -> list[Message]:
        """The responses that are not interim ones."""
        return [message for message in self.messages if message.status >= 200 or message.status == 101]

    def feed(self, data: bytes) -> None:
        """Take octets as they arrive."""
        self._buffer += data
        self._step()

    def close(self) -> None:
        """Take the end of the connection."""
        self._has_ended = True
        self._step()

    def switch(self) -> None:
        """From here on the octets are no longer HTTP."""
        self.is_tunnel = True
        self._step()

    def _step(self) -> None:
        if self._run is not None and not self.is_tunnel:
            try:
                next(self._run)
            except StopIteration:
                self._run = None
            except Violation as violation:
                self.trouble = str(violation)
                if self.messages:
                    self.messages[-1].raw += self._buffer
                self._run = None
        if self._run is None or self.is_tunnel:
            (self.tunnel if self.is_tunnel else self.surplus).extend(self._buffer)
            self._buffer.clear()

    # The grammar, as generators that pause when they need more octets.

    def _requests(self) -> Generator[None, None, None]:
        while True:
            while not self._buffer:
                yield
            message = Message()
            self.messages.append(message)
            line = yield from self._line(message)
            match = _REQUEST_LINE.fullmatch(line)
            if match is None:
                raise Violation(f"no request line: {line[:120]!r}")
            message.method, message.target, message.minor = match[1], match[2], int(match[3])
            yield from self._fields(message, message.fields)
            check_request(message)
            message.has_head = True
            yield from self._body(message)
            message.is_complete = True

    def _responses(self, methods: tuple[bytes, ...]) -> Generator[None, None, None]:
        for method in methods:
            while True:
                while not self._buffer:
                    yield
                message = Message()
                self.messages.append(message)
                line = yield from self._line(message)
                match = _STATUS_LINE.fullmatch(line)
                if match is None:
                    raise Violation(f"no status line: {line[:120]!r}")
                message.minor, message.status, message.reason = int(match[1]), int(match[2]), match[3]
                yield from self._fields(message, message.fields)
                check_response(message, method)
                message.has_head = True
                if message.framing == "tunnel":
                    message.is_complete = self.is_tunnel = True
                    return
                yield from self._body(message)
                message.is_complete = True
                if message.status >= 200:
                    break
            if message.framing == "close":
                return

    def _line(self, message: Message) -> Generator[None, None, bytes]:
        start = 0
        while (end := self._buffer.find(b"\n", start)) < 0:
            start = len(self._buffer)
            held = len(message.raw)
            message.raw += self._buffer  # what a cut line was is worth keeping
            yield
            del message.raw[held:]
        line = bytes(self._take(message, end + 1))
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            raise Violation(f"a line with a bare CR or LF: {line[:120]!r}")
        return line[:-2]

    def _take(self, message: Message, count: int) -> bytearray:
        taken = self._buffer[:count]
        del self._buffer[:count]
        message.raw += taken
        return taken

    def _fields(self, message: Message, into: list[Field]) -> Generator[None, None, None]:
        while line := (yield from self._line(message)):
            match = _FIELD.fullmatch(line)
            if match is None:
                raise Violation(f"no field line: {line[:120]!r}")
            into.append((match[1], match[2].rstrip(b" \t")))

    def _body(self, message: Message) -> Generator[None, None, None]:
        if message.framing == "length":
            yield from self._octets(message, int(message.values(b"content-length")[0]))
        elif message.framing == "chunked":
            yield from self._chunks(message)
        elif message.framing == "close":
            while not self._has_ended:
                message.body += self._take(message, len(self._buffer))
                yield

    def _octets(self, message: Message, count: int) -> Generator[None, None, None]:
        while count:
            taken = self._take(message, count)
            message.body += taken
            count -= len(taken)
            if count:
                yield

    def _chunks(self, message: Message) -> Generator[None, None, None]:
        while True:
            line = yield from self._line(message)
            match = _CHUNK.fullmatch(line)
            if match is None:
                raise Violation(f"no chunk size: {line[:120]!r}")
            size = int(match[1], 16)
            if not size:
                break
            yield from self._octets(message, size)
            if (yield from self._line(message)):
                raise Violation("no CRLF behind a chunk")
        yield from self._fields(message, message.trailers)


def _check_framing(message: Message) -> bool:
    """Whether there is a body, by its own fields; sets `framing`."""
    lengths, codings = message.values(b"content-length"), message.members(b"transfer-encoding")
    if message.values(b"transfer-encoding"):
        if lengths:
            raise Violation("Content-Length beside Transfer-Encoding")
        if codings[-1:] != [b"chunked"] or codings.count(b"chunked") != 1:
            raise Violation(f"chunked is not the one final coding: {codings}")
        if message.minor == 0:
            raise Violation("Transfer-Encoding in an HTTP/1.0 message")
        message.framing = "chunked"
        return True
    if lengths:
        if len(lengths) > 1 or re.fullmatch(rb"[0-9]+", lengths[0]) is None:
            raise Violation(f"Content-Length {lengths}")
        message.framing = "length"
        return True
    return False


def check_request(message: Message) -> None:
    """What the head of every forwarded request must be (RFC 9112 sections 3.2 and 6)."""
    hosts = message.values(b"host")
    if len(hosts) > 1 or (message.minor == 1 and not hosts):
        raise Violation(f"{len(hosts)} Host lines")
    if hosts and _HOST.fullmatch(hosts[0]) is None:
        raise Violation(f"Host {hosts[0]!r}")
    _check_framing(message)


def check_response(message: Message, method: bytes) -> None:
    """How a response ends, by RFC 9112 section 6.3."""
    if message.status == 101 or (method == b"CONNECT" and 200 <= message.status <= 299):
        message.framing = "tunnel"
    elif not _check_framing(message):
        message.framing = "close"
    if method == b"HEAD" or message.status < 200 or message.status in (204, 304):
        message.framing = message.framing if message.framing == "tunnel" else "none"

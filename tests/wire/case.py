"""What a case is, and the small words its tables are written in.

A case is data: the octets a client sends, in steps; what the backend answers, in steps; what must be seen on both
sides. In all octets `~~` stands for the case's mark, a word that no other run shares: by it the backend knows whose
request it got, wherever in the message the mark stands. `/~~/name` gives a request a name of its own, under which
`answer` may hold its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.wire.expect import Check

Level = Literal["MUST", "SHOULD"]
MUST: Level = "MUST"
SHOULD: Level = "SHOULD"

CRLF = b"\r\n"
DATE = "Date: Mon, 30 Nov 2026 08:00:00 GMT"
HOST = "a.example"
MARK_OCTETS = 8


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Trickle:
    """Write these octets `size` at a time, each in a segment of its own."""

    octets: bytes
    size: int = 1


@dataclass(frozen=True, slots=True)
class AwaitHeads:
    """Client: wait until so many response heads, interim ones included, have been received."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class AwaitFinals:
    """Client: wait until so many final responses are complete."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class AwaitTunnel:
    """Wait until so many octets have come through the tunnel."""

    count: int


@dataclass(frozen=True, slots=True)
class HalfClose:
    """Send FIN and go on reading."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Break the connection off with RST."""


@dataclass(frozen=True, slots=True)
class Close:
    """Backend: close the connection."""


@dataclass(frozen=True, slots=True)
class AwaitBody:
    """Backend: wait until the whole request has been received."""


@dataclass(frozen=True, slots=True)
class AwaitOctets:
    """Backend: wait until so many octets of the request's body have been received."""

    count: int


@dataclass(frozen=True, slots=True)
class AwaitEof:
    """Backend: wait until the proxy has closed its side."""


@dataclass(frozen=True, slots=True)
class Tunnel:
    """Backend: what comes after the request is no longer HTTP."""


@dataclass(frozen=True, slots=True)
class Echo:
    """Backend: send back whatever comes through the tunnel, until the proxy closes its side."""


ClientStep = bytes | Pause | Trickle | AwaitHeads | AwaitFinals | AwaitTunnel | HalfClose | Reset
BackendStep = (
    bytes
    | Pause
    | Trickle
    | HalfClose
    | Reset
    | Close
    | AwaitBody
    | AwaitOctets
    | AwaitEof
    | AwaitTunnel
    | Tunnel
    | Echo
)
Answer = bytes | tuple[BackendStep, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """`section` is the RFC's number and section. `methods` are those of the requests sent, which is how their answers
    are read. `early`: the backend begins its answer at the head of the request, otherwise at its end. `alone`: the case
    is about idle connections to the backend, so no other may run beside it. `patience` is how long, in seconds, the
    client waits for an answer that does not come."""

    id: str
    section: str
    level: Level
    send: tuple[ClientStep, ...]
    expect: tuple[Check, ...]
    answer: Mapping[str, Answer] = field(default_factory=dict)
    methods: tuple[bytes, ...] = (b"GET",)
    early: bool = False
    alone: bool = False
    patience: float = 1.5
    why: str = ""

    @property
    def awaits_close(self) -> bool:
        return any(check.closing for check in self.expect)


def case(
    id: str,
    section: str,
    level: Level,
    send: bytes | tuple[ClientStep, ...],
    *expect: Check,
    answer: Answer | Mapping[str, Answer] | None = None,
    methods: str = "GET",
    early: bool = False,
    alone: bool = False,
    patience: float = 1.5,
    why: str = "",
) -> Case:
    """Write a case. `methods` are separated by spaces; an `answer` that is no mapping answers every request."""
    answers = {} if answer is None else answer if isinstance(answer, Mapping) else {"*": answer}
    steps = (send,) if isinstance(send, bytes) else send
    verbs = tuple(method.encode() for method in methods.split())
    return Case(id, section, level, steps, expect, answers, verbs, early, alone, patience, why)


def octets(text: str | bytes) -> bytes:
    """Each character of a text as one octet, so that tables can be written as text."""
    return text if isinstance(text, bytes) else text.encode("latin-1")


def length(body: bytes) -> int:
    """How many octets this is once the marks stand in it."""
    return len(body.replace(b"~~", bytes(MARK_OCTETS)))


def raw(*lines: str | bytes) -> bytes:
    """These lines, each ended by CRLF, and the empty line."""
    return CRLF.join(octets(line) for line in (*lines, "", ""))


def get(*lines: str | bytes, path: str = "/~~", method: str = "GET", version: str = "1.1") -> bytes:
    """A plain request with a Host and these further field lines."""
    return raw(f"{method} {path} HTTP/{version}", f"Host: {HOST}", *lines)


def framed(body: bytes, *lines: str | bytes, path: str = "/~~", method: str = "POST", version: str = "1.1") -> bytes:
    """A request whose framing is what these lines say, and the octets behind its head."""
    return get(*lines, path=path, method=method, version=version) + body


def post(body: bytes, *lines: str | bytes, path: str = "/~~", method: str = "POST", version: str = "1.1") -> bytes:
    """A request with a body and its right Content-Length."""
    return framed(body, *lines, f"Content-Length: {length(body)}", path=path, method=method, version=version)


def chunked(body: bytes, *lines: str | bytes, path: str = "/~~", method: str = "POST") -> bytes:
    """A request that says it is chunked, and the octets behind its head, good or bad."""
    return framed(body, *lines, "Transfer-Encoding: chunked", path=path, method=method)


def answer(status: str, *lines: str | bytes, body: bytes = b"", version: str = "1.1") -> bytes:
    """A response whose framing is what these lines say."""
    return raw(f"HTTP/{version} {status}", DATE, *lines) + body


def ok(body: bytes = b"ok", *lines: str | bytes, status: str = "200 OK") -> bytes:
    """A response with a body and its right Content-Length."""
    return answer(status, *lines, f"Content-Length: {length(body)}", body=body)


HIDDEN = get(path="/~~/hidden")
PROBE = get(path="/~~/probe")

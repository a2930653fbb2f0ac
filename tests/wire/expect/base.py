"""What a case has left on both sides, and what a check of it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tests.wire.http1 import Message, Stream

End = Literal["open", "fin", "rst"]


@dataclass(slots=True)
class Seen:
    """The outcome of one run: what the client received, how its connection ended, what the backend received."""

    mark: bytes
    stream: Stream
    raw: bytes = b""
    end: End = "open"
    forwarded: list[Message] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    tunnel: bytes = b""
    connections: int = 0

    @property
    def finals(self) -> list[Message]:
        return self.stream.finals

    @property
    def interim(self) -> list[Message]:
        return [message for message in self.stream.messages if message.has_head and 100 <= message.status < 200]

    def fill(self, octets: bytes) -> bytes:
        return octets.replace(b"~~", self.mark)

    def show(self) -> str:
        """What was seen, in one line."""
        client = "; ".join(message.show() for message in self.stream.messages) or "nothing"
        extra = f" + surplus {bytes(self.stream.surplus[:60])!r}" if self.stream.surplus else ""
        backend = "; ".join(message.show() for message in self.forwarded) or "nothing"
        return f"client got {client}{extra}, {self.end}; backend got {backend}"


Test = Callable[[Seen], str]


@dataclass(frozen=True, slots=True)
class Check:
    """`closing`: the client should wait for the connection's end, since the check asks for it."""

    text: str
    test: Test
    closing: bool = False


def all_of(*checks: Check) -> Check:
    """Every one of these."""

    def test(seen: Seen) -> str:
        return "; ".join(found for check in checks if (found := check.test(seen)))

    return Check(", ".join(check.text for check in checks), test, any(check.closing for check in checks))


def either(*checks: Check) -> Check:
    """At least one of these: the RFC leaves the choice."""

    def test(seen: Seen) -> str:
        found = [check.test(seen) for check in checks]
        return " | ".join(found) if all(found) else ""

    return Check(" or ".join(f"({check.text})" for check in checks), test, any(check.closing for check in checks))


def holds(text: str, test: Test, closing: bool = False) -> Check:
    """A check of one case's own."""
    return Check(text, test, closing)

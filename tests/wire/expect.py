"""What can be asked of a case's outcome.

A check is a sentence and a test; the test says in words what it saw instead, or nothing when all is well. Every case
is also asked for what holds always (`ALWAYS`): whatever reaches a backend or a client is a well-formed message, and a
client never gets octets that belong to no answer.
"""

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


# The client's side.


def status(*codes: int, which: int = 0) -> Check:
    """The final answer (the first, unless told) has one of these codes; a code below 10 stands for its class."""
    names = "/".join(f"{code}xx" if code < 10 else str(code) for code in codes)

    def test(seen: Seen) -> str:
        if len(seen.finals) <= which or not seen.finals[which].has_head:
            return f"no answer {which + 1}"
        got = seen.finals[which].status
        return "" if got in codes or got // 100 in codes else f"answer {which + 1} is {got}"

    return Check(f"answer {which + 1} is {names}", test)


def _closed(seen: Seen) -> str:
    return "the connection stays open" if seen.end == "open" else ""


def _open(seen: Seen) -> str:
    return "" if seen.end == "open" else f"the connection ended ({seen.end})"


def _unanswered(seen: Seen) -> str:
    return f"{len(seen.finals)} answers" if seen.finals else ""


closed = Check("the connection is closed", _closed, closing=True)
stays_open = Check("the connection stays open", _open)
unanswered = Check("no answer", _unanswered)


def answers(*codes: int) -> Check:
    """Exactly these final answers, all complete, in this order."""

    def test(seen: Seen) -> str:
        got = [message.status if message.is_complete else f"{message.status} cut" for message in seen.finals]
        return "" if got == list(codes) else f"the answers are {got}"

    return Check("the answers are " + ", ".join(map(str, codes)), test)


def body(octets: bytes, which: int = 0) -> Check:
    """The body of an answer is exactly this."""

    def test(seen: Seen) -> str:
        if len(seen.finals) <= which:
            return f"no answer {which + 1}"
        message = seen.finals[which]
        if not message.is_complete:
            return f"answer {which + 1} is cut after {len(message.body)} octets"
        want = seen.fill(octets)
        return "" if message.body == want else f"its body is {bytes(message.body[:80])!r} ({len(message.body)} octets)"

    shown = repr(octets) if len(octets) < 60 else f"{len(octets)} octets"
    return Check(f"the body of answer {which + 1} is {shown}", test)


def named(*names: str) -> Check:
    """The answers come from the backend's answers of these names, in this order ("" for the unnamed request)."""

    def test(seen: Seen) -> str:
        got = [b",".join(message.values(b"X-Answer")).decode("latin-1") for message in seen.finals]
        return "" if got == [name or "main" for name in names] else f"the answers are those of {got}"

    return Check(f"the answers are those of {', '.join(name or 'main' for name in names)}", test)


def got_field(name: str, value: bytes | None = None, which: int = 0) -> Check:
    """An answer has this field (with this value, when given)."""

    def test(seen: Seen) -> str:
        if len(seen.finals) <= which:
            return f"no answer {which + 1}"
        values = seen.finals[which].values(name.encode())
        held = bool(values) if value is None else values == [value]
        return "" if held else f"its {name} is {values}"

    return Check(f"answer {which + 1} has {name}" + ("" if value is None else f" {value!r}"), test)


def no_field(*names: str, which: int = 0) -> Check:
    """An answer has none of these fields, neither in its head nor in its trailers."""

    def test(seen: Seen) -> str:
        if len(seen.finals) <= which:
            return f"no answer {which + 1}"
        message = seen.finals[which]
        lines = {key.lower() for key, _ in (*message.fields, *message.trailers)}
        found = [name for name in names if name.lower().encode() in lines]
        return f"answer {which + 1} has {', '.join(found)}" if found else ""

    return Check(f"answer {which + 1} has no {' or '.join(names)}", test)


def interim(*codes: int) -> Check:
    """Exactly these interim answers come first."""

    def test(seen: Seen) -> str:
        got = [message.status for message in seen.interim if message.status != 101]
        return "" if got == list(codes) else f"the interim answers are {got}"

    return Check(f"the interim answers are {list(codes)}", test)


def got_spelled(name: bytes) -> Check:
    """The answer has this name, letter by letter."""

    def test(seen: Seen) -> str:
        names = [key for key, _ in seen.finals[0].fields] if seen.finals else []
        return "" if name in names else f"the names are {names}"

    return Check(f"answered with {name!r} as it was written", test)


def got_lines(name: str, *values: bytes) -> Check:
    """The answer has these lines of this name, each still a line of its own, in this order."""

    def test(seen: Seen) -> str:
        got = seen.finals[0].values(name.encode()) if seen.finals else []
        return "" if got == list(values) else f"the lines are {got}"

    return Check(f"answered with the lines {name} {list(values)}", test)


def got_minor(minor: int) -> Check:
    """The answer is of this minor version of HTTP/1."""

    def test(seen: Seen) -> str:
        got = seen.finals[0].minor if seen.finals else -1
        return "" if got == minor else f"it is HTTP/1.{got}"

    return Check(f"answered as HTTP/1.{minor}", test)


def interim_without(name: str) -> Check:
    """No interim answer has this field."""

    def test(seen: Seen) -> str:
        return "an interim answer has it" if any(message.values(name.encode()) for message in seen.interim) else ""

    return Check(f"interim answers without {name}", test)


def head_without(name: str, value: bytes) -> Check:
    """The head of the answer does not have this value of this field."""

    def test(seen: Seen) -> str:
        return "it has" if seen.finals and value in seen.finals[0].values(name.encode()) else ""

    return Check(f"the answer's head has no {name} {value!r}", test)


def _cut(seen: Seen) -> str:
    if seen.finals and seen.finals[0].status == 502:
        return ""
    if not seen.finals or not seen.finals[0].is_complete or seen.end == "rst":
        return "" if seen.end != "open" else "the client is left waiting"
    return f"a whole answer, {seen.finals[0].framing}, of {len(seen.finals[0].body)} octets"


cut = Check("the client can see that the answer was cut short", _cut, closing=True)


def _consistent(seen: Seen) -> str:
    """What the last answer says of the connection is what happens to it."""
    if not seen.finals:
        return "no answer"
    last = seen.finals[-1]
    says_close = b"close" in last.members(b"connection") or (
        last.minor == 0 and b"keep-alive" not in last.members(b"connection")
    )
    if says_close and seen.end == "open":
        return "the answer says close and the connection stays open"
    return ""


consistent = Check("the connection ends if the answer says so", _consistent, closing=True)


no_final = Check("no final answer", _unanswered)


def tunnelled(octets: bytes) -> Check:
    """The client received exactly this through the tunnel."""

    def test(seen: Seen) -> str:
        return "" if seen.stream.tunnel == octets else f"the client's tunnel held {bytes(seen.stream.tunnel[:80])!r}"

    return Check(f"the client's tunnel held {octets!r}", test)


# The backend's side.


def _nothing(seen: Seen) -> str:
    return "; ".join(f"the backend got {message.show()}" for message in seen.forwarded)


def _nothing_whole(seen: Seen) -> str:
    return "; ".join(f"the backend got {message.show()}" for message in seen.forwarded if message.is_complete)


nothing = Check("nothing reaches the backend", _nothing)
nothing_whole = Check("no whole request reaches the backend", _nothing_whole)


def forwarded(count: int = 1) -> Check:
    """The backend got exactly so many requests, all whole."""

    def test(seen: Seen) -> str:
        got = [message.show() for message in seen.forwarded]
        whole = sum(message.is_complete for message in seen.forwarded)
        return "" if len(got) == whole == count else f"the backend got {got}"

    return Check(f"the backend gets {count} whole request{'s' * (count != 1)}", test)


def not_forwarded(*names: str) -> Check:
    """No request of these names reached the backend."""

    def test(seen: Seen) -> str:
        paths = [seen.mark + b"/" + name.encode() for name in names]
        found = [message.show() for message in seen.forwarded if any(path in message.target for path in paths)]
        return f"the backend got {found}" if found else ""

    return Check(f"the backend never gets {' or '.join(names)}", test)


def relayed(
    method: bytes | None = None,
    target: bytes | None = None,
    body: bytes | None = None,
    count: int = 1,
    code: int | None = 200,
) -> Check:
    """The backend got exactly `count` whole requests, the first with these properties, and the client its answer."""

    def test(seen: Seen) -> str:
        if found := forwarded(count).test(seen):
            return found
        message = seen.forwarded[0]
        if method is not None and message.method != method:
            return f"its method is {message.method!r}"
        if target is not None and message.target != seen.fill(target):
            return f"its target is {message.target!r}"
        if body is not None and message.body != seen.fill(body):
            return f"its body is {bytes(message.body[:80])!r} ({len(message.body)} octets)"
        return status(code).test(seen) if code is not None else ""

    wants = [f"{name} {value!r}" for name, value in (("method", method), ("target", target)) if value is not None]
    if body is not None:
        wants.append(f"body {body!r}" if len(body) < 60 else f"body of {len(body)} octets")
    return Check(" ".join([f"relayed {'once' if count == 1 else f'{count} times'}", *wants]), test)


def had(name: str, *values: bytes) -> Check:
    """The first forwarded request has this field; with `values`, exactly these members or lines, in this order."""

    def test(seen: Seen) -> str:
        if not seen.forwarded:
            return "nothing was forwarded"
        got = seen.forwarded[0].values(name.encode())
        wanted = [seen.fill(value) for value in values]
        held = bool(got) if not values else got == wanted or got == [b", ".join(wanted)] or got == [b",".join(wanted)]
        return "" if held else f"forwarded with {name} {got}"

    return Check(f"forwarded with {name}" + (f" {list(values)}" if values else ""), test)


def had_in_order(name: str, *values: bytes) -> Check:
    """The first forwarded request has these lines of this name, each still a line of its own."""

    def test(seen: Seen) -> str:
        got = seen.forwarded[0].values(name.encode()) if seen.forwarded else []
        return "" if got == list(values) else f"forwarded with {name} {got}"

    return Check(f"forwarded with the lines {name} {list(values)}", test)


def lacked(*names: str) -> Check:
    """No forwarded request has any of these fields in its head."""

    def test(seen: Seen) -> str:
        found = {name for name in names for message in seen.forwarded if message.values(name.encode())}
        return f"forwarded with {', '.join(sorted(found))}" if found else ""

    return Check(f"forwarded without {' or '.join(names)}", test)


def lacked_member(name: str, member: str) -> Check:
    """No forwarded request has this member in this list-based field."""

    def test(seen: Seen) -> str:
        found = any(member.lower().encode() in message.members(name.encode()) for message in seen.forwarded)
        return f"forwarded with {member} in {name}" if found else ""

    return Check(f"forwarded without {member} in {name}", test)


def no_value(name: str, value: bytes) -> Check:
    """No forwarded request has this value in this field."""

    def test(seen: Seen) -> str:
        values = [found for message in seen.forwarded for found in message.values(name.encode())]
        return f"forwarded with {name} {values}" if any(value in found for found in values) else ""

    return Check(f"forwarded without {value!r} in {name}", test)


def no_trailer(name: str) -> Check:
    """No forwarded request has this trailer field."""

    def test(seen: Seen) -> str:
        names = [key.lower() for message in seen.forwarded for key, _ in message.trailers]
        return "it is forwarded in the trailers" if name.lower().encode() in names else ""

    return Check(f"forwarded without {name} in the trailers", test)


def spelled(name: bytes) -> Check:
    """The first forwarded request has this name, letter by letter."""

    def test(seen: Seen) -> str:
        names = [key for key, _ in seen.forwarded[0].fields] if seen.forwarded else []
        return "" if name in names else f"the names are {names}"

    return Check(f"forwarded with {name!r} as it was written", test)


def backend_tunnel(octets: bytes) -> Check:
    """The backend received exactly this through the tunnel."""

    def test(seen: Seen) -> str:
        return "" if seen.tunnel == octets else f"the backend's tunnel held {seen.tunnel[:80]!r}"

    return Check(f"the backend's tunnel held {octets!r}" if len(octets) < 60 else "the backend got it all", test)


def _body_with_request(seen: Seen) -> str:
    got = bytes(seen.forwarded[0].body) if seen.forwarded else b"hello"
    return "" if got == b"hello" else f"its body is {got!r}"


body_with_request = Check("the body hello goes with its request", _body_with_request)


def version(*minors: int) -> Check:
    """The first forwarded request is of one of these minor versions of HTTP/1."""

    def test(seen: Seen) -> str:
        got = seen.forwarded[0].minor if seen.forwarded else -1
        return "" if got in minors else f"forwarded as HTTP/1.{got}"

    return Check(f"forwarded as HTTP/1.{'/'.join(map(str, minors))}", test)


def holds(text: str, test: Test, closing: bool = False) -> Check:
    """A check of one case's own."""
    return Check(text, test, closing)


# What most cases are made of.


def refused(*codes: int) -> Check:
    """Answered with an error of the proxy's own (any 4xx or 501, 505 unless told) and closed; nothing got through."""
    wanted = status(*(codes or (4, 501, 505)))
    return all_of(wanted, closed, nothing)


def rejected(*codes: int) -> Check:
    """As refused, or simply closed without an answer."""
    return either(refused(*codes), all_of(unanswered, closed, nothing))


def broken_off(*codes: int) -> Check:
    """An error after the head may have gone to the backend: it never has the whole request, and nothing follows."""
    wanted = status(*(codes or (4, 5)))
    return all_of(either(wanted, unanswered), closed, nothing_whole)


def _well_formed(seen: Seen) -> str:
    return "; ".join(seen.trouble)


def _answers_well_formed(seen: Seen) -> str:
    if seen.stream.trouble:
        return f"the client got {seen.stream.trouble}"
    if seen.stream.surplus:
        return f"the client got {len(seen.stream.surplus)} octets too many: {bytes(seen.stream.surplus[:80])!r}"
    return ""


ALWAYS = (
    Check("what the backend gets is well-formed", _well_formed),
    Check("what the client gets is well-formed and no more than its answers", _answers_well_formed),
)

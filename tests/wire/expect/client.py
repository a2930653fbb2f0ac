"""Checks of what the client received."""

from __future__ import annotations

from tests.wire.expect.base import Check, Seen


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

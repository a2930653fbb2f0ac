"""Checks of what the backend received."""

from __future__ import annotations

from tests.wire.expect.base import Check, Seen
from tests.wire.expect.client import status


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

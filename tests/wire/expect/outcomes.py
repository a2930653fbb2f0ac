"""What most cases are made of, and what holds always."""

from __future__ import annotations

from tests.wire.expect.backend import nothing, nothing_whole
from tests.wire.expect.base import Check, Seen, all_of, either
from tests.wire.expect.client import closed, status, unanswered


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

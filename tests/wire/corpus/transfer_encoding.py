"""Transfer-Encoding in requests (RFC 9112 sections 6.1, 6.3 and 7)."""

from __future__ import annotations

from tests.wire.case import MUST, PROBE, SHOULD, AwaitFinals, HalfClose, case, chunked, framed, get, raw
from tests.wire.expect import (
    all_of,
    answers,
    body_with_request,
    broken_off,
    closed,
    either,
    forwarded,
    had,
    lacked,
    not_forwarded,
    refused,
    relayed,
)

HELLO = b"5\r\nhello\r\n0\r\n\r\n"

# Chunked is not the final coding, so the length cannot be known: 400 (or 501 for what is not understood) and close.
NOT_FINAL = {
    "identity": "identity",
    "gzip": "gzip",
    "unknown": "foo",
    "chunked-then-gzip": "chunked, gzip",
    "chunked-then-unknown": "chunked, foo",
    "chunked-then-identity": "chunked, identity",
    "empty": "",
    "comma": ",",
    "longer-word": "xchunked",
    "longer-behind": "chunkedx",
    "two-words": "x chunked",
    "two-words-behind": "chunked x",
    "double-quoted": '"chunked"',
    "single-quoted": "'chunked'",
    "percent": "ch%75nked",
    "nul-inside": "chun\0ked",
    "nul-behind": "chunked\0",
    "vertical-tab-first": "\x0bchunked",
    "vertical-tab-behind": "chunked\x0b",
    "form-feed-first": "\x0cchunked",
    "no-break-space": "\xa0chunked",
    "utf8-space": "\xe2\x80\x82chunked",
    "next-line": "chunked\x85",
    "kelvin-sign": "chun\xe2\x84\xaaed",
    "delete": "chunked\x7f",
    "cut": "chunke",
    "colon": ": chunked",
    "semicolon-first": ";chunked",
    "equals": "chunked=1",
    "slash": "chunked/1.1",
    "number": "1",
}

# Correct ways to write the one coding there is (names are case-insensitive, lists may have empty members).
SPELLINGS = {
    "plain": "Transfer-Encoding: chunked",
    "capital": "Transfer-Encoding: Chunked",
    "upper-case": "Transfer-Encoding: CHUNKED",
    "name-lower-case": "transfer-encoding: chunked",
    "name-upper-case": "TRANSFER-ENCODING: chunked",
    "no-space": "Transfer-Encoding:chunked",
    "spaces-around": "Transfer-Encoding:   chunked   ",
    "tabs-around": "Transfer-Encoding:\tchunked\t",
}

UNUSUAL = {
    "empty-member-first": "Transfer-Encoding: , chunked",
    "empty-member-last": "Transfer-Encoding: chunked,",
    "empty-members": "Transfer-Encoding: , ,chunked, ,",
}

CODINGS = [
    *(
        case(
            f"coding-{name}",
            "9112 6.3",
            MUST,
            framed(HELLO, f"Transfer-Encoding: {value}") + get(path="/~~/hidden"),
            refused(400, 501),
            methods="POST",
        )
        for name, value in NOT_FINAL.items()
    ),
    *(
        case(f"coding-{name}", "9112 6.1", MUST, framed(HELLO, line), relayed(body=b"hello"), methods="POST")
        for name, line in SPELLINGS.items()
    ),
    *(
        case(
            f"coding-{name}",
            "9110 5.6.1",
            MUST,
            framed(HELLO, line),
            either(relayed(body=b"hello"), refused(4, 501)),
            methods="POST",
        )
        for name, line in UNUSUAL.items()
    ),
    *(
        case(
            f"coding-{name}-understood",
            "9110 5.6.1",
            SHOULD,
            framed(HELLO, line),
            relayed(body=b"hello"),
            methods="POST",
            why="empty list members are ignored",
        )
        for name, line in UNUSUAL.items()
    ),
    case(
        "coding-unknown-501",
        "9112 6.1",
        SHOULD,
        framed(HELLO, "Transfer-Encoding: foo, chunked"),
        refused(501),
        methods="POST",
    ),
    case(
        "coding-unknown-chunked",
        "9112 6.1",
        MUST,
        framed(HELLO, "Transfer-Encoding: foo, chunked"),
        either(refused(4, 501), all_of(relayed(body=b"hello"), had("Transfer-Encoding", b"foo", b"chunked"))),
        methods="POST",
        why="refused, or passed on with its coding named",
    ),
    case(
        "coding-gzip-chunked",
        "9112 6.1",
        MUST,
        framed(HELLO, "Transfer-Encoding: gzip, chunked"),
        either(refused(4, 501), all_of(relayed(body=b"hello"), had("Transfer-Encoding", b"gzip", b"chunked"))),
        methods="POST",
    ),
    case(
        "coding-gzip-chunked-lines",
        "9112 6.1",
        MUST,
        framed(HELLO, "Transfer-Encoding: gzip", "Transfer-Encoding: chunked"),
        either(refused(4, 501), all_of(relayed(body=b"hello"), had("Transfer-Encoding", b"gzip", b"chunked"))),
        methods="POST",
    ),
    *(
        case(
            f"coding-{name}",
            "9112 6.1",
            MUST,
            framed(HELLO, *lines) + get(path="/~~/hidden"),
            either(refused(4, 501), relayed(body=b"hello", count=1), all_of(forwarded(2), lacked("Content-Length"))),
            methods="POST",
            why="chunked is never applied twice; nothing may be forwarded that says it was",
        )
        for name, lines in {
            "chunked-twice": ("Transfer-Encoding: chunked, chunked",),
            "chunked-twice-lines": ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        }.items()
    ),
    *(
        case(
            f"coding-{name}-refused",
            "9112 6.1",
            SHOULD,
            framed(HELLO, *lines),
            refused(400, 501),
            methods="POST",
        )
        for name, lines in {
            "chunked-twice": ("Transfer-Encoding: chunked, chunked",),
            "chunked-twice-lines": ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
            "chunked-parameter": ("Transfer-Encoding: chunked;q=1",),
            "chunked-parameter-space": ("Transfer-Encoding: chunked; a=b",),
        }.items()
    ),
    case(
        "coding-lines-not-final",
        "9112 6.3",
        MUST,
        framed(HELLO, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        refused(400, 501),
        methods="POST",
    ),
    case(
        "coding-lines-not-final-apart",
        "9112 6.3",
        MUST,
        framed(HELLO, "Transfer-Encoding: chunked", "X-A: 1", "transfer-encoding: foo"),
        refused(400, 501),
        methods="POST",
    ),
    *(
        case(
            f"coding-get-{name}",
            "9112 6.3",
            MUST,
            get(f"Transfer-Encoding: {value}"),
            refused(400, 501),
        )
        for name, value in {"identity": "identity", "unknown": "foo", "empty": ""}.items()
    ),
]

# Both fields: refuse, or let Transfer-Encoding win, drop Content-Length, and close (section 6.1).
BOTH = {
    "length-first": ("Content-Length: 5", "Transfer-Encoding: chunked"),
    "coding-first": ("Transfer-Encoding: chunked", "Content-Length: 5"),
    "length-right": ("Content-Length: 15", "Transfer-Encoding: chunked"),
    "length-zero": ("Content-Length: 0", "Transfer-Encoding: chunked"),
    "length-invalid": ("Content-Length: x", "Transfer-Encoding: chunked"),
    "length-twice": ("Content-Length: 4", "Transfer-Encoding: chunked", "Content-Length: 15"),
    "apart": ("Content-Length: 5", "X-A: 1", "transfer-encoding: Chunked"),
    "coding-space": ("Content-Length: 5", "Transfer-Encoding: \t chunked"),
}

WITH_LENGTH = [
    case(
        f"both-{name}",
        "9112 6.3",
        MUST,
        framed(HELLO, *lines) + get(path="/~~/hidden"),
        either(refused(4, 501), all_of(relayed(body=b"hello"), lacked("Content-Length"), closed)),
        not_forwarded("hidden"),
        methods="POST",
    )
    for name, lines in BOTH.items()
]
WITH_LENGTH += [
    case(
        f"both-{name}-refused",
        "9112 6.3",
        SHOULD,
        framed(HELLO, *lines),
        refused(400),
        methods="POST",
        why="ought to be handled as an error",
    )
    for name, lines in BOTH.items()
    if name in ("length-first", "coding-first")
]
WITH_LENGTH += [
    case(
        f"both-{name}",
        "9112 6.3",
        MUST,
        framed(HELLO, f"Transfer-Encoding: {value}", f"Content-Length: {len(HELLO)}"),
        refused(400, 501),
        methods="POST",
        why="a length beside an unknown coding does not help",
    )
    for name, value in {"identity": "identity", "unknown": "foo", "empty": "", "quoted": '"chunked"'}.items()
]

# In an HTTP/1.0 message the framing is faulty (section 6.1).
OLD = [
    case(
        "coding-1.0",
        "9112 6.1",
        MUST,
        framed(HELLO, "Transfer-Encoding: chunked", version="1.0") + get(path="/~~/hidden"),
        either(refused(4, 501), all_of(relayed(body=b"hello"), closed)),
        not_forwarded("hidden"),
        methods="POST",
    ),
    case(
        "coding-1.0-keep-alive",
        "9112 6.1",
        MUST,
        framed(HELLO, "Connection: keep-alive", "Transfer-Encoding: chunked", version="1.0") + get(path="/~~/hidden"),
        either(refused(4, 501), all_of(relayed(body=b"hello"), closed)),
        not_forwarded("hidden"),
        methods="POST",
    ),
    case(
        "coding-1.0-length",
        "9112 6.1",
        MUST,
        framed(HELLO, "Content-Length: 15", "Transfer-Encoding: chunked", "Connection: keep-alive", version="1.0")
        + get(path="/~~/hidden"),
        either(refused(4, 501), all_of(relayed(), closed)),
        not_forwarded("hidden"),
        methods="POST",
    ),
    case(
        "coding-1.0-get",
        "9112 6.1",
        MUST,
        raw("GET /~~ HTTP/1.0", "Transfer-Encoding: chunked") + HELLO,
        either(refused(4, 501), all_of(relayed(body=b"hello"), closed)),
    ),
]

METHODS = [
    case(
        f"chunked-on-{method.lower()}",
        "9112 6",
        MUST,
        (chunked(HELLO, method=method), AwaitFinals(1), PROBE),
        either(all_of(forwarded(2), answers(200, 200)), refused(4)),
        body_with_request,
        methods=f"{method} GET",
    )
    for method in ("GET", "HEAD", "DELETE", "OPTIONS", "PUT", "PATCH")
]

NAMES = [
    case(
        f"coding-name-{name}",
        "9112 6.3",
        MUST,
        framed(HELLO, line, "Content-Length: 15"),
        either(refused(4, 501), all_of(relayed(body=HELLO), lacked("Transfer-Encoding"))),
        methods="POST",
        why="not the field; by no means forwarded as if it were",
    )
    for name, line in {
        "underscore": "Transfer_Encoding: chunked",
        "nul": "Transfer-Encoding\0: chunked",
        "control": "Transfer\x01Encoding: chunked",
        "dotless": "Transfer\xe2\x80\x90Encoding: chunked",
        "prefix": "X-Transfer-Encoding: chunked",
        "in-value": "X: Transfer-Encoding: chunked",
        "cr-before": "X: y\rTransfer-Encoding: chunked",
    }.items()
]
NAMES += [
    case(
        "coding-lf-before",
        "9112 2.2",
        MUST,
        framed(HELLO, "X: y\nTransfer-Encoding: chunked", "Content-Length: 15"),
        either(
            refused(400, 501),
            all_of(relayed(body=HELLO), lacked("Transfer-Encoding")),
            all_of(relayed(body=b"hello"), lacked("Content-Length"), closed),
        ),
        methods="POST",
        why="a bare LF may end a line; then the field counts, with all that follows from it",
    ),
    case(
        "coding-promised-only",
        "9112 6.3",
        MUST,
        (get("Transfer-Encoding: chunked", method="POST"), HalfClose()),
        broken_off(),
        methods="POST",
        patience=0.6,
    ),
]

CASES = [*CODINGS, *WITH_LENGTH, *OLD, *METHODS, *NAMES]

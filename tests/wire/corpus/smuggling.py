"""A second request hidden behind or inside the first (RFC 9112 sections 6.1, 6.3, 9.3 and 11.2).

Each holds a request named `hidden` where two readings of one message differ. It may be refused, or be what the right
reading makes of it; it must never reach the backend as a request of its own where the right reading has none, and
the client never gets its answer.
"""

from __future__ import annotations

from tests.wire.case import (
    CRLF,
    HIDDEN,
    MUST,
    AwaitFinals,
    AwaitHeads,
    Case,
    HalfClose,
    Pause,
    answer,
    case,
    chunked,
    framed,
    get,
    length,
    ok,
    post,
    raw,
)
from tests.wire.expect import (
    Check,
    all_of,
    answers,
    broken_off,
    closed,
    either,
    forwarded,
    lacked,
    not_forwarded,
    refused,
    relayed,
)


def two_readings(id: str, *lines: str, body: bytes, version: str = "1.1", method: str = "POST") -> Case:
    """Both framings at once: refused, or read as chunked, without Content-Length, and the connection closed."""
    return case(
        f"smuggle-{id}",
        "9112 6.1",
        MUST,
        (framed(body, *lines, version=version, method=method), Pause(0.02), HalfClose()),
        either(refused(4, 501), all_of(forwarded(1), lacked("Content-Length"), closed)),
        not_forwarded("hidden"),
        methods=method,
        patience=0.6,
    )


LAST_THEN_HIDDEN = b"0\r\n\r\n" + HIDDEN
HIDDEN_CHUNK = b"%x\r\n" % length(HIDDEN) + HIDDEN + b"\r\n0\r\n\r\n"

PAIRS = [
    two_readings("cl-te", "Content-Length: 200", "Transfer-Encoding: chunked", body=LAST_THEN_HIDDEN),
    two_readings("te-first", "Transfer-Encoding: chunked", "Content-Length: 200", body=LAST_THEN_HIDDEN),
    two_readings("te-cl-short", "Content-Length: 4", "Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\n\r\n"),
    two_readings("cl-0-te", "Content-Length: 0", "Transfer-Encoding: chunked", body=LAST_THEN_HIDDEN),
    two_readings(
        "cl-te-1.0", "Content-Length: 200", "Transfer-Encoding: chunked", body=LAST_THEN_HIDDEN, version="1.0"
    ),
    two_readings("cl-te-get", "Content-Length: 200", "Transfer-Encoding: chunked", body=LAST_THEN_HIDDEN, method="GET"),
    two_readings(
        "cl-twice-te", "Content-Length: 5", "Transfer-Encoding: chunked", "Content-Length: 200", body=LAST_THEN_HIDDEN
    ),
]

# Spellings that one reader takes for chunked and another does not: with a length beside them there are two readings.
SPELLINGS = {
    "space-before-colon": "Transfer-Encoding : chunked",
    "tab-before-colon": "Transfer-Encoding\t: chunked",
    "vertical-tab": "Transfer-Encoding: \x0bchunked",
    "form-feed": "Transfer-Encoding: chunked\x0c",
    "quoted": 'Transfer-Encoding: "chunked"',
    "identity-first": "Transfer-Encoding: identity, chunked",
    "identity-last": "Transfer-Encoding: chunked, identity",
    "two-lines": "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
    "two-lines-reversed": "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
    "fold": "Transfer-Encoding:\r\n chunked",
    "fold-before": "X: y\r\n Transfer-Encoding: chunked",
    "nul": "Transfer-Encoding: chunked\0",
    "nul-in-name": "Transfer-Encoding\0: chunked",
    "high-octet": "Transfer-Encoding: \xffchunked",
    "letter": "Transfer-Encoding: xchunked",
    "cow": "Transfer-Encoding: cow",
    "parameter": "Transfer-Encoding: chunked;x=y",
    "cr": "Transfer-Encoding: chunked\r",
    "cr-before-name": "\rTransfer-Encoding: chunked",
    "cr-in-line": "X: y\rTransfer-Encoding: chunked",
    "empty": "Transfer-Encoding:",
    "comma": "Transfer-Encoding: ,",
    "no-colon": "Transfer-Encoding chunked",
    "equals": "Transfer-Encoding= chunked",
}

MASKED = [
    case(
        f"smuggle-te-{name}",
        "9112 6.3",
        MUST,
        (framed(LAST_THEN_HIDDEN, line, "Content-Length: 200"), Pause(0.02), HalfClose()),
        either(broken_off(), all_of(forwarded(1), lacked("Content-Length"), closed)),
        not_forwarded("hidden"),
        methods="POST",
        patience=0.6,
        why="by length it is cut short, by chunks it has both framings: either way nothing behind it counts",
    )
    for name, line in SPELLINGS.items()
]


def one_body(id: str, sent: bytes, *expect: Check, methods: str = "POST", why: str = "") -> Case:
    """The hidden request is inside a body that has one reading: it stays there."""
    return case(f"smuggle-{id}", "9112 6", MUST, sent, *expect, not_forwarded("hidden"), methods=methods, why=why)


INSIDE = [
    one_body("in-length", post(HIDDEN), relayed(body=HIDDEN)),
    one_body("in-length-get", post(HIDDEN, method="GET"), either(relayed(body=HIDDEN), refused(4)), methods="GET"),
    one_body("in-length-head", post(HIDDEN, method="HEAD"), either(relayed(body=HIDDEN), refused(4)), methods="HEAD"),
    one_body(
        "in-length-options", post(HIDDEN, method="OPTIONS"), either(relayed(body=HIDDEN), refused(4)), methods="OPTIONS"
    ),
    one_body(
        "in-length-unknown", post(HIDDEN, method="BREW"), either(relayed(body=HIDDEN), refused(4, 501)), methods="BREW"
    ),
    one_body(
        "in-chunk-get",
        chunked(HIDDEN_CHUNK, method="GET"),
        either(relayed(body=HIDDEN), refused(4)),
        methods="GET",
    ),
    one_body("in-chunk", chunked(HIDDEN_CHUNK), relayed(body=HIDDEN)),
    one_body("in-name", get("GET /hidden HTTP/1.1: x"), refused(400), methods="GET"),
    one_body("in-target", get(path="/~~%20HTTP/1.1%0d%0aHost:%20b%0d%0a%0d%0aGET%20/hidden"), relayed(), methods="GET"),
]

# An answer that comes before the body has been read: the rest of the body is never a request (section 9.3).
UNREAD = [
    case(
        f"smuggle-early-{name}",
        "9112 9.3",
        MUST,
        (get("Content-Length: 400", method=method), AwaitHeads(1), Pause(0.05), HIDDEN, Pause(0.05)),
        not_forwarded("hidden"),
        methods=method,
        early=True,
        answer=reply,
        patience=0.6,
        why="the backend answers before the body; the client then sends a body that looks like a request",
    )
    for name, method, reply in (
        ("200", "POST", ok()),
        ("401", "POST", ok(status="401 Unauthorized")),
        ("413-close", "POST", answer("413 Content Too Large", "Content-Length: 0", "Connection: close")),
        ("204", "PUT", answer("204 No Content")),
        ("get", "GET", ok()),
        ("redirect", "POST", answer("303 See Other", "Location: /x", "Content-Length: 0")),
    )
]

HEADS = [
    case(
        "smuggle-cl-list",
        "9112 6.3",
        MUST,
        framed(b"hello", "Content-Length: 5, 5, 200") + HIDDEN,
        refused(400),
        methods="POST",
    ),
    case(
        "smuggle-cl-zero-prefix",
        "9110 8.6",
        MUST,
        (framed(b"12345678", "Content-Length: 010"), Pause(0.02), b"90"),
        relayed(body=b"1234567890"),
        methods="POST",
        why="decimal, not octal: ten octets",
    ),
    case(
        "smuggle-space-line",
        "9112 2.2",
        MUST,
        raw("POST /~~ HTTP/1.1", " Content-Length: 200", "Host: a.example", "Content-Length: 5") + b"hello",
        either(refused(400), relayed(body=b"hello")),
        methods="POST",
    ),
    case(
        "smuggle-head-ends-early",
        "9112 2.2",
        MUST,
        b"GET /~~ HTTP/1.1\r\nHost: a.example\r\n\r\r\n" + HIDDEN[:-2] + b"\r\n",
        either(refused(400), all_of(closed, not_forwarded("hidden"))),
    ),
    case(
        "smuggle-nul-line",
        "9112 2.2",
        MUST,
        b"GET /~~ HTTP/1.1\r\nHost: a.example\r\n\0\r\n" + HIDDEN,
        either(refused(400), all_of(forwarded(1), closed)),
        not_forwarded("hidden"),
    ),
    case(
        "smuggle-behind-400",
        "9112 2.2",
        MUST,
        b"BAD\r\n\r\n" + HIDDEN,
        refused(400),
        not_forwarded("hidden"),
        why="behind what cannot be read nothing can be read",
    ),
    case(
        "smuggle-behind-404-body",
        "9112 9.3",
        MUST,
        (get("Content-Length: 400", "Expect: 100-continue", method="POST"), AwaitHeads(1), HIDDEN, Pause(0.05)),
        not_forwarded("hidden"),
        methods="POST",
        early=True,
        answer=ok(status="404 Not Found"),
        patience=0.6,
        why="the body was not wanted, but its octets may still come",
    ),
    case(
        "smuggle-expect-both",
        "9112 6.1",
        MUST,
        (
            framed(LAST_THEN_HIDDEN, "Expect: 100-continue", "Content-Length: 5", "Transfer-Encoding: chunked"),
            HalfClose(),
        ),
        either(refused(400), all_of(forwarded(1), lacked("Content-Length"), closed)),
        not_forwarded("hidden"),
        methods="POST",
        patience=0.6,
    ),
    case(
        "smuggle-upgrade",
        "9110 7.8",
        MUST,
        (get("Connection: Upgrade", "Upgrade: foo/777"), AwaitFinals(1), HIDDEN),
        forwarded(2),
        answers(426, 200),
        answer={"": answer("426 Upgrade Required", "Upgrade: foo/1", "Content-Length: 0"), "hidden": ok()},
        methods="GET GET",
        why="no tunnel without 101: what follows is a request like any other and is seen as one",
    ),
    case(
        "smuggle-h2c",
        "9110 7.8",
        MUST,
        (
            get("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
            AwaitFinals(1),
            HIDDEN,
        ),
        lacked("HTTP2-Settings"),
        forwarded(2),
        answers(200, 200),
        methods="GET GET",
    ),
    case(
        "smuggle-crlf-in-value",
        "9110 5.5",
        MUST,
        get("X: y" + (CRLF * 2).decode() + "GET /~~/second HTTP/1.1"),
        forwarded(1),
        answers(200, 400),
        methods="GET GET",
        why="the head ends at the empty line; what follows is a request of its own, one without Host",
    ),
]

CASES = [*PAIRS, *MASKED, *INSIDE, *UNREAD, *HEADS]

"""The fields of a backend's head (RFC 9112 section 5, RFC 9110 section 5)."""

from __future__ import annotations

from tests.wire.case import DATE, MUST, SHOULD, Close, case, get, octets, ok, raw
from tests.wire.expect import (
    Check,
    Seen,
    all_of,
    body,
    either,
    got_field,
    got_lines,
    got_spelled,
    holds,
    no_field,
    status,
)

BODY = b"hello"
LENGTH = "Content-Length: 5"

FIELDS = {
    "unknown": ("X-Strange: v", "X-Strange", b"v"),
    "underscore": ("X_Strange: v", "X_Strange", b"v"),
    "all-marks": ("!#$%&'*+-.^_`|~: v", "!#$%&'*+-.^_`|~", b"v"),
    "empty": ("X-Empty:", "X-Empty", b""),
    "spaces-around": ("X-A:   v   ", "X-A", b"v"),
    "tabs-around": ("X-A:\tv\t", "X-A", b"v"),
    "no-space": ("X-A:v", "X-A", b"v"),
    "inner": ("X-A: a  b\tc", "X-A", b"a  b\tc"),
    "quotes": ('X-A: "a, b"', "X-A", b'"a, b"'),
    "content-type": ("Content-Type: text/plain; charset=utf-8", "Content-Type", b"text/plain; charset=utf-8"),
    "etag": ('ETag: W/"x"', "ETag", b'W/"x"'),
    "location": ("Location: http://b.example/x?y#z", "Location", b"http://b.example/x?y#z"),
    "authenticate": ('WWW-Authenticate: Basic realm="x"', "WWW-Authenticate", b'Basic realm="x"'),
    "retry-after": ("Retry-After: 5", "Retry-After", b"5"),
    "long": ("X-Long: " + "v" * 3000, "X-Long", b"v" * 3000),
}

PASSED_ON = [
    *(
        case(
            f"answer-field-{name}",
            "9110 5.1",
            MUST,
            get(),
            status(200),
            got_field(key, value),
            answer=ok(BODY, line),
        )
        for name, (line, key, value) in FIELDS.items()
    ),
    *(
        case(
            f"answer-field-{name}",
            "9110 5.5",
            SHOULD,
            get(),
            got_field("X-A", value),
            answer=ok(BODY, f"X-A: {sent}"),
        )
        for name, sent, value in (("latin", "caf\xe9", b"caf\xe9"), ("utf8", "caf\xc3\xa9", b"caf\xc3\xa9"))
    ),
    case(
        "answer-field-set-cookie",
        "9110 5.3",
        MUST,
        get(),
        status(200),
        got_lines("Set-Cookie", b"a=1", b"b=2"),
        answer=ok(BODY, "Set-Cookie: a=1", "X-A: 1", "Set-Cookie: b=2"),
    ),
    case(
        "answer-field-repeated",
        "9110 5.3",
        MUST,
        get(),
        either(got_lines("X-A", b"1", b"2", b"3"), got_lines("X-A", b"1, 2, 3"), got_lines("X-A", b"1,2,3")),
        answer=ok(BODY, "X-A: 1", "X-B: 0", "X-A: 2", "x-a: 3"),
    ),
    case(
        "answer-field-name-case",
        "9110 5.1",
        SHOULD,
        get(),
        got_spelled(b"X-mIxEd-CaSe"),
        answer=ok(BODY, "X-mIxEd-CaSe: 1"),
    ),
    case(
        "answer-field-server",
        "9110 7.7",
        SHOULD,
        get(),
        got_field("Server", b"backend/1 (x)"),
        answer=ok(BODY, "Server: backend/1 (x)"),
        why="a proxy does not change what tells of the endpoints",
    ),
    case(
        "answer-fields-80",
        "9110 5.4",
        SHOULD,
        get(),
        status(200),
        got_field("X-79", b"79"),
        answer=ok(BODY, *(f"X-{number}: {number}" for number in range(80))),
    ),
    case(
        "answer-head-8k",
        "9110 5.4",
        SHOULD,
        get(),
        status(200),
        got_field("X-Last", b"1"),
        answer=ok(BODY, *(f"X-{number}: {'v' * 90}" for number in range(70)), "X-Last: 1"),
    ),
    *(
        case(
            f"answer-head-{size // 1000}k",
            "9110 5.4",
            MUST,
            get(),
            either(all_of(status(200), got_field("X-Last", b"1"), body(BODY)), status(502)),
            answer=(ok(BODY, *(f"X-{n}: {'v' * 90}" for n in range(size // 100)), "X-Last: 1"), Close()),
            why="whole or not at all",
        )
        for size in (40_000, 300_000, 3_000_000)
    ),
]


# A field line that is none: refused with 502, or made good where the RFC says how.
REPAIRABLE = {
    "space-before-colon": ("X-A : 1", "9112 5.1", "the whitespace is removed", b"1"),
    "tab-before-colon": ("X-A\t: 1", "9112 5.1", "the whitespace is removed", b"1"),
    "fold": ("X-A: 1\r\n 2", "9112 5.2", "the fold is SP", b"1 2"),
    "fold-tab": ("X-A: 1\r\n\t2", "9112 5.2", "the fold is SP", b"1 2"),
    "fold-twice": ("X-A: 1\r\n 2\r\n 3", "9112 5.2", "the fold is SP", b"1 2 3"),
    "fold-like-field": ("X-A: 1\r\n X-B: 2", "9112 5.2", "the fold is SP", b"1 X-B: 2"),
    "nul": ("X-A: a\0b", "9110 5.5", "NUL is SP", b"a b"),
    "nul-first": ("X-A: \0b", "9110 5.5", "NUL is SP", b"b"),
    "cr": ("X-A: a\rb", "9112 2.2", "CR is SP", b"a b"),
    "cr-last": ("X-A: a\r", "9112 2.2", "CR is SP", b"a"),
    "cr-like-field": ("X-A: a\rX-B: b", "9112 2.2", "CR is SP", b"a X-B: b"),
}


def words(how: str, value: bytes) -> Check:
    """X-A came in one line and is this value, whatever the blanks between its words."""

    def test(seen: Seen) -> str:
        values = seen.finals[0].values(b"X-A") if seen.finals else []
        return "" if [found.split() for found in values] == [value.split()] else f"X-A is {values}"

    return holds(how, test)


UNSAFE = [
    *(
        case(
            f"answer-field-{name}",
            section,
            MUST,
            get(),
            either(
                status(502),
                all_of(
                    status(200),
                    body(BODY),
                    no_field("X-B"),
                    words(how, value),
                ),
            ),
            answer=(ok(BODY, line), Close()),
        )
        for name, (line, section, how, value) in REPAIRABLE.items()
    ),
    *(
        case(
            f"answer-field-{name}",
            "9112 5",
            SHOULD,
            get(),
            status(502),
            answer=(ok(BODY, line), Close()),
        )
        for name, line in {
            "no-colon": "X-A",
            "no-name": ": 1",
            "space-in-name": "X A: 1",
            "parenthesis": "X(A): 1",
            "nul-in-name": "X\0A: 1",
            "control-in-name": "X\x01A: 1",
            "high-in-name": "X\xe9A: 1",
        }.items()
    ),
    case(
        "answer-field-space-first",
        "9112 2.2",
        MUST,
        get(),
        either(status(502), all_of(status(200), body(BODY), no_field("X-A"))),
        answer=(raw("HTTP/1.1 200 OK", " X-A: 1", DATE, LENGTH) + BODY, Close()),
        why="whitespace between the status line and the first field",
    ),
    *(
        case(
            f"answer-{name}",
            "9112 2.2",
            MUST,
            get(),
            either(status(502), all_of(status(200), body(BODY))),
            answer=(reply, Close()),
            why="a single LF may be taken for a line's end; what goes on has CRLF",
        )
        for name, reply in {
            "all-lf": ok(BODY).replace(b"\r\n", b"\n"),
            "line-lf": ok(BODY).replace(b"\r\n", b"\n", 1),
            "end-lf": octets(f"HTTP/1.1 200 OK\r\n{DATE}\r\n{LENGTH}\r\n\n") + BODY,
            "field-lf": octets(f"HTTP/1.1 200 OK\r\n{DATE}\nX-A: 1\r\n{LENGTH}\r\n\r\n") + BODY,
        }.items()
    ),
    case(
        "answer-all-cr",
        "9112 2.2",
        MUST,
        get(),
        status(502),
        answer=(ok(BODY).replace(b"\r\n", b"\r"), Close()),
    ),
]


CASES = [*PASSED_ON, *UNSAFE]

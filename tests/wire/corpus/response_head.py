"""What a backend's first line may be, and how its head may come (RFC 9112 sections 2 and 4)."""

from __future__ import annotations

from tests.wire.case import DATE, MUST, SHOULD, Close, Pause, Trickle, case, get, octets, ok, raw
from tests.wire.expect import (
    Seen,
    all_of,
    answers,
    body,
    either,
    got_minor,
    holds,
    status,
)

BODY = b"hello"
LENGTH = "Content-Length: 5"

# Not a status line: the answer is thrown away and the client told with 502 (RFC 9110 section 15.6.3).
BROKEN_LINES = {
    "four-digits": "HTTP/1.1 2000 OK",
    "two-digits": "HTTP/1.1 20 OK",
    "one-digit": "HTTP/1.1 2",
    "letters": "HTTP/1.1 abc OK",
    "mixed": "HTTP/1.1 2x0 OK",
    "negative": "HTTP/1.1 -20 OK",
    "plus": "HTTP/1.1 +20 OK",
    "hexadecimal": "HTTP/1.1 0xc OK",
    "zero": "HTTP/1.1 000 OK",
    "below-100": "HTTP/1.1 099 OK",
    "empty": "HTTP/1.1  OK",
    "no-code": "HTTP/1.1",
    "no-version": "200 OK",
    "other-name": "ICY 200 OK",
    "short-name": "HTP/1.1 200 OK",
    "lower-case": "http/1.1 200 OK",
    "version-2": "HTTP/2.0 200 OK",
    "version-0": "HTTP/0.9 200 OK",
    "version-no-minor": "HTTP/1 200 OK",
    "version-two-digits": "HTTP/1.10 200 OK",
    "version-letters": "HTTP/a.b 200 OK",
    "no-space": "HTTP/1.1200 OK",
    "request": "GET / HTTP/1.1",
    "wide-digits": "HTTP/1.1 \xef\xbc\x92\xef\xbc\x90\xef\xbc\x90 OK",
    "nul-in-code": "HTTP/1.1 2\x000 OK",
    "space-first": " HTTP/1.1 200 OK",
    "noise": "hello world",
    "html": "<html><body>hello</body></html>",
}

# Odd but readable: taken or refused; what goes on is made anew.
LENIENT_LINES = {
    "two-spaces": "HTTP/1.1  200 OK",
    "no-reason": "HTTP/1.1 200 ",
    "no-reason-no-space": "HTTP/1.1 200",
    "tab": "HTTP/1.1\t200 OK",
    "trailing-space": "HTTP/1.1 200 OK ",
    "nul-in-reason": "HTTP/1.1 200 O\0K",
    "cr-in-reason": "HTTP/1.1 200 O\rK",
    "control-in-reason": "HTTP/1.1 200 O\x01K",
    "latin-in-reason": "HTTP/1.1 200 \xc9t\xe9",
    "utf8-in-reason": "HTTP/1.1 200 \xc3\x89t\xc3\xa9",
    "reason-like-line": "HTTP/1.1 200 HTTP/1.1 404 Not Found",
    "long-reason": "HTTP/1.1 200 " + "O" * 2000,
}

CODES = [200, 201, 202, 203, 206, 226, 299, 300, 301, 302, 303, 307, 308, 400, 401, 402, 403, 404, 409, 410, 418, 421]
CODES += [422, 425, 426, 428, 429, 431, 451, 499, 500, 501, 502, 503, 504, 505, 507, 511, 599]


def _reason(seen: Seen) -> str:
    got = seen.finals[0].reason if seen.finals else b""
    return "" if got == b"Quite Fine" else f"it is {got!r}"


LINES = [
    *(
        case(
            f"status-{name}",
            "9110 15.6.3",
            MUST,
            get(),
            status(502),
            answer=(raw(line, DATE, LENGTH) + BODY, Close()),
        )
        for name, line in BROKEN_LINES.items()
    ),
    *(
        case(
            f"status-{name}",
            "9112 4",
            MUST,
            get(),
            either(all_of(status(200), body(BODY)), status(502)),
            answer=raw(line, DATE, LENGTH) + BODY,
        )
        for name, line in LENIENT_LINES.items()
    ),
    case(
        "status-codes",
        "9110 15",
        MUST,
        b"".join(get(path=f"/~~/c{code}") for code in CODES),
        answers(*CODES),
        answer={f"c{code}": ok(BODY, status=f"{code} Word") for code in CODES},
        methods="GET " * len(CODES),
        patience=4,
        why="known or not, a status is passed on",
    ),
    *(
        case(
            f"status-{code}",
            "9110 15",
            MUST,
            get(),
            either(status(code), status(502)),
            answer=ok(BODY, status=f"{code} Word"),
            why="no class of its own: passed on or an error",
        )
        for code in (600, 799, 999)
    ),
    case(
        "status-reason-kept",
        "9112 4",
        SHOULD,
        get(),
        status(200),
        holds("the reason is the backend's", _reason),
        answer=ok(BODY, status="200 Quite Fine"),
    ),
    case(
        "status-noise-no-line",
        "9110 15.6.3",
        MUST,
        get(),
        status(502),
        answer=(b"just some octets", Close()),
        why="HTTP/0.9 is no answer to HTTP/1.1",
    ),
    case("status-noise-binary", "9110 15.6.3", MUST, get(), status(502), answer=(bytes(range(256)), Close())),
    case("status-noise-tls", "9110 15.6.3", MUST, get(), status(502), answer=(b"\x15\x03\x01\0\x02\x02\x46", Close())),
    case("status-empty-line-first", "9112 2.2", MUST, get(), status(200, 502), answer=b"\r\n" + ok(BODY)),
    case("status-nothing", "9110 15.6.3", MUST, get(), status(502, 504), answer=(Close(),)),
    case("status-half-line", "9110 15.6.3", MUST, get(), status(502), answer=(b"HTTP/1.1 20", Close())),
    case("status-line-only", "9110 15.6.3", MUST, get(), status(502), answer=(b"HTTP/1.1 200 OK\r\n", Close())),
    case(
        "status-head-cut",
        "9112 8",
        MUST,
        get(),
        status(502),
        answer=(octets(f"HTTP/1.1 200 OK\r\n{DATE}\r\nContent-Le"), Close()),
    ),
    case(
        "status-head-cut-after-fields",
        "9112 8",
        MUST,
        get(),
        status(502),
        answer=(octets(f"HTTP/1.1 200 OK\r\n{DATE}\r\n{LENGTH}\r\n"), Close()),
    ),
]


VERSIONS = [
    *(
        case(
            f"answer-version-{version}",
            "9112 2.3",
            MUST,
            get(),
            status(200),
            body(BODY),
            got_minor(1),
            answer=(raw(f"HTTP/{version} 200 OK", DATE, LENGTH) + BODY, Close()),
        )
        for version in ("1.0", "1.1")
    ),
    case(
        "answer-version-1.2",
        "9112 2.3",
        MUST,
        get(),
        either(all_of(status(200), got_minor(1)), status(502)),
        answer=raw("HTTP/1.2 200 OK", DATE, LENGTH) + BODY,
    ),
    case(
        "answer-version-to-1.0",
        "9112 2.3",
        MUST,
        get(version="1.0"),
        status(200),
        body(BODY),
        answer=ok(BODY),
    ),
]


SLOW = [
    case(
        "answer-octet-by-octet",
        "9112 2.2",
        MUST,
        get(),
        answers(200),
        body(BODY),
        answer=(Trickle(ok(BODY, "X-A: 1")),),
        patience=5,
    ),
    case(
        "answer-head-in-parts",
        "9112 2.2",
        MUST,
        get(),
        answers(200),
        body(BODY),
        answer=(ok(BODY)[:12], Pause(0.05), ok(BODY)[12:40], Pause(0.05), ok(BODY)[40:]),
    ),
]

CASES = [*LINES, *VERSIONS, *SLOW]

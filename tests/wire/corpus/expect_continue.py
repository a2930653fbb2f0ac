"""Expect: 100-continue (RFC 9110 section 10.1.1)."""

from __future__ import annotations

from tests.wire.case import (
    MUST,
    PROBE,
    SHOULD,
    AwaitBody,
    AwaitFinals,
    AwaitHeads,
    Pause,
    case,
    framed,
    get,
    ok,
    post,
    raw,
)
from tests.wire.expect import (
    Seen,
    answers,
    either,
    forwarded,
    holds,
    interim,
    not_forwarded,
    refused,
    relayed,
    status,
)

EXPECT = "Expect: 100-continue"
CONTINUE = raw("HTTP/1.1 100 Continue")


def _at_most_one_100(seen: Seen) -> str:
    codes = [message.status for message in seen.interim]
    return "" if codes in ([], [100]) else f"the interim answers are {codes}"


def _some_100(seen: Seen) -> str:
    codes = [message.status for message in seen.interim]
    return "" if 100 in codes else f"the interim answers are {codes}"


at_most_one_100 = holds("100 comes once or not at all", _at_most_one_100)
some_100 = holds("100 comes before the body is sent", _some_100)

CONTINUES = [
    case(
        "expect-backend-continues",
        "9110 10.1.1",
        MUST,
        (framed(b"", EXPECT, "Content-Length: 5"), AwaitHeads(1), b"hello"),
        some_100,
        relayed(body=b"hello"),
        answer=(CONTINUE, AwaitBody(), ok()),
        methods="POST",
        early=True,
        patience=3,
        why="the client waits; the head must go on, or a final answer come, at once",
    ),
    case(
        "expect-continue-once",
        "9110 15.2",
        MUST,
        (framed(b"", EXPECT, "Content-Length: 5"), AwaitHeads(1), b"hello"),
        at_most_one_100,
        relayed(body=b"hello"),
        answer=(CONTINUE, AwaitBody(), ok()),
        methods="POST",
        early=True,
        patience=3,
    ),
    case(
        "expect-chunked",
        "9110 10.1.1",
        MUST,
        (framed(b"", EXPECT, "Transfer-Encoding: chunked"), AwaitHeads(1), b"5\r\nhello\r\n0\r\n\r\n"),
        relayed(body=b"hello"),
        answer=(CONTINUE, AwaitBody(), ok()),
        methods="POST",
        early=True,
        patience=3,
    ),
    *(
        case(
            f"expect-final-{code}",
            "9110 10.1.1",
            MUST,
            (framed(b"", EXPECT, "Content-Length: 5"), AwaitHeads(1), Pause(0.1)),
            either(status(code), some_100),
            answer=ok(status=f"{code} No"),
            methods="POST",
            early=True,
            patience=1,
            why="a final answer instead of 100",
        )
        for code in (401, 413, 417, 200)
    ),
    case(
        "expect-final-without-100",
        "9110 10.1.1",
        SHOULD,
        (framed(b"", EXPECT, "Content-Length: 5"), AwaitHeads(1), Pause(0.1)),
        status(417),
        interim(),
        answer=ok(status="417 Expectation Failed"),
        methods="POST",
        early=True,
        patience=1,
        why="the backend decides whether the body is worth sending",
    ),
    case(
        "expect-body-at-once",
        "9110 10.1.1",
        MUST,
        post(b"hello", EXPECT),
        at_most_one_100,
        relayed(body=b"hello"),
        answer=(AwaitBody(), ok()),
        methods="POST",
        early=True,
        why="the client need not wait",
    ),
    case(
        "expect-body-at-once-continue",
        "9110 10.1.1",
        MUST,
        post(b"hello", EXPECT),
        at_most_one_100,
        relayed(body=b"hello"),
        answer=(CONTINUE, AwaitBody(), ok()),
        methods="POST",
        early=True,
    ),
    case(
        "expect-backend-silent",
        "9110 10.1.1",
        MUST,
        (framed(b"", EXPECT, "Content-Length: 5"), Pause(0.3), b"hello"),
        relayed(body=b"hello"),
        answer=(AwaitBody(), ok()),
        methods="POST",
        early=True,
        patience=3,
        why="a backend that sends no 100 is not waited for",
    ),
    *(
        case(
            f"expect-{name}",
            "9110 10.1.1",
            MUST,
            (framed(b"", line, "Content-Length: 5"), AwaitHeads(1), b"hello"),
            relayed(body=b"hello"),
            answer=(CONTINUE, AwaitBody(), ok()),
            methods="POST",
            early=True,
            patience=0.6,
            why="the value is case-insensitive",
        )
        for name, line in {"capital": "Expect: 100-Continue", "upper-case": "EXPECT: 100-CONTINUE"}.items()
    ),
    case(
        "expect-no-body",
        "9110 10.1.1",
        MUST,
        get(EXPECT),
        relayed(b"GET"),
        why="nothing is to come, so nothing need be continued",
    ),
    case(
        "expect-length-zero",
        "9110 10.1.1",
        MUST,
        post(b"", EXPECT),
        relayed(b"POST", body=b""),
        methods="POST",
    ),
    case(
        "expect-then-next",
        "9112 9.3",
        MUST,
        (framed(b"", EXPECT, "Content-Length: 5"), AwaitHeads(1), b"hello", AwaitFinals(1), PROBE),
        forwarded(2),
        answers(200, 200),
        answer={"": (CONTINUE, AwaitBody(), ok())},
        methods="POST GET",
        early=True,
        patience=3,
    ),
    case(
        "expect-refused-then-request",
        "9110 10.1.1",
        MUST,
        (framed(b"", EXPECT, "Content-Length: 200"), AwaitFinals(1), Pause(0.05), get(path="/~~/hidden"), Pause(0.05)),
        not_forwarded("hidden"),
        answer=ok(status="417 Expectation Failed"),
        methods="POST",
        early=True,
        patience=1,
        why="whether the body follows cannot be known: what comes is the body, or the connection ends",
    ),
    case(
        "expect-1.0",
        "9110 10.1.1",
        MUST,
        post(b"hello", EXPECT, version="1.0"),
        interim(),
        relayed(body=b"hello"),
        methods="POST",
        why="in an HTTP/1.0 request the expectation is ignored",
    ),
    case(
        "expect-1.0-backend-continues",
        "9110 15.2",
        MUST,
        post(b"hello", EXPECT, version="1.0"),
        interim(),
        relayed(body=b"hello"),
        answer=(CONTINUE, AwaitBody(), ok()),
        methods="POST",
        early=True,
        why="an HTTP/1.0 client never gets a 1xx",
    ),
    *(
        case(
            f"expect-{name}",
            "9110 10.1.1",
            MUST,
            post(b"hello", line),
            either(relayed(body=b"hello"), status(417)),
            methods="POST",
            why="what is not understood may be answered with 417 or passed on",
        )
        for name, line in {
            "other": "Expect: something",
            "other-value": "Expect: foo=bar",
            "continue-and-other": "Expect: 100-continue, foo",
        }.items()
    ),
    case(
        "expect-bad-request",
        "9112 6.3",
        MUST,
        framed(b"", EXPECT, "Content-Length: x"),
        refused(400, 417),
        methods="POST",
    ),
]

CASES = CONTINUES

"""Expect and interim answers (RFC 9110 sections 10.1.1 and 15.2)."""

from __future__ import annotations

from tests.wire.case import (
    MUST,
    PROBE,
    SHOULD,
    AwaitBody,
    AwaitFinals,
    AwaitHeads,
    Close,
    Pause,
    answer,
    case,
    framed,
    get,
    ok,
    post,
    raw,
)
from tests.wire.expect import (
    Seen,
    all_of,
    answers,
    body,
    closed,
    either,
    forwarded,
    holds,
    interim,
    interim_without,
    no_final,
    not_forwarded,
    refused,
    relayed,
    status,
)

EXPECT = "Expect: 100-continue"
CONTINUE = raw("HTTP/1.1 100 Continue")
EARLY = raw("HTTP/1.1 103 Early Hints", "Link: </a.css>; rel=preload", "X-Hint: 1")


def _at_most_one_100(seen: Seen) -> str:
    codes = [message.status for message in seen.interim]
    return "" if codes in ([], [100]) else f"the interim answers are {codes}"


def _some_100(seen: Seen) -> str:
    codes = [message.status for message in seen.interim]
    return "" if 100 in codes else f"the interim answers are {codes}"


def _has_link(seen: Seen) -> str:
    links = [message.values(b"Link") for message in seen.interim]
    return "" if links == [[b"</a.css>; rel=preload"]] else f"the Link lines are {links}"


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

UNASKED = [
    *(
        case(
            f"interim-{code}",
            "9110 15.2",
            MUST,
            get(),
            interim(code),
            answers(200),
            body(b"ok"),
            answer=raw(f"HTTP/1.1 {code} Word", "X-Hint: 1") + ok(),
            why="interim answers are passed on, known or not",
        )
        for code in (102, 103, 110, 199)
    ),
    case(
        "interim-100-unasked",
        "9110 15.2",
        MUST,
        get(),
        either(interim(100), interim()),
        answers(200),
        body(b"ok"),
        answer=CONTINUE + ok(),
        why="nobody expected it, so it may be dropped; it is no final answer",
    ),
    case(
        "interim-fields",
        "9110 15.2",
        MUST,
        get(),
        answers(200),
        holds("the fields of 103 come with it", _has_link),
        answer=EARLY + ok(),
    ),
    case(
        "interim-at-once",
        "9110 15.2",
        SHOULD,
        (get(), AwaitHeads(1)),
        interim(103),
        answers(200),
        answer=(EARLY, Pause(0.3), ok()),
    ),
    case(
        "interim-several",
        "9110 15.2",
        MUST,
        get(),
        interim(102, 103, 103),
        answers(200),
        answer=raw("HTTP/1.1 102 Processing") + EARLY + EARLY + ok(),
    ),
    case(
        "interim-many",
        "9110 15.2",
        MUST,
        get(),
        either(all_of(interim(*([102] * 30)), answers(200)), status(502)),
        answer=raw("HTTP/1.1 102 Processing") * 30 + ok(),
    ),
    case(
        "interim-split",
        "9110 15.2",
        MUST,
        get(),
        interim(103),
        answers(200),
        answer=(EARLY[:30], Pause(0.05), EARLY[30:], Pause(0.05), ok()),
    ),
    case(
        "interim-1.0-client",
        "9110 15.2",
        MUST,
        get(version="1.0"),
        interim(),
        status(200),
        body(b"ok"),
        answer=EARLY + ok(),
    ),
    case(
        "interim-100-1.0-client",
        "9110 15.2",
        MUST,
        get(version="1.0"),
        interim(),
        status(200),
        body(b"ok"),
        answer=CONTINUE + ok(),
    ),
    *(
        case(
            f"interim-with-{name}",
            "9110 15.2",
            MUST,
            (get(), AwaitFinals(1), PROBE),
            either(all_of(answers(200, 200), body(b"ok")), status(502)),
            answer={"": raw("HTTP/1.1 103 Early Hints", line) + ok()},
            methods="GET GET",
            why="a 1xx ends with its head, whatever it says",
        )
        for name, line in {"length": "Content-Length: 5", "coding": "Transfer-Encoding: chunked"}.items()
    ),
    *(
        case(
            f"interim-without-{name}",
            "9110 8.6" if name == "length" else "9112 6.1",
            MUST,
            get(),
            interim_without(line.partition(":")[0]),
            answer=raw("HTTP/1.1 103 Early Hints", line) + ok(),
        )
        for name, line in {"length": "Content-Length: 5", "coding": "Transfer-Encoding: chunked"}.items()
    ),
    case(
        "interim-head",
        "9110 15.2",
        MUST,
        (get(method="HEAD"), AwaitFinals(1), PROBE),
        answers(200, 200),
        interim(103),
        answer={"": EARLY + answer("200 OK", "Content-Length: 5")},
        methods="HEAD GET",
    ),
    case(
        "interim-post",
        "9110 15.2",
        MUST,
        post(b"hello"),
        interim(102),
        relayed(body=b"hello"),
        answer=raw("HTTP/1.1 102 Processing") + ok(),
        methods="POST",
    ),
    case(
        "interim-then-end",
        "9110 15.6.3",
        MUST,
        get(),
        either(status(502), all_of(no_final, closed)),
        answer=(EARLY, Close()),
        why="an interim answer alone is no answer",
    ),
    case(
        "interim-then-bad",
        "9110 15.6.3",
        MUST,
        get(),
        either(status(502), all_of(no_final, closed)),
        answer=(EARLY + b"nonsense\r\n\r\n", Close()),
    ),
    case(
        "interim-bad-head",
        "9110 5.5",
        MUST,
        get(),
        either(status(502), answers(200), all_of(no_final, closed)),
        answer=(raw("HTTP/1.1 103 Early Hints", "X: a\0b") + ok(), Close()),
    ),
    case(
        "interim-pipelined",
        "9110 15.2",
        MUST,
        get(path="/~~/one") + get(path="/~~/two"),
        answers(200, 200),
        body(b"one", 0),
        body(b"two", 1),
        answer={"one": EARLY + ok(b"one"), "two": EARLY + ok(b"two")},
        methods="GET GET",
    ),
    case(
        "interim-not-final",
        "9110 15.2",
        MUST,
        (get(), AwaitFinals(1), PROBE),
        answers(200, 200),
        answer={"": (CONTINUE, Pause(0.1), CONTINUE, Pause(0.1), ok())},
        methods="GET GET",
    ),
    case(
        "interim-101-unasked",
        "9110 7.8",
        MUST,
        get(),
        either(status(502), all_of(no_final, closed)),
        answer=(raw("HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: foo/1") + b"data", Close()),
        why="nobody asked to switch",
    ),
]

CASES = [*CONTINUES, *UNASKED]

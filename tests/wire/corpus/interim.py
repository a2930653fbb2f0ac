"""Interim answers that nobody asked for (RFC 9110 section 15.2)."""

from __future__ import annotations

from tests.wire.case import (
    MUST,
    PROBE,
    SHOULD,
    AwaitFinals,
    AwaitHeads,
    Close,
    Pause,
    answer,
    case,
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
    holds,
    interim,
    interim_without,
    no_final,
    relayed,
    status,
)

CONTINUE = raw("HTTP/1.1 100 Continue")
EARLY = raw("HTTP/1.1 103 Early Hints", "Link: </a.css>; rel=preload", "X-Hint: 1")


def _has_link(seen: Seen) -> str:
    links = [message.values(b"Link") for message in seen.interim]
    return "" if links == [[b"</a.css>; rel=preload"]] else f"the Link lines are {links}"


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

CASES = UNASKED

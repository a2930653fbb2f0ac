"""Answers that come before the request has been read to its end (RFC 9112 sections 9.3 and 9.6)."""

from __future__ import annotations

from tests.wire.case import (
    HIDDEN,
    MUST,
    PROBE,
    SHOULD,
    AwaitBody,
    AwaitFinals,
    AwaitHeads,
    AwaitOctets,
    Close,
    Pause,
    Reset,
    answer,
    case,
    chunked,
    framed,
    get,
    ok,
    post,
)
from tests.wire.expect import (
    all_of,
    answers,
    body,
    closed,
    consistent,
    either,
    forwarded,
    named,
    not_forwarded,
    relayed,
    status,
)

PART = framed(b"hello", "Content-Length: 500")
CODES = {"200": "200 OK", "401": "401 Unauthorized", "413": "413 Content Too Large", "503": "503 Service Unavailable"}

# The answer is passed on although the body is not yet whole.
PASSED_ON = [
    *(
        case(
            f"early-{name}",
            "9110 7.5",
            SHOULD,
            (PART, AwaitFinals(1)),
            status(int(name)),
            body(b"no"),
            answer=ok(b"no", status=text),
            methods="POST",
            early=True,
            patience=0.8,
            why="a final answer does not wait for the body",
        )
        for name, text in CODES.items()
    ),
    *(
        case(
            f"early-{name}-close",
            "9112 9.3",
            SHOULD,
            (PART, AwaitFinals(1)),
            status(int(name)),
            body(b"no"),
            answer=(ok(b"no", "Connection: close", status=text), Pause(0.05), Close()),
            methods="POST",
            early=True,
            patience=0.8,
        )
        for name, text in CODES.items()
    ),
    case(
        "early-in-chunks",
        "9110 7.5",
        SHOULD,
        (chunked(b"5\r\nhello\r\n"), AwaitFinals(1)),
        status(403),
        answer=ok(b"no", status="403 Forbidden"),
        methods="POST",
        early=True,
        patience=0.8,
    ),
    case(
        "early-then-body",
        "9110 7.5",
        MUST,
        (post(b"0123456789")[:-5], AwaitHeads(1), b"56789"),
        status(200),
        consistent,
        answer=(AwaitOctets(5), ok(), AwaitBody()),
        methods="POST",
        early=True,
        patience=0.8,
    ),
    case(
        "early-large-upload",
        "9112 9.6",
        SHOULD,
        framed(b"x" * 3_000_000, "Content-Length: 3000000"),
        status(413),
        answer=(answer("413 Content Too Large", "Content-Length: 2", "Connection: close", body=b"no"), AwaitBody()),
        methods="POST",
        early=True,
        patience=5,
        why="the answer is not lost to a reset while the client still sends",
    ),
    case(
        "early-large-upload-closed",
        "9112 9.6",
        SHOULD,
        (framed(b"x" * 300_000, "Content-Length: 3000000"), Pause(0.1), b"x" * 100_000),
        status(413),
        answer=(
            answer("413 Content Too Large", "Content-Length: 2", "Connection: close", body=b"no"),
            Pause(0.3),
            Close(),
        ),
        methods="POST",
        early=True,
        patience=3,
    ),
]

# While an answer is under way its request goes on: both are streams (RFC 9110 section 7.5).
DUPLEX = [
    case(
        "duplex-talk",
        "9110 7.5",
        SHOULD,
        (
            chunked(b"5\r\nhello\r\n"),
            AwaitHeads(1),
            Pause(0.05),
            b"5\r\nagain\r\n",
            Pause(0.05),
            b"0\r\n\r\n",
        ),
        relayed(b"POST", body=b"helloagain"),
        body(b"heardmore"),
        answer=(
            AwaitOctets(5),
            answer("200 OK", "Transfer-Encoding: chunked", body=b"5\r\nheard\r\n"),
            AwaitOctets(10),
            b"4\r\nmore\r\n",
            AwaitBody(),
            b"0\r\n\r\n",
        ),
        methods="POST",
        early=True,
    ),
    case(
        "duplex-large",
        "9110 7.5",
        SHOULD,
        post(b"x" * 2_000_000),
        relayed(body=b"x" * 2_000_000),
        body(b"y" * 2_000_000),
        answer=(answer("200 OK", "Content-Length: 2000000", body=b"y" * 1_999_999), AwaitBody(), b"y"),
        methods="POST",
        early=True,
        patience=6,
    ),
    case(
        "duplex-then-next",
        "9110 7.5",
        SHOULD,
        (post(b"0123456789")[:-5], AwaitHeads(1), b"56789" + PROBE),
        relayed(body=b"0123456789", count=2),
        answers(200, 200),
        answer={"": (AwaitOctets(5), answer("200 OK", "Content-Length: 5", body=b"hel"), AwaitBody(), b"lo")},
        methods="POST GET",
        early=True,
    ),
]

# Whatever becomes of the body: nothing of it is taken for a request, and what comes behind it in its place is one.
HIDING = [
    *(
        case(
            f"early-hiding-{name}",
            "9112 9.3",
            MUST,
            (PART, AwaitHeads(1), Pause(0.03), HIDDEN, Pause(0.05)),
            not_forwarded("hidden"),
            answer=steps,
            methods="POST",
            early=True,
            patience=0.8,
        )
        for name, steps in {
            "kept": (ok(b"no", status="401 Unauthorized"),),
            "closed": (ok(b"no", "Connection: close", status="413 Content Too Large"), Close()),
            "reset": (ok(b"no", status="413 Content Too Large"), Pause(0.05), Reset()),
            "no-content": (answer("204 No Content"),),
            "chunked": (answer("200 OK", "Transfer-Encoding: chunked", body=b"2\r\nno\r\n0\r\n\r\n"),),
            "close-delimited": (answer("200 OK", "Connection: close", body=b"no"), Pause(0.05), Close()),
        }.items()
    ),
    case(
        "early-hiding-in-chunks",
        "9112 9.3",
        MUST,
        (chunked(b"5\r\nhello\r\n"), AwaitHeads(1), Pause(0.03), HIDDEN, Pause(0.05)),
        not_forwarded("hidden"),
        answer=ok(b"no", status="401 Unauthorized"),
        methods="POST",
        early=True,
        patience=0.8,
    ),
    case(
        "early-hiding-behind-refusal",
        "9112 9.3",
        MUST,
        (framed(b"", "Content-Length: x"), Pause(0.03), HIDDEN, Pause(0.05)),
        status(400),
        closed,
        not_forwarded("hidden"),
        methods="POST",
    ),
    case(
        "early-hiding-bad-gateway",
        "9112 9.3",
        MUST,
        (PART, AwaitHeads(1), Pause(0.03), HIDDEN, Pause(0.05)),
        not_forwarded("hidden"),
        answer=(b"nonsense\r\n\r\n", Close()),
        methods="POST",
        early=True,
        patience=0.8,
    ),
    case(
        "early-then-next",
        "9112 9.3",
        MUST,
        (post(b"0123456789")[:-5], AwaitHeads(1), b"56789" + PROBE),
        either(
            all_of(answers(200, 200), body(b"answer to probe", 1)),
            all_of(answers(200), closed),
        ),
        answer={"": (AwaitOctets(5), ok(), AwaitBody())},
        methods="POST GET",
        early=True,
        patience=0.8,
        why="behind the whole body the next request is one again, or the connection has ended",
    ),
    case(
        "early-pipelined",
        "9112 9.3.2",
        MUST,
        post(b"0123456789") + PROBE,
        either(all_of(answers(200, 200), forwarded(2)), all_of(answers(200), closed)),
        answer={"": ok()},
        methods="POST GET",
        early=True,
    ),
    case(
        "early-get-next-request-elsewhere",
        "9112 9.3",
        MUST,
        (PART, AwaitHeads(1), Pause(0.05), b"x" * 495, Pause(0.05), get(path="/~~/after")),
        either(all_of(answers(200, 200), named("", "after")), all_of(answers(200), closed)),
        answer={"": (AwaitOctets(5), ok(b"ok", "X-Answer: main"), AwaitBody())},
        methods="POST GET",
        early=True,
        patience=0.8,
    ),
]

CASES = [*PASSED_ON, *DUPLEX, *HIDING]

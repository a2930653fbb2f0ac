"""How octets arrive: one by one, in odd pieces, half-closed, broken off (RFC 9112 sections 2.2, 8, 9.6)."""

from __future__ import annotations

from tests.wire.case import (
    MUST,
    PROBE,
    SHOULD,
    AwaitBody,
    AwaitFinals,
    AwaitHeads,
    AwaitOctets,
    ClientStep,
    HalfClose,
    Pause,
    Reset,
    Trickle,
    answer,
    case,
    chunked,
    get,
    ok,
    post,
    raw,
)
from tests.wire.expect import (
    answers,
    body,
    closed,
    forwarded,
    had,
    named,
    nothing_whole,
    refused,
    rejected,
    relayed,
    status,
)

HELLO = b"5\r\nhello\r\n0\r\n\r\n"
WHOLE = post(b"hello", "X-A: some value", path="/~~/split")
CHUNKS = chunked(b"5\r\nhello\r\n3;a=b\r\nyou\r\n0\r\nX-T: 1\r\n\r\n")


def cut_at(octets: bytes, *places: int) -> tuple[ClientStep, ...]:
    steps: list[ClientStep] = []
    for start, end in zip((0, *places), (*places, len(octets)), strict=True):
        steps += [octets[start:end], Pause(0.03)]
    return tuple(steps)


PIECES = [
    case(
        "octets-get",
        "9112 2.2",
        MUST,
        (Trickle(get("X-A: v", "X-B: w")),),
        relayed(b"GET", b"/~~"),
        had("X-A", b"v"),
    ),
    case("octets-post", "9112 2.2", MUST, (Trickle(WHOLE),), relayed(body=b"hello"), methods="POST"),
    case("octets-chunked", "9112 7.1", MUST, (Trickle(CHUNKS),), relayed(body=b"helloyou"), methods="POST"),
    case(
        "octets-pipelined",
        "9112 9.3.2",
        MUST,
        (Trickle(get(path="/~~/one") + post(b"hello", path="/~~/two"), 3),),
        forwarded(2),
        named("one", "two"),
        methods="GET POST",
    ),
    *(
        case(f"cut-{name}", "9112 2.2", MUST, cut_at(WHOLE, place), relayed(body=b"hello"), methods="POST")
        for name, place in {
            "in-method": 2,
            "behind-method": 4,
            "in-target": WHOLE.index(b"split") + 2,
            "before-version": WHOLE.index(b" HTTP"),
            "in-version": WHOLE.index(b"HTTP") + 6,
            "in-first-crlf": WHOLE.index(b"\r\n") + 1,
            "in-name": WHOLE.index(b"X-A") + 2,
            "before-colon": WHOLE.index(b"X-A") + 3,
            "behind-colon": WHOLE.index(b"X-A") + 4,
            "in-value": WHOLE.index(b"some") + 3,
            "in-length": WHOLE.index(b"Content-Length") + 16,
            "in-last-crlf": WHOLE.index(b"\r\n\r\n") + 3,
            "behind-head": WHOLE.index(b"\r\n\r\n") + 4,
            "in-body": len(WHOLE) - 2,
        }.items()
    ),
    *(
        case(f"chunk-split-{name}", "9112 7.1", MUST, cut_at(CHUNKS, place), relayed(body=b"helloyou"), methods="POST")
        for name, place in {
            "in-size-crlf": CHUNKS.index(b"5\r\nhello") + 2,
            "in-data": CHUNKS.index(b"hello") + 2,
            "in-data-crlf": CHUNKS.index(b"hello") + 6,
            "in-extension": CHUNKS.index(b";a=b") + 2,
            "in-last": CHUNKS.index(b"0\r\nX-T") + 1,
            "in-trailer": CHUNKS.index(b"X-T") + 2,
            "in-end": len(CHUNKS) - 1,
        }.items()
    ),
    case(
        "pieces-of-two",
        "9112 2.2",
        MUST,
        cut_at(get(path="/~~/one") + get(path="/~~/two"), 30, 50, 70),
        forwarded(2),
        named("one", "two"),
        methods="GET GET",
    ),
    case(
        "slow-body",
        "9112 6.3",
        MUST,
        (post(b"x" * 40)[:-40], *(step for _ in range(8) for step in (Pause(0.03), b"xxxxx"))),
        relayed(body=b"x" * 40),
        methods="POST",
    ),
    case(
        "body-goes-on-at-once",
        "9110 7.6",
        SHOULD,
        (post(b"0123456789")[:-5], AwaitFinals(1)),
        body(b"seen"),
        answer=(AwaitOctets(5), ok(b"seen"), AwaitBody()),
        methods="POST",
        early=True,
        patience=1,
        why="a body is passed on as it comes: the backend answers to its first half",
    ),
    case(
        "chunks-go-on-at-once",
        "9110 7.6",
        SHOULD,
        (chunked(b"5\r\nhello\r\n"), AwaitFinals(1)),
        body(b"seen"),
        answer=(AwaitOctets(5), ok(b"seen"), AwaitBody()),
        methods="POST",
        early=True,
        patience=1,
    ),
    case(
        "answer-goes-on-at-once",
        "9110 7.6",
        SHOULD,
        (get(), AwaitHeads(1), post(b"go", path="/~~/second")),
        answers(200, 200),
        body(b"hello"),
        answer={"": (answer("200 OK", "Content-Length: 5", body=b"hel"), Pause(0.1), b"lo")},
        methods="GET POST",
    ),
    case(
        "events-stream",
        "9112 7.1",
        MUST,
        get("Accept: text/event-stream"),
        body(b"data: 1\n\ndata: 2\n\n"),
        answer=(
            answer("200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"),
            Pause(0.1),
            b"9\r\ndata: 1\n\n\r\n",
            Pause(0.1),
            b"9\r\ndata: 2\n\n\r\n",
            Pause(0.1),
            b"0\r\n\r\n",
        ),
    ),
]

HALVES = [
    case(
        "half-close-get",
        "9112 9.6",
        SHOULD,
        (get(), HalfClose()),
        status(200),
        relayed(),
        answer=(Pause(0.1), ok()),
        why="a half-closed client still wants its answer",
    ),
    case(
        "half-close-post",
        "9112 9.6",
        SHOULD,
        (post(b"hello"), HalfClose()),
        status(200),
        relayed(body=b"hello"),
        answer=(Pause(0.1), ok()),
        methods="POST",
    ),
    case(
        "half-close-large-answer",
        "9112 9.6",
        SHOULD,
        (get(), HalfClose()),
        body(b"x" * 500_000),
        answer=ok(b"x" * 500_000),
        patience=3,
    ),
    case("half-close-at-once", "9112 9.5", MUST, (HalfClose(),), rejected(), patience=0.6),
    case("half-close-in-line", "9112 8", MUST, (b"GET /~~ HT", HalfClose()), rejected(), patience=0.6),
    case("half-close-in-head", "9112 8", MUST, (get()[:-2], HalfClose()), rejected(), patience=0.6),
    case(
        "half-close-behind-bad",
        "9112 2.2",
        SHOULD,
        (raw("GET /~~ HTTP/1.1", "X: 1"), HalfClose()),
        refused(400),
    ),
    case(
        "half-close-later",
        "9112 9.5",
        MUST,
        (get(), AwaitFinals(1), HalfClose()),
        answers(200),
        closed,
        why="the client's end of an idle connection ends it",
    ),
]

BREAKS = [
    case(
        "break-in-body",
        "9112 8",
        MUST,
        (post(b"hello world")[:-6], Pause(0.05), Reset(), Pause(0.1)),
        nothing_whole,
        methods="POST",
    ),
    case(
        "break-in-chunk",
        "9112 8",
        MUST,
        (chunked(b"5\r\nhel"), Pause(0.05), Reset(), Pause(0.1)),
        nothing_whole,
        methods="POST",
    ),
    case(
        "break-in-head",
        "9112 8",
        MUST,
        (get()[:-2], Pause(0.05), Reset(), Pause(0.1)),
        nothing_whole,
    ),
    case(
        "connection-lasts",
        "9112 9.3",
        SHOULD,
        (get(path="/~~/one"), AwaitFinals(1), Pause(0.4), PROBE),
        answers(200, 200),
        methods="GET GET",
    ),
]

CASES = [*PIECES, *HALVES, *BREAKS]

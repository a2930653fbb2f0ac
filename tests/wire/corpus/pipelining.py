"""Several requests on one connection without waiting (RFC 9112 section 9.3.2)."""

from __future__ import annotations

from tests.wire.case import (
    MUST,
    SHOULD,
    AwaitFinals,
    Close,
    HalfClose,
    Pause,
    answer,
    case,
    chunked,
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
    consistent,
    either,
    forwarded,
    holds,
    named,
    not_forwarded,
    status,
    stays_open,
)


def request(name: str, *lines: str, method: str = "GET") -> bytes:
    return get(*lines, path=f"/~~/{name}", method=method)


def reply(name: str, *lines: str, status: str = "200 OK") -> bytes:
    return ok(name.encode(), f"X-Answer: {name}", *lines, status=status)


ONE, TWO, THREE = request("one"), request("two"), request("three")
HELLO = b"5\r\nhello\r\n0\r\n\r\n"

ORDER = [
    case("pipeline-two", "9112 9.3.2", MUST, ONE + TWO, forwarded(2), named("one", "two"), methods="GET GET"),
    case(
        "pipeline-ten",
        "9112 9.3.2",
        MUST,
        b"".join(request(f"n{number}") for number in range(10)),
        forwarded(10),
        named(*(f"n{number}" for number in range(10))),
        methods="GET " * 10,
    ),
    case(
        "pipeline-hundred",
        "9112 9.3.2",
        SHOULD,
        b"".join(request(f"n{number}") for number in range(100)),
        forwarded(100),
        named(*(f"n{number}" for number in range(100))),
        methods="GET " * 100,
        patience=5,
    ),
    case(
        "pipeline-slow-first",
        "9112 9.3.2",
        MUST,
        ONE + TWO + THREE,
        named("one", "two", "three"),
        answer={"one": (Pause(0.2), reply("one"))},
        methods="GET GET GET",
        why="answers in the order of the requests, whichever is ready first",
    ),
    case(
        "pipeline-slow-body",
        "9112 9.3.2",
        MUST,
        ONE + TWO,
        answers(200, 200),
        body(b"hello"),
        named("one", "two"),
        answer={
            "one": (answer("200 OK", "X-Answer: one", "Content-Length: 5", body=b"he"), Pause(0.15), b"llo"),
        },
        methods="GET GET",
    ),
    case(
        "pipeline-post-get",
        "9112 9.3.2",
        MUST,
        post(b"hello", path="/~~/one") + TWO,
        forwarded(2),
        named("one", "two"),
        methods="POST GET",
    ),
    case(
        "pipeline-chunked-get",
        "9112 9.3.2",
        MUST,
        chunked(HELLO, path="/~~/one") + TWO,
        forwarded(2),
        named("one", "two"),
        methods="POST GET",
    ),
    case(
        "pipeline-post-post",
        "9112 9.3.2",
        MUST,
        post(b"hello", path="/~~/one") + chunked(HELLO, path="/~~/two") + post(b"", path="/~~/three"),
        forwarded(3),
        named("one", "two", "three"),
        methods="POST POST POST",
    ),
    case(
        "pipeline-head-get",
        "9112 9.3.2",
        MUST,
        request("one", method="HEAD") + TWO,
        forwarded(2),
        named("one", "two"),
        body(b"", 0),
        methods="HEAD GET",
    ),
    case(
        "pipeline-204-304-get",
        "9112 9.3.2",
        MUST,
        ONE + TWO + THREE,
        answers(204, 304, 200),
        answer={"one": answer("204 No Content"), "two": answer("304 Not Modified", 'ETag: "x"')},
        methods="GET GET GET",
    ),
    case(
        "pipeline-chunked-answers",
        "9112 9.3.2",
        MUST,
        ONE + TWO,
        answers(200, 200),
        body(b"hello"),
        answer={"one": answer("200 OK", "Transfer-Encoding: chunked", body=HELLO)},
        methods="GET GET",
    ),
    case(
        "pipeline-errors-of-backend",
        "9112 9.3.2",
        MUST,
        ONE + TWO,
        answers(404, 500),
        answer={"one": reply("one", status="404 Not Found"), "two": reply("two", status="500 Internal Server Error")},
        methods="GET GET",
    ),
    case(
        "pipeline-backend-closes",
        "9112 9.3",
        MUST,
        ONE + TWO,
        answers(200, 200),
        named("one", "two"),
        answer={"one": (reply("one", "Connection: close"), Close())},
        methods="GET GET",
        why="how a backend treats its connection is not the client's affair",
    ),
    case(
        "pipeline-backend-1.0",
        "9112 9.3",
        MUST,
        ONE + TWO,
        either(answers(200, 200), all_of(answers(200), closed)),
        consistent,
        answer={"one": (raw("HTTP/1.0 200 OK", "Content-Length: 3") + b"one", Close())},
        methods="GET GET",
    ),
    case(
        "pipeline-close-delimited",
        "9112 9.3",
        MUST,
        ONE + TWO,
        body(b"one"),
        either(all_of(answers(200, 200), named("one", "two")), all_of(answers(200), closed)),
        answer={"one": (answer("200 OK", "X-Answer: one", "Connection: close", body=b"one"), Close())},
        methods="GET GET",
        why="an answer without a length is given one by chunks, or ends the connection",
    ),
    case(
        "pipeline-bad-gateway",
        "9112 9.3.2",
        MUST,
        ONE + TWO,
        status(502),
        either(answers(502, 200), all_of(answers(502), closed)),
        answer={"one": (b"nonsense\r\n\r\n", Close())},
        methods="GET GET",
    ),
]

SPLIT = [
    case(
        "pipeline-second-in-parts",
        "9112 9.3.2",
        MUST,
        (ONE + TWO[:10], Pause(0.05), TWO[10:]),
        forwarded(2),
        named("one", "two"),
        methods="GET GET",
    ),
    case(
        "pipeline-body-in-parts",
        "9112 9.3.2",
        MUST,
        (post(b"hello", path="/~~/one")[:-2], Pause(0.05), b"lo" + TWO),
        forwarded(2),
        named("one", "two"),
        methods="POST GET",
    ),
    case(
        "pipeline-later",
        "9112 9.3",
        MUST,
        (ONE + TWO, AwaitFinals(2), THREE, AwaitFinals(3), request("four")),
        forwarded(4),
        named("one", "two", "three", "four"),
        methods="GET GET GET GET",
    ),
    case(
        "pipeline-while-answering",
        "9112 9.3.2",
        MUST,
        (ONE, Pause(0.05), TWO, Pause(0.05), THREE),
        named("one", "two", "three"),
        answer={"one": (Pause(0.2), reply("one"))},
        methods="GET GET GET",
    ),
    case(
        "pipeline-half-close",
        "9112 9.6",
        SHOULD,
        (ONE + TWO, HalfClose()),
        named("one", "two"),
        answer={"one": (Pause(0.1), reply("one"))},
        methods="GET GET",
        why="a client that has sent all may still wait for its answers",
    ),
]


def _then_refused(seen: Seen) -> str:
    codes = [message.status for message in seen.finals]
    return "" if codes[:1] == [200] and len(codes) == 2 and codes[1] in (400, 501, 505) else f"the answers are {codes}"


first_then_refused = all_of(
    holds("the good request is answered, the bad one refused", _then_refused), closed, forwarded(1)
)

ERRORS = [
    *(
        case(
            f"pipeline-{name}",
            "9112 9.3.2",
            MUST,
            ONE + bad + request("hidden"),
            first_then_refused,
            not_forwarded("hidden"),
            methods="GET GET",
            why="a bad request does not undo the good one before it, and nothing behind it counts",
        )
        for name, bad in {
            "then-no-host": raw("GET /~~/two HTTP/1.1", "X: 1"),
            "then-bad-length": get("Content-Length: x", path="/~~/two"),
            "then-bad-line": b"NONSENSE /~~/two\r\n\r\n",
            "then-space-before-colon": get("X : 1", path="/~~/two"),
            "then-bad-coding": get("Transfer-Encoding: x", path="/~~/two"),
        }.items()
    ),
    case(
        "pipeline-slow-then-bad",
        "9112 9.3.2",
        MUST,
        ONE + raw("GET /~~/two HTTP/1.1", "X: 1"),
        first_then_refused,
        answer={"one": (Pause(0.2), reply("one"))},
        methods="GET GET",
    ),
    case(
        "pipeline-bad-first",
        "9112 2.2",
        MUST,
        raw("GET /~~/one HTTP/1.1", "X: 1") + TWO,
        status(400),
        closed,
        forwarded(0),
    ),
    case(
        "pipeline-behind-close",
        "9112 9.6",
        MUST,
        request("one", "Connection: close") + request("hidden"),
        forwarded(1),
        named("one"),
        closed,
        why="nothing is processed behind a request that says close",
    ),
    case(
        "pipeline-behind-close-list",
        "9112 9.6",
        MUST,
        request("one", "Connection: x, Close") + request("hidden"),
        forwarded(1),
        named("one"),
        closed,
    ),
    case(
        "pipeline-behind-1.0",
        "9112 9.3",
        MUST,
        get(path="/~~/one", version="1.0") + request("hidden"),
        forwarded(1),
        named("one"),
        closed,
        why="HTTP/1.0 without keep-alive: the connection closes after the answer",
    ),
    case(
        "pipeline-1.0-close",
        "9112 9.6",
        MUST,
        get("Connection: close", path="/~~/one", version="1.0") + request("hidden"),
        forwarded(1),
        named("one"),
        closed,
    ),
    case(
        "pipeline-behind-post-close",
        "9112 9.6",
        MUST,
        post(b"hello", "Connection: close", path="/~~/one") + request("hidden"),
        forwarded(1),
        named("one"),
        closed,
        methods="POST",
    ),
    case(
        "pipeline-persists",
        "9112 9.3",
        SHOULD,
        ONE + TWO,
        answers(200, 200),
        stays_open,
        methods="GET GET",
    ),
]

CASES = [*ORDER, *SPLIT, *ERRORS]

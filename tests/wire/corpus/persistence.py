"""How long a client's connection lasts (RFC 9112 sections 9.3 and 9.6)."""

from __future__ import annotations

from tests.wire.case import MUST, SHOULD, AwaitFinals, Close, answer, case, get, ok, post, raw
from tests.wire.expect import (
    all_of,
    answers,
    body,
    closed,
    consistent,
    either,
    forwarded,
    got_field,
    no_field,
    status,
    stays_open,
)

LASTING = [
    case("persist-1.1", "9112 9.3", SHOULD, get(), status(200), stays_open),
    case("persist-1.1-keep-alive", "9112 9.3", SHOULD, get("Connection: keep-alive"), status(200), stays_open),
    *(
        case(f"persist-close-{name}", "9112 9.6", MUST, get(*lines), status(200), closed)
        for name, lines in {
            "plain": ("Connection: close",),
            "upper-case": ("Connection: CLOSE",),
            "list": ("Connection: keep-alive, close",),
            "list-first": ("Connection: close, keep-alive",),
            "two-lines": ("Connection: keep-alive", "Connection: close"),
            "empty-members": ("Connection: , close ,",),
            "tabs": ("Connection:\tclose\t",),
        }.items()
    ),
    case(
        "persist-close-said",
        "9112 9.6",
        SHOULD,
        get("Connection: close"),
        got_field("Connection", b"close"),
        closed,
        why="a server should say that it closes",
    ),
    *(
        case(
            f"persist-error-says-close-{name}",
            "9112 9.6",
            SHOULD,
            sent,
            got_field("Connection", b"close"),
            closed,
        )
        for name, sent in {
            "400": raw("GET /~~ HTTP/1.1", "X: 1"),
            "501": get("Transfer-Encoding: x", method="POST"),
            "505": raw("GET /~~ HTTP/2.0", "Host: a.example"),
            "431": get(f"X: {'v' * 100_000}"),
            "414": get(path="/~~" + "x" * 100_000),
        }.items()
    ),
    case(
        "persist-1.0-keep-alive-close-delimited",
        "9112 9.3",
        MUST,
        get("Connection: keep-alive", version="1.0"),
        status(200),
        body(b"hello"),
        closed,
        no_field("Transfer-Encoding"),
        answer=(answer("200 OK", body=b"hello"), Close()),
        why="to an HTTP/1.0 client only the end can delimit it",
    ),
    case(
        "persist-close-like",
        "9110 7.6.1",
        SHOULD,
        get("Connection: closed"),
        status(200),
        stays_open,
        why="another word is another option",
    ),
    case(
        "persist-1.0",
        "9112 9.3",
        MUST,
        get(version="1.0"),
        status(200),
        closed,
    ),
    case(
        "persist-1.0-keep-alive",
        "9112 9.3",
        MUST,
        get("Connection: keep-alive", version="1.0"),
        status(200),
        either(closed, got_field("Connection", b"keep-alive")),
        consistent,
        why="an HTTP/1.0 client must be told if its wish is honoured",
    ),
    case(
        "persist-1.0-keep-alive-then",
        "9112 9.3",
        MUST,
        (get("Connection: keep-alive", version="1.0"), AwaitFinals(1), get(path="/~~/second", version="1.0")),
        either(all_of(answers(200, 200), forwarded(2)), all_of(answers(200), closed)),
        methods="GET GET",
    ),
    case(
        "persist-1.0-proxy-connection",
        "9112 9.3",
        MUST,
        get("Proxy-Connection: keep-alive", version="1.0"),
        status(200),
        closed,
    ),
    case(
        "persist-after-404",
        "9112 9.3",
        SHOULD,
        get(),
        status(404),
        stays_open,
        answer=ok(b"no", status="404 Not Found"),
    ),
    case(
        "persist-after-500",
        "9112 9.3",
        SHOULD,
        get(),
        status(500),
        stays_open,
        answer=ok(b"no", status="500 Internal Server Error"),
    ),
    case("persist-after-post", "9112 9.3", SHOULD, post(b"hello"), status(200), stays_open, methods="POST"),
    case(
        "persist-answer-close-word",
        "9112 9.6",
        MUST,
        (get("Connection: close"), AwaitFinals(1)),
        closed,
        forwarded(1),
    ),
]

CASES = LASTING

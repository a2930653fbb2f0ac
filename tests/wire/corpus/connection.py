"""Connection and the fields that belong to one connection (RFC 9110 section 7.6.1, RFC 9112 section 9)."""

from __future__ import annotations

from tests.wire.case import MUST, SHOULD, AwaitFinals, Close, answer, case, get, ok, post, raw
from tests.wire.expect import (
    Seen,
    all_of,
    answers,
    body,
    closed,
    consistent,
    either,
    had,
    holds,
    lacked,
    lacked_member,
    no_field,
    no_trailer,
    no_value,
    refused,
    relayed,
    status,
)

NAMING = {
    "one": ("Connection: X-Foo", "X-Foo: 1"),
    "before": ("X-Foo: 1", "Connection: X-Foo"),
    "lower-case": ("Connection: x-foo", "X-Foo: 1"),
    "upper-case": ("Connection: X-FOO", "x-foo: 1"),
    "list": ("Connection: keep-alive, X-Foo", "X-Foo: 1"),
    "list-first": ("Connection: X-Foo, keep-alive", "X-Foo: 1"),
    "no-space": ("Connection: keep-alive,X-Foo", "X-Foo: 1"),
    "tabs": ("Connection: keep-alive\t,\tX-Foo\t", "X-Foo: 1"),
    "empty-members": ("Connection: ,,X-Foo, ,", "X-Foo: 1"),
    "two-lines": ("Connection: keep-alive", "Connection: X-Foo", "X-Foo: 1"),
    "field-twice": ("Connection: X-Foo", "X-Foo: 1", "X-Bar: 1", "X-Foo: 2"),
    "with-close": ("Connection: close, X-Foo", "X-Foo: 1"),
    "odd-name": ("Connection: X_Foo!", "X_Foo!: 1"),
}

# Whatever Connection names goes, and so does Connection's own list (section 7.6.1).
NAMED = [
    *(
        case(
            f"connection-names-{name}",
            "9110 7.6.1",
            MUST,
            get(*lines),
            relayed(),
            lacked("X-Foo", "X_Foo!"),
            lacked_member("Connection", "X-Foo"),
        )
        for name, lines in NAMING.items()
    ),
    case(
        "connection-names-two",
        "9110 7.6.1",
        MUST,
        get("Connection: X-Foo, X-Bar", "X-Foo: 1", "X-Bar: 1", "X-Foo-Bar: 1"),
        relayed(),
        lacked("X-Foo", "X-Bar"),
        had("X-Foo-Bar", b"1"),
    ),
    case(
        "connection-names-twenty",
        "9110 7.6.1",
        MUST,
        get("Connection: " + ", ".join(f"X-{n}" for n in range(20)), *(f"X-{n}: 1" for n in range(21))),
        relayed(),
        lacked(*(f"X-{n}" for n in range(20))),
        had("X-20", b"1"),
    ),
    case(
        "connection-names-absent",
        "9110 7.6.1",
        MUST,
        get("Connection: X-Foo", "X-Bar: 1"),
        relayed(),
        had("X-Bar", b"1"),
        lacked_member("Connection", "X-Foo"),
    ),
    *(
        case(
            f"connection-names-{name.lower()}",
            "9110 7.6.1",
            MUST,
            get(f"Connection: {name}", f"{name}: {value}"),
            either(all_of(relayed(), lacked(name)), refused(400)),
            why="an option that names an end-to-end field removes it all the same",
        )
        for name, value in {
            "Authorization": "Basic YTpi",
            "Cookie": "a=b",
            "Cache-Control": "no-cache",
            "User-Agent": "wire",
            "Keep-Alive": "timeout=5",
            "Proxy-Authorization": "Basic YTpi",
            "X-User-ID": "eve",
        }.items()
    ),
    case(
        "connection-names-host",
        "9110 7.6.1",
        MUST,
        get("Connection: Host"),
        either(relayed(), refused(400)),
        why="a request without Host cannot be sent: it is made anew, or the request is refused",
    ),
    case(
        "connection-names-length",
        "9110 7.6.1",
        MUST,
        post(b"hello", "Connection: Content-Length"),
        either(relayed(body=b"hello"), refused(400)),
        methods="POST",
        why="framing is always made anew: the body is neither lost nor left without a length",
    ),
    case(
        "connection-names-coding",
        "9110 7.6.1",
        MUST,
        get("Connection: Transfer-Encoding", "Transfer-Encoding: chunked", method="POST") + b"5\r\nhello\r\n0\r\n\r\n",
        either(relayed(body=b"hello"), refused(400)),
        methods="POST",
    ),
    case(
        "connection-names-forwarded",
        "9110 7.6.1",
        MUST,
        get("Connection: X-Forwarded-For", "X-Forwarded-For: 192.0.2.7"),
        either(relayed(), refused(400)),
        no_value("X-Forwarded-For", b"192.0.2.7"),
    ),
    case(
        "connection-names-connection",
        "9110 7.6.1",
        MUST,
        get("Connection: Connection, X-Foo", "X-Foo: 1"),
        either(all_of(relayed(), lacked("X-Foo")), refused(400)),
    ),
    case(
        "connection-names-via",
        "9110 7.6.3",
        MUST,
        get("Connection: Via", "Via: 1.0 fred"),
        either(relayed(), refused(400)),
    ),
    case(
        "connection-trailer-named",
        "9110 7.6.1",
        MUST,
        get("Connection: X-T", "Transfer-Encoding: chunked", method="POST") + b"5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
        relayed(body=b"hello"),
        lacked("X-T"),
        no_trailer("X-T"),
        methods="POST",
    ),
    case(
        "connection-not-a-token",
        "9110 7.6.1",
        MUST,
        get("Connection: a b, X-Foo", "X-Foo: 1"),
        either(refused(400), all_of(relayed(), lacked("X-Foo"))),
    ),
]


# Fields known to belong to one connection are removed even when nothing names them (section 7.6.1).
HOP_BY_HOP = [
    *(
        case(f"hop-{name.lower()}", "9110 7.6.1", SHOULD, get(f"{name}: {value}"), relayed(), lacked(name))
        for name, value in {
            "Keep-Alive": "timeout=5, max=100",
            "Proxy-Connection": "keep-alive",
            "TE": "trailers, deflate;q=0.5",
            "Upgrade": "foo/1",
        }.items()
    ),
    case(
        "hop-te-named",
        "9110 7.6.1",
        MUST,
        get("TE: deflate;q=0.5", "Connection: TE"),
        relayed(),
        no_value("TE", b"deflate"),
    ),
    case(
        "hop-upgrade-named-unsupported",
        "9110 7.8",
        MUST,
        get("Upgrade: foo/1", "Connection: X-Foo", "X-Foo: 1"),
        relayed(),
        lacked("X-Foo"),
    ),
    case(
        "hop-connection-close-own",
        "9110 7.6.1",
        MUST,
        get("Connection: close"),
        relayed(),
        closed,
        why="the client's close is about the client's connection",
    ),
    case(
        "hop-keep-alive-option",
        "9110 7.6.1",
        MUST,
        get("Connection: keep-alive, foo"),
        relayed(),
        lacked_member("Connection", "foo"),
    ),
]


def _not_named(seen: Seen) -> str:
    return "it does" if seen.finals and b"x-foo" in seen.finals[0].members(b"connection") else ""


not_named = holds("Connection does not name X-Foo", _not_named)

# The same for what comes back.
ANSWERS = [
    *(
        case(
            f"answer-connection-names-{name}",
            "9110 7.6.1",
            MUST,
            get(),
            status(200),
            body(b"ok"),
            no_field("X-Foo", "X_Foo!"),
            not_named,
            answer=ok(b"ok", *lines),
        )
        for name, lines in NAMING.items()
        if name in ("one", "lower-case", "list", "empty-members", "two-lines", "field-twice", "odd-name")
    ),
    *(
        case(
            f"answer-connection-names-{name.lower()}",
            "9110 7.6.1",
            MUST,
            get(),
            either(all_of(status(200), no_field(name)), status(502)),
            answer=ok(b"ok", f"Connection: {name}", f"{name}: {value}"),
        )
        for name, value in {"Set-Cookie": "a=b", "Cache-Control": "no-store", "ETag": '"x"', "Keep-Alive": "5"}.items()
    ),
    case(
        "answer-connection-names-length",
        "9110 7.6.1",
        MUST,
        (get(), AwaitFinals(1), get(path="/~~/probe")),
        either(all_of(body(b"hello"), answers(200, 200)), all_of(body(b"hello"), closed), status(502)),
        answer={"": ok(b"hello", "Connection: Content-Length")},
        methods="GET GET",
    ),
    case(
        "answer-connection-names-coding",
        "9110 7.6.1",
        MUST,
        get(),
        either(body(b"hello"), status(502)),
        answer=answer(
            "200 OK",
            "Connection: Transfer-Encoding",
            "Transfer-Encoding: chunked",
            body=b"5\r\nhello\r\n0\r\n\r\n",
        ),
    ),
    *(
        case(
            f"answer-hop-{name.lower()}",
            "9110 7.6.1",
            SHOULD,
            get(),
            status(200),
            no_field(name),
            answer=ok(b"ok", f"{name}: {value}"),
        )
        for name, value in {"Keep-Alive": "timeout=5", "Proxy-Connection": "close", "TE": "trailers"}.items()
    ),
    case(
        "answer-close-not-passed-on",
        "9112 9.3",
        SHOULD,
        (get(), AwaitFinals(1), get(path="/~~/second")),
        answers(200, 200),
        answer={"": (ok(b"ok", "Connection: close"), Close())},
        methods="GET GET",
        why="the backend's close is about the backend's connection",
    ),
    case(
        "answer-close-consistent",
        "9112 9.6",
        MUST,
        get(),
        status(200),
        consistent,
        answer=(ok(b"ok", "Connection: close"), Close()),
    ),
    case(
        "answer-1.0-consistent",
        "9112 9.3",
        MUST,
        get(),
        body(b"ok"),
        consistent,
        answer=(raw("HTTP/1.0 200 OK", "Content-Length: 2") + b"ok", Close()),
    ),
    case(
        "answer-close-with-names",
        "9110 7.6.1",
        MUST,
        get(),
        no_field("X-Foo"),
        consistent,
        answer=(ok(b"ok", "Connection: close, X-Foo", "X-Foo: 1"), Close()),
    ),
    case(
        "answer-trailer-named",
        "9110 7.6.1",
        MUST,
        get(),
        body(b"hello"),
        no_field("X-T"),
        answer=answer(
            "200 OK", "Connection: X-T", "Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n"
        ),
    ),
]


CASES = [*NAMED, *HOP_BY_HOP, *ANSWERS]

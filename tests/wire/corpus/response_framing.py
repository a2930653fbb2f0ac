"""Where an answer ends: lengths, chunks, the end of the connection (RFC 9112 sections 6.1 to 6.3 and 7)."""

from __future__ import annotations

from tests.wire.case import (
    MUST,
    PROBE,
    Answer,
    AwaitFinals,
    Close,
    Pause,
    Trickle,
    answer,
    case,
    get,
    ok,
    raw,
)
from tests.wire.expect import (
    all_of,
    answers,
    body,
    closed,
    cut,
    either,
    got_field,
    no_field,
    status,
)

HELLO = b"5\r\nhello\r\n0\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked"
PROBED = all_of(answers(200, 200), body(b"answer to probe", 1))


def chunks(sent: bytes, *lines: str) -> bytes:
    return answer("200 OK", *lines, CHUNKED, body=sent)


GOOD = {
    "length": ok(b"hello"),
    "length-lower-case": answer("200 OK", "content-length: 5", body=b"hello"),
    "length-spaces": answer("200 OK", "Content-Length:   5  ", body=b"hello"),
    "length-leading-zero": answer("200 OK", "Content-Length: 005", body=b"hello"),
    "chunked": chunks(HELLO),
    "chunked-two": chunks(b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
    "chunked-upper-case": answer("200 OK", "Transfer-Encoding: CHUNKED", body=HELLO),
    "chunked-leading-zeros": chunks(b"0005\r\nhello\r\n000\r\n\r\n"),
    "chunked-extension": chunks(b'5;a=b;c="d;e"\r\nhello\r\n0;f\r\n\r\n'),
    "chunked-trailer": chunks(b"5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n", "Trailer: X-T"),
}

MEGABYTE = b"0123456789abcdef" * 65_536
LARGE: dict[str, Answer] = {
    "length": ok(MEGABYTE),
    "chunked": chunks((b"1000\r\n" + MEGABYTE[:4096] + b"\r\n") * 256 + b"0\r\n\r\n"),
    "one-chunk": chunks(b"100000\r\n" + MEGABYTE + b"\r\n0\r\n\r\n"),
    "close": (answer("200 OK", body=MEGABYTE), Close()),
}

WHOLE = [
    *(
        case(
            f"framing-{name}",
            "9112 6.3",
            MUST,
            (get(), AwaitFinals(1), PROBE),
            body(b"hello"),
            PROBED,
            answer={"": reply},
            methods="GET GET",
        )
        for name, reply in GOOD.items()
    ),
    *(
        case(
            f"framing-{name}-to-1.0",
            "9112 6.1",
            MUST,
            get(version="1.0"),
            status(200),
            body(b"hello"),
            no_field("Transfer-Encoding"),
            closed,
            answer=reply,
            why="no Transfer-Encoding to an HTTP/1.0 client",
        )
        for name, reply in GOOD.items()
        if "chunked" in name or name == "length"
    ),
    case(
        "framing-chunked-to-1.0-keep-alive",
        "9112 6.1",
        MUST,
        get("Connection: keep-alive", version="1.0"),
        status(200),
        body(b"hello"),
        no_field("Transfer-Encoding"),
        answer=chunks(HELLO),
    ),
    case(
        "framing-close",
        "9112 6.3",
        MUST,
        get(),
        status(200),
        body(b"hello"),
        answer=(answer("200 OK", body=b"hello"), Close()),
    ),
    case(
        "framing-close-said",
        "9112 6.3",
        MUST,
        get(),
        status(200),
        body(b"hello"),
        answer=(answer("200 OK", "Connection: close", body=b"hello"), Close()),
    ),
    case(
        "framing-close-empty",
        "9112 6.3",
        MUST,
        get(),
        status(200),
        body(b""),
        answer=(answer("200 OK"), Close()),
    ),
    case(
        "framing-close-to-1.0",
        "9112 6.3",
        MUST,
        get(version="1.0"),
        status(200),
        body(b"hello"),
        no_field("Transfer-Encoding"),
        closed,
        answer=(answer("200 OK", body=b"hello"), Close()),
    ),
    case(
        "framing-close-1.0-backend",
        "9112 6.3",
        MUST,
        get(),
        status(200),
        body(b"hello"),
        answer=(raw("HTTP/1.0 200 OK", "Content-Type: text/plain") + b"hello", Close()),
    ),
    case(
        "framing-close-slow",
        "9112 6.3",
        MUST,
        get(),
        status(200),
        body(b"hello"),
        answer=(answer("200 OK", body=b"he"), Pause(0.1), b"llo", Pause(0.1), Close()),
    ),
    case(
        "framing-close-length-like-body",
        "9112 6.3",
        MUST,
        get(),
        status(200),
        body(ok(b"x")),
        answer=(answer("200 OK", "Connection: close", body=ok(b"x")), Close()),
    ),
    *(
        case(
            f"framing-large-{name}",
            "9112 6.3",
            MUST,
            get(),
            status(200),
            body(MEGABYTE),
            answer=reply,
            patience=6,
        )
        for name, reply in LARGE.items()
    ),
    case(
        "framing-binary",
        "9112 6.3",
        MUST,
        get(),
        body(bytes(range(256)) * 8),
        answer=ok(bytes(range(256)) * 8),
    ),
    case(
        "framing-chunked-octet-by-octet",
        "9112 7.1",
        MUST,
        get(),
        body(b"hello"),
        answer=(Trickle(chunks(HELLO)),),
        patience=4,
    ),
    case(
        "framing-chunked-thousand",
        "9112 7.1",
        MUST,
        get(),
        body(b"x" * 1000),
        answer=chunks(b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n"),
    ),
    case(
        "framing-length-huge",
        "9110 8.6",
        MUST,
        get(),
        cut,
        answer=(answer("200 OK", f"Content-Length: {2**40}", body=b"hello"), Pause(0.05), Close()),
        patience=0.6,
        why="more than 32 bits hold, and then cut short",
    ),
]

# An invalid length: throw the answer away, close, 502 (section 6.3).
BAD_LENGTHS = {
    "plus": ("+5",),
    "minus": ("-5",),
    "word": ("five",),
    "letter": ("5x",),
    "empty": ("",),
    "hexadecimal": ("0x5",),
    "point": ("5.0",),
    "underscore": ("0_5",),
    "inner-space": ("0 5",),
    "superscript": ("\xb2",),
    "wide-digit": ("\xef\xbc\x95",),
    "nul": ("5\0",),
    "list-other": ("5, 6",),
    "list-word": ("5, x",),
    "lines-other": ("5", "6"),
    "lines-other-reversed": ("6", "5"),
    "lines-zero": ("0", "5"),
    "lines-word": ("5", "x"),
    "2-64": (str(2**64 + 5),),
    "2-128": (str(2**128 + 5),),
}

SAME = {"list": ("5, 5",), "lines": ("5", "5"), "list-three": ("5,5,5",), "spelling": ("5", "05")}

LENGTHS = [
    *(
        case(
            f"framing-length-{name}",
            "9110 8.6" if name.startswith("2-") else "9112 6.3",
            MUST,
            get(),
            either(status(502), cut) if name.startswith("2-") else status(502),
            answer=(answer("200 OK", *(f"Content-Length: {value}" for value in values), body=b"hello"), Close()),
        )
        for name, values in BAD_LENGTHS.items()
    ),
    *(
        case(
            f"framing-length-same-{name}",
            "9110 8.6",
            MUST,
            get(),
            either(status(502), all_of(status(200), body(b"hello"))),
            answer=(answer("200 OK", *(f"Content-Length: {value}" for value in values), body=b"hello"), Close()),
        )
        for name, values in SAME.items()
    ),
    *(
        case(
            f"framing-both-{name}",
            "9112 6.3",
            MUST,
            get(),
            either(status(502), all_of(status(200), body(b"hello"))),
            answer=(answer("200 OK", *lines, body=HELLO), Close()),
            why="Transfer-Encoding wins and Content-Length goes, or the answer is refused",
        )
        for name, lines in {
            "length-first": ("Content-Length: 3", CHUNKED),
            "coding-first": (CHUNKED, "Content-Length: 100"),
            "right": ("Content-Length: 15", CHUNKED),
            "zero": ("Content-Length: 0", CHUNKED),
            "bad-length": ("Content-Length: x", CHUNKED),
        }.items()
    ),
]

# Not chunked at the end: until the connection closes; or refused. What is forwarded is framed anew.
CODINGS = [
    case(
        f"framing-coding-{name}",
        "9112 6.3",
        MUST,
        get(),
        either(
            status(502),
            all_of(
                status(200),
                answers(200),
            ),
        ),
        answer=(answer("200 OK", f"Transfer-Encoding: {value}", body=HELLO), Close()),
    )
    for name, value in {
        "gzip": "gzip",
        "identity": "identity",
        "unknown": "foo",
        "chunked-gzip": "chunked, gzip",
        "empty": "",
        "quoted": '"chunked"',
        "longer": "xchunked",
        "tab": "\x0bchunked",
    }.items()
]
CODINGS += [
    case(
        "framing-coding-1.0",
        "9112 6.1",
        MUST,
        (get(), AwaitFinals(1), PROBE),
        either(
            status(502),
            all_of(answers(200, 200), body(b"answer to probe", 1)),
            all_of(answers(200), closed),
        ),
        answer={"": (raw("HTTP/1.0 200 OK", CHUNKED) + HELLO, Close())},
        methods="GET GET",
        why="a faulty framing: the backend's connection is closed after it",
    ),
    case(
        "framing-coding-unknown-chunked",
        "9112 6.1",
        MUST,
        get(),
        either(
            status(502),
            all_of(body(b"hello"), got_field("Transfer-Encoding", b"foo, chunked")),
        ),
        answer=(answer("200 OK", "Transfer-Encoding: foo, chunked", body=HELLO), Close()),
    ),
    case(
        "framing-coding-twice",
        "9112 6.1",
        MUST,
        get(),
        either(status(502), all_of(status(200), cut), all_of(status(200), body(b"hello"))),
        answer=(answer("200 OK", "Transfer-Encoding: chunked, chunked", body=HELLO), Close()),
    ),
]

CASES = [*WHOLE, *LENGTHS, *CODINGS]

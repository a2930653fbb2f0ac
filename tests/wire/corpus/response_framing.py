"""Where an answer ends: lengths, chunks, the end of the connection, and what is cut short or comes behind (RFC 9112
sections 6.1 to 6.3, 7 and 8)."""

from __future__ import annotations

from tests.wire.case import (
    MUST,
    PROBE,
    SHOULD,
    Answer,
    AwaitFinals,
    BackendStep,
    Close,
    Pause,
    Reset,
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
    head_without,
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

# Broken chunks: whatever has been sent, the client must see that it is not the whole.
BAD_CHUNKS = {
    "size-word": b"five\r\nhello\r\n0\r\n\r\n",
    "size-empty": b"\r\nhello\r\n0\r\n\r\n",
    "size-minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "size-plus": b"+5\r\nhello\r\n0\r\n\r\n",
    "size-0x": b"0x5\r\nhello\r\n0\r\n\r\n",
    "size-underscore": b"0_5\r\nhello\r\n0\r\n\r\n",
    "size-h": b"5h\r\nhello\r\n0\r\n\r\n",
    "size-nul": b"5\0\r\nhello\r\n0\r\n\r\n",
    "size-2-64": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "size-2-32": b"100000005\r\nhello\r\n0\r\n\r\n",
    "data-surplus": b"5\r\nhelloworld\r\n0\r\n\r\n",
    "data-no-crlf": b"5\r\nhello0\r\n\r\n",
    "data-other": b"5\r\nhelloXX0\r\n\r\n",
    "data-short": b"8\r\nhello\r\n0\r\n\r\n",
    "second-bad": b"5\r\nhello\r\nzz\r\nhello\r\n0\r\n\r\n",
    "second-surplus": b"5\r\nhello\r\n3\r\nabcdef\r\n0\r\n\r\n",
    "no-chunks": b"hello",
    "line-of-octets": b"hello world, not chunked at all\r\n",
}

# Cut short by FIN or RST: never made whole (section 8).
CUTS = {
    "length-none": answer("200 OK", "Content-Length: 5"),
    "length-part": answer("200 OK", "Content-Length: 10", body=b"hello"),
    "length-one-short": answer("200 OK", "Content-Length: 6", body=b"hello"),
    "length-large": answer("200 OK", "Content-Length: 300000", body=b"x" * 200_000),
    "chunked-none": chunks(b""),
    "chunked-in-size": chunks(b"5\r\nhello\r\n5"),
    "chunked-behind-size": chunks(b"5\r\n"),
    "chunked-in-data": chunks(b"5\r\nhel"),
    "chunked-behind-data": chunks(b"5\r\nhello"),
    "chunked-behind-chunk": chunks(b"5\r\nhello\r\n"),
    "chunked-in-last": chunks(b"5\r\nhello\r\n0"),
    "chunked-behind-last": chunks(b"5\r\nhello\r\n0\r\n"),
    "chunked-in-trailer": chunks(b"5\r\nhello\r\n0\r\nX-T: 1"),
}


def ending(reply: bytes, end: BackendStep) -> tuple[BackendStep, ...]:
    return (reply, Pause(0.05), end)


BROKEN = [
    *(
        case(
            f"framing-chunk-{name}",
            "9112 8",
            MUST,
            get(),
            cut,
            answer=ending(chunks(sent), Close()),
            patience=0.8,
        )
        for name, sent in BAD_CHUNKS.items()
    ),
    *(
        case(
            f"framing-cut-{name}",
            "9112 8",
            MUST,
            get(),
            cut,
            answer=ending(reply, Close()),
            patience=0.8,
        )
        for name, reply in CUTS.items()
    ),
    *(
        case(
            f"framing-reset-{name}",
            "9112 8",
            MUST,
            get(),
            cut,
            answer=ending(CUTS[name], Reset()),
            patience=0.8,
        )
        for name in ("length-none", "length-part", "chunked-in-data", "chunked-behind-chunk", "chunked-behind-last")
    ),
    *(
        case(
            f"framing-cut-{name}-to-1.0",
            "9112 8",
            SHOULD,
            get(version="1.0"),
            cut,
            answer=ending(CUTS[name], Close()),
            patience=0.8,
            why="without chunks only a length or RST can tell",
        )
        for name in ("length-part", "chunked-in-data")
    ),
    case(
        "framing-reset-close-delimited",
        "9112 8",
        SHOULD,
        get(),
        cut,
        answer=ending(answer("200 OK", "Connection: close", body=b"hello"), Reset()),
        patience=0.8,
        why="an error of the connection is no end",
    ),
    case(
        "framing-reset-before-head",
        "9110 15.6.3",
        MUST,
        get(),
        status(502),
        answer=(Reset(),),
    ),
    case(
        "framing-reset-in-head",
        "9110 15.6.3",
        MUST,
        get(),
        status(502),
        answer=ending(b"HTTP/1.1 200 OK\r\nContent-Le", Reset()),
    ),
]

ENDINGS: dict[str, BackendStep] = {"fin": Close(), "reset": Reset()}

# Octets behind an answer belong to nobody: not to the client, not to the next request (section 9.2).
STOLEN = ok(b"stolen", "X-Answer: stolen")
BEHIND = [
    case(
        f"behind-{name}",
        "9112 9.2",
        MUST,
        (get(), AwaitFinals(1), PROBE),
        either(all_of(body(first), PROBED), all_of(body(first), answers(200), closed), status(502)),
        answer={"": reply},
        methods="GET GET",
    )
    for name, first, reply in (
        ("length-octets", b"hello", ok(b"hello") + b"surplus"),
        ("length-answer", b"hello", ok(b"hello") + STOLEN),
        ("length-crlf", b"hello", ok(b"hello") + b"\r\n"),
        ("length-zero-answer", b"", ok(b"") + STOLEN),
        ("chunked-octets", b"hello", chunks(HELLO) + b"surplus"),
        ("chunked-answer", b"hello", chunks(HELLO) + STOLEN),
        ("chunked-crlf", b"hello", chunks(HELLO) + b"\r\n"),
        ("two-answers", b"hello", ok(b"hello") + ok(b"hello") + STOLEN),
    )
]
BEHIND += [
    case(
        f"behind-later-{name}",
        "9112 9.2",
        MUST,
        (get(), AwaitFinals(1), Pause(0.15), PROBE),
        body(b"hello"),
        PROBED,
        answer={"": (ok(b"hello"), Pause(0.05), late)},
        methods="GET GET",
        alone=True,
        why="octets on an idle connection make it useless",
    )
    for name, late in {
        "answer": STOLEN,
        "octets": b"surplus",
        "408": answer("408 Request Timeout", "Content-Length: 0"),
    }.items()
]
BEHIND += [
    case(
        f"behind-{name}-closed",
        "9112 9.3.1",
        SHOULD,
        (get(), AwaitFinals(1), Pause(0.1), PROBE),
        body(b"hello"),
        PROBED,
        answer={"": (ok(b"hello"), Pause(0.02), end)},
        methods="GET GET",
        alone=True,
        why="an idle connection that the backend has closed is no error for the next request",
    )
    for name, end in ENDINGS.items()
]

# Trailer fields of an answer are no header fields (section 7.1.2).
TRAILERS = [
    case(
        f"answer-trailer-{name}",
        "9110 6.5.1",
        MUST,
        (get(), AwaitFinals(1), PROBE),
        either(all_of(body(b"hello"), PROBED), cut) if name in ("length", "coding") else all_of(body(b"hello"), PROBED),
        head_without(line.partition(": ")[0], line.partition(": ")[2].encode()),
        answer={"": chunks(f"5\r\nhello\r\n0\r\n{line}\r\n\r\n".encode())},
        methods="GET GET",
    )
    for name, line in {
        "plain": "X-T: 1",
        "length": "Content-Length: 100",
        "coding": "Transfer-Encoding: gzip",
        "cookie": "Set-Cookie: a=b",
        "connection": "Connection: close",
        "location": "Location: /evil",
        "cache": "Cache-Control: public",
    }.items()
]
TRAILERS += [
    case(
        f"answer-trailer-{name}",
        "9112 5",
        MUST,
        get(),
        either(cut, all_of(status(200), body(b"hello"), no_field("X-T"))),
        answer=ending(chunks(b"5\r\nhello\r\n0\r\n" + line + b"\r\n\r\n"), Close()),
        patience=0.8,
        why="dropped or refused, not passed on",
    )
    for name, line in {"nul": b"X-T: a\0b", "cr": b"X-T: a\rb", "no-colon": b"X-T", "fold": b"X-T: 1\r\n 2"}.items()
]

CASES = [*WHOLE, *LENGTHS, *CODINGS, *BROKEN, *BEHIND, *TRAILERS]

"""Answers that are cut short, broken, or followed by more (RFC 9112 sections 7, 8 and 9.2)."""

from __future__ import annotations

from tests.wire.case import (
    MUST,
    PROBE,
    SHOULD,
    AwaitFinals,
    BackendStep,
    Close,
    Pause,
    Reset,
    answer,
    case,
    get,
    ok,
)
from tests.wire.corpus.response_framing import HELLO, PROBED, chunks
from tests.wire.expect import (
    all_of,
    answers,
    body,
    closed,
    cut,
    either,
    head_without,
    no_field,
    status,
)

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

CASES = [*BROKEN, *BEHIND, *TRAILERS]

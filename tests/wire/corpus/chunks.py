"""The chunked coding of requests: sizes, extensions, data, trailers, early ends (RFC 9112 section 7.1)."""

from __future__ import annotations

from tests.wire.case import (
    HIDDEN,
    MUST,
    PROBE,
    SHOULD,
    AwaitFinals,
    AwaitHeads,
    HalfClose,
    Pause,
    case,
    chunked,
    get,
)
from tests.wire.expect import (
    all_of,
    answers,
    broken_off,
    either,
    forwarded,
    lacked,
    no_trailer,
    not_forwarded,
    relayed,
    status,
)

GOOD = {
    "one": b"5\r\nhello\r\n0\r\n\r\n",
    "two": b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "five": b"1\r\nh\r\n1\r\ne\r\n1\r\nl\r\n1\r\nl\r\n1\r\no\r\n0\r\n\r\n",
    "leading-zero": b"05\r\nhello\r\n0\r\n\r\n",
    "leading-zeros": b"0005\r\nhello\r\n0\r\n\r\n",
    "last-of-many-zeros": b"5\r\nhello\r\n0000\r\n\r\n",
    "extension": b"5;a\r\nhello\r\n0\r\n\r\n",
    "extension-value": b"5;a=b\r\nhello\r\n0\r\n\r\n",
    "extension-quoted": b'5;a="b c"\r\nhello\r\n0\r\n\r\n',
    "extension-quoted-pair": b'5;a="b\\"c\\\\"\r\nhello\r\n0\r\n\r\n',
    "extension-quoted-semicolon": b'5;a="b;c=d"\r\nhello\r\n0\r\n\r\n',
    "extension-two": b"5;a=b;c=d\r\nhello\r\n0\r\n\r\n",
    "extension-spaces": b"5 ; a = b\r\nhello\r\n0\r\n\r\n",
    "extension-last": b"5\r\nhello\r\n0;a=b\r\n\r\n",
    "extension-of-200": b"5;a=" + b"b" * 200 + b"\r\nhello\r\n0\r\n\r\n",
}

RELAYED = [
    *(
        case(
            f"chunk-{name}",
            "9112 7.1",
            MUST,
            (chunked(sent), AwaitFinals(1), PROBE),
            relayed(b"POST", b"/~~", b"hello", count=2),
            answers(200, 200),
            methods="POST GET",
        )
        for name, sent in GOOD.items()
    ),
    case("chunk-none", "9112 7.1", MUST, chunked(b"0\r\n\r\n"), relayed(body=b""), methods="POST"),
    *(
        case(
            f"chunk-size-{name}",
            "9112 7.1",
            MUST,
            chunked(size + b"\r\n" + b"x" * int(size, 16) + b"\r\n0\r\n\r\n"),
            relayed(body=b"x" * int(size, 16)),
            methods="POST",
        )
        for name, size in {"lower": b"ab", "upper": b"AB", "mixed": b"aB", "f": b"f", "large": b"1ffff"}.items()
    ),
    case(
        "chunk-binary",
        "9112 7.1",
        MUST,
        chunked(b"200\r\n" + bytes(range(256)) * 2 + b"\r\n0\r\n\r\n"),
        relayed(body=bytes(range(256)) * 2),
        methods="POST",
    ),
    case(
        "chunk-like-chunks",
        "9112 7.1",
        MUST,
        chunked(b"14\r\n5\r\nhello\r\n0\r\n\r\n12345\r\n0\r\n\r\n"),
        relayed(body=b"5\r\nhello\r\n0\r\n\r\n12345"),
        methods="POST",
    ),
    case(
        "chunk-thousand",
        "9112 7.1",
        MUST,
        chunked(b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n"),
        relayed(body=b"x" * 1000),
        methods="POST",
    ),
    case(
        "chunk-many-zeros",
        "9112 7.1",
        MUST,
        chunked(b"0" * 40 + b"5\r\nhello\r\n0\r\n\r\n"),
        either(relayed(body=b"hello"), broken_off()),
        methods="POST",
        why="grammatical, but a server may limit it",
    ),
    case(
        "chunk-extension-endless",
        "9112 7.1.1",
        SHOULD,
        (chunked(b"5;a=" + b"b" * 1_000_000), HalfClose()),
        broken_off(4),
        methods="POST",
        why="a server ought to limit extensions and answer with a 4xx",
    ),
    case(
        "chunk-extension-everywhere",
        "9112 7.1.1",
        MUST,
        chunked((b"1;" + b"a" * 2000 + b"\r\nx\r\n") * 200 + b"0\r\n\r\n"),
        either(relayed(body=b"x" * 200), broken_off(4)),
        methods="POST",
        why="two kilobytes of extension an octet of data: passed on without, or refused",
    ),
]

# What cannot be decoded is no message: nothing whole reaches the backend, nothing behind it is a request.
BAD = {
    "size-empty": b"\r\nhello\r\n0\r\n\r\n",
    "size-word": b"five\r\nhello\r\n0\r\n\r\n",
    "size-g": b"g\r\nhello\r\n0\r\n\r\n",
    "size-plus": b"+5\r\nhello\r\n0\r\n\r\n",
    "size-minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "size-0x": b"0x5\r\nhello\r\n0\r\n\r\n",
    "size-0X": b"0X5\r\nhello\r\n0\r\n\r\n",
    "size-x": b"x5\r\nhello\r\n0\r\n\r\n",
    "size-underscore": b"0_5\r\nhello\r\n0\r\n\r\n",
    "size-h": b"5h\r\nhello\r\n0\r\n\r\n",
    "size-dot": b"5.0\r\nhello\r\n0\r\n\r\n",
    "size-comma": b"5,5\r\nhello\r\n0\r\n\r\n",
    "size-quoted": b'"5"\r\nhello\r\n0\r\n\r\n',
    "size-nul": b"5\0\r\nhello\r\n0\r\n\r\n",
    "size-nul-first": b"\x005\r\nhello\r\n0\r\n\r\n",
    "size-vertical-tab": b"\x0b5\r\nhello\r\n0\r\n\r\n",
    "size-no-break-space": b"\xa05\r\nhello\r\n0\r\n\r\n",
    "size-wide-digit": b"\xef\xbc\x95\r\nhello\r\n0\r\n\r\n",
    "size-arabic-digit": b"\xd9\xa5\r\nhello\r\n0\r\n\r\n",
    "size-cr": b"5\r\r\nhello\r\n0\r\n\r\n",
    "size-cr-only": b"5\rhello\r\n0\r\n\r\n",
    "size-colon": b"5:\r\nhello\r\n0\r\n\r\n",
    "extension-equals": b"5=a\r\nhello\r\n0\r\n\r\n",
    "extension-cr": b"5;a\rb\r\nhello\r\n0\r\n\r\n",
    "data-no-crlf": b"5\r\nhello0\r\n\r\n",
    "data-cr": b"5\r\nhello\r0\r\n\r\n",
    "data-other": b"5\r\nhelloXX0\r\n\r\n",
    "data-one-more": b"5\r\nhello!\r\n0\r\n\r\n",
    "data-surplus": b"5\r\nhelloworld\r\n0\r\n\r\n",
    "data-two-short": b"5\r\nhel\r\n0\r\n\r\n",
    "data-cr-cr-lf": b"5\r\nhello\r\r\n0\r\n\r\n",
    "data-extra-crlf": b"5\r\nhello\r\n\r\n0\r\n\r\n",
    "overflow-2-32": b"100000005\r\nhello\r\n0\r\n\r\n",
    "overflow-2-64": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "overflow-2-128": b"100000000000000000000000000000005\r\nhello\r\n0\r\n\r\n",
    "overflow-minus-one": b"ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "overflow-sign": b"8000000000000005\r\nhello\r\n0\r\n\r\n",
    "overflow-long": b"f" * 300 + b"\r\nhello\r\n0\r\n\r\n",
    "last-minus": b"5\r\nhello\r\n-0\r\n\r\n",
    "last-0x0": b"5\r\nhello\r\n0x0\r\n\r\n",
    "second-bad": b"5\r\nhello\r\nx\r\n\r\n",
}

# Line ends and blanks that some accept and that make two readings of one message: right or not at all.
LENIENT = {
    "size-space-behind": b"5 \r\nhello\r\n0\r\n\r\n",
    "size-tab-behind": b"5\t\r\nhello\r\n0\r\n\r\n",
    "size-space-first": b" 5\r\nhello\r\n0\r\n\r\n",
    "size-lf": b"5\nhello\r\n0\r\n\r\n",
    "data-lf": b"5\r\nhello\n0\r\n\r\n",
    "last-lf": b"5\r\nhello\r\n0\n\r\n",
    "end-lf": b"5\r\nhello\r\n0\r\n\n",
    "all-lf": b"5\nhello\n0\n\n",
    "size-two": b"5 5\r\nhello\r\n0\r\n\r\n",
    "extension-word": b"5 a\r\nhello\r\n0\r\n\r\n",
    "extension-nul": b"5;a=\0\r\nhello\r\n0\r\n\r\n",
    "extension-empty": b"5;\r\nhello\r\n0\r\n\r\n",
    "extension-no-name": b"5;=b\r\nhello\r\n0\r\n\r\n",
    "extension-open-quote": b'5;a="b\r\nhello\r\n0\r\n\r\n',
    "extension-control": b"5;a=\x01\r\nhello\r\n0\r\n\r\n",
    "extension-high": b"5;a=\xe9\r\nhello\r\n0\r\n\r\n",
    "extension-lf": b"5;a\nhello\r\n0\r\n\r\n",
}

REFUSED = [
    *(
        case(
            f"chunk-{name}",
            "9112 7.1",
            MUST,
            (chunked(sent) + HIDDEN, Pause(0.02), HalfClose()),
            broken_off(),
            not_forwarded("hidden"),
            methods="POST",
            patience=0.6,
        )
        for name, sent in BAD.items()
    ),
    *(
        case(
            f"chunk-{name}-400",
            "9112 2.2",
            SHOULD,
            (chunked(BAD[name]), AwaitHeads(1)),
            broken_off(400),
            status(400),
            methods="POST",
        )
        for name in ("size-word", "size-minus", "data-no-crlf", "overflow-2-64")
    ),
    *(
        case(
            f"chunk-{name}",
            "9112 7.1",
            MUST,
            (chunked(sent), Pause(0.02), HalfClose()),
            either(relayed(body=b"hello"), broken_off()),
            methods="POST",
            patience=0.6,
        )
        for name, sent in LENIENT.items()
    ),
    *(
        case(
            f"chunk-{name}-refused",
            "9112 2.2",
            SHOULD,
            (chunked(sent), Pause(0.02), HalfClose()),
            broken_off(),
            methods="POST",
            patience=0.6,
        )
        for name, sent in LENIENT.items()
    ),
]

ENDS = {
    "nothing": b"",
    "in-size": b"5",
    "behind-size": b"5\r\n",
    "in-data": b"5\r\nhel",
    "behind-data": b"5\r\nhello",
    "behind-chunk": b"5\r\nhello\r\n",
    "in-last": b"5\r\nhello\r\n0",
    "behind-last": b"5\r\nhello\r\n0\r\n",
    "in-end": b"5\r\nhello\r\n0\r\n\r",
    "in-trailer": b"5\r\nhello\r\n0\r\nX-T: 1",
    "behind-trailer": b"5\r\nhello\r\n0\r\nX-T: 1\r\n",
}

CUT = [
    case(
        f"chunk-cut-{name}",
        "9112 8",
        MUST,
        (chunked(sent), Pause(0.02), HalfClose()),
        broken_off(),
        methods="POST",
        patience=0.6,
    )
    for name, sent in ENDS.items()
]

# A trailer field is passed on as a trailer or dropped; it never becomes a header field (section 7.1.2).
TRAILERS = {
    "plain": "X-T: 1",
    "length": "Content-Length: 100",
    "coding": "Transfer-Encoding: gzip",
    "host": "Host: b.example",
    "authorization": "Authorization: Basic YTpi",
    "key": "X-User-ID: eve",
    "cookie": "Cookie: a=b",
    "connection": "Connection: close",
    "forwarded": "X-Forwarded-For: 192.0.2.9",
    "content-type": "Content-Type: text/evil",
    "cache": "Cache-Control: no-store",
    "expect": "Expect: 100-continue",
}

BAD_TRAILERS = {
    "nul": b"X-T: a\0b",
    "cr": b"X-T: a\rb",
    "space-before-colon": b"X-T : 1",
    "no-colon": b"X-T",
    "no-name": b": 1",
    "bad-name": b"X-T(): 1",
    "fold": b"X-T: 1\r\n 2",
    "space-first": b" X-T: 1",
}

TRAILING = [
    *(
        case(
            f"trailer-{name}",
            "9110 6.5.1",
            MUST,
            (chunked(f"5\r\nhello\r\n0\r\n{line}\r\n\r\n".encode()), AwaitFinals(1), PROBE),
            either(all_of(relayed(body=b"hello", count=2), answers(200, 200)), broken_off(4)),
            *(
                (lacked(line.partition(":")[0]),)
                if name not in ("host", "length", "coding", "connection", "forwarded")
                else ()
            ),
            methods="POST GET",
        )
        for name, line in TRAILERS.items()
    ),
    case(
        "trailer-several",
        "9112 7.1.2",
        MUST,
        (chunked(b"5\r\nhello\r\n0\r\nX-A: 1\r\nX-B: 2\r\nX-A: 3\r\n\r\n"), AwaitFinals(1), PROBE),
        relayed(body=b"hello", count=2),
        answers(200, 200),
        lacked("X-A", "X-B"),
        methods="POST GET",
    ),
    *(
        case(
            f"trailer-{name}",
            "9110 5.5" if name in ("nul", "cr") else "9112 5.1",
            MUST,
            (chunked(b"5\r\nhello\r\n0\r\n" + line + b"\r\n\r\n"), Pause(0.02), HalfClose()),
            either(broken_off(), all_of(relayed(body=b"hello"), no_trailer("X-T"))),
            methods="POST",
            patience=0.6,
            why="refused or dropped, not passed on",
        )
        for name, line in BAD_TRAILERS.items()
    ),
    *(
        case(
            f"trailer-{name}-refused",
            "9112 2.2",
            SHOULD,
            (chunked(b"5\r\nhello\r\n0\r\n" + line + b"\r\n\r\n"), Pause(0.02), HalfClose()),
            broken_off(),
            methods="POST",
            patience=0.6,
        )
        for name, line in BAD_TRAILERS.items()
    ),
    case(
        "trailer-request",
        "9112 7.1.2",
        MUST,
        (chunked(b"5\r\nhello\r\n0\r\n") + HIDDEN, Pause(0.02), HalfClose()),
        either(broken_off(), relayed(body=b"hello")),
        not_forwarded("hidden"),
        methods="POST",
        patience=0.6,
        why="a request behind the last chunk is no trailer field, and no request: refused or dropped",
    ),
    case(
        "trailer-endless",
        "9110 5.4",
        MUST,
        chunked(b"5\r\nhello\r\n0\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"v" * 90) for n in range(20_000)) + b"\r\n"),
        either(broken_off(4), forwarded(1)),
        methods="POST",
    ),
    case(
        "trailer-then-request",
        "9112 7.1.2",
        MUST,
        chunked(b"5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n") + get(path="/~~/second"),
        forwarded(2),
        answers(200, 200),
        methods="POST GET",
    ),
]

CASES = [*RELAYED, *REFUSED, *CUT, *TRAILING]

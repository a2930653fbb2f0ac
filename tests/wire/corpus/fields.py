"""Header fields: names, values, what is passed on (RFC 9112 section 5, RFC 9110 section 5)."""

from __future__ import annotations

from tests.wire.case import HOST, MUST, SHOULD, case, get, raw
from tests.wire.expect import (
    Seen,
    all_of,
    either,
    had,
    had_in_order,
    holds,
    lacked,
    refused,
    rejected,
    relayed,
    spelled,
)

LINE = "GET /~~ HTTP/1.1"
HOST_LINE = f"Host: {HOST}"

# Unrecognized fields go on, whatever their name (RFC 9110 section 5.1).
NAMES = {
    "plain": "X-Strange",
    "underscore": "X_Strange",
    "dot": "X.Strange",
    "digits": "123",
    "one-letter": "Q",
    "all-marks": "!#$%&'*+-.^_`|~",
    "long": "X-" + "n" * 200,
}

# Optional whitespace around a value is not part of it (RFC 9112 section 5.1); everything else in it is.
VALUES = {
    "plain": ("value", b"value"),
    "empty": ("", b""),
    "spaces-around": ("   value   ", b"value"),
    "tabs-around": ("\tvalue\t", b"value"),
    "only-spaces": ("    ", b""),
    "spaces-inside": ("a   b", b"a   b"),
    "tab-inside": ("a\tb", b"a\tb"),
    "quotes": ('"a, b"; c=\\"', b'"a, b"; c=\\"'),
    "colons": ("a:b: c", b"a:b: c"),
    "commas": ("a,,b, ,c", b"a,,b, ,c"),
    "all-visible": ("".join(map(chr, range(0x21, 0x7F))), bytes(range(0x21, 0x7F))),
    "percent": ("%0d%0aX: y", b"%0d%0aX: y"),
    "one-kilobyte": ("v" * 1000, b"v" * 1000),
    "four-kilobytes": ("v" * 4000, b"v" * 4000),
}

OPAQUE = {
    "latin": ("caf\xe9", b"caf\xe9"),
    "utf8": ("caf\xc3\xa9", b"caf\xc3\xa9"),
    "all-high": ("".join(map(chr, range(0x80, 0x100))), bytes(range(0x80, 0x100))),
}


def _ordered(seen: Seen) -> str:
    names = [key.lower() for key, _ in seen.forwarded[0].fields] if seen.forwarded else []
    mine = [name for name in names if name in (b"x-z", b"x-a", b"x-m")]
    return "" if mine == [b"x-z", b"x-a", b"x-m"] else f"the names are {names}"


PASSED_ON = [
    *(
        case(f"field-name-{name}", "9110 5.1", MUST, get(f"{text}: v"), relayed(), had(text, b"v"))
        for name, text in NAMES.items()
    ),
    *(
        case(
            f"field-value-{name}",
            "9110 5.5" if "around" in name or "only" in name else "9110 5.1",
            MUST,
            raw(LINE, HOST_LINE, f"X-Value:{' ' if not sent[:1].isspace() else ''}{sent}"),
            relayed(),
            had_in_order("X-Value", got),
        )
        for name, (sent, got) in VALUES.items()
    ),
    *(
        case(
            f"field-value-{name}", "9110 5.5", SHOULD, get(f"X-Value: {sent}"), relayed(), had_in_order("X-Value", got)
        )
        for name, (sent, got) in OPAQUE.items()
    ),
    case("field-no-space", "9112 5.1", MUST, raw(LINE, "Host:a.example", "X-A:1"), relayed(), had("X-A", b"1")),
    case(
        "field-order-repeated",
        "9110 5.3",
        MUST,
        get("X-A: 1", "X-B: other", "X-A: 2", "x-a: 3"),
        relayed(),
        had("X-A", b"1", b"2", b"3"),
        why="the order of lines of one name is part of their meaning",
    ),
    case(
        "field-repeated-apart",
        "9110 5.2",
        SHOULD,
        get("X-A: 1", "X-A: 2"),
        relayed(),
        had_in_order("X-A", b"1", b"2"),
    ),
    case(
        "field-cookies",
        "9110 5.3",
        MUST,
        get("Cookie: a=1; b=2", "Cookie: c=3"),
        relayed(),
        either(had_in_order("Cookie", b"a=1; b=2", b"c=3"), had_in_order("Cookie", b"a=1; b=2; c=3")),
    ),
    case(
        "field-name-case",
        "9110 5.1",
        SHOULD,
        get("X-mIxEd-CaSe: 1"),
        relayed(),
        spelled(b"X-mIxEd-CaSe"),
        why="names are case-insensitive, but not all that read them know it",
    ),
    case(
        "field-order-of-names",
        "9110 5.3",
        SHOULD,
        get("X-Z: 1", "X-A: 2", "X-M: 3"),
        relayed(),
        holds("the lines are in the order in which they were sent", _ordered),
    ),
    case(
        "field-end-to-end",
        "9110 7.7",
        MUST,
        get(
            "Authorization: Basic YTpi",
            "Cache-Control: no-transform",
            'If-None-Match: "x", W/"y"',
            "Range: bytes=0-1",
            "Accept: text/html;q=0.5, */*",
            "User-Agent: wire/1 (x)",
            "Referer: http://b.example/",
            "Content-Type: text/plain",
        ),
        relayed(),
        had("Authorization", b"Basic YTpi"),
        had("Cache-Control", b"no-transform"),
        had("If-None-Match", b'"x", W/"y"'),
        had("Range", b"bytes=0-1"),
        had("Accept", b"text/html;q=0.5, */*"),
        had("User-Agent", b"wire/1 (x)"),
        had("Referer", b"http://b.example/"),
        had("Content-Type", b"text/plain"),
    ),
]


# No whitespace between name and colon: 400, without exception (RFC 9112 section 5.1).
COLONS = [
    case(f"field-{name}", "9112 5.1", MUST, get(line), refused(400))
    for name, line in {
        "space-before-colon": "X-A : 1",
        "spaces-before-colon": "X-A   : 1",
        "tab-before-colon": "X-A\t: 1",
        "length-space-before-colon": "Content-Length : 0",
        "coding-space-before-colon": "Transfer-Encoding : chunked",
        "connection-space-before-colon": "Connection : close",
        "key-space-before-colon": "X-User-ID : eve",
    }.items()
]
COLONS.append(
    case("field-host-space-before-colon", "9112 5.1", MUST, raw(LINE, "Host : a.example", "X: 1"), refused(400))
)

BROKEN_LINES = {
    "space-in-name": "X A: 1",
    "tab-in-name": "X\tA: 1",
    "no-colon": "X-A",
    "no-name": ": 1",
    "parenthesis": "X(A): 1",
    "slash": "X/A: 1",
    "at": "X@A: 1",
    "comma": "X,A: 1",
    "semicolon": "X;A: 1",
    "equals": "X=A: 1",
    "quote": '"X-A": 1',
    "bracket": "X[A]: 1",
    "brace": "X{A}: 1",
    "question": "X?A: 1",
    "backslash": "X\\A: 1",
    "angle": "<X-A>: 1",
    "latin-name": "X-\xe9: 1",
    "utf8-name": "X-\xc3\xa9: 1",
    "nbsp-name": "X-A\xa0: 1",
    "control-name": "X-\x01A: 1",
    "delete-name": "X-A\x7f: 1",
    "nul-name": "X-\0A: 1",
    "nul-behind-name": "X-A\0: 1",
    "vertical-tab-behind-name": "X-A\x0b: 1",
    "nul-line": "\0",
}

BROKEN = [
    *(case(f"field-{name}", "9112 2.2", SHOULD, get(line), refused(400)) for name, line in BROKEN_LINES.items()),
    *(
        case(
            f"field-first-{name}",
            "9112 2.2",
            SHOULD,
            raw(LINE, line, HOST_LINE),
            refused(400),
        )
        for name, line in {"no-colon": "X-A", "no-name": ": 1"}.items()
    ),
]

# NUL, CR and LF in a value: refuse or replace by SP (RFC 9110 section 5.5, RFC 9112 section 2.2).
DANGEROUS = {
    "nul": ("a\0b", b"a b"),
    "nul-first": ("\0a", b"a"),
    "nul-last": ("a\0", b"a"),
    "nul-alone": ("\0", b""),
    "cr": ("a\rb", b"a b"),
    "cr-first": ("\ra", b"a"),
    "cr-last": ("a\r", b"a"),
    "cr-colon": ("a\rX-Injected: 1", b"a X-Injected: 1"),
    "cr-cr": ("a\r\rb", b"a  b"),
}

UNSAFE = [
    *(
        case(
            f"field-value-{name}",
            "9110 5.5" if "nul" in name else "9112 2.2",
            MUST,
            get(f"X-Value: {sent}"),
            lacked("X-Injected"),
            either(rejected(), all_of(relayed(), had_in_order("X-Value", got))),
        )
        for name, (sent, got) in DANGEROUS.items()
    ),
    case("field-cookie-nul", "9110 5.5", MUST, get("Cookie: a=\0b"), either(rejected(), had("Cookie", b"a= b"))),
    case("field-key-nul", "9110 5.5", MUST, get("X-User-ID: e\0ve"), either(rejected(), had("X-User-ID", b"e ve"))),
    case("field-cr-before-name", "9112 2.2", MUST, get("\rX-A: 1"), either(rejected(), relayed())),
    case("field-cr-behind-name", "9112 2.2", MUST, get("X-A\r: 1"), rejected()),
    case("field-cr-in-name", "9112 2.2", MUST, get("X\rA: 1"), rejected()),
    *(
        case(f"field-value-{name}", "9110 5.5", SHOULD, get(f"X-Value: a{chr(octet)}b"), refused(400))
        for name, octet in {"bell": 7, "backspace": 8, "vertical-tab": 11, "escape": 27, "delete": 127}.items()
    ),
]

CASES = [*PASSED_ON, *COLONS, *BROKEN, *UNSAFE]

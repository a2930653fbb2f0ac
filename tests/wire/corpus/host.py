"""Host: one, valid, passed on (RFC 9112 section 3.2, RFC 9110 section 7.2, RFC 3986 section 3.2.2)."""

from __future__ import annotations

from tests.wire.case import MUST, case, get, post, raw
from tests.wire.expect import either, had, refused, relayed

LINE = "GET /~~ HTTP/1.1"


def hosts(*lines: str, version: str = "1.1") -> bytes:
    return raw(f"GET /~~ HTTP/{version}", *lines, "X-Last: 1")


NOT_ONE = [
    case("host-missing", "9112 3.2", MUST, hosts(), refused(400)),
    case(
        "host-missing-post",
        "9112 3.2",
        MUST,
        raw("POST /~~ HTTP/1.1", "Content-Length: 5") + b"hello",
        refused(400),
        methods="POST",
    ),
    case("host-similar-name", "9112 3.2", MUST, hosts("X-Host: a.example", "Hosts: a.example"), refused(400)),
    *(
        case(f"host-{name}", "9112 3.2", MUST, hosts(*lines), refused(400))
        for name, lines in {
            "twice-same": ("Host: a.example", "Host: a.example"),
            "twice-other": ("Host: a.example", "Host: b.example"),
            "twice-apart": ("Host: a.example", "X-A: 1", "Host: b.example"),
            "twice-other-case": ("Host: a.example", "hOST: b.example"),
            "twice-one-empty": ("Host: a.example", "Host:"),
            "twice-empty-first": ("Host:", "Host: a.example"),
            "three-times": ("Host: a.example", "Host: a.example", "Host: a.example"),
        }.items()
    ),
    case(
        "host-twice-1.0",
        "9112 3.2",
        MUST,
        hosts("Host: a.example", "Host: b.example", version="1.0"),
        refused(400),
        why="any request with more than one Host line",
    ),
]

INVALID = {
    "space": "a b",
    "comma-space": "a.example, b.example",
    "slash": "a.example/x",
    "slash-first": "/a.example",
    "url": "http://a.example",
    "question": "a.example?x",
    "fragment": "a.example#x",
    "userinfo": "user@a.example",
    "userinfo-password": "user:pw@a.example",
    "at-alone": "@a.example",
    "word-port": "a.example:http",
    "negative-port": "a.example:-1",
    "plus-port": "a.example:+80",
    "hexadecimal-port": "a.example:0x50",
    "space-port": "a.example: 80",
    "two-ports": "a.example:80:81",
    "port-behind-space": "a.example :80",
    "bare-ipv6": "2001:db8::1",
    "open-bracket": "[2001:db8::1",
    "close-bracket": "2001:db8::1]",
    "behind-bracket": "[::1]x",
    "word-in-bracket": "[a.example]",
    "empty-bracket": "[]",
    "backslash": "a.example\\x",
    "angle": "<a.example>",
    "double-quote": '"a.example"',
    "pipe": "a|b",
    "caret": "a^b",
    "grave": "a`b",
    "brace": "{a}",
    "bad-percent": "a%zz",
    "half-percent": "a%4",
    "utf8": "\xc3\xa9.example",
    "latin": "\xe9.example",
    "nul": "a\0.example",
    "nul-last": "a.example\0",
    "control": "a\x01.example",
    "delete": "a\x7f.example",
    "tab": "a\tb",
    "cr": "a.example\rX: 1",
}

VALID = {
    "name": "a.example",
    "port": "a.example:8080",
    "default-port": "a.example:80",
    "empty-port": "a.example:",
    "upper-case": "A.EXAMPLE",
    "one-label": "localhost",
    "trailing-dot": "a.example.",
    "underscore": "a_b.example",
    "hyphen": "a--b.example",
    "punycode": "xn--caf-dma.example",
    "ipv4": "192.0.2.1",
    "ipv4-port": "192.0.2.1:81",
    "ipv6": "[2001:db8::1]",
    "ipv6-port": "[2001:db8::1]:81",
    "ipv6-ipv4": "[::ffff:192.0.2.1]",
    "long": ".".join(["a" * 60] * 4),
}

# Grammatical, yet odd enough that a server may well refuse them.
ODD = {
    "sub-delims": "a!$&'()*+,;=.example",
    "percent": "a%41.example",
    "future-address": "[v1.x:y]",
    "large-port": "a.example:99999",
    "long-port": "a.example:" + "0" * 40 + "80",
    "very-long": "a" * 2000,
    "dots": "..",
}

VALUES = [
    *(case(f"host-{name}", "9112 3.2", MUST, hosts(f"Host: {value}"), refused(400)) for name, value in INVALID.items()),
    *(
        case(
            f"host-{name}",
            "9110 7.2",
            MUST,
            hosts(f"Host: {value}"),
            relayed(target=b"/~~"),
            had("Host", value.encode()),
        )
        for name, value in VALID.items()
    ),
    *(
        case(
            f"host-{name}",
            "9110 7.2",
            MUST,
            hosts(f"Host: {value}"),
            either(relayed(target=b"/~~"), refused(400, 421, 404)),
        )
        for name, value in ODD.items()
    ),
]

PLACES = [
    case(
        "host-empty",
        "9112 3.3",
        MUST,
        hosts("Host:"),
        either(relayed(target=b"/~~"), refused(400, 421, 404)),
        why="a server may refuse it or fall back to a default",
    ),
    case("host-last", "9110 5.3", MUST, raw(LINE, "X-A: 1", "Host: a.example"), relayed(), had("Host", b"a.example")),
    case("host-lower-case-name", "9110 5.1", MUST, hosts("host: a.example"), relayed(), had("Host", b"a.example")),
    case("host-whitespace-around", "9112 5.1", MUST, hosts("Host: \t a.example \t"), had("Host", b"a.example")),
    case("host-1.0", "9110 7.2", MUST, hosts("Host: a.example", version="1.0"), relayed(), had("Host", b"a.example")),
    case(
        "host-invalid-1.0",
        "9112 3.2",
        MUST,
        hosts("Host: a b", version="1.0"),
        refused(400),
        why="any request message with an invalid Host",
    ),
    case(
        "host-after-body",
        "9112 3.2",
        MUST,
        raw("POST /~~ HTTP/1.1", "Transfer-Encoding: chunked") + b"0\r\nHost: a.example\r\n\r\n",
        refused(400),
        methods="POST",
        why="a trailer field is no header field",
    ),
    case(
        "host-invalid-post",
        "9112 3.2",
        MUST,
        raw("POST /~~ HTTP/1.1", "Host: a/b", "Content-Length: 2") + b"ok",
        refused(400),
        methods="POST",
    ),
    case("host-with-body", "9110 7.2", MUST, post(b"ok"), relayed(body=b"ok"), methods="POST"),
    case("host-get", "9110 7.2", MUST, get(), relayed()),
]

CASES = [*NOT_ONE, *VALUES, *PLACES]

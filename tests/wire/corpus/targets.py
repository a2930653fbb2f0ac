"""The request target in its four forms (RFC 9112 section 3.2, RFC 9110 sections 4.2 and 7.7)."""

from __future__ import annotations

from tests.wire.case import MUST, SHOULD, case, get, post, raw
from tests.wire.expect import (
    all_of,
    either,
    forwarded,
    had,
    nothing,
    refused,
    rejected,
    relayed,
    status,
)

# A proxy does not touch the path and the query (RFC 9110 section 7.7); some refuse what climbs above the root.
VERBATIM = {
    "plain": "/~~",
    "query": "/~~?a=b&c=d",
    "empty-query": "/~~?",
    "two-question-marks": "/~~?a?b??c",
    "encoded-slash": "/~~/a%2Fb",
    "encoded-dots": "/~~/%2e%2E/b",
    "lower-hex": "/~~/%c3%a9",
    "upper-hex": "/~~/%C3%A9",
    "encoded-nul": "/~~/%00",
    "encoded-crlf": "/~~/%0d%0aX-Injected:%201",
    "encoded-plain": "/~~/%61%7E",
    "encoded-percent": "/~~/%2525",
    "double-slash": "/~~//a//b",
    "leading-double-slash": "//~~/a",
    "trailing-slash": "/~~/a/",
    "dot": "/~~/./a",
    "dot-dot": "/~~/a/../b",
    "above-root": "/../../~~",
    "parameters": "/~~;a=1/b;c=2",
    "sub-delims": "/~~/!$&'()*+,;=:@",
    "plus": "/~~?q=a+b",
    "slashes-in-query": "/~~?/a/../b",
    "url-in-query": "/~~?u=http://b.example/x?y",
    "asterisk-in-path": "/~~/*",
    "colon-first": "/:~~",
}

ORIGIN = [
    case(
        f"target-{name}",
        "9110 7.7",
        MUST,
        get(path=path),
        either(relayed(b"GET", path.encode()), refused(400))
        if name in ("above-root", "encoded-nul")
        else relayed(b"GET", path.encode()),
    )
    for name, path in VERBATIM.items()
]

# Octets that no target may hold. A server should answer 400 and not set them right (section 3.2).
FORBIDDEN = {
    "fragment": "/~~#part",
    "quote": '/~~"x',
    "angle": "/~~<x>",
    "brace": "/~~{x}",
    "pipe": "/~~|x",
    "backslash": "/~~\\x",
    "caret": "/~~^x",
    "grave": "/~~`x",
    "utf8": "/~~\xc3\xa9",
    "latin": "/~~\xe9",
    "nul": "/~~\0x",
    "control": "/~~\x01x",
    "escape": "/~~\x1bx",
    "delete": "/~~\x7fx",
    "bad-percent": "/~~%zz",
    "half-percent": "/~~%a",
    "no-slash": "~~",
    "query-alone": "?~~",
    "relative": "./~~",
    "host-and-port": "b.example:80",
    "opaque": "mailto:~~",
    "empty-scheme": "://b.example/~~",
}

INVALID = [
    *(
        case(f"target-{name}-refused", "9112 3.2", SHOULD, get("X-Mark: ~~", path=path), refused(400, 301))
        for name, path in FORBIDDEN.items()
    ),
    case("target-empty", "9112 3", SHOULD, raw("GET  HTTP/1.1", "Host: a.example", "X: ~~"), refused(400)),
]


def absolute(target: str, *lines: str, method: str = "GET", version: str = "1.1") -> bytes:
    return raw(f"{method} {target} HTTP/{version}", *(lines or ("Host: a.example",)), "X-Mark: ~~")


# The host of an absolute target wins over Host; the origin gets the origin form (sections 3.2.1, 3.2.2).
ABSOLUTE = [
    case("absolute-accepted", "9112 3.2.2", MUST, absolute("http://a.example/~~"), relayed(b"GET")),
    case("absolute-host", "9112 3.2.2", MUST, absolute("http://b.example/~~"), relayed(), had("Host", b"b.example")),
    case("absolute-origin-form", "9112 3.2.1", MUST, absolute("http://a.example/~~?q"), relayed(target=b"/~~?q")),
    case(
        "absolute-port",
        "9112 3.2.2",
        MUST,
        absolute("http://b.example:8080/~~"),
        relayed(target=b"/~~"),
        had("Host", b"b.example:8080"),
    ),
    case(
        "absolute-scheme-case",
        "9110 4.2.3",
        MUST,
        absolute("HTTP://b.example/~~"),
        relayed(target=b"/~~"),
        had("Host", b"b.example"),
        why="schemes are case-insensitive",
    ),
    case(
        "absolute-no-path",
        "9112 3.2.1",
        MUST,
        absolute("http://b.example"),
        relayed(target=b"/"),
        had("Host", b"b.example"),
    ),
    case("absolute-query-only", "9112 3.2.1", MUST, absolute("http://b.example?q=1"), relayed(target=b"/?q=1")),
    case(
        "absolute-ipv6",
        "9112 3.2.2",
        MUST,
        absolute("http://[2001:db8::1]:81/~~"),
        relayed(target=b"/~~"),
        had("Host", b"[2001:db8::1]:81"),
    ),
    case(
        "absolute-post",
        "9112 3.2.2",
        MUST,
        post(b"hello", path="http://b.example/~~"),
        relayed(b"POST", b"/~~", b"hello"),
        had("Host", b"b.example"),
        methods="POST",
    ),
    case(
        "absolute-1.0-no-host",
        "9112 3.2.2",
        MUST,
        raw("GET http://b.example/~~ HTTP/1.0", "X: 1"),
        either(all_of(relayed(target=b"/~~"), had("Host", b"b.example")), refused(400)),
    ),
    case("absolute-no-host", "9112 3.2", MUST, raw("GET http://b.example/~~ HTTP/1.1", "X: 1"), refused(400)),
    case(
        "absolute-two-hosts",
        "9112 3.2",
        MUST,
        absolute("http://b.example/~~", "Host: a.example", "Host: b.example"),
        refused(400),
    ),
    case(
        "absolute-invalid-host",
        "9112 3.2",
        MUST,
        absolute("http://b.example/~~", "Host: a b"),
        refused(400),
    ),
    case(
        "absolute-userinfo",
        "9112 3.2",
        MUST,
        absolute("http://user:secret@b.example/~~"),
        either(refused(400), all_of(relayed(), had("Host", b"b.example"))),
        why="the Host made from a target has no userinfo",
    ),
    case("absolute-userinfo-refused", "9110 4.2.4", SHOULD, absolute("http://user@b.example/~~"), refused(400)),
    case("absolute-empty-host", "9110 4.2.1", MUST, absolute("http:///~~"), refused(400)),
    case("absolute-empty-host-port", "9110 4.2.1", MUST, absolute("http://:80/~~"), refused(400)),
    case("absolute-bad-port", "9112 3.2", MUST, absolute("http://b.example:80x/~~"), refused(400)),
    case("absolute-bad-host", "9112 3.2", MUST, absolute("http://b,\x01example/~~"), refused(400)),
    case(
        "absolute-https",
        "9110 7.4",
        MUST,
        absolute("https://b.example/~~"),
        either(refused(400, 421, 403, 404), all_of(relayed(), had("Host", b"b.example"))),
        why="a gateway may stand behind another that ended TLS; Host follows the target all the same",
    ),
    case(
        "absolute-other-scheme",
        "9112 3.2.2",
        MUST,
        absolute("ftp://b.example/~~"),
        either(refused(400, 404, 421, 501), all_of(relayed(), had("Host", b"b.example"))),
    ),
    case("absolute-fragment", "9112 3.2", SHOULD, absolute("http://b.example/~~#part"), refused(400)),
]

ASTERISK = [
    case(
        "asterisk-options",
        "9112 3.2.4",
        MUST,
        absolute("*", method="OPTIONS"),
        either(relayed(b"OPTIONS", b"*"), all_of(status(200, 204), nothing)),
        methods="OPTIONS",
    ),
    case(
        "asterisk-options-absolute",
        "9112 3.2.4",
        MUST,
        absolute("http://b.example:8001", method="OPTIONS"),
        either(all_of(relayed(b"OPTIONS", b"*"), had("Host", b"b.example:8001")), all_of(status(200, 204), nothing)),
        methods="OPTIONS",
        why="the last proxy sends * for an absolute OPTIONS target without path and query",
    ),
    case(
        "asterisk-options-absolute-slash",
        "9112 3.2.4",
        MUST,
        absolute("http://b.example/", method="OPTIONS"),
        relayed(b"OPTIONS", b"/"),
        methods="OPTIONS",
    ),
    *(
        case(
            f"asterisk-{method.lower()}",
            "9110 7.1",
            SHOULD,
            absolute("*", method=method),
            refused(400, 404, 405),
            methods=method,
            why="the asterisk form is for OPTIONS alone",
        )
        for method in ("GET", "DELETE", "HEAD")
    ),
    case("asterisk-tail", "9112 3.2.4", SHOULD, absolute("*/~~", method="OPTIONS"), refused(400), methods="OPTIONS"),
]

# An origin need not know CONNECT; it must not take it for something else (RFC 9110 section 9.3.6).
CONNECT = [
    case(
        "connect",
        "9110 9.3.6",
        MUST,
        absolute("b.example:443", method="CONNECT"),
        either(all_of(status(4, 5), nothing), forwarded(1)),
        methods="CONNECT",
    ),
    *(
        case(
            f"connect-{name}",
            "9110 9.3.6",
            MUST,
            absolute(target, method="CONNECT"),
            all_of(status(4, 5), nothing),
            methods="CONNECT",
            why="an empty or invalid port is rejected",
        )
        for name, target in {
            "no-port": "b.example",
            "empty-port": "b.example:",
            "word-port": "b.example:https",
            "large-port": "b.example:70000",
            "path": "/~~",
            "url": "http://b.example:80/~~",
        }.items()
    ),
    case(
        "connect-hidden",
        "9110 9.3.6",
        SHOULD,
        absolute("b.example:443", method="CONNECT") + get(path="/~~/hidden"),
        rejected(4, 5),
        methods="CONNECT",
        why="what follows may be meant for the tunnel that was asked for",
    ),
]

CASES = [*ORIGIN, *INVALID, *ABSOLUTE, *ASTERISK, *CONNECT]

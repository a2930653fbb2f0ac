"""The request line: whitespace, methods, versions, line ends, empty lines before it (RFC 9112 sections 2.2, 2.3, 3)."""

from __future__ import annotations

from tests.wire.case import HOST, MUST, SHOULD, AwaitFinals, case, get, octets, post, raw
from tests.wire.expect import all_of, answers, either, forwarded, nothing, refused, rejected, relayed, status, version

HOST_LINE = f"Host: {HOST}"

# Every method is a token and is passed on as it is; what it means is the backend's affair (RFC 9110 section 7.6).
STANDARD = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"]
EXTENSION = ["PROPFIND", "M-SEARCH", "REPORT", "FROBNICATE", "BREW", "A", "Get", "!#$%&'*+-.^_`|~9Az", "X" * 40]

METHODS = [
    *(
        case(
            f"method-{name.lower()}",
            "9110 9.1",
            MUST,
            post(b"hello", method=name) if name in ("POST", "PUT", "PATCH") else get(method=name),
            relayed(name.encode(), b"/~~"),
            methods=name,
        )
        for name in STANDARD
    ),
    case("method-head", "9110 9.3.2", MUST, get(method="HEAD"), relayed(b"HEAD", b"/~~"), methods="HEAD"),
    *(
        case(
            f"method-extension-{number}",
            "9110 7.6",
            SHOULD,
            get(method=name),
            relayed(name.encode(), b"/~~"),
            why=f"intermediaries are expected to forward methods that they do not know: {name[:20]}",
        )
        for number, name in enumerate(EXTENSION)
    ),
    case(
        "method-case",
        "9110 9.1",
        MUST,
        get(method="get"),
        either(relayed(b"get"), refused(400, 405, 501)),
        why="the method is case-sensitive: get is not GET",
    ),
    case(
        "method-unknown-body",
        "9112 6",
        SHOULD,
        post(b"hello", method="FROBNICATE"),
        relayed(b"FROBNICATE", body=b"hello"),
        why="framing does not depend on the method",
    ),
    case(
        "method-long",
        "9112 3",
        SHOULD,
        get(method="X" * 300),
        either(relayed(b"X" * 300), refused(501, 400, 414, 431, 405)),
    ),
    case("method-very-long", "9112 3", SHOULD, get(method="X" * 70_000), rejected(400, 501, 414, 431, 405)),
]

BROKEN_METHODS = {
    "parenthesis": "GE(T",
    "slash": "GE/T",
    "at": "GE@T",
    "equals": "G=T",
    "comma": "GET,",
    "colon": "GET:",
    "semicolon": "GET;",
    "quote": '"GET"',
    "bracket": "[GET]",
    "brace": "{GET}",
    "backslash": "GE\\T",
    "question": "GET?",
    "nul": "GE\0T",
    "control": "GE\x01T",
    "delete": "GE\x7fT",
    "latin": "G\xc9T",
}

BROKEN = [
    *(
        case(f"method-with-{name}", "9112 2.2", SHOULD, get(method=method), refused(400, 501))
        for name, method in BROKEN_METHODS.items()
    ),
    case("method-empty", "9112 3", SHOULD, raw(" /~~ HTTP/1.1", HOST_LINE), refused(400)),
    case("method-with-leading-nul", "9112 2.2", SHOULD, b"\0" + get(), refused(400)),
    case(
        "response-as-request", "9112 2.1", SHOULD, raw("HTTP/1.1 200 OK", HOST_LINE, "X: /~~"), refused(400, 501, 505)
    ),
]

# A recipient may split on any whitespace, or refuse; a forwarded line is made anew either way (section 3).
SPACED = {
    "two-spaces": "GET  /~~ HTTP/1.1",
    "two-spaces-behind": "GET /~~  HTTP/1.1",
    "tab": "GET\t/~~ HTTP/1.1",
    "tab-behind": "GET /~~\tHTTP/1.1",
    "vertical-tab": "GET\x0b/~~ HTTP/1.1",
    "form-feed": "GET /~~\x0cHTTP/1.1",
    "trailing-space": "GET /~~ HTTP/1.1 ",
    "trailing-tab": "GET /~~ HTTP/1.1\t",
    "leading-space": " GET /~~ HTTP/1.1",
    "bare-cr": "GET\r/~~ HTTP/1.1",
    "bare-cr-behind": "GET /~~\rHTTP/1.1",
    "trailing-cr": "GET /~~ HTTP/1.1\r",
}

WHITESPACE = [
    *(
        case(
            f"line-{name}",
            "9112 3",
            MUST,
            raw(line, HOST_LINE),
            either(rejected(), relayed(b"GET", b"/~~")),
            why="lenient or not, what is forwarded is well-formed",
        )
        for name, line in SPACED.items()
    ),
    *(
        case(f"line-{name}-refused", "9112 3.2", SHOULD, raw(line, HOST_LINE), refused(400, 301))
        for name, line in SPACED.items()
    ),
    case("line-space-in-target", "9112 3.2", SHOULD, raw("GET /~~ x HTTP/1.1", HOST_LINE), refused(400, 301)),
    case("line-two-targets", "9112 3.2", SHOULD, raw("GET /~~ /other HTTP/1.1", HOST_LINE), refused(400, 301)),
    case(
        "line-cr-in-target",
        "9112 2.2",
        MUST,
        raw("GET /~~\rx HTTP/1.1", HOST_LINE),
        rejected(),
        why="a bare CR makes the element invalid; as SP it would make three words of the target",
    ),
    case("line-cr-in-method", "9112 2.2", MUST, raw("GE\rT /~~ HTTP/1.1", HOST_LINE), rejected()),
    case("line-cr-in-version", "9112 2.2", MUST, raw("GET /~~ HTTP/1\r.1", HOST_LINE), rejected()),
    case(
        "line-split-by-cr",
        "9112 2.2",
        MUST,
        raw(f"GET /~~ HTTP/1.1\r{HOST_LINE}", "X-Behind: 1"),
        rejected(),
        why="a bare CR ends no line",
    ),
]

# HTTP-version = "HTTP" "/" DIGIT "." DIGIT, case-sensitive.
BROKEN_VERSIONS = {
    "lower-case": "http/1.1",
    "mixed-case": "Http/1.1",
    "two-digits-minor": "HTTP/1.10",
    "two-digits-major": "HTTP/01.1",
    "no-minor": "HTTP/1",
    "no-minor-digit": "HTTP/1.",
    "no-dot": "HTTP/11",
    "comma": "HTTP/1,1",
    "trailing-letter": "HTTP/1.1x",
    "sign": "HTTP/+1.1",
    "negative": "HTTP/-1.1",
    "space": "HTTP/ 1.1",
    "space-before-slash": "HTTP /1.1",
    "other-name": "HTTPS/1.1",
    "short-name": "HTP/1.1",
    "hexadecimal": "HTTP/0x1.1",
    "three-parts": "HTTP/1.1.1",
    "nul": "HTTP/1.1\0",
    "superscript": "HTTP/1.\xb9",
    "icy": "ICE/1.0",
}

VERSIONS = [
    *(
        case(f"version-{name}", "9112 2.3", SHOULD, raw(f"GET /~~ {text}", HOST_LINE), refused(400, 505))
        for name, text in BROKEN_VERSIONS.items()
    ),
    *(
        case(
            f"version-{name}-own",
            "9112 2.3",
            MUST,
            raw(f"GET /~~ HTTP/{name}", HOST_LINE),
            either(all_of(relayed(), version(0, 1)), rejected()),
            why="an intermediary sends its own version",
        )
        for name in ("1.0", "1.2", "1.9")
    ),
    *(
        case(
            f"version-{name}-served",
            "9110 6.2",
            SHOULD,
            raw(f"GET /~~ HTTP/{name}", HOST_LINE),
            relayed(),
            why="a higher minor version is processed as the highest one known",
        )
        for name in ("1.2", "1.9")
    ),
    case("version-1.0-served", "9110 6.2", MUST, raw("GET /~~ HTTP/1.0", HOST_LINE), relayed(b"GET", b"/~~")),
    *(
        case(
            f"version-{name}-refused", "9110 15.6.6", SHOULD, raw(f"GET /~~ HTTP/{name}", HOST_LINE), refused(505, 400)
        )
        for name in ("0.9", "0.0", "2.0", "3.0", "9.9")
    ),
    case(
        "version-2-preface",
        "9112 2.2",
        SHOULD,
        b"PRI * HTTP/2.0\r\nX: ~~\r\n\r\nSM\r\n\r\n",
        rejected(),
        why="without HTTP/2 the preface is a request of an unknown version",
    ),
    case("version-missing", "9112 2.2", SHOULD, raw("GET /~~", HOST_LINE), rejected(400, 505)),
    case("version-missing-alone", "9112 2.2", SHOULD, raw("GET /~~"), rejected(400, 505), why="HTTP/0.9 is no more"),
    case("version-missing-space", "9112 2.2", SHOULD, raw("GET /~~ ", HOST_LINE), rejected(400, 505)),
    case("version-1.0-no-host", "9112 3.2", MUST, raw("GET /~~ HTTP/1.0"), either(relayed(), refused(400))),
]

LINE_ENDS = [
    case("empty-line-before", "9112 2.2", SHOULD, b"\r\n" + get(), relayed(b"GET", b"/~~")),
    case("empty-lines-before", "9112 2.2", MUST, b"\r\n\r\n\r\n" + get(), either(relayed(b"GET", b"/~~"), rejected())),
    case("empty-lf-before", "9112 2.2", MUST, b"\n" + get(), either(relayed(b"GET", b"/~~"), rejected())),
    case(
        "empty-lines-endless",
        "9110 2.3",
        SHOULD,
        b"\r\n" * 60_000 + get(),
        either(rejected(), relayed(b"GET", b"/~~")),
    ),
    case(
        "empty-line-between",
        "9112 2.2",
        SHOULD,
        (post(b"hello") + b"\r\n", AwaitFinals(1), get(path="/~~/second")),
        answers(200, 200),
        methods="POST GET",
        why="old clients send an extra CRLF behind a body",
    ),
    case("spaces-only-before", "9112 2.2", SHOULD, b"  \r\n" + get(), rejected(400)),
    case("cr-before", "9112 2.2", MUST, b"\r" + get(), either(rejected(), relayed(b"GET", b"/~~"))),
    case(
        "line-ends-lf",
        "9112 2.2",
        MUST,
        get().replace(b"\r\n", b"\n"),
        either(relayed(b"GET", b"/~~"), rejected()),
        why="a single LF may be taken for a line's end",
    ),
    case(
        "request-line-ends-lf",
        "9112 2.2",
        MUST,
        get().replace(b"\r\n", b"\n", 1),
        either(relayed(b"GET", b"/~~"), rejected()),
    ),
    case(
        "head-ends-lf",
        "9112 2.2",
        MUST,
        get()[:-2] + b"\n",
        either(relayed(b"GET", b"/~~"), rejected()),
    ),
    case("line-ends-cr", "9112 2.2", MUST, get().replace(b"\r\n", b"\r"), either(rejected(), nothing)),
]

NOISE = {
    "tls-hello": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(range(150)),
    "binary": bytes(range(256)) + b"\r\n\r\n",
    "one-word": b"~~\r\n\r\n",
    "nuls": b"\0" * 300 + b"\r\n\r\n",
    "json": b'{"~~": 1}\r\n\r\n',
    "socks": b"\x05\x01\x00",
    "ssh": b"SSH-2.0-~~\r\n\r\n",
    "smtp": octets("EHLO ~~.example\r\n\r\n"),
    "proxy-protocol": b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 80\r\n" + get(),
    "proxy-protocol-2": b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12) + get(),
}

GARBAGE = [
    case(
        f"noise-{name}",
        "9112 2.2",
        SHOULD,
        sent,
        either(all_of(status(400, 405, 501, 505), nothing), rejected()),
        patience=0.5,
    )
    for name, sent in NOISE.items()
    if name != "socks"
]

LONG = [
    case(
        "line-of-8000",
        "9112 3",
        SHOULD,
        get(path="/~~?" + "x" * 7970),
        relayed(target=b"/~~?" + b"x" * 7970),
        why="recipients are recommended to support request lines of 8000 octets",
    ),
    *(
        case(
            f"target-of-{size // 1000}k",
            "9112 3",
            MUST,
            get(path="/~~?" + "x" * size),
            either(relayed(target=b"/~~?" + b"x" * size), refused(414)),
            why="a target longer than what a server wishes to parse is answered with 414",
        )
        for size in (20_000, 100_000, 400_000)
    ),
    case("target-endless", "9112 3", MUST, b"GET /~~?" + b"x" * 2_000_000, refused(414)),
    case("line-all-in-one", "9112 3", MUST, b"x" * 100_000, rejected(4, 501), why="no space at all"),
]

CASES = [*METHODS, *BROKEN, *WHITESPACE, *VERSIONS, *LINE_ENDS, *GARBAGE, *LONG]
CASES += [
    case(
        "second-request-on-connection",
        "9112 9.3",
        MUST,
        (get(path="/~~/first"), AwaitFinals(1), get(path="/~~/second")),
        answers(200, 200),
        forwarded(2),
        methods="GET GET",
    )
]

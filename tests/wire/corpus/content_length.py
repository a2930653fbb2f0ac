"""Content-Length in requests (RFC 9112 sections 6.2 and 6.3, RFC 9110 section 8.6)."""

from __future__ import annotations

from tests.wire.case import HIDDEN, MUST, PROBE, SHOULD, AwaitFinals, HalfClose, case, framed, get, post, raw
from tests.wire.expect import (
    all_of,
    answers,
    body_with_request,
    broken_off,
    either,
    forwarded,
    had,
    lacked,
    not_forwarded,
    refused,
    rejected,
    relayed,
)

# An invalid length is an unrecoverable error: 400 and close (section 6.3). Each is followed by "hello" and a request.
INVALID = {
    "plus": "+5",
    "minus": "-5",
    "minus-zero": "-0",
    "letter-behind": "5x",
    "word": "five",
    "empty": "",
    "spaces": "   ",
    "hexadecimal": "0x5",
    "octal": "0o5",
    "binary": "0b101",
    "bare-hexadecimal": "a",
    "decimal-point": "5.0",
    "comma-fraction": "5,0",
    "exponent": "5e0",
    "underscore": "0_5",
    "inner-space": "0 5",
    "inner-tab": "0\t5",
    "two-numbers": "5 5",
    "semicolon": "5;",
    "parameter": "5; x=1",
    "quoted": '"5"',
    "single-quoted": "'5'",
    "brackets": "(5)",
    "nul": "5\0",
    "nul-first": "\x005",
    "vertical-tab": "\x0b5",
    "form-feed": "5\x0c",
    "delete": "5\x7f",
    "no-break-space": "5\xa0",
    "superscript": "\xb5\xb2",
    "superscript-two": "\xb2",
    "arabic-digit": "\xd9\xa5",
    "wide-digit": "\xef\xbc\x95",
    "byte-order-mark": "\xef\xbb\xbf5",
    "percent": "%35",
    "list-other": "5, 6",
    "list-other-no-space": "5,6",
    "list-sign": "5, +5",
    "list-word": "5, x",
    "list-three": "5, 5, 4",
    "list-semicolon": "5; 5",
}

REPEATED = {
    "other": ("Content-Length: 5", "Content-Length: 6"),
    "smaller-behind": ("Content-Length: 5", "Content-Length: 0"),
    "larger-behind": ("Content-Length: 0", "Content-Length: 5"),
    "apart": ("Content-Length: 5", "X-A: 1", "Content-Length: 7"),
    "other-case": ("Content-Length: 5", "CONTENT-LENGTH: 7"),
    "one-invalid": ("Content-Length: 5", "Content-Length: x"),
    "one-empty": ("Content-Length: 5", "Content-Length:"),
    "invalid-first": ("Content-Length: +5", "Content-Length: 5"),
    "three": ("Content-Length: 5", "Content-Length: 5", "Content-Length: 4"),
}

# The same number again and again: refuse, or make one of it (section 6.3, RFC 9110 section 8.6).
SAME = {
    "list": ("Content-Length: 5, 5",),
    "list-no-space": ("Content-Length: 5,5",),
    "list-three": ("Content-Length: 5, 5, 5",),
    "list-empty-member": ("Content-Length: 5,",),
    "list-empty-first": ("Content-Length: ,5",),
    "lines": ("Content-Length: 5", "Content-Length: 5"),
    "lines-apart": ("Content-Length: 5", "X-A: 1", "content-length: 5"),
    "other-spelling": ("Content-Length: 5", "Content-Length: 05"),
}

BAD = [
    *(
        case(
            f"length-{name}",
            "9112 6.3",
            MUST,
            framed(b"hello", f"Content-Length: {value}") + HIDDEN,
            refused(400),
            methods="POST",
        )
        for name, value in INVALID.items()
    ),
    *(
        case(
            f"length-repeated-{name}",
            "9112 6.3",
            MUST,
            framed(b"hello", *lines) + HIDDEN,
            refused(400),
            methods="POST",
        )
        for name, lines in REPEATED.items()
    ),
    *(
        case(
            f"length-same-{name}",
            "9110 8.6",
            MUST,
            framed(b"hello", *lines),
            either(refused(400), all_of(relayed(body=b"hello"), had("Content-Length", b"5"))),
            methods="POST",
        )
        for name, lines in SAME.items()
    ),
    case("length-invalid-get", "9112 6.3", MUST, get("Content-Length: x"), refused(400)),
    case(
        "length-invalid-head", "9112 6.3", MUST, get("Content-Length: -1", method="HEAD"), refused(400), methods="HEAD"
    ),
    case("length-invalid-1.0", "9112 6.3", MUST, get("Content-Length: 5x", version="1.0"), refused(400)),
    case("length-other-get", "9112 6.3", MUST, get("Content-Length: 0", "Content-Length: 5"), refused(400)),
]

# Numbers beyond every word size: valid, but not to be taken for something small (RFC 9110 section 8.6).
HUGE = {
    "2-32": 2**32 + 5,
    "2-63": 2**63,
    "2-63-and-5": 2**63 + 5,
    "2-64": 2**64,
    "2-64-and-5": 2**64 + 5,
    "2-128": 2**128 + 5,
    "100-digits": int("9" * 100),
    "5000-digits": "1" + "0" * 4999 + "5",
}

LARGE = [
    case(
        f"length-{name}",
        "9110 8.6",
        MUST,
        (framed(b"hello", f"Content-Length: {value}") + HIDDEN, HalfClose()),
        broken_off(),
        not_forwarded("hidden"),
        methods="POST",
        patience=0.6,
    )
    for name, value in HUGE.items()
]

GOOD = [
    case(
        "length-cr",
        "9112 2.2",
        MUST,
        framed(b"hello", "Content-Length: 5\r"),
        either(refused(400), relayed(body=b"hello")),
        methods="POST",
        why="a bare CR is refused or taken for SP, which at the end is nothing",
    ),
    case("length-plain", "9112 6.3", MUST, post(b"hello"), relayed(b"POST", body=b"hello"), methods="POST"),
    case("length-zero", "9112 6.3", MUST, post(b""), relayed(b"POST", body=b""), methods="POST"),
    case("length-none", "9112 6.3", MUST, get(method="POST"), relayed(b"POST", body=b""), methods="POST"),
    case(
        "length-zero-sent-on",
        "9110 8.6",
        SHOULD,
        post(b""),
        relayed(b"POST", body=b""),
        had("Content-Length", b"0"),
        methods="POST",
    ),
    *(
        case(f"length-{name}", "9112 5.1", MUST, framed(b"hello", line), relayed(body=b"hello"), methods="POST")
        for name, line in {
            "lower-case": "content-length: 5",
            "upper-case": "CONTENT-LENGTH: 5",
            "no-space": "Content-Length:5",
            "spaces-around": "Content-Length:    5   ",
            "tabs-around": "Content-Length:\t5\t",
        }.items()
    ),
    case(
        "length-leading-zero",
        "9110 8.6",
        MUST,
        framed(b"hello", "Content-Length: 005"),
        relayed(body=b"hello"),
        methods="POST",
        why="1*DIGIT allows leading zeros",
    ),
    case(
        "length-many-zeros",
        "9110 8.6",
        MUST,
        framed(b"hello", f"Content-Length: {'0' * 30}5"),
        either(relayed(body=b"hello"), refused(400)),
        methods="POST",
    ),
    *(
        case(
            f"length-on-{method.lower()}",
            "9112 6",
            MUST,
            (post(b"hello", method=method), AwaitFinals(1), PROBE),
            either(all_of(forwarded(2), answers(200, 200)), refused(4)),
            body_with_request,
            methods=f"{method} GET",
            why="framing does not depend on the method",
        )
        for method in ("GET", "HEAD", "DELETE", "OPTIONS", "PUT", "PATCH")
    ),
    case(
        "length-octets",
        "9112 6",
        MUST,
        post(bytes(range(256)) * 4),
        relayed(body=bytes(range(256)) * 4),
        methods="POST",
    ),
    case(
        "length-body-like-request",
        "9112 6",
        MUST,
        post(HIDDEN),
        relayed(body=HIDDEN),
        methods="POST",
    ),
    case(
        "length-body-crlf",
        "9112 6",
        MUST,
        post(b"\r\n\r\n"),
        relayed(body=b"\r\n\r\n"),
        methods="POST",
    ),
    case(
        "length-megabyte",
        "9112 6",
        MUST,
        post(b"0123456789abcdef" * 65_536),
        relayed(body=b"0123456789abcdef" * 65_536),
        methods="POST",
        patience=5,
    ),
    case(
        "length-1.0-post",
        "9112 6.3",
        MUST,
        post(b"hello", version="1.0"),
        relayed(body=b"hello"),
        methods="POST",
    ),
    case(
        "length-1.0-post-none",
        "9112 6.3",
        MUST,
        get(method="POST", version="1.0"),
        either(relayed(body=b""), refused(400, 411)),
        methods="POST",
    ),
]

# Too few octets and then the end: incomplete, and never to be taken for complete (section 6.3).
SHORT = [
    case(
        f"length-cut-{name}",
        "9112 6.3",
        MUST,
        (framed(sent, "Content-Length: 10"), HalfClose()),
        broken_off(),
        methods="POST",
        patience=0.6,
    )
    for name, sent in {"at-once": b"", "in-body": b"hello", "one-short": b"123456789"}.items()
]
SHORT.append(
    case(
        "head-cut",
        "9112 8",
        MUST,
        (get("X-Long: abc")[:-6], HalfClose()),
        rejected(),
        patience=0.6,
    )
)

NAMES = [
    case(
        "length-other-name",
        "9110 5.1",
        MUST,
        (get("Content_Length: 5"), AwaitFinals(1), PROBE),
        either(answers(200, 200), refused(400)),
        lacked("Content-Length"),
        methods="GET GET",
        why="another name, no framing",
    ),
    case(
        "length-body-longer",
        "9112 6.3",
        MUST,
        raw("POST /~~ HTTP/1.1", "Host: a.example", "Content-Length: 5") + b"hello" + get(path="/~~/second"),
        forwarded(2),
        answers(200, 200),
        methods="POST GET",
        why="what follows the body is the next request",
    ),
]

CASES = [*BAD, *LARGE, *GOOD, *SHORT, *NAMES]

"""Field lines: folding, how lines and heads end, how many and how long they may be (RFC 9112 sections 2.2 and 5)."""

from __future__ import annotations

from tests.wire.case import HOST, MUST, SHOULD, case, get, raw
from tests.wire.expect import (
    Seen,
    all_of,
    either,
    had,
    holds,
    lacked,
    refused,
    rejected,
    relayed,
    status,
)

LINE = "GET /~~ HTTP/1.1"
HOST_LINE = f"Host: {HOST}"

FOLDS = {
    "space": "X-Fold: a\r\n b",
    "tab": "X-Fold: a\r\n\tb",
    "spaces-before": "X-Fold: a  \r\n  b",
    "twice": "X-Fold: a\r\n b\r\n c",
    "first-empty": "X-Fold:\r\n a",
    "looks-like-field": "X-Fold: a\r\n X-Injected: 1",
}


def _unfolded(seen: Seen) -> str:
    values = seen.forwarded[0].values(b"X-Fold") if seen.forwarded else []
    words = values[0].split() if len(values) == 1 else []
    return "" if words[:1] == [b"a"] else f"forwarded with X-Fold {values}"


FOLDING = [
    *(
        case(
            f"fold-{name}",
            "9112 5.2",
            MUST,
            get(line),
            lacked("X-Injected"),
            either(refused(400), all_of(relayed(), holds("the fold is SP", _unfolded))),
        )
        for name, line in FOLDS.items()
    ),
    case(
        "fold-empty-line",
        "9112 5.2",
        MUST,
        get("X-Fold: a\r\n "),
        either(refused(400), all_of(relayed(), holds("the fold is SP", _unfolded))),
    ),
    case(
        "fold-host",
        "9112 5.2",
        MUST,
        raw(LINE, "Host: a.example\r\n b.example"),
        refused(400),
        why="refused as a fold or as an invalid Host",
    ),
    case(
        "fold-length",
        "9112 5.2",
        MUST,
        get("Content-Length:\r\n 5", method="POST") + b"hello",
        either(refused(400), relayed(body=b"hello")),
        methods="POST",
    ),
    case(
        "fold-coding",
        "9112 5.2",
        MUST,
        get("Transfer-Encoding:\r\n chunked", method="POST") + b"5\r\nhello\r\n0\r\n\r\n",
        either(refused(400, 501), relayed(body=b"hello")),
        methods="POST",
    ),
    *(
        case(
            f"whitespace-before-first-field-{name}",
            "9112 2.2",
            MUST,
            raw(LINE, line, HOST_LINE, "X-B: 2"),
            either(rejected(400), all_of(relayed(), lacked("X-A"))),
            why="refuse, or leave out every line that begins with whitespace",
        )
        for name, line in {
            "space": " X-A: 1",
            "tab": "\tX-A: 1",
            "twice": " X-A: 1\r\n X-A: 2",
            "alone": " ",
        }.items()
    ),
    case(
        "whitespace-before-first-field-host",
        "9112 2.2",
        MUST,
        raw(LINE, " Host: b.example", HOST_LINE),
        either(rejected(400), all_of(relayed(), had("Host", HOST.encode()))),
    ),
]

ENDS = [
    case(
        f"head-end-{name}",
        "9112 2.2",
        MUST,
        get()[:-4] + end,
        either(relayed(target=b"/~~"), rejected()),
        patience=0.5,
    )
    for name, end in {"lf-lf": b"\n\n", "crlf-lf": b"\r\n\n", "lf-crlf": b"\n\r\n"}.items()
]
ENDS += [
    case("head-end-cr-cr-lf", "9112 2.2", MUST, get()[:-4] + b"\r\r\n\r\n", either(rejected(), relayed())),
    case("field-line-ends-lf", "9112 2.2", MUST, get("X-A: 1\nX-B: 2"), either(rejected(), relayed())),
    case(
        "field-line-ends-cr",
        "9112 2.2",
        MUST,
        get("X-A: 1\rX-B: 2"),
        lacked("X-B"),
        either(rejected(), relayed()),
    ),
]

# Too much is answered with a 4xx; to leave something out in silence is not allowed (RFC 9110 section 5.4).
MANY = [
    case(
        f"fields-{count}",
        "9110 5.4",
        level,
        get(*(f"X-{number}: {number}" for number in range(count))),
        either(relayed(), refused(4)) if level == MUST else relayed(),
        either(had(f"X-{count - 1}", str(count - 1).encode()), status(4)),
    )
    for count, level in ((40, SHOULD), (80, SHOULD), (300, MUST), (3000, MUST), (20_000, MUST))
]
MANY += [
    case(
        f"field-of-{size // 1000}k",
        "9110 5.4",
        level,
        get(f"X-Long: {'v' * size}"),
        either(all_of(relayed(), had("X-Long", b"v" * size)), refused(4)) if level == MUST else relayed(),
    )
    for size, level in ((6_000, SHOULD), (15_000, MUST), (70_000, MUST), (300_000, MUST))
]
MANY += [
    case(
        "field-endless",
        "9110 5.4",
        MUST,
        get(f"X-Long: {'v' * 2_000_000}"),
        refused(4),
        why="an answer, not a broken connection",
    ),
    case(
        "field-name-endless",
        "9110 5.4",
        MUST,
        get(f"{'X' * 200_000}: 1"),
        either(relayed(), refused(4)),
    ),
    case(
        "head-endless",
        "9110 5.4",
        MUST,
        raw(LINE, HOST_LINE, *(f"X-{number}: {'v' * 100}" for number in range(20_000))),
        refused(4),
    ),
]

CASES = [*FOLDING, *ENDS, *MANY]

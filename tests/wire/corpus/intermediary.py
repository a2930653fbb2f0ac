"""The duties of whoever passes messages on: Via, Date, Max-Forwards, versions, no repeats (RFC 9110, 6 to 9)."""

from __future__ import annotations

from tests.wire.case import DATE, MUST, SHOULD, AwaitFinals, Close, Pause, Reset, case, get, ok, post, raw
from tests.wire.expect import (
    Check,
    Seen,
    all_of,
    answers,
    body,
    either,
    forwarded,
    got_field,
    had,
    had_in_order,
    holds,
    lacked,
    nothing,
    refused,
    relayed,
    status,
    version,
)


def via(version: str, *before: str) -> Check:
    """Via holds what it held before and, last, the proxy with the version in which it received the request."""

    def test(seen: Seen) -> str:
        held = b", ".join(seen.forwarded[0].values(b"Via")).decode("latin-1") if seen.forwarded else ""
        own = held.removeprefix("".join(f"{member}, " for member in before))
        is_right = own.startswith(f"{version} ") and "," not in own and (not before or own != held)
        return "" if is_right else f"forwarded with Via {held!r}"

    return holds(f"Via ends with {version} and a name, behind {list(before)}", test)


def _answer_via(seen: Seen) -> str:
    got = b", ".join(seen.finals[0].values(b"Via")) if seen.finals else b""
    return "" if got.startswith(b"1.0 inner") else f"it is {got!r}"


VIA = [
    case(
        "via-added",
        "9110 7.6.3",
        MUST,
        get(),
        relayed(),
        via("1.1"),
        why="a gateway names itself in each request that it sends inbound",
    ),
    case(
        "via-1.0",
        "9110 7.6.3",
        MUST,
        get(version="1.0"),
        relayed(),
        via("1.0"),
    ),
    case(
        "via-appended",
        "9110 7.6.3",
        MUST,
        get("Via: 1.0 fred, 1.1 p.example.net"),
        relayed(),
        via("1.1", "1.0 fred", "1.1 p.example.net"),
    ),
    case(
        "via-appended-lines",
        "9110 7.6.3",
        MUST,
        get("Via: 1.0 fred", "X-A: 1", "Via: 1.1 lucy (a; b)"),
        relayed(),
        via("1.1", "1.0 fred", "1.1 lucy (a; b)"),
    ),
    case(
        "via-post",
        "9110 7.6.3",
        MUST,
        post(b"hello"),
        relayed(body=b"hello"),
        via("1.1"),
        methods="POST",
    ),
    case(
        "via-of-answer-kept",
        "9110 7.6.3",
        MUST,
        get(),
        holds("the answer's Via is kept in front", _answer_via),
        answer=ok(b"ok", "Via: 1.0 inner"),
    ),
]


def _http_date(seen: Seen) -> str:
    values = seen.finals[0].values(b"Date") if seen.finals else []
    return "" if len(values) == 1 and values[0].endswith(b" GMT") and len(values[0]) == 29 else f"Date is {values}"


DATES = [
    case(
        "date-added",
        "9110 6.6.1",
        MUST,
        get(),
        status(200),
        holds("there is a Date", _http_date),
        answer=raw("HTTP/1.1 200 OK", "Content-Length: 2") + b"ok",
        why="an answer without Date gets one when it is forwarded",
    ),
    case(
        "date-added-404",
        "9110 6.6.1",
        MUST,
        get(),
        status(404),
        holds("there is a Date", _http_date),
        answer=raw("HTTP/1.1 404 Not Found", "Content-Length: 2") + b"no",
    ),
    case(
        "date-added-204",
        "9110 6.6.1",
        MUST,
        get(),
        status(204),
        holds("there is a Date", _http_date),
        answer=raw("HTTP/1.1 204 No Content"),
    ),
    case(
        "date-added-1.0-backend",
        "9110 6.6.1",
        MUST,
        get(),
        status(200),
        holds("there is a Date", _http_date),
        answer=(raw("HTTP/1.0 200 OK", "Content-Length: 2") + b"ok", Close()),
    ),
    case(
        "date-kept",
        "9110 7.7",
        SHOULD,
        get(),
        got_field("Date", DATE.partition(": ")[2].encode()),
        answer=ok(b"ok"),
    ),
    case(
        "date-of-own-error",
        "9110 6.6.1",
        MUST,
        raw("GET /~~ HTTP/1.1", "X: 1"),
        status(400),
        holds("there is a Date", _http_date),
        why="an origin with a clock dates its 4xx answers, and so does a gateway",
    ),
]


def at_most(most: int) -> Check:
    """Max-Forwards was forwarded, and is no more than this."""

    def test(seen: Seen) -> str:
        values = seen.forwarded[0].values(b"Max-Forwards") if seen.forwarded else []
        is_right = len(values) == 1 and values[0].isdigit() and int(values[0]) <= most
        return "" if is_right else f"forwarded with Max-Forwards {values}"

    return holds(f"forwarded with Max-Forwards {most} or less", test)


def forwards(method: str, value: str) -> bytes:
    return get(f"Max-Forwards: {value}", method=method)


MAX_FORWARDS = [
    *(
        case(
            f"max-forwards-{method.lower()}-{value}",
            "9110 7.6.2",
            MUST,
            forwards(method, value),
            either(all_of(forwarded(1), at_most(int(value) - 1)), all_of(status(405, 501), nothing)),
            methods=method,
        )
        for method in ("TRACE", "OPTIONS")
        for value in ("1", "5", "10", "255")
    ),
    *(
        case(
            f"max-forwards-{method.lower()}-0",
            "9110 7.6.2",
            MUST,
            forwards(method, "0"),
            nothing,
            status(2, 4, 501),
            methods=method,
            why="nought: answered here, as the last recipient",
        )
        for method in ("TRACE", "OPTIONS")
    ),
    *(
        case(
            f"max-forwards-{method.lower()}-0-answer",
            "9110 9.3.7" if method == "OPTIONS" else "9110 9.3.8",
            SHOULD,
            forwards(method, "0"),
            nothing,
            status(200, 204) if method == "OPTIONS" else status(200, 405, 501),
            methods=method,
        )
        for method in ("TRACE", "OPTIONS")
    ),
    case(
        "max-forwards-options-zeros",
        "9110 7.6.2",
        MUST,
        forwards("OPTIONS", "000"),
        nothing,
        status(2, 4),
        methods="OPTIONS",
    ),
    case(
        "max-forwards-options-large",
        "9110 7.6.2",
        MUST,
        forwards("OPTIONS", "99999999999999999999999"),
        either(
            at_most(99999999999999999999998),
            refused(400),
        ),
        methods="OPTIONS",
    ),
    case(
        "max-forwards-options-invalid",
        "9110 7.6.2",
        MUST,
        forwards("OPTIONS", "many"),
        either(relayed(b"OPTIONS"), refused(400)),
        methods="OPTIONS",
    ),
    case(
        "max-forwards-options-asterisk",
        "9110 7.6.2",
        MUST,
        get("Max-Forwards: 0", "X-Mark: ~~", path="*", method="OPTIONS"),
        nothing,
        status(2, 4, 501),
        methods="OPTIONS",
    ),
    *(
        case(
            f"max-forwards-{method.lower()}",
            "9110 7.6.2",
            MUST,
            forwards(method, "0"),
            relayed(method.encode()),
            methods=method,
            why="for TRACE and OPTIONS only",
        )
        for method in ("GET", "POST", "DELETE")
    ),
    case(
        "max-forwards-not-made",
        "9110 9.3.7",
        MUST,
        get(method="OPTIONS"),
        relayed(b"OPTIONS"),
        lacked("Max-Forwards"),
        methods="OPTIONS",
    ),
    case(
        "trace",
        "9110 9.3.8",
        MUST,
        get(method="TRACE"),
        either(relayed(b"TRACE"), all_of(status(4, 501), nothing)),
        methods="TRACE",
    ),
    case(
        "trace-with-body",
        "9110 9.3.8",
        MUST,
        (post(b"hello", method="TRACE"), AwaitFinals(1), get(path="/~~/probe")),
        either(all_of(forwarded(2), answers(200, 200)), status(4, 501)),
        methods="TRACE GET",
    ),
]

VERSIONS = [
    case("own-version", "9112 2.3", MUST, get(), relayed(), version(1), why="the proxy speaks HTTP/1.1 inbound"),
    case("own-version-of-1.0", "9112 2.3", MUST, get(version="1.0"), relayed(), version(0, 1)),
    case("own-version-of-1.0-upgraded", "9110 6.2", SHOULD, get(version="1.0"), relayed(), version(1)),
]


def _once(seen: Seen) -> str:
    return "" if len(seen.forwarded) == 1 else f"it was sent {len(seen.forwarded)} times"


# A request that may not be repeated is sent once, whatever becomes of it (RFC 9110 section 9.2.2).
REPEATS = [
    *(
        case(
            f"repeat-{method.lower()}-{name}",
            "9110 9.2.2",
            MUST,
            post(b"hello", method=method),
            status(502, 504),
            holds("it was sent once", _once),
            answer=end,
            methods=method,
        )
        for method in ("POST", "PATCH")
        for name, end in (("reset", (Reset(),)), ("close", (Close(),)), ("half-head", (b"HTTP/1.1 2", Close())))
    ),
    case(
        "repeat-not-after-answer",
        "9110 9.2.2",
        MUST,
        get(),
        holds("it was sent once", _once),
        answer=(ok(b"0123456789")[:-5], Pause(0.05), Reset()),
        patience=0.6,
        why="what the client has begun to receive cannot begin anew",
    ),
    case("repeat-none", "9110 9.2.2", MUST, get(), forwarded(1), status(200)),
]


OTHERS = [
    case(
        "forwarded-fields-kept",
        "9110 7.7",
        SHOULD,
        get("Accept-Encoding: gzip, br", "Origin: http://b.example", "Sec-Fetch-Mode: cors"),
        relayed(),
        had("Accept-Encoding", b"gzip, br"),
        had_in_order("Origin", b"http://b.example"),
        had("Sec-Fetch-Mode", b"cors"),
    ),
    case(
        "no-transform",
        "9110 7.7",
        MUST,
        get("Accept-Encoding: identity"),
        body(b"\x1f\x8b not really"),
        answer=ok(b"\x1f\x8b not really", "Cache-Control: no-transform", "Content-Encoding: gzip"),
    ),
    case(
        "content-coding-kept",
        "9110 8.4",
        MUST,
        get("Accept-Encoding: gzip"),
        got_field("Content-Encoding", b"gzip"),
        body(b"\x1f\x8b not really"),
        answer=ok(b"\x1f\x8b not really", "Content-Encoding: gzip"),
    ),
    case(
        "range-answer",
        "9110 15.3.7",
        MUST,
        get("Range: bytes=0-4"),
        had("Range", b"bytes=0-4"),
        status(206),
        got_field("Content-Range", b"bytes 0-4/10"),
        answer=ok(b"hello", "Content-Range: bytes 0-4/10", status="206 Partial Content"),
    ),
    case(
        "upgrade-required",
        "9110 15.5.22",
        MUST,
        get(),
        status(426),
        answer=ok(b"no", "Upgrade: HTTP/3.0", "Connection: Upgrade", status="426 Upgrade Required"),
    ),
]

CASES = [*VIA, *DATES, *MAX_FORWARDS, *VERSIONS, *REPEATS, *OTHERS]

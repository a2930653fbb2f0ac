"""Answers without a body: HEAD, 204, 304, 205 and their lengths (RFC 9112 section 6.3, RFC 9110 section 8.6)."""

from __future__ import annotations

from tests.wire.case import DATE, MUST, PROBE, SHOULD, AwaitFinals, Close, answer, case, get, ok, raw
from tests.wire.expect import (
    all_of,
    answers,
    body,
    closed,
    either,
    got_field,
    named,
    no_field,
    status,
)

HELLO = b"5\r\nhello\r\n0\r\n\r\n"


def head(*lines: str, surplus: bytes = b"", code: str = "200 OK") -> bytes:
    return answer(code, *lines, body=surplus)


# The answer ends with its head; the next one is in its place.
HEADS = [
    case(
        f"head-{name}",
        "9110 9.3.2",
        MUST,
        (get(method="HEAD"), AwaitFinals(1), PROBE),
        answers(code, 200),
        body(b""),
        body(b"answer to probe", 1),
        answer={"": reply},
        methods="HEAD GET",
    )
    for name, code, reply in (
        ("length", 200, head("Content-Length: 5")),
        ("length-zero", 200, head("Content-Length: 0")),
        ("length-large", 200, head("Content-Length: 123456789012")),
        ("chunked", 200, head("Transfer-Encoding: chunked")),
        ("no-length", 200, head()),
        ("404", 404, head("Content-Length: 9", code="404 Not Found")),
        ("500", 500, head("Content-Length: 9", code="500 Internal Server Error")),
        ("302", 302, head("Content-Length: 9", "Location: /x", code="302 Found")),
    )
]
HEADS += [
    case(
        "head-length-kept",
        "9110 9.3.2",
        SHOULD,
        get(method="HEAD"),
        status(200),
        got_field("Content-Length", b"5"),
        answer=head("Content-Length: 5"),
        methods="HEAD",
        why="the fields are those of the GET",
    ),
    case(
        "head-length-not-made",
        "9110 8.6",
        MUST,
        get(method="HEAD"),
        status(200),
        either(no_field("Content-Length"), got_field("Content-Length", b"5")),
        answer=head(),
        methods="HEAD",
        why="a length that is not the GET's is not to be invented: not 0 either",
    ),
    case(
        "head-fields",
        "9110 9.3.2",
        SHOULD,
        get(method="HEAD"),
        got_field("ETag", b'"x"'),
        got_field("Content-Type", b"text/plain"),
        answer=head("Content-Length: 5", 'ETag: "x"', "Content-Type: text/plain"),
        methods="HEAD",
    ),
    case(
        "head-close-delimited",
        "9110 9.3.2",
        MUST,
        (get(method="HEAD"), AwaitFinals(1), PROBE),
        body(b""),
        either(answers(200, 200), all_of(answers(200), closed)),
        answer={"": (head("Connection: close"), Close())},
        methods="HEAD GET",
    ),
    case(
        "head-1.0",
        "9110 9.3.2",
        MUST,
        get(method="HEAD", version="1.0"),
        answers(200),
        closed,
        no_field("Transfer-Encoding"),
        answer=head("Transfer-Encoding: chunked"),
        methods="HEAD",
    ),
    case(
        "head-pipelined",
        "9112 9.3.2",
        MUST,
        get(method="HEAD", path="/~~/one") + get(method="HEAD", path="/~~/two") + get(path="/~~/three"),
        named("one", "two", "three"),
        answer={
            "one": head("Content-Length: 500", "X-Answer: one"),
            "two": head("Transfer-Encoding: chunked", "X-Answer: two"),
        },
        methods="HEAD HEAD GET",
    ),
]

# A backend that sends a body where there is none: the octets are nobody's answer.
SURPLUS = [
    case(
        f"bodiless-{name}",
        "9112 6.3",
        MUST,
        (get(method=method), AwaitFinals(1), PROBE),
        either(
            all_of(body(b""), answers(code, 200), body(b"answer to probe", 1)),
            all_of(body(b""), answers(code), closed),
            status(502),
        ),
        answer={"": reply},
        methods=f"{method} GET",
        why="octets behind an answer without a body belong to no answer",
    )
    for name, method, code, reply in (
        ("head-with-body", "HEAD", 200, head("Content-Length: 5", surplus=b"hello")),
        ("head-with-chunks", "HEAD", 200, head("Transfer-Encoding: chunked", surplus=HELLO)),
        ("head-with-answer", "HEAD", 200, head("Content-Length: 5", surplus=ok(b"stolen", "X-Answer: stolen"))),
        ("204-with-body", "GET", 204, head("Content-Length: 5", surplus=b"hello", code="204 No Content")),
        ("204-with-chunks", "GET", 204, head("Transfer-Encoding: chunked", surplus=HELLO, code="204 No Content")),
        ("204-with-bare-body", "GET", 204, head(surplus=b"hello", code="204 No Content")),
        ("204-with-answer", "GET", 204, head(surplus=ok(b"stolen"), code="204 No Content")),
        ("304-with-body", "GET", 304, head("Content-Length: 5", surplus=b"hello", code="304 Not Modified")),
        ("304-with-chunks", "GET", 304, head("Transfer-Encoding: chunked", surplus=HELLO, code="304 Not Modified")),
        ("304-with-answer", "GET", 304, head(surplus=ok(b"stolen"), code="304 Not Modified")),
    )
]

EMPTY = [
    *(
        case(
            f"empty-{name}",
            "9112 6.3",
            MUST,
            (get(method=method), AwaitFinals(1), PROBE),
            answers(code, 200),
            body(b""),
            body(b"answer to probe", 1),
            answer={"": reply},
            methods=f"{method} GET",
        )
        for name, method, code, reply in (
            ("204", "GET", 204, head(code="204 No Content")),
            ("204-delete", "DELETE", 204, head(code="204 No Content")),
            ("304", "GET", 304, head('ETag: "x"', code="304 Not Modified")),
            ("304-length", "GET", 304, head('ETag: "x"', "Content-Length: 1000", code="304 Not Modified")),
            ("304-head", "HEAD", 304, head("Content-Length: 1000", code="304 Not Modified")),
            ("200-length-zero", "GET", 200, head("Content-Length: 0")),
            ("200-no-chunks", "GET", 200, head("Transfer-Encoding: chunked", surplus=b"0\r\n\r\n")),
            ("205-length-zero", "GET", 205, head("Content-Length: 0", code="205 Reset Content")),
            ("404-length-zero", "GET", 404, head("Content-Length: 0", code="404 Not Found")),
        )
    ),
    *(
        case(
            f"empty-{code}-without-{name}",
            section,
            MUST,
            get(),
            status(code, 502),
            no_field(line.partition(":")[0]),
            answer=answer(f"{code} No", line),
            why="a server never sends this field with this status",
        )
        for name, code, section, line in (
            ("length", 204, "9110 8.6", "Content-Length: 5"),
            ("coding", 204, "9112 6.1", "Transfer-Encoding: chunked"),
        )
    ),
    case(
        "empty-204-without-length-zero",
        "9110 8.6",
        MUST,
        get(),
        status(204),
        no_field("Content-Length"),
        answer=answer("204 No Content", "Content-Length: 0"),
    ),
    case(
        "empty-304-length-kept",
        "9110 15.4.5",
        SHOULD,
        get('If-None-Match: "x"'),
        status(304),
        got_field("ETag", b'"x"'),
        answer=answer("304 Not Modified", 'ETag: "x"', "Cache-Control: max-age=5", "Vary: Accept"),
    ),
    case(
        "empty-304-fields",
        "9110 15.4.5",
        MUST,
        get('If-None-Match: "x"'),
        got_field("ETag", b'"x"'),
        got_field("Cache-Control", b"max-age=5"),
        got_field("Vary", b"Accept"),
        answer=answer("304 Not Modified", 'ETag: "x"', "Cache-Control: max-age=5", "Vary: Accept"),
    ),
    case(
        "empty-204-1.0",
        "9112 6.3",
        MUST,
        get(version="1.0"),
        answers(204),
        closed,
        answer=answer("204 No Content"),
    ),
    case(
        "empty-204-close",
        "9112 6.3",
        MUST,
        (get(), AwaitFinals(1), PROBE),
        either(answers(204, 200), all_of(answers(204), closed)),
        answer={"": (answer("204 No Content", "Connection: close"), Close())},
        methods="GET GET",
    ),
    case(
        "empty-205-body",
        "9110 15.3.6",
        MUST,
        (get(), AwaitFinals(1), PROBE),
        either(all_of(answers(205, 200), body(b"answer to probe", 1)), status(502)),
        answer={"": answer("205 Reset Content", "Content-Length: 5", body=b"hello")},
        methods="GET GET",
        why="a 205 has no content, but is framed like any answer: what follows must not slip",
    ),
    case(
        "empty-200-1.0-backend",
        "9112 6.3",
        MUST,
        get(),
        status(200),
        body(b""),
        answer=(raw("HTTP/1.0 200 OK", DATE), Close()),
    ),
]

CASES = [*HEADS, *SURPLUS, *EMPTY]

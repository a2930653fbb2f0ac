"""The parser seam: whole heads in, nothing of one message left in the next."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lbproxy.core.headers import BadMessage
from lbproxy.dataplane.wire import END_OF_HEAD, EarlyCheck, RequestParser, ResponseParser

NAMES = st.sampled_from([b"Accept", b"X-One", b"x-one", b"X-Two", b"Cookie"])
VALUES = st.text("abc ;=,", max_size=6).map(lambda text: text.strip().encode())
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=6)
METHODS = st.sampled_from([b"GET", b"POST", b"FROB", b"M-SEARCH", b"PRI", b"DESCRIBE", b"OPTIONS"])


def section(fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % field for field in fields) + b"\r\n"


@given(st.lists(st.tuples(METHODS, FIELDS, st.sampled_from([0, 1])), min_size=1, max_size=4))
def test_heads_come_out_as_they_went_in(requests: list[tuple[bytes, list[tuple[bytes, bytes]], int]]) -> None:
    parser = RequestParser()
    for method, fields, minor in requests:
        parser.parse(b"%b /p?q HTTP/1.%d\r\n" % (method, minor) + section(fields), 100)
        assert (parser.method, parser.target, parser.minor) == (method, b"/p?q", minor)
        assert list(zip(parser.names, parser.values, strict=True)) == fields


@pytest.mark.parametrize(
    "bad",
    [
        b"GET / HTTP/1.1\r\nX : y\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: \0\r\n\r\n",
        b"GET /\x80 HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
        b"G(T / HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    ],
)
def test_a_bad_head_leaves_no_trace_in_the_next(bad: bytes) -> None:
    parser = RequestParser()
    with pytest.raises(BadMessage):
        parser.parse(bad, 100)
    parser.parse(b"GET /good HTTP/1.1\r\nA: b\r\n\r\n", 100)
    assert (parser.target, parser.names, parser.values) == (b"/good", (b"A",), (b"b",))


_PIECES = st.sampled_from([
    b"GET /a HTTP/1.1\r\n", b"GET /b HTTP/1.0\r\n", b"POST /c HTTP/1.1\r\n", b"Host: a\r\n", b"X-One: 1\r\n",
    b"x-one: 2\r\n", b"Content-Length: 4\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: upgrade\r\n",
    b"Upgrade: x\r\n", b"\r\n", b"\r\n\r\n", b"\n", b"\n\n", b"\r", b"0\r\n", b"4\r\nbody\r\n", b"X:\r\n",
    b" folded\r\n", b": \r\n", b"X-\0: 1\r\n", b" ",
])  # fmt: skip


@given(st.lists(_PIECES, max_size=9), st.booleans())
@example([b"Host: a\r\n", b"\r\n", b"GET /b HTTP/1.0\r\n"], True)
@example([b"Content-Length: 4\r\n", b"\r\n"], True)
@example([b"Content-Length: 4\r\n", b"Content-Length: 4\r\n", b"\r\n"], True)
@example([b"Transfer-Encoding: chunked\r\n", b"\r\n", b"0\r\n", b"Host: a\r\n"], True)
@settings(max_examples=1500)
def test_octets_are_one_head_only_if_they_end_at_their_first_empty_line(pieces: list[bytes], is_get: bool) -> None:
    """And then they mean what they mean to the general way."""
    octets = b"".join([b"GET /a HTTP/1.1\r\n" if is_get else b"", *pieces, b"\r\n\r\n"])
    parser, general = RequestParser(), RequestParser()
    parser.parse(b"GET /before HTTP/1.1\r\nA: b\r\n\r\n", 100)
    if parser.parse_whole(octets, 6):
        assert octets.find(END_OF_HEAD) + len(END_OF_HEAD) == len(octets)
        general.parse(octets, 6)
        assert (parser.method, parser.target, parser.minor) == (general.method, general.target, general.minor)
        assert (parser.names, parser.values) == (general.names, general.values)
    parser.is_clean = False
    parser.parse(b"GET /next HTTP/1.1\r\nA: b\r\n\r\n", 100)
    assert (parser.target, parser.names, parser.values) == (b"/next", (b"A",), (b"b",))


@given(FIELDS, st.sampled_from([0, 1]))
def test_a_plain_head_is_parsed_as_a_whole(fields: list[tuple[bytes, bytes]], minor: int) -> None:
    parser = RequestParser()
    head = b"GET /p?q HTTP/1.%d\r\n" % minor + section(fields)
    is_plain = len(dict(fields)) == len(fields)
    assert parser.parse_whole(head, 6) == is_plain
    if is_plain:
        assert (parser.method, parser.target, parser.minor) == (b"GET", b"/p?q", minor)
        assert list(zip(parser.names, parser.values, strict=True)) == fields
        assert not RequestParser().parse_whole(head, len(fields) - 1)


def test_close_and_upgrade_of_one_connection_do_not_touch_another() -> None:
    parser = RequestParser()
    for extra in (b"Connection: close\r\n", b"Connection: Upgrade\r\nUpgrade: x\r\n", b""):
        parser.parse(b"GET /a HTTP/1.1\r\n" + extra + b"\r\n", 100)
        assert parser.target == b"/a"


@pytest.mark.parametrize(
    ("line", "status"),
    [(b"HTTP/1.1 200 OK", 200), (b"HTTP/1.1 200", 200), (b"HTTP/1.1 200 ", 200), (b"HTTP/1.0 404 Not Found", 404),
     (b"HTTP/1.1 599 \xff", 599), (b"HTTP/1.1 20 OK", 0), (b"HTTP/1.1 2000 OK", 0), (b"HTTP/1.1 099 OK", 0),
     (b"HTTP/1.1  200 OK", 0), (b" HTTP/1.1 200 OK", 0), (b"HTTP/2.0 200 OK", 0), (b"HTTP/1.1 200 a\x01b", 0),
     (b"http/1.1 200 OK", 0), (b"ICY 200 OK", 0)],
)  # fmt: skip
def test_status_lines(line: bytes, status: int) -> None:
    parser = ResponseParser()
    for _ in range(2):  # the second time from memory
        head = line + b"\r\nA: b\r\nA: c\r\n\r\n"
        if status:
            parser.parse(head)
            assert parser.status == status
            assert parser.line.startswith(b"HTTP/1.1 %d " % status)
            assert parser.values == (b"b", b"c")
        else:
            with pytest.raises(BadMessage):
                parser.parse(head)


@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_nonsense_is_seen_before_the_head_is_complete(step: int) -> None:
    def first_status(octets: bytes) -> int:
        check = EarlyCheck(10)
        for end in range(step, len(octets) + step, step):
            problem = check.look(octets[:end])
            if problem is not None:
                return problem.status
        return 0

    assert first_status(b"GET / HTTP/1.1\r\nHost: a\r\nX: y") == 0
    assert first_status(b"FROB / HTTP/1.1\r\nHost: a\r\nX: y") == 0
    # These are for the whole head to judge, the same however it is cut.
    assert first_status(b"GET / HTTP/1.2\r\nHost: a\r\nX: y") == 0
    assert first_status(b"PRI / HTTP/2.0\r\nHost: a\r\nX: y") == 0
    assert first_status(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nX: y") == 0
    assert first_status(b"CONNECT a:1 HTTP/1.1\r\nBad Name: y") == 501
    assert first_status(b"GET / HTTP/1.1\nHost: a\nX: y") == 400
    assert first_status(b"GET / HTTP/1.1\r\nBad Name: y") == 400
    assert first_status(b"GET /\r\nHost: a") == 400
    assert first_status(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 11) == 431


@pytest.mark.parametrize("line", [b"a:80 HTTP/1.1", b"/ RTSP/1.0", b"/ http/1.1", b"", b"/\n", b"/ HTTP/1.1\r\nA : b"])
def test_a_wish_for_a_tunnel_is_refused_as_one_wherever_octets_are_cut(line: bytes) -> None:
    head = b"CONNECT " + line + b"\r\nA\0: b\r\n\r\n"
    with pytest.raises(BadMessage) as whole:
        RequestParser().parse(head, 10)
    check = EarlyCheck(10)
    early = next(found for end in range(1, len(head)) if (found := check.look(head[:end])) is not None)
    assert whole.value.status == early.status == 501


def test_what_one_backend_says_touches_no_other_answer() -> None:
    parser = ResponseParser()
    for field in (b"Proxy-Connection: close", b"Connection: close", b"Connection: upgrade\r\nUpgrade: x"):
        parser.parse(b"HTTP/1.1 200 OK\r\n" + field + b"\r\nContent-Length: 3\r\n\r\n")
        parser.skip(b"odd")
        parser.parse(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n")
        parser.skip(b"ok")
        assert parser.status == 201

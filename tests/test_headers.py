"""Header sections: shapes, framing, and the small grammars of single fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core import headers
from lbproxy.core.headers import BadMessage, RequestShapes, ResponseShapes, Shape

TOKENS = st.text("abcXYZ-_%!#", min_size=1, max_size=8).map(str.encode)
VALUES = st.binary(max_size=12).map(lambda value: bytes(byte for byte in value if byte >= 32 and byte != 127))
FIELDS = st.lists(st.tuples(TOKENS | st.sampled_from([b"Connection", b"TE", b"Upgrade", b"Host"]), VALUES), max_size=8)


@given(FIELDS)
def test_a_shape_forwards_exactly_the_lines_that_are_not_hop_by_hop(fields: list[tuple[bytes, bytes]]) -> None:
    names = tuple(name for name, _ in fields)
    values = tuple(value for _, value in fields)
    shape = RequestShapes().learn(names)
    kept = [b"%b: %b\r\n" % (n, v) for n, v in fields if n.lower() not in headers.HOP_BY_HOP]
    assert shape.lines(values) == b"".join(kept)
    gone = frozenset(name.lower() for name in names[:1])
    left = [line for line in kept if line.split(b":")[0].lower() not in gone]
    assert shape.lines(values, gone or frozenset((b"none",))) == b"".join(left)


@given(FIELDS)
def test_an_index_finds_every_line(fields: list[tuple[bytes, bytes]]) -> None:
    shape = Shape(tuple(name for name, _ in fields), frozenset())
    found = sorted(position for positions in shape.index.values() for position in positions)
    assert found == list(range(len(fields)))
    for name, positions in shape.index.items():
        assert all(fields[position][0].lower() == name for position in positions)


def test_memos_are_bounded_in_entries_and_in_octets() -> None:
    shapes = RequestShapes()
    for number in range(20):
        big = shapes.learn((b"x" * 2000 + b"%d" % number,))
        assert big.template.endswith(b"%b\r\n")
        many = shapes.learn(tuple(b"x-%d-%d" % (number, line) for line in range(90)))
        assert len(many.index) == 90
        assert headers.content_length(b"0" * 1000) == -1
    assert not shapes.known
    connection = ResponseShapes().learn((b"Connection",))
    before = len(headers._connections)
    assert headers.connection_of(connection, (b"a, " * 5000,)).named == {b"a"}
    assert len(headers._connections) == before
    for number in range(5000):
        shapes.learn((b"x-%d" % number,))
    assert len(shapes.known) <= 2048


@pytest.mark.parametrize(
    ("value", "length"),
    [(b"0", 0), (b"5", 5), (b"007", 7), (b" 5 ", 5), (b"+5", -1), (b"-5", -1), (b"5,5", -1), (b"", -1), (b"0x5", -1),
     (b"1_0", -1), ("٣".encode(), -1), (b"9" * 18, 10**18 - 1), (b"9" * 19, -1), (b"5\n", -1)],
)  # fmt: skip
def test_content_length(value: bytes, length: int) -> None:
    assert headers.content_length(value) == length


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (b"A.Example", (b"a.example", b"")),
        (b"a:80", (b"a", b"80")),
        (b"a:", (b"a", b"")),
        (b"[::1]:8080", (b"[::1]", b"8080")),
        (b"127.0.0.1", (b"127.0.0.1", b"")),
        (b"a%20b", (b"a%20b", b"")),
        (b"", None),
        (b":80", None),
        (b"a:b", None),
        (b"a:99999", None),
        (b"a b", None),
        (b"u@a", None),
        (b"a/b", None),
        (b"a,b", None),
        (b"[::1", None),
        (b"\xff", None),
        (b"a\n", None),
    ],
)
def test_authorities(value: bytes, parts: tuple[bytes, bytes] | None) -> None:
    assert headers.split_authority(value) == parts


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (b"http://a", (b"a", b"/")),
        (b"HTTP://a:1/x?y", (b"a:1", b"/x?y")),
        (b"https://a?q", (b"a", b"/?q")),
        (b"http://", None),
        (b"http:///x", None),
        (b"ftp://a/", None),
        (b"http://a/#f", None),
        (b"a:80", None),
    ],
)
def test_absolute_targets(target: bytes, parts: tuple[bytes, bytes] | None) -> None:
    assert headers.split_absolute(target) == parts


@pytest.mark.parametrize(
    ("target", "is_valid"),
    [(b"/a%20b", True), (b"/a%2", False), (b"/a%zz", False), (b"/a|b", False), (b"/a?b|{}%zz", True), (b"/a#b", False),
     (b"/a?b#c", False), (b"/<", False)],
)  # fmt: skip
def test_odd_targets(target: bytes, is_valid: bool) -> None:
    assert headers.is_valid_target(target) == is_valid


def test_connection_options_name_fields_but_never_those_that_carry_the_message() -> None:
    connection = headers.Connection(b"Close, X-One,, x-two , Host, Content-Length, upgrade")
    assert connection.close
    assert connection.upgrade
    assert connection.named == {b"x-one", b"x-two"}


@pytest.mark.parametrize(
    ("fields", "status", "is_head", "expected"),
    [
        ([(b"Content-Length", b"5")], 200, False, (headers.LENGTH, 5)),
        ([(b"Content-Length", b"5")], 200, True, (headers.NO_BODY, 0)),
        ([(b"Content-Length", b"5")], 304, False, (headers.NO_BODY, 0)),
        ([(b"Content-Length", b"5")], 204, False, (headers.NO_BODY, 0)),
        ([(b"Transfer-Encoding", b"Chunked")], 200, False, (headers.CHUNKED, -1)),
        ([], 200, False, (headers.UNTIL_CLOSE, -1)),
        ([(b"Content-Length", b"5"), (b"content-length", b"5")], 200, False, None),
        ([(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")], 200, False, None),
        ([(b"Content-Length", b"five")], 200, True, None),
        ([(b"Transfer-Encoding", b"gzip, chunked")], 200, False, None),
    ],
)
def test_response_framing(
    fields: list[tuple[bytes, bytes]], status: int, is_head: bool, expected: tuple[int, int] | None
) -> None:
    shape = ResponseShapes().learn(tuple(name for name, _ in fields))
    values = tuple(value for _, value in fields)
    if expected is None:
        with pytest.raises(BadMessage):
            headers.response_framing(shape, values, status, is_head)
    else:
        assert headers.response_framing(shape, values, status, is_head) == expected


def test_forwarded_elements() -> None:
    assert headers.forwarded_element("1.2.3.4", b"a:1", b"http") == b'for=1.2.3.4;host="a:1";proto=http'
    assert headers.forwarded_element("::1", b"a", b"http") == b'for="[::1]";host="a";proto=http'
    assert headers.forwarded_element("", b"a", b"http") == b'for=unknown;host="a";proto=http'
    assert headers.forwarded_element("1.2.3.4", b"", b"http") == b"for=1.2.3.4;proto=http"


def test_trailers_keep_only_what_may_come_late() -> None:
    fields = [(b"X-Sum", b"1"), (b"Content-Length", b"9"), (b"HOST", b"a"), (b"Set-Cookie", b"x")]
    assert headers.trailer_lines(fields) == b"X-Sum: 1\r\n"
    disguised = [(b"X_Forwarded_For", b"10.0.0.1"), (b"CONTENT_LENGTH", b"3"), (b"x-sum_2", b"4")]
    assert headers.trailer_lines(disguised) == b"x-sum_2: 4\r\n"
    assert headers.trailer_lines(disguised, frozenset((b"x-sum_2",))) == b""
    assert headers.trailer_lines(disguised, frozenset((b"x-sum-2",))) == b""


@pytest.mark.parametrize(
    ("via", "hops"),
    [
        (b"1.1 lbproxy", 1),
        (b"1.1 lbproxy, 1.0 LBproxy (version 1),1.1 other, HTTP/1.1\tlbproxy", 3),
        (b"1.1 lbproxy.example, 1.1 not-lbproxy, 1.1 a (lbproxy), lbproxy, 1.1", 0),
        (b"", 0),
        (b" , ,", 0),
    ],
)
def test_a_via_field_names_us_as_often_as_we_passed_the_request_on(via: bytes, hops: int) -> None:
    assert headers.hops_in_via(via, b"lbproxy") == hops

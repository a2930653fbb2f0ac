"""Where the key is found, and what counts as having none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core.affinity import key_finder
from lbproxy.core.headers import Shape
from lbproxy.core.spec import KeyKind, KeySource, OnMissing, Sticky


def find(
    *sources: KeySource,
    headers: Sequence[tuple[bytes, bytes]] = (),
    target: bytes = b"/",
    client: str = "",
    on_missing: OnMissing = "balance",
) -> bytes | None:
    finder = key_finder(Sticky(sources, on_missing))
    names, values = tuple(name for name, _ in headers), tuple(value for _, value in headers)
    return finder(Shape(names, frozenset()), values, target, client)


def header(*values: bytes) -> bytes | None:
    return find(KeySource("header", "X-User-ID"), headers=[(b"X-User-Id", value) for value in values])


def cookie(*lines: bytes) -> bytes | None:
    return find(KeySource("cookie", "sid"), headers=[(b"Cookie", line) for line in lines])


def query(target: bytes, name: str = "user") -> bytes | None:
    return find(KeySource("query", name), target=target)


def segment(target: bytes, index: int) -> bytes | None:
    return find(KeySource("path_segment", index=index), target=target)


class TestHeader:
    def test_the_name_has_no_case(self) -> None:
        assert header(b"alice") == b"alice"

    @pytest.mark.parametrize("value", [b" alice", b"alice\t ", b"\t alice \t"])
    def test_white_space_around_it_is_not_part_of_it(self, value: bytes) -> None:
        assert header(value) == b"alice"

    def test_only_octets_of_optional_white_space_are_stripped(self) -> None:
        assert header(b"\xa0alice\x0b") == b"\xa0alice\x0b"

    @pytest.mark.parametrize("values", [(), (b"",), (b" \t",), (b"", b" ")])
    def test_empty_is_missing(self, values: tuple[bytes, ...]) -> None:
        assert header(*values) is None

    def test_several_lines_are_one_list(self) -> None:
        assert header(b"a", b"b", b"a") == header(b"a, b, a") == b"a, b, a"

    def test_empty_lines_among_several_say_nothing(self) -> None:
        assert header(b"", b"a", b" ", b"b") == b"a, b"

    @given(st.binary(min_size=1, max_size=300).filter(lambda value: value == value.strip(b" \t")))
    def test_any_content_comes_out_as_it_went_in(self, value: bytes) -> None:
        assert header(value) == value

    @given(st.lists(st.binary(min_size=1, max_size=8).map(lambda value: b"<" + value + b">"), min_size=2, max_size=6))
    def test_combining_lines_does_not_move_the_key(self, values: list[bytes]) -> None:
        assert header(*values) == header(b", ".join(values)) == header(values[0], b", ".join(values[1:]))


class TestCookie:
    @pytest.mark.parametrize(
        "lines",
        [
            (b"sid=42",),
            (b"a=1; sid=42; b=2",),
            (b"a=1;sid=42",),
            (b"a=1", b"sid=42"),
            (b"sid=42; sid=43",),
            (b"sid=42", b"sid=43"),
            (b"xsid=1; sid2=2; SID=3; sid = 42 ",),
            (b"sid; sid=42",),
        ],
    )
    def test_the_first_of_that_name(self, lines: tuple[bytes, ...]) -> None:
        assert cookie(*lines) == b"42"

    @pytest.mark.parametrize("lines", [(), (b"",), (b"a=1",), (b"sid=",), (b"sid",), (b"sid= ; sid=42",)])
    def test_missing_or_empty(self, lines: tuple[bytes, ...]) -> None:
        assert cookie(*lines) is None

    def test_the_value_is_kept_as_it_is(self) -> None:
        assert cookie(b'sid="a%20b=c"; x=1') == b'"a%20b=c"'


class TestQuery:
    @pytest.mark.parametrize(
        ("target", "key"),
        [
            (b"/p?user=42", b"42"),
            (b"/p?a=1&user=42&user=43", b"42"),
            (b"/p?u%73er=a%20b+c", b"a b c"),
            (b"/p?user=a%2Bb%26c", b"a+b&c"),
            (b"/p?user=%E2%82%AC", "€".encode()),
            (b"/p?user=100%", b"100%"),
            (b"/p?user=a=b", b"a=b"),
            (b"/p?user=a?b", b"a?b"),
            (b"http://h/p?user=42", b"42"),
            (b"/p?user=42#user=43", b"42"),
        ],
    )
    def test_found(self, target: bytes, key: bytes) -> None:
        assert query(target) == key

    @pytest.mark.parametrize(
        "target", [b"/p", b"/p?", b"/p?user", b"/p?user=", b"/p?User=1", b"/user=1", b"*", b"/p#?user=1"]
    )
    def test_missing_or_empty(self, target: bytes) -> None:
        assert query(target) is None

    def test_a_name_beyond_ascii(self) -> None:
        assert query(b"/?%C3%BC=1", "ü") == b"1"


class TestPathSegment:
    @pytest.mark.parametrize(
        ("target", "index", "key"),
        [
            (b"/users/42", 0, b"users"),
            (b"/users/42", 1, b"42"),
            (b"/users/42/x?y/z", 2, b"x"),
            (b"/users/a%2Fb", 1, b"a/b"),
            (b"/users/%C3%BC", 1, "ü".encode()),
            (b"http://h:1/users/42", 1, b"42"),
            (b"/a//b", 2, b"b"),
        ],
    )
    def test_found(self, target: bytes, index: int, key: bytes) -> None:
        assert segment(target, index) == key

    @pytest.mark.parametrize(
        ("target", "index"),
        [(b"/", 0), (b"/users", 1), (b"/users/", 1), (b"/a//b", 1), (b"*", 0), (b"h:443", 0), (b"http://h", 0)],
    )
    def test_missing_or_empty(self, target: bytes, index: int) -> None:
        assert segment(target, index) is None


class TestOrder:
    SOURCES = (
        KeySource("header", "X-User-ID"),
        KeySource("cookie", "sid"),
        KeySource("query", "user"),
        KeySource("client_ip"),
    )

    @pytest.mark.parametrize(
        ("user_id", "cookie_line", "target", "key"),
        [
            (b"h", b"sid=c", b"/?user=q", b"h"),
            (b" ", b"sid=c", b"/?user=q", b"c"),
            (b"", b"sid=", b"/?user=q", b"q"),
            (b"", b"", b"/?user=", b"192.0.2.1"),
        ],
    )
    def test_the_first_source_with_a_value(self, user_id: bytes, cookie_line: bytes, target: bytes, key: bytes) -> None:
        headers = [(b"x-user-id", user_id), (b"cookie", cookie_line)]
        assert find(*self.SOURCES, headers=headers, target=target, client="192.0.2.1") == key

    @pytest.mark.parametrize("on_missing", ["balance", "reject"])
    def test_none_without_any(self, on_missing: OnMissing) -> None:
        assert find(*self.SOURCES[:3], client="192.0.2.1", on_missing=on_missing) is None

    def test_on_missing_client_ip(self) -> None:
        source = self.SOURCES[0]
        assert find(source, client="2001:db8::1", on_missing="client_ip") == b"2001:db8::1"
        assert find(source, headers=[(b"X-User-ID", b"a")], client="192.0.2.1", on_missing="client_ip") == b"a"

    def test_a_client_without_an_address_has_no_key(self) -> None:
        assert find(KeySource("client_ip"), client="") is None


@given(
    kind=st.sampled_from(["header", "cookie", "query", "path_segment", "client_ip"]),
    value=st.binary(max_size=40),
    target=st.binary(max_size=60),
)
def test_no_request_breaks_it_and_no_key_is_empty(kind: KeyKind, value: bytes, target: bytes) -> None:
    headers = [(b"n", value), (b"cookie", value), (b"cookie", b"n=" + value)]
    assert find(KeySource(kind, "n", 1), headers=headers, target=target) != b""

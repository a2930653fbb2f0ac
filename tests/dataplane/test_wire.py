"""The parser seam: whole heads in, nothing of one message left in the next."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core.headers import BadMessage
from lbproxy.dataplane.wire import ChunkedDecoder, EarlyCheck, RequestParser, ResponseParser

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


CHUNKS = st.lists(
    st.binary(min_size=1, max_size=20) | st.sampled_from([b"\r\n\r\n", b"0\r\n\r\n", b"\r\n"]), max_size=6
)


@given(CHUNKS, st.lists(st.integers(1, 9), min_size=1, max_size=5), FIELDS, st.booleans(), st.binary(max_size=10))
def test_a_chunked_body_ends_where_it_ends_however_it_is_split(
    chunks: list[bytes], steps: list[int], trailers: list[tuple[bytes, bytes]], is_request: bool, behind: bytes
) -> None:
    octets = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n" + section(trailers)
    stream = octets + behind
    decoder = ChunkedDecoder(is_request)
    body: list[bytes] = []
    at = turn = 0
    while True:
        step = steps[turn % len(steps)]
        pieces, used = decoder.feed(stream[at : at + step])
        body += pieces
        if used >= 0:
            at += used
            break
        at += step
        turn += 1
        assert at < len(stream) + 10
    assert b"".join(body) == b"".join(chunks)
    assert stream[at:] == behind
    assert decoder.trailers == trailers


BLANKS = st.sampled_from([b"", b" ", b"\t", b" \t "])
TOKENS = st.text("abcXYZ019!#$%&'*+-.^_`|~", min_size=1, max_size=6).map(str.encode)
QUOTED = st.lists(st.sampled_from([b"a", b" ", b";", b"=", b"\t", b"0", b'\\"', b"\\\\", b"\xe9"]), max_size=6).map(
    lambda parts: b'"%b"' % b"".join(parts)
)


@st.composite
def extensions(draw: st.DrawFn) -> bytes:
    """Chunk extensions, with white space wherever it may stand."""
    made = b""
    for _ in range(draw(st.integers(0, 3))):
        made += draw(BLANKS) + b";" + draw(BLANKS) + draw(TOKENS)
        if draw(st.booleans()):
            made += draw(BLANKS) + b"=" + draw(BLANKS) + draw(TOKENS | QUOTED)
    return made


def decoded(octets: bytes, cuts: list[int], is_request: bool = True) -> tuple[bytes, bytes]:
    """The payload of a chunked body, given in pieces, and what lies behind it."""
    decoder = ChunkedDecoder(is_request)
    body = b""
    places = sorted({0, len(octets), *[cut % (len(octets) + 1) for cut in cuts]})
    for start, end in pairwise(places):
        pieces, used = decoder.feed(octets[start:end])
        body += b"".join(pieces)
        if used >= 0:
            return body, octets[start + used :]
    raise AssertionError("the body has not ended")


# Payload that looks like framing.
LIKE_SIZES = st.lists(
    st.sampled_from([b"5 ; a = b\r\n", b"0;x\r\n\r\n", b"\r\n", b"\n", b"a", b"1; b", b"ff\r", b";", b" "]),
    min_size=1,
    max_size=5,
).map(b"".join)


@given(
    st.lists(st.tuples(LIKE_SIZES, extensions()), max_size=4),
    extensions(),
    st.lists(st.integers(0, 500), max_size=8),
    st.booleans(),
)
def test_chunk_extensions_are_read_over_wherever_blanks_stand_and_octets_are_cut(
    chunks: list[tuple[bytes, bytes]], last: bytes, cuts: list[int], is_request: bool
) -> None:
    octets = b"".join([b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk, extension in chunks])
    octets += b"0%b\r\n\r\n" % last
    behind = b"5 ; a\r\nGET"
    payload = b"".join([chunk for chunk, _ in chunks])
    assert decoded(octets + behind, cuts, is_request) == (payload, behind)
    assert decoded(octets + behind, list(range(500)), is_request) == (payload, behind)


@pytest.mark.parametrize(
    "size",
    [b"5 5", b"5 ", b" 5", b"5;", b"5; ", b"5;a b", b"5;a=b c", b'5;a="b', b'5;a="b"c',
     b"5;a\x00", b"5;a\x7f", b"5;\xe9", b"5;a=\"\x01\"", b"5;a\rb", b"5;a\n", b"5\n", b";a", b"g;a", b"0x5;a",
     b"5;a=b\r", b"-5;a"],
)  # fmt: skip
@pytest.mark.parametrize("step", [1, 100])
def test_what_is_no_chunk_extension_is_refused(size: bytes, step: int) -> None:
    octets = size + b"\r\nhello\r\n0\r\n\r\n"
    decoder = ChunkedDecoder(True)
    with pytest.raises(BadMessage):
        for at in range(0, len(octets), step):
            _, used = decoder.feed(octets[at : at + step])
            assert used < 0


@pytest.mark.parametrize("endless", [b"1;" + b"x" * 20000, b"0\r\n" + b"A: b\r\n" * 4000])
def test_endless_extensions_and_trailers_are_refused(endless: bytes) -> None:
    decoder = ChunkedDecoder(True)
    with pytest.raises(BadMessage):
        for at in range(0, len(endless), 512):
            decoder.feed(endless[at : at + 512])


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


def test_what_one_backend_says_touches_no_other_answer() -> None:
    parser = ResponseParser()
    for field in (b"Proxy-Connection: close", b"Connection: close", b"Connection: upgrade\r\nUpgrade: x"):
        parser.parse(b"HTTP/1.1 200 OK\r\n" + field + b"\r\nContent-Length: 3\r\n\r\n")
        parser.skip(b"odd")
        parser.parse(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n")
        parser.skip(b"ok")
        assert parser.status == 201


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
def test_an_answers_trailers_that_name_a_length_are_dropped_however_they_are_cut(step: int) -> None:
    octets = b"3\r\nabc\r\n0\r\nX: y\r\nContent-Length: 5\r\nZ: z\r\n\r\n"
    decoder = ChunkedDecoder(is_request=False)
    body = b""
    for at in range(0, len(octets), step):
        pieces, used = decoder.feed((octets + b"next")[at : at + step] if step < 1000 else octets + b"next")
        body += b"".join(pieces)
        if used >= 0:
            assert at + used == len(octets)
            break
    else:
        raise AssertionError("the end was not seen")
    assert body == b"abc"
    assert decoder.trailers == []

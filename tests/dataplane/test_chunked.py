"""Chunked bodies: the payload and the end of each, however its octets are cut."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core.headers import BadMessage
from lbproxy.dataplane.chunked import ChunkedDecoder
from tests.dataplane.test_wire import FIELDS, section

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


def test_chunks_with_blanks_in_their_extensions_take_as_long_in_one_piece_as_in_many() -> None:
    """Each costs a new parser, which is bad enough; what follows must not be copied for each as well."""
    took_s = []
    for pieces in (20, 1):
        octets = (b"80 ;a\r\n" + b"x" * 128 + b"\r\n") * (40_000 // pieces)
        decoder = ChunkedDecoder(True)
        before = time.process_time()
        for _ in range(pieces):
            decoder.feed(octets)
        took_s.append(time.process_time() - before)
    assert took_s[1] < 3 * took_s[0]


@pytest.mark.parametrize("step", [1, 7, 300, 1_000_000])
def test_little_but_extensions_with_blanks_is_refused_wherever_octets_are_cut(step: int) -> None:
    """A quarter of a megabyte of them took 50 ms, in one go; some hundred connections held up a worker for seconds."""

    def taken(chunk: bytes, count: int) -> int:
        """How much payload is understood."""
        decoder = ChunkedDecoder(True)
        octets = chunk * count
        payload = 0
        for at in range(0, len(octets), step):
            try:
                payload += len(b"".join(decoder.feed(octets[at : at + step])[0]))
            except BadMessage:
                return payload + len(b"".join(decoder.salvaged))
        return payload

    assert taken(b"1 ; a = b\r\nx\r\n", 400) == 129
    assert taken(b"80 ; a = b\r\n" + b"x" * 128 + b"\r\n", 400) == 400 * 128
    assert taken(b"400 ;a\r\n" + b"x" * 1024 + b"\r\n" + b"1 ;a\r\nx\r\n" * 140, 3) == 1024 + 129


@pytest.mark.parametrize("step", [1, 300, 1_000_000])
@pytest.mark.parametrize("is_request", [True, False])
def test_trailers_are_as_long_at_the_most_in_one_piece_as_in_many(step: int, is_request: bool) -> None:
    """A quarter of a megabyte that came at once was taken, and made four megabytes of objects."""

    def is_taken(line: bytes, count: int) -> bool:
        decoder = ChunkedDecoder(is_request)
        octets = b"1\r\nx\r\n0\r\n" + line * count + b"\r\n"
        try:
            return any(decoder.feed(octets[at : at + step])[1] >= 0 for at in range(0, len(octets), step))
        except BadMessage:
            return False

    assert is_taken(b"a: b\r\n", 16_000 // 6)
    assert not is_taken(b"a: b\r\n", 17_000 // 6)
    assert is_taken(b"a: %b\r\n" % (b"b" * 16_000), 1)
    assert not is_taken(b"a: %b\r\n" % (b"b" * 17_000), 1)


@pytest.mark.parametrize("endless", [b"1;" + b"x" * 20000, b"0\r\n" + b"A: b\r\n" * 4000])
def test_endless_extensions_and_trailers_are_refused(endless: bytes) -> None:
    decoder = ChunkedDecoder(True)
    with pytest.raises(BadMessage):
        for at in range(0, len(endless), 512):
            decoder.feed(endless[at : at + 512])


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
def test_an_answers_trailers_that_name_a_length_are_dropped_however_they_are_cut(step: int) -> None:
    octets = b"3\r\nabc\r\n0\r\nX: y\r\nContent-Length: 5\r\nZ: z\r\n\r\n"
    decoder = ChunkedDecoder(is_request=False)
    body = b""
    for at in range(0, len(octets), step):
        pieces, used = decoder.feed((octets + b"next")[at : at + step])
        body += b"".join(pieces)
        if used >= 0:
            assert at + used == len(octets)
            break
    else:
        raise AssertionError("the end was not seen")
    assert body == b"abc"
    assert decoder.trailers == []

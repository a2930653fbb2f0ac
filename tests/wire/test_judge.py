"""The judge is judged: the strict reader, the checks, and all of it before a relay that understands nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.wire.backend import Backend
from tests.wire.case import HIDDEN, MUST, Case, Close, answer, case, chunked, get, length, ok, post, raw
from tests.wire.corpus import CASES, TOPICS
from tests.wire.expect import cut, either, nothing, relayed, status
from tests.wire.http1 import Stream
from tests.wire.play import Result, play_all

GOOD = post(b"hello", "X-A: 1") + chunked(b"5;a=b\r\nhello\r\n0\r\nX-T: 1\r\n\r\n") + get(method="HEAD")


def read(octets: bytes, size: int) -> Stream:
    stream = Stream()
    for start in range(0, len(octets), size):
        stream.feed(octets[start : start + size])
    stream.close()
    return stream


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_requests_are_read_whole_however_they_arrive(size: int) -> None:
    stream = read(GOOD, size)
    assert not stream.trouble
    assert [(message.method, bytes(message.body)) for message in stream.messages] == [
        (b"POST", b"hello"),
        (b"POST", b"hello"),
        (b"HEAD", b""),
    ]
    assert stream.messages[1].trailers == [(b"X-T", b"1")]
    assert b"".join(bytes(message.raw) for message in stream.messages) == GOOD


@pytest.mark.parametrize(
    ("octets", "words"),
    [
        (get().replace(b"\r\n", b"\n"), "bare CR or LF"),
        (raw("GET  /x HTTP/1.1", "Host: a"), "no request line"),
        (raw("GET /x HTTP/1.1", "X: 1"), "0 Host lines"),
        (raw("GET /x HTTP/1.1", "Host: a b"), "Host b'a b'"),
        (get("X : 1"), "no field line"),
        (get("X: a\0b"), "no field line"),
        (get(" X: 1"), "no field line"),
        (get("Content-Length: +1"), "Content-Length"),
        (get("Content-Length: 1", "Content-Length: 1"), "Content-Length"),
        (get("Content-Length: 1", "Transfer-Encoding: chunked"), "beside"),
        (get("Transfer-Encoding: chunked, chunked"), "final coding"),
        (get("Transfer-Encoding: chunked", version="1.0"), "HTTP/1.0"),
        (chunked(b"0x5\r\nhello\r\n"), "no chunk size"),
        (chunked(b"5\r\nhelloo\r\n"), "no CRLF behind a chunk"),
        (chunked(b'1;a="\x01"\r\n'), "no chunk size"),
    ],
)
def test_what_no_sender_may_send_is_noticed(octets: bytes, words: str) -> None:
    assert words in read(octets, 1000).trouble


def test_answers_are_read_by_the_requests_they_belong_to() -> None:
    stream = Stream((b"HEAD", b"GET", b"GET"))
    stream.feed(raw("HTTP/1.1 103 Early Hints") + answer("200 OK", "Content-Length: 5"))
    stream.feed(answer("204 No Content") + ok(b"hello") + b"more")
    assert [message.status for message in stream.messages] == [103, 200, 204, 200]
    assert [message.status for message in stream.finals] == [200, 204, 200]
    assert stream.surplus == b"more"


def test_only_the_end_completes_an_answer_without_a_length() -> None:
    stream = Stream((b"GET",))
    stream.feed(answer("200 OK", body=b"hello"))
    assert not stream.messages[0].is_complete
    stream.close()
    assert stream.messages[0].is_complete


def test_the_corpus_is_whole() -> None:
    assert not [name for name, count in Counter(case.id for case in CASES).items() if count > 1]
    assert all(TOPICS.values())
    assert all(case.expect and case.section for case in CASES)
    assert all(b"~~" in repr(case.send).encode() or case.id in MARKLESS for case in CASES)


# Cases that send nothing in which a mark could stand.
MARKLESS = {
    "line-all-in-one",
    "noise-binary",
    "noise-nuls",
    "noise-tls-hello",
    "half-close-at-once",
    "smuggle-behind-400",
}


async def blind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, backend: int) -> None:
    """Pass octets on in both directions and understand none of them."""
    inbound, outbound = await asyncio.open_connection("127.0.0.1", backend)

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    await asyncio.gather(pump(reader, outbound), pump(inbound, writer), return_exceptions=True)


async def through_blind_relay(cases: Sequence[Case]) -> dict[str, Result]:
    backend = Backend()
    port = await backend.start()
    server = await asyncio.start_server(lambda reader, writer: blind(reader, writer, port), "127.0.0.1", 0)
    try:
        played = await play_all(cases, backend, "127.0.0.1", server.sockets[0].getsockname()[1], retry=False)
    finally:
        server.close()
        backend.stop()
    return {result.case.id: result for result in played.results}


def test_a_relay_that_understands_nothing_is_found_out() -> None:
    cases = [
        case("plain", "", MUST, get(), relayed(b"GET", b"/~~")),
        case("body", "", MUST, post(b"hello"), relayed(b"POST", b"/~~", b"hello"), methods="POST"),
        case("inside", "", MUST, post(HIDDEN), relayed(body=HIDDEN), methods="POST"),
        case("no-host", "", MUST, raw("GET /~~ HTTP/1.1"), nothing),
        case("nul", "", MUST, get("X: a\0b"), status(400)),
        case("cut", "", MUST, get(), cut, answer=(answer("200 OK", "Content-Length: 9", body=b"hello"), Close())),
        case("whole", "", MUST, get(), cut, answer=(answer("200 OK", body=b"hello"), Close())),
        case("surplus", "", MUST, get(), status(200), answer=ok(b"hello") + b"more"),
        case("either", "", MUST, get(), either(status(404), status(200))),
        case("neither", "", MUST, get(), either(status(404), status(500))),
    ]
    results = asyncio.run(through_blind_relay(cases))
    passed = {name for name, result in results.items() if result.has_passed}
    assert passed == {"plain", "body", "inside", "cut", "either"}, [result.faults for result in results.values()]


def test_a_mark_is_as_long_as_its_place_counts() -> None:
    assert length(b"/~~/x") == len(b"/" + b"~000000~" + b"/x")

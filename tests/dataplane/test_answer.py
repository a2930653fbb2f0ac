"""Answers whose heads are the same to the octet, and what must be different about them all the same."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.dataplane.harness import Talk, answer, backend, pool_of, read_head, request, running

_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def _talk(*answers: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for octets in answers:
            await read_head(reader)
            writer.write(octets)
        await read_head(reader)

    return talk


@pytest.mark.parametrize(
    ("answers", "bodies"),
    [
        ([answer(b"one"), answer(b"two"), answer(b"333")], [b"one", b"two", b"333"]),
        ([answer(b"one"), answer(b"fourr"), answer(b"two")], [b"one", b"fourr", b"two"]),
        ([_CHUNKED + b"1\r\na\r\n0\r\n\r\n", _CHUNKED + b"2\r\nbb\r\n0\r\n\r\n"], [b"a", b"bb"]),
        ([answer(b""), answer(b""), answer(b"x")], [b"", b"", b"x"]),
        ([b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n", answer(b"x")], [b"", b"", b"x"]),
        ([b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer(b"one"), answer(b"two")], [b"one", b"two"]),
        ([answer(b"one"), b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer(b"two")], [b"one", b"two"]),
    ],
)
async def test_each_has_its_own_body(answers: list[bytes], bodies: list[bytes]) -> None:
    async with backend(_talk(*answers)) as served, running(pool_of(served.port)) as plane:
        said = await plane.ask(request(close=False) * (len(answers) - 1) + request())
        parts = re.split(rb"HTTP/1.1 [2-5].*?\r\n\r\n", said, flags=re.DOTALL)[1:]
        parts = [re.sub(rb"HTTP/1.1 103.*?\r\n\r\n", b"", part, flags=re.DOTALL) for part in parts]
        parts = [re.sub(rb"^[0-9a-f]+\r\n(.*)\r\n0\r\n\r\n$", rb"\1", part) for part in parts]
        assert parts == bodies
        assert len(served.received) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("extra", "is_kept"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", True),
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n", True),
    ],
)
async def test_a_transfer_coding_in_http_1_0_ends_the_connection(extra: bytes, is_kept: bool, method: str) -> None:
    """RFC 9112 6.1: such framing is faulty, and the connection closed when the message has been processed."""
    body = b"" if method == "HEAD" else b"2\r\nok\r\n0\r\n\r\n" if b"chunked" in extra else b"ok"
    octets = extra + b"\r\n" + body
    async with backend(_talk(octets, octets)) as served, running(pool_of(served.port)) as plane:
        said = await plane.ask(request(method, close=False) + request(method))
        assert said.count(b"HTTP/1.1 200 OK") == 2
        assert said.count(b"ok") == (0 if method == "HEAD" else 2)
        assert len(served.received) == (1 if is_kept else 2)


async def test_the_answer_to_a_head_request_has_no_body_whatever_its_head_says() -> None:
    head = answer(b"hello")[:-5]
    methods = ["GET", "HEAD", "GET", "HEAD", "GET"]
    answers = [answer(b"hello") if method == "GET" else head for method in methods]
    async with backend(_talk(*answers)) as served, running(pool_of(served.port)) as plane:
        said = await plane.ask(b"".join(request(m, close=False) for m in methods[:-1]) + request(methods[-1]))
        assert [bool(part.endswith(b"hello")) for part in said.split(b"HTTP/1.1 200 OK")[1:]] == [
            method == "GET" for method in methods
        ]
        assert len(served.received) == 1


async def test_a_head_that_came_before_and_comes_in_pieces_now() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(answer(b"whole"))
        await read_head(reader)
        for octet in answer(b"parts"):
            writer.write(bytes([octet]))
            await writer.drain()
            await asyncio.sleep(0)
        await read_head(reader)
        writer.write(answer(b"again"))

    async with backend(talk) as served, running(pool_of(served.port)) as plane:
        said = await plane.ask(request(close=False) * 2 + request())
        assert re.findall(rb"\r\n\r\n(.{5})", said) == [b"whole", b"parts", b"again"]

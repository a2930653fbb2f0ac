"""Bodies that come in one segment with their heads, and what stands behind them there."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from lbproxy.core import ledger
from lbproxy.core.spec import Limits, Route
from tests.dataplane.harness import answer, answering, backend, pool_of, read_head, running
from tests.loops import on_both_loops
from tests.test_hardening import no_exceptions

LENGTH = b"Content-Length: 5\r\n\r\nhello"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Trailer: v\r\n\r\n"
START = b"POST /first HTTP/1.1\r\nHost: a\r\nX-User-ID: kim\r\n"
NEXT = b"GET /next HTTP/1.1\r\nHost: a\r\nX-User-ID: kim\r\nConnection: close\r\n\r\n"


def statuses(octets: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", octets)]


@pytest.mark.parametrize("rest", [LENGTH, CHUNKED])
@pytest.mark.parametrize("is_cut", [False, True])
@on_both_loops
async def test_a_body_that_nobody_wants_is_read_when_it_is_there_and_not_waited_for(rest: bytes, is_cut: bool) -> None:
    """Of one that is there as a whole the end is known, and the next request is taken."""
    for routes, missing, status, reason in (
        ((Route("p", host="b"),), "balance", 404, "no_route"),
        (None, "reject", 400, "no_key"),
    ):
        pool = pool_of(1)
        pool = replace(pool, sticky=replace(pool.sticky, on_missing=missing))  # type: ignore[arg-type]
        head = START.replace(b"X-User-ID: kim\r\n", b"")
        following = NEXT.replace(b"X-User-ID: kim\r\n", b"")
        async with running(pool, routes=routes) as plane:
            with no_exceptions():
                octets = await plane.ask(head + (rest[:-2] if is_cut else rest + following))
            assert statuses(octets) == [status] * (1 if is_cut else 2)
            assert [line.reason for line in plane.lines] == [reason] * (1 if is_cut else 2)
            assert plane.lines[0].request_bytes == (3 if is_cut and rest is LENGTH else 5)


@pytest.mark.parametrize(
    ("rest", "status", "reason"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\nworld!\r\n0\r\n\r\n", 413, "body_too_large"),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n", 400, "bad_request"),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX", 400, "bad_request"),
        (b"Content-Length: 11\r\n\r\nhello world", 413, "body_too_large"),
    ],
)
@on_both_loops
async def test_a_body_that_cannot_be_taken_is_refused_once_and_reaches_nobody(
    rest: bytes, status: int, reason: str
) -> None:
    async with (
        backend(answering(answer())) as served,
        running(pool_of(served.port), limits=Limits(body_bytes=10)) as plane,
    ):
        with no_exceptions():
            octets = await plane.ask(START + rest + NEXT)
        assert statuses(octets) == [status]
        assert octets.count(b"Connection: close") == 1
        assert [(line.status, line.reason, line.attempts, line.backend) for line in plane.lines] == [
            (status, reason, 0, "")
        ]
        assert served.octets == b""
        column = ledger.WORKER_REJECTED + ledger.REJECTIONS.index(reason)
        assert plane.cell("worker", column=column) == 1


@pytest.mark.parametrize("rest", [LENGTH, CHUNKED])
@on_both_loops
async def test_a_body_that_comes_though_it_need_not_arrives_once_with_the_interim_answer(rest: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readuntil(b"hello")
        if rest is CHUNKED:
            assert await read_head(reader) == b"\r\n0\r\nX-Trailer: v\r\n\r\n"
        writer.write(answer(b"one"))
        await read_head(reader)
        writer.write(answer(b"two"))

    async with backend(talk) as served, running(pool_of(served.port)) as plane:
        octets = await plane.ask(START + b"Expect: 100-continue\r\n" + rest + NEXT)
        assert statuses(octets) == [100, 200, 200]
        assert octets.index(b"one") < octets.index(b"two")
        assert served.octets.count(b"hello") == 1
        assert [(line.request_bytes, line.key, line.decision) for line in plane.lines] == [
            (5, b"kim", "owner"),
            (0, b"kim", "owner"),
        ]
        assert plane.pool_cell(ledger.POOL_REQUEST_BYTES) == 5


@pytest.mark.parametrize("rest", [LENGTH, CHUNKED])
@on_both_loops
async def test_a_body_that_came_with_its_head_goes_to_the_next_backend_too(rest: bytes) -> None:
    """And what the request was, though its values have been forgotten."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        await reader.readuntil(b"hello")
        if b"PUT" in head:
            return
        writer.write(answer())

    async with backend(refuse) as one, backend(refuse) as two, running(pool_of(one.port, two.port)) as plane:
        octets = await plane.ask(START.replace(b"POST", b"PUT") + b"Connection: close\r\n" + rest)
        assert statuses(octets) == [502]
        assert (one.octets.count(b"hello"), two.octets.count(b"hello")) == (1, 1)
        assert one.octets == two.octets
        (line,) = plane.lines
        assert (line.attempts, line.key, line.request_bytes, line.decision) == (2, b"kim", 5, "retry")

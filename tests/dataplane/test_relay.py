"""The relay on real sockets: what HTTP/1.1 asks of an intermediary, and what must survive."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Literal, cast

import pytest

from lbproxy.core import ledger
from lbproxy.core.account import DRAINING, OUT, SERVING
from lbproxy.core.spec import (
    AffinityCookie,
    BoundedLoad,
    Ejection,
    HeaderPolicy,
    HotKeys,
    KeySource,
    Limits,
    ListenerTimeouts,
    Pin,
    PoolSpec,
    PoolTimeouts,
    Queue,
    Retry,
    Route,
    Sticky,
    UpstreamConnections,
)
from lbproxy.dataplane import downstream, flow, upstream
from lbproxy.dataplane.relay import Exchange
from tests.dataplane.harness import (
    PATIENCE_S,
    Plane,
    Talk,
    answer,
    answering,
    backend,
    pool_of,
    read_head,
    reload,
    request,
    running,
    waiting_for,
)
from tests.tools import interpreted_only


def parts(response: bytes) -> tuple[int, bytes, bytes]:
    """Status, head and body of a response."""
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), head, body


async def test_a_small_get_is_relayed_and_accounted_for() -> None:
    async with backend(answering(answer(b"hello"))) as b0, running(pool_of(b0.port)) as proxy:
        status, head, body = parts(await proxy.ask(request()))
        assert (status, body) == (200, b"hello")
        assert b"Content-Length: 5" in head
        assert b"\r\nDate: " in head
        sent = b0.octets
        assert sent.startswith(b"GET / HTTP/1.1\r\nHost: a.example\r\nX-User-ID: kim\r\n")
        assert b"Connection" not in sent
        for line in (b"X-Forwarded-For: 127.0.0.1", b"X-Forwarded-Proto: http", b"X-Forwarded-Host: a.example",
                     b"Via: 1.1 lbproxy", b"X-Request-ID: "):  # fmt: skip
            assert line in sent
        assert proxy.pool_cell(ledger.POOL_REQUESTS + 1) == 1
        assert proxy.pool_cell(ledger.POOL_IN_FLIGHT) == 0
        assert proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0
        assert proxy.backend_cell("b0", ledger.BACKEND_OWNED) == 1
        assert proxy.pool_cell(ledger.POOL_DECISIONS + ledger.OWNER) == 1
        assert proxy.pool_cell(ledger.POOL_RESPONSE_BYTES) == 5
        entry = proxy.lines[0]
        assert (entry.status, entry.backend, entry.decision, entry.key) == (200, "b0", "owner", b"kim")


@pytest.mark.parametrize(
    "method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "FROBNICATE", "M-SEARCH", "PROPFIND"]
)
async def test_methods_of_every_kind(method: str) -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        assert parts(await proxy.ask(request(method)))[0] == 200
        assert b0.octets.startswith(method.encode() + b" / HTTP/1.1\r\n")


async def test_connections_are_kept_on_both_sides() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        for _ in range(5):
            writer.write(request(close=False))
            await read_head(reader)
            assert await reader.readexactly(2) == b"ok"
        writer.close()
        assert len(b0.received) == 1
        assert proxy.backend_cell("b0", ledger.BACKEND_OPENED) == 1
        await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IDLE) == 1)
        assert proxy.backend_cell("b0", ledger.BACKEND_ACTIVE) == 0


async def test_with_max_idle_0_no_connection_to_a_backend_is_used_twice() -> None:
    async with backend(answering(answer())) as b0:
        pool = pool_of(b0.port)
        none_kept = replace(pool, connections=UpstreamConnections(max_idle=0))
        async with running(pool) as proxy:
            for reloaded in (none_kept, pool):
                reload(proxy, replace(proxy.config, pools=(reloaded,)))
                before = len(b0.received)
                response = await proxy.ask(request(close=False) * 4 + request())
                assert response.count(b"HTTP/1.1 200 OK") == 5
                assert len(b0.received) - before == (5 if reloaded is none_kept else 1)


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with (
        backend(answering(answer(b"1"), answer(b"22"), answer(b"333"))) as b0,
        running(pool_of(b0.port)) as proxy,
    ):
        chunked = request("POST", "/2", b"Transfer-Encoding: chunked\r\n", close=False) + b"3\r\nabc\r\n0\r\n\r\n"
        response = await proxy.ask(request("GET", "/1", close=False) + chunked + request("GET", "/3"))
        assert [response.find(b"\r\n\r\n" + body) > 0 for body in (b"1", b"22", b"333")] == [True] * 3
        assert response.count(b"HTTP/1.1 200 OK") == 3
        assert [line.target for line in proxy.lines] == [b"/1", b"/2", b"/3"]


async def test_http_1_0_client_gets_no_chunks_and_keep_alive_only_when_asked() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    async with backend(answering(chunked, answer(b"second"))) as b0, running(pool_of(b0.port)) as proxy:
        status, head, body = parts(await proxy.ask(b"GET / HTTP/1.0\r\n\r\n"))
        assert b"X-Forwarded-For: 127.0.0.1" in b0.octets
        assert b"X-Forwarded-Host" not in b0.octets  # of none it has nothing to say
        assert (status, body) == (200, b"hello")
        assert b"chunked" not in head
        assert b"Connection: close" in head
        reader, writer = await proxy.connect()
        writer.write(b"GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
        head = await read_head(reader)
        assert b"Connection: keep-alive" in head
        assert await reader.readexactly(6) == b"second"
        writer.close()


async def test_http_1_0_backend_and_close_delimited_answer() -> None:
    async with (
        backend(answering(b"HTTP/1.0 200 OK\r\n\r\nuntil the end", close=True)) as b0,
        running(pool_of(b0.port)) as proxy,
    ):
        _, head, body = parts(await proxy.ask(request()))
        assert b"Transfer-Encoding: chunked" in head
        assert body == b"d\r\nuntil the end\r\n0\r\n\r\n"
        assert proxy.backend_cell("b0", ledger.BACKEND_IDLE) == 0


@pytest.mark.parametrize(
    ("method", "response"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n"),
    ],
)
async def test_answers_without_a_body_leave_the_connection_usable(method: str, response: bytes) -> None:
    async with backend(answering(response, answer(b"next"))) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request(method, close=False) + request("GET", "/next", close=True))
        everything = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert everything.endswith(b"\r\n\r\nnext")
        assert (b"Content-Length: 500" in everything) == (b"500" in response)
        assert len(b0.received) == 1
        writer.close()


async def test_chunked_bodies_and_trailers_are_made_anew_both_ways() -> None:
    response = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 5\r\nSet-Cookie: late\r\n\r\n"
    )

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"X-Up: 1\r\n\r\n")
        writer.write(response)
        await writer.drain()

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        got = await proxy.ask(
            request("POST", "/", b"Transfer-Encoding: chunked\r\n")
            + b"004;a=b\r\nwxyz\r\n0\r\nHost: other\r\nX-Up: 1\r\n\r\n"
        )
        assert b0.octets.endswith(b"4\r\nwxyz\r\n0\r\nX-Up: 1\r\n\r\n")
        assert b";a=b" not in b0.octets
        assert got.endswith(b"5\r\nabcde\r\n0\r\nX-Sum: 5\r\n\r\n")
        assert proxy.lines[0].request_bytes == 4
        assert proxy.lines[0].response_bytes == 5


@pytest.mark.parametrize("is_in_pieces", [False, True])
@pytest.mark.parametrize("named", [b"", b"Connection: X-Hop\r\n"])
async def test_what_requests_are_routed_by_is_not_said_again_in_trailers(is_in_pieces: bool, named: bytes) -> None:
    """RFC 9110 6.5.1: a backend that merges trailers with the head would take the request for somebody else's."""
    other = PoolSpec("q", pool_of(1).backends, sticky=Sticky((KeySource("header", "X_Tenant"),)))
    trailers = b"X-User-ID: bob\r\nx_user_id: bob\r\nX-Tenant: bob\r\nX-Request-ID: bob\r\nX-Sum: 5\r\n\r\n"
    head = request("POST", "/", b"X-User-ID: ann\r\nTransfer-Encoding: chunked\r\n" + named)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"X-Sum: 5\r\n\r\n")
        writer.write(answer())
        await writer.drain()

    routes = (Route("p"), Route("q", path="/q"))
    async with backend(talk) as b0, running(pool_of(b0.port), other, routes=routes) as proxy:
        reader, writer = await proxy.connect()
        writer.write(head + b"2\r\nhi\r\n0\r\n")
        if is_in_pieces:
            await proxy.settled(lambda: b"hi" in b0.octets)
        writer.write(trailers)
        assert parts(await asyncio.wait_for(reader.read(), PATIENCE_S))[0] == 200
        assert b0.octets.endswith(b"0\r\nX-Sum: 5\r\n\r\n")
        assert b0.octets.count(b"bob") == 0
        writer.close()


@pytest.mark.parametrize("via", ["lbproxy", "edge-1", ""])
async def test_a_request_that_goes_round_in_a_circle_is_refused(via: str) -> None:
    """RFC 9110 7.6.3. Several of us may stand one behind the other under one name, but not that many."""
    said = (via or "lbproxy").encode()
    chain = b"Via: 1.1 a, 1.1 %b\r\n" % said
    async with backend(answering(answer())) as b0, running(pool_of(b0.port), headers=HeaderPolicy(via=via)) as proxy:
        assert parts(await proxy.ask(request(extra=chain * 8)))[0] == 200
        status, _, _ = parts(await proxy.ask(request(extra=chain * 9)))
        assert status == (508 if via else 200)
        assert proxy.cell("worker", column=ledger.WORKER_REJECTED + ledger.REJECTIONS.index("loop")) == bool(via)
        assert proxy.lines[-1].reason == ("loop" if via else "")
        assert parts(await proxy.ask(request(extra=b"Via: 1.1 other\r\n" * 30)))[0] == 200


async def test_who_is_its_own_backend_is_found_out() -> None:
    async with running(pool_of(1)) as proxy:
        pool = replace(pool_of(proxy.port), ejection=Ejection(consecutive_errors=1))
        reload(proxy, replace(proxy.config, pools=(pool,)))
        assert parts(await proxy.ask(request()))[0] == 508
        assert len(proxy.lines) == 10


async def test_a_loop_that_is_refused_speaks_against_no_backend() -> None:
    """Or whoever may write a Via field could have backends ejected that are such proxies themselves."""
    told: list[str] = []
    pool_spec = replace(pool_of(1), ejection=Ejection(consecutive_errors=1))
    for status, blamed in ((b"508 Loop Detected", []), (b"500 Oops", ["b0"])):
        async with (
            backend(answering(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status)) as b0,
            running(
                replace(pool_spec, backends=pool_of(b0.port).backends),
                report=lambda pool, name, reason: told.append(name),
            ) as proxy,
        ):
            await proxy.ask(request())
            assert told == blamed
            assert proxy.backend_cell("b0", ledger.BACKEND_LOOPS) == (not blamed)


async def test_expect_100_continue_and_other_interim_answers_pass() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(4) == b"body"
        writer.write(answer(b"done"))
        await writer.drain()

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request("POST", "/", b"Expect: 100-continue\r\nContent-Length: 4\r\n"))
        assert (await read_head(reader)).startswith(b"HTTP/1.1 103 Early Hints\r\nLink: </a>")
        assert (await read_head(reader)).startswith(b"HTTP/1.1 100 Continue")
        assert b"Expect: 100-continue" in b0.octets
        writer.write(b"body")
        assert (await reader.read()).endswith(b"done")
        writer.close()


async def test_absolute_form_replaces_host_and_options_asterisk_stays() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        await proxy.ask(request("GET", "http://Other.example:8080/x?y=1"))
        assert b0.octets.startswith(b"GET /x?y=1 HTTP/1.1\r\nHost: Other.example:8080\r\n")
        assert b0.octets.count(b"Host: ") == 2  # Host and X-Forwarded-Host
        assert b"a.example" not in b0.octets
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        await proxy.ask(request("OPTIONS", "*"))
        assert b0.octets.startswith(b"OPTIONS * HTTP/1.1\r\n")


async def test_a_websocket_is_a_tunnel_with_half_close() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhi ")
        data = await reader.read()  # until the client has said everything
        writer.write(data.upper())
        await writer.drain()

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request("GET", "/", b"Connection: Upgrade\r\nUpgrade: echo\r\n", close=False))
        head = await read_head(reader)
        assert b"101 Switching" in head
        assert b"Connection: Upgrade\r\nUpgrade: echo" in head
        assert b"Connection: Upgrade\r\nUpgrade: echo" in b0.octets
        assert proxy.pool_cell(ledger.POOL_UPGRADED_OPEN) == 1
        writer.write(b"some ")
        writer.write(b"words")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"hi SOME WORDS"
        await proxy.settled(lambda: proxy.pool_cell(ledger.POOL_UPGRADED_OPEN) == 0)
        assert proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0
        assert proxy.lines[0].upgraded
        writer.close()


async def test_a_backend_that_stops_sending_through_a_tunnel_still_receives() -> None:
    received = asyncio.get_running_loop().create_future()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello")
        writer.write_eof()
        received.set_result(await reader.readexactly(6))

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request("GET", "/", b"Connection: Upgrade\r\nUpgrade: echo\r\n", close=False))
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"\r\n\r\nhello")
        writer.write(b"answer")
        assert await asyncio.wait_for(received, PATIENCE_S) == b"answer"
        writer.close()


async def test_a_refused_upgrade_is_an_ordinary_answer() -> None:
    async with backend(answering(answer(b"no", "426 Upgrade Required"))) as b0, running(pool_of(b0.port)) as proxy:
        got = await proxy.ask(
            request("GET", "/", b"Connection: Upgrade\r\nUpgrade: echo\r\n", close=False) + request("GET", "/2")
        )
        assert got.count(b"HTTP/1.1 426") == 2
        assert proxy.pool_cell(ledger.POOL_UPGRADED) == 0


async def test_server_sent_events_are_not_buffered() -> None:
    go = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"9\r\ndata: 1\n\n\r\n")
        await go.wait()
        writer.write(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")
        await writer.drain()

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request())
        await read_head(reader)
        assert await asyncio.wait_for(reader.readuntil(b"data: 1\n\n\r\n"), PATIENCE_S)
        go.set()
        assert (await reader.read()).endswith(b"data: 2\n\n\r\n0\r\n\r\n")
        writer.close()


async def test_an_answer_before_the_request_has_ended_closes_and_takes_nothing_for_a_request() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(answer(b"too much", "413 Content Too Large"))
        await writer.drain()
        await reader.read()

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request("POST", "/", b"Content-Length: 100\r\n", close=False))
        head = await read_head(reader)
        assert b"413" in head
        assert b"Connection: close" in head
        writer.write(b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"too much"
        writer.close()
        await proxy.settled(lambda: proxy.pool_cell(ledger.POOL_IN_FLIGHT) == 0)
        assert len(proxy.lines) == 1
        assert b"smuggled" not in b0.octets


async def test_a_client_that_stops_sending_still_gets_its_answer() -> None:
    async with backend(answering(answer(b"late"))) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request(close=False))
        writer.write_eof()
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"late")
        writer.close()


@pytest.mark.parametrize("size", [b"5", b"5 ; a"])
@pytest.mark.parametrize("bad", [b"x\r\n", b"5\r\nhelloXX", b"5;\x00", b"0\r\nA\r\n"])
@pytest.mark.parametrize("minor", [0, 1])
async def test_what_came_before_a_bad_chunk_is_passed_on(size: bytes, bad: bytes, minor: int) -> None:
    """All in one read. The client has what there is, and sees that it is cut."""
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%b\r\ngood!\r\n%b" % (size, bad)
    hello = b"hello" if b"hello" in bad else b""
    async with backend(answering(response)) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(b"GET / HTTP/1.%d\r\nHost: a\r\n\r\n" % minor)
        got = b""
        try:
            while piece := await asyncio.wait_for(reader.read(65536), PATIENCE_S):
                got += piece
        except ConnectionResetError:
            assert not minor
        writer.close()
        body = parts(got)[2]
        assert body == (b"%x\r\ngood!%b\r\n" % (5 + len(hello), hello) if minor else b"good!" + hello)
        await proxy.settled(lambda: len(proxy.lines) == 1)
        assert (proxy.lines[0].reason, proxy.lines[0].response_bytes) == ("protocol", 5 + len(hello))
        assert proxy.backend_cell("b0", ledger.BACKEND_ERRORS + ledger.PROTOCOL) == 1


async def test_a_body_cut_short_is_shown_as_cut() -> None:
    for response, expected_end in (
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this", b"only this"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nonly this\r\n", b"9\r\nonly this\r\n"),
    ):
        async with backend(answering(response, close=True)) as b0, running(pool_of(b0.port)) as proxy:
            got = await proxy.ask(request())
            assert got.endswith(expected_end)
            assert b"0\r\n\r\n" not in got.partition(b"\r\n\r\n")[2]
            assert proxy.lines[0].reason == "closed_early"
            assert proxy.backend_cell("b0", ledger.BACKEND_ERRORS + 4) == 1
            assert proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"hello there\r\n\r\n",
        b"<html>",
        b"HTTP/1.1 200 O\0K\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_an_answer_that_cannot_be_trusted_is_a_502(response: bytes) -> None:
    async with backend(answering(response, close=True)) as b0, running(pool_of(b0.port)) as proxy:
        status, _, body = parts(await proxy.ask(request()))
        assert status == 502
        assert body == b"502 Bad Gateway\n"
        assert proxy.pool_cell(ledger.POOL_IN_FLIGHT) == 0


async def test_octets_behind_an_answer_end_the_connection_and_reach_nobody() -> None:
    async with (
        backend(answering(answer(b"ok") + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")) as b0,
        running(pool_of(b0.port)) as proxy,
    ):
        got = await proxy.ask(request("GET", "/1", close=False) + request("GET", "/2"))
        assert got.count(b"HTTP/1.1 200 OK") == 2
        assert b"evil" not in got
        assert len(b0.received) == 2


@pytest.mark.parametrize(
    ("octets", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a b\r\nContent-Length: 500\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 500\r\n\r\n", 400),
        (b"POST * HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 501),
        (b"GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400),
        (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 101 + b"\r\n", 431),
    ],
)
async def test_what_is_refused_is_answered_and_reaches_no_backend(octets: bytes, status: int) -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        got = await proxy.ask(octets + b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n")
        assert parts(got)[0] == status
        assert got.count(b"HTTP/1.1 ") == 1
        assert b0.octets == b""
        # All connections share a parser: nothing of this one is left for the next.
        for method in ("GET", "POST", "FROB"):
            assert parts(await proxy.ask(request(method)))[0] == 200
        assert proxy.cell("listener", "l", column=ledger.LISTENER_OPEN) <= 1


@pytest.mark.parametrize("length", range(1, 16))
@pytest.mark.parametrize("size", [1, 1000])
async def test_short_request_lines_are_refused_like_any_other(length: int, size: int) -> None:
    """Compiled code slices octets in its own way, and what is short is where that shows."""
    async with running(pool_of(1)) as proxy:
        reader, writer = await proxy.connect()
        await proxy.settled(lambda: proxy.plane.open_connections() == 1)
        (client,) = proxy.plane._listeners["l"].connections
        octets = b"GET / HTTP/1.1."[:length] + b"\r\nHost: a\r\n\r\n"
        for start in range(0, len(octets), size):
            client.data_received(octets[start : start + size])
        assert (await asyncio.wait_for(read_head(reader), PATIENCE_S)).startswith(
            b"HTTP/1.1 502" if length == 14 else (b"HTTP/1.1 400", b"HTTP/1.1 505")
        )
        writer.close()


@pytest.mark.parametrize(("lines", "status"), [(4, b"200"), (5, b"400")])
@pytest.mark.parametrize("size", [1, 2, 3])
async def test_empty_lines_before_a_request_are_counted_however_they_come(lines: int, status: bytes, size: int) -> None:
    async with backend(answering(answer())) as served, running(pool_of(served.port)) as proxy:
        reader, writer = await proxy.connect()
        await proxy.settled(lambda: proxy.plane.open_connections() == 1)
        (client,) = proxy.plane._listeners["l"].connections
        for _ in range(2):
            octets = b"\r\n" * lines + request(close=False)
            for start in range(0, len(octets), size):
                client.data_received(octets[start : start + size])
            assert (await read_head(reader)).startswith(b"HTTP/1.1 " + status)
            if status != b"200":
                break
            await reader.readexactly(2)
        writer.close()


@pytest.mark.parametrize(
    "body",
    [
        b"x\r\n",
        b"-1\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"10000000000000000\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
    ],
)
async def test_a_broken_chunk_ends_the_request_and_nothing_behind_it_is_served(body: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        got = await proxy.ask(
            request("POST", "/", b"Transfer-Encoding: chunked\r\n", close=False)
            + body
            + b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
        )
        assert parts(got)[0] == 400
        assert got.count(b"HTTP/1.1 ") == 1
        assert b"hidden" not in b0.octets
        assert b"0\r\n\r\n" not in b0.octets
        assert proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0


async def test_hop_by_hop_fields_and_those_that_connection_names_stay_here_both_ways() -> None:
    response = answer(
        b"ok", extra=b"Connection: X-Secret, keep-alive\r\nX-Secret: 1\r\nKeep-Alive: timeout=5\r\nX-Kept: 1\r\n"
    )
    async with backend(answering(response)) as b0, running(pool_of(b0.port)) as proxy:
        got = await proxy.ask(
            request(
                "GET",
                "/",
                b"Connection: X-Drop\r\nX-Drop: 1\r\nTE: trailers\r\n"
                b"Keep-Alive: 5\r\nProxy-Connection: x\r\nX-Stay: 1\r\n",
            )
        )
        sent = b0.octets
        for gone in (b"X-Drop", b"TE:", b"Keep-Alive", b"Proxy-Connection", b"Connection"):
            assert gone not in sent
        assert b"X-Stay: 1" in sent
        assert b"X-Secret" not in got
        assert b"Keep-Alive" not in got
        assert b"X-Kept: 1" in got


async def test_names_keep_case_and_order_and_repeated_fields_stay_repeated() -> None:
    response = answer(b"ok", extra=b"Set-Cookie: a=1\r\nx-MiXed: 1\r\nSet-Cookie: b=2\r\n")
    async with backend(answering(response)) as b0, running(pool_of(b0.port)) as proxy:
        got = await proxy.ask(request("GET", "/", b"x-oNe: 1\r\nAccept: a\r\nX-Two: 2\r\nAccept: b\r\n"))
        assert b"x-oNe: 1\r\nAccept: a\r\nX-Two: 2\r\nAccept: b\r\n" in b0.octets
        assert b"Set-Cookie: a=1\r\nx-MiXed: 1\r\nSet-Cookie: b=2\r\n" in got


async def test_forwarding_fields_of_strangers_do_not_count_those_of_trusted_proxies_do() -> None:
    sent = b"X-Forwarded-For: 9.9.9.9, 10.0.0.1\r\nX-Forwarded-Proto: https\r\nForwarded: for=1.1.1.1\r\n"
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        await proxy.ask(request("GET", "/", sent))
        assert b"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\n" in b0.octets
        assert b"9.9.9.9" not in b0.octets
        assert b"Forwarded: for=1.1.1.1" not in b0.octets
        assert proxy.lines[0].client == "127.0.0.1"
    async with (
        backend(answering(answer())) as b0,
        running(pool_of(b0.port), trusted=("127.0.0.0/8", "10.0.0.0/8")) as proxy,
    ):
        await proxy.ask(request("GET", "/", sent))
        assert b"X-Forwarded-For: 9.9.9.9, 10.0.0.1, 127.0.0.1\r\nX-Forwarded-Proto: https\r\n" in b0.octets
        assert proxy.lines[0].client == "9.9.9.9"
        await proxy.ask(request("GET", "/", sent, close=False) + request())
        assert [line.client for line in proxy.lines[1:]] == ["9.9.9.9", "127.0.0.1"]


def forwarding(
    port: int, x_forwarded: Literal["append", "off", "pass"], is_trusted: bool
) -> AbstractAsyncContextManager[Plane]:
    """A proxy with this policy, whose clients are a trusted proxy or strangers."""
    trusted = ("127.0.0.0/8",) if is_trusted else ()
    return running(pool_of(port), headers=HeaderPolicy(x_forwarded=x_forwarded), trusted=trusted)


@pytest.mark.parametrize("x_forwarded", ["append", "off", "pass"])
@pytest.mark.parametrize("is_trusted", [False, True])
async def test_forwarded_goes_on_from_trusted_proxies_alone_whatever_becomes_of_the_other_fields(
    x_forwarded: Literal["append", "off", "pass"], is_trusted: bool
) -> None:
    async with (
        backend(answering(answer())) as b0,
        forwarding(b0.port, x_forwarded, is_trusted) as proxy,
    ):
        assert (
            parts(await proxy.ask(request(extra=b"Forwarded: for=6.6.6.6\r\nX-Forwarded-For: 6.6.6.6\r\n")))[0] == 200
        )
        assert (b"\r\nForwarded: for=6.6.6.6\r\n" in b0.octets) == is_trusted
        chain = {"append": b"6.6.6.6, 127.0.0.1" if is_trusted else b"127.0.0.1", "off": b"", "pass": b"6.6.6.6"}
        said = chain[x_forwarded]
        assert b0.octets.count(b"X-Forwarded-For: ") == bool(said)
        assert not said or b"\r\nX-Forwarded-For: %b\r\n" % said in b0.octets


@pytest.mark.parametrize("x_forwarded", ["append", "off", "pass"])
@pytest.mark.parametrize("is_trusted", [False, True])
async def test_what_strangers_say_in_other_forwarding_fields_does_not_count_either(
    x_forwarded: Literal["append", "off", "pass"], is_trusted: bool
) -> None:
    names = (b"X-Forwarded-Port", b"x-forwarded-prefix", b"X-Forwarded-Client-Cert", b"X-Forwarded-Ssl")
    extra = b"".join(b"%b: 6\r\n" % name for name in names)
    disguised = b"X_Forwarded_Port: 7\r\n"
    whose = b"X-Forwarded-User: ann\r\n"  # who somebody is, not how the request came: as any other field
    async with (
        backend(answering(answer())) as b0,
        forwarding(b0.port, x_forwarded, is_trusted) as proxy,
    ):
        assert parts(await proxy.ask(request(extra=extra + disguised + whose)))[0] == 200
        is_believed = is_trusted or x_forwarded == "pass"
        assert (extra in b0.octets) == (disguised in b0.octets) == is_believed
        assert (b": 6\r\n" in b0.octets) == (b": 7\r\n" in b0.octets) == is_believed
        assert whose in b0.octets


@pytest.mark.parametrize("x_forwarded", ["append", "off", "pass"])
@pytest.mark.parametrize("is_trusted", [False, True])
async def test_a_stranger_does_not_say_what_its_address_is(
    x_forwarded: Literal["append", "off", "pass"], is_trusted: bool
) -> None:
    """Many an application believes the first of these that is there."""
    names = (
        b"X-Real-IP", b"x-client-ip", b"X-Cluster-Client-IP", b"Client-IP", b"X_Real_Ip", b"True-Client-IP",
        b"CF-Connecting-IP", b"CF-Connecting-IPv6", b"CF-Pseudo-IPv4", b"Fastly-Client-IP", b"Fly-Client-IP",
        b"X-Azure-ClientIP", b"X-Azure-SocketIP", b"X-Appengine-User-IP", b"DO-Connecting-IP", b"Incap-Client-IP",
        b"CloudFront-Viewer-Address", b"X-NF-Client-Connection-IP", b"X-Vercel-Forwarded-For",
        b"X-Envoy-External-Address", b"X-Original-Forwarded-For", b"X-Forwarded", b"Forwarded-For",
        b"Proxy-Client-IP", b"WL-Proxy-Client-IP", b"X-ProxyUser-IP", b"X-Remote-IP", b"X-Remote-Addr",
    )  # fmt: skip
    extra = b"".join(b"%b: 6.6.6.6\r\n" % name for name in names)
    async with backend(answering(answer())) as b0, forwarding(b0.port, x_forwarded, is_trusted) as proxy:
        chunked = request("POST", "/", extra + b"Transfer-Encoding: chunked\r\n") + b"0\r\nX-Real-IP: 7.7.7.7\r\n\r\n"
        assert parts(await proxy.ask(chunked))[0] == 200
        assert (extra in b0.octets) == (b"6.6.6.6" in b0.octets) == (is_trusted or x_forwarded == "pass")
        assert b"7.7.7.7" not in b0.octets


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("is_odd", [False, True])
async def test_fields_in_disguise_do_not_go_on(is_trusted: bool, is_odd: bool) -> None:
    """To a backend that follows CGI X_Forwarded_For is X-Forwarded-For."""
    disguised = (
        b"X_Forwarded_For", b"x_forwarded-proto", b"X-Forwarded_Host", b"Content_Length", b"TRANSFER_ENCODING",
        b"X_Request_ID",
    )  # fmt: skip
    extra = b"".join(b"%b: 6\r\n" % name for name in disguised) + b"X_Other: 7\r\n"
    if is_odd:
        extra += b"X-Forwarded-For: 1.2.3.4\r\n"
    trusted = ("127.0.0.0/8",) if is_trusted else ()
    async with backend(answering(answer())) as b0, running(pool_of(b0.port), trusted=trusted) as proxy:
        assert parts(await proxy.ask(request(extra=extra)))[0] == 200
        assert b": 6\r\n" not in b0.octets
        assert b"X_Other: 7\r\n" in b0.octets


@pytest.mark.parametrize("extra", [b"", b"Connection: X-Other\r\n"])
async def test_what_may_be_taken_for_the_key_header_does_not_go_on(extra: bytes) -> None:
    """HAProxy passes it on, beside the user's id that it has made sure of itself."""
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        extra += b"X_User_ID: eve\r\nx_user-id: eve\r\n"
        assert parts(await proxy.ask(request(key=b"ann", extra=extra)))[0] == 200
        assert proxy.lines[0].key == b"ann"
        assert b"\r\nX-User-ID: ann\r\n" in b0.octets
        assert b"eve" not in b0.octets


async def test_a_key_header_with_an_underscore_goes_on_and_what_may_be_taken_for_it_does_not() -> None:
    sticky = Sticky(keys=(KeySource("header", "User_Id"),))
    async with backend(answering(answer())) as b0, running(replace(pool_of(b0.port), sticky=sticky)) as proxy:
        assert parts(await proxy.ask(request(extra=b"user_id: ann\r\nUser-Id: eve\r\n")))[0] == 200
        assert proxy.lines[0].key == b"ann"
        assert b"\r\nuser_id: ann\r\n" in b0.octets
        assert b"eve" not in b0.octets


@pytest.mark.parametrize("name", [b"X-User-ID", b"x-user-id", b"X-Forwarded-For", b"Forwarded", b"X-Real-IP"])
@pytest.mark.parametrize("is_trusted", [False, True])
async def test_connection_takes_out_nothing_that_a_proxy_before_us_has_set(name: bytes, is_trusted: bool) -> None:
    """HAProxy passes on what a client has in Connection, beside the user's id that it has made sure of itself."""
    trusted = ("127.0.0.0/8",) if is_trusted else ()
    async with backend(answering(answer())) as b0, running(pool_of(b0.port), trusted=trusted) as proxy:
        extra = b"X-Real-IP: 1.2.3.4\r\nConnection: X-Other, %b\r\n" % name
        assert parts(await proxy.ask(request(extra=extra)))[0] == 400
        assert proxy.lines[0].reason == "bad_request"
        assert not b0.octets


async def test_an_offer_of_h2c_does_not_go_on() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        for offer in (b"h2c", b"H2C", b"websocket, h2c", b"h2c/1"):
            lines = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: AAMAAABk\r\n" % offer
            assert (await proxy.ask(request(extra=lines, close=False) + request())).count(b"200 OK") == 2
        assert b0.octets.count(b"GET ") == 8
        assert b"pgrade" not in b0.octets
        assert b"HTTP2" not in b0.octets


async def test_a_later_minor_version_and_tabs_around_chunked_are_taken_together() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        said = await proxy.ask(
            b"POST / HTTP/1.9\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding:\tchunked\t\r\n\r\n"
            b"1\r\nx\r\n0\r\n\r\n"
        )
        assert parts(said)[0] == 200
        assert b0.octets.endswith(b"\r\n\r\n1\r\nx\r\n0\r\n\r\n")


async def test_a_request_id_is_kept_or_made() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        await proxy.ask(request("GET", "/", b"X-Request-ID: abc-123\r\n"))
        assert b0.octets.count(b"X-Request-ID: abc-123\r\n") == 1
        await proxy.ask(request("GET", "/", b'X-Request-ID: "; drop\r\n'))
        assert b'X-Request-ID: "; drop' not in b0.octets
        assert b0.octets.count(b"X-Request-ID: ") == 2


async def test_max_forwards_is_counted_down_and_ends_here_at_zero() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        assert parts(await proxy.ask(request("OPTIONS", "/", b"Max-Forwards: 2\r\n")))[0] == 200
        assert b"Max-Forwards: 1\r\n" in b0.octets
        sofar = len(b0.octets)
        assert parts(await proxy.ask(request("OPTIONS", "/", b"Max-Forwards: 0\r\n")))[0] == 200
        await proxy.ask(request("TRACE", "/", b"Max-Forwards: 0\r\n"))
        assert len(b0.octets) == sofar
        await proxy.ask(request("GET", "/", b"Max-Forwards: 0\r\n"))
        assert b"Max-Forwards: 0" in b0.octets


async def test_a_dead_owner_costs_no_request() -> None:
    async with (
        backend(answering(answer(b"alive"))) as b0,
        running(replace(pool_of(b0.port, 1, 1, 1), retry=Retry(attempts=5))) as proxy,
    ):
        for n in range(40):
            got = await proxy.ask(request("POST", body=b"data", key=b"u%d" % n))
            assert parts(got)[2] == b"alive"
        assert all(line.decision in ("owner", "retry") for line in proxy.lines)
        assert any(line.decision == "retry" for line in proxy.lines)
        assert proxy.retries("connect", "success") > 0
        assert proxy.retries("connect", "success") + proxy.retries("connect", "failure") == sum(
            line.attempts - 1 for line in proxy.lines
        )
        for name in ("b0", "b1", "b2", "b3"):
            assert proxy.backend_cell(name, ledger.BACKEND_IN_FLIGHT) == 0


async def test_with_every_backend_dead_the_answer_is_a_502_and_the_connection_lives() -> None:
    async with running(pool_of(1, 1)) as proxy:
        got = await proxy.ask(request(close=False) + request())
        assert got.count(b"HTTP/1.1 502 Bad Gateway") == 2
        assert proxy.lines[0].attempts == 2
        assert proxy.lines[0].reason == "connect_failed"
        assert proxy.retries("connect", "failure") == 2


async def test_a_further_attempt_is_counted_by_what_became_of_it() -> None:
    bad = answer(b"bad", "503 Service Unavailable")
    arrived = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        arrived.set()
        await reader.read()

    async with (
        backend(answering(bad)) as b0,
        backend(answering(bad)) as b1,
        running(replace(pool_of(b0.port, b1.port), retry=Retry(statuses=(503,)))) as proxy,
    ):
        assert parts(await proxy.ask(request()))[0] == 503
        assert proxy.retries("status", "failure") == 1  # the answer of the second was no better
    async with backend(silent) as b0, running(pool_of(1, b0.port)) as proxy:
        _, writer = await proxy.connect()
        writer.write(request(key=proxy.key_of("b0")))
        await arrived.wait()
        assert proxy.retries("connect", "abandoned") == 0  # it is under way
        writer.close()
        await proxy.settled(lambda: proxy.retries("connect", "abandoned") == 1)
        assert proxy.retries("connect", "success") == proxy.retries("connect", "failure") == 0


async def test_a_connection_that_the_backend_has_just_closed_is_no_error_for_the_client() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(answer())
        await writer.drain()
        await read_head(reader)  # takes one more request and closes without an answer

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        for _ in range(6):
            assert parts(await proxy.ask(request()))[0] == 200
        assert proxy.retries("stale", "success") >= 2
        assert proxy.retries("stale", "failure") == 0
        assert proxy.backend_cell("b0", ledger.BACKEND_ERRORS + 4) == 0
        before = len(b0.received)
        status = parts(await proxy.ask(request("POST", "/", b"", b"once")))[0]
        assert status in (200, 502)  # sent on a connection that then closed: never sent twice
        assert sum(part.count(b"once") for part in b0.received) == 1
        assert len(b0.received) >= before


async def test_a_request_that_is_not_idempotent_is_not_sent_twice() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)

    async with backend(talk) as b0, backend(talk) as b1, running(pool_of(b0.port, b1.port)) as proxy:
        assert parts(await proxy.ask(request("POST", "/", b"", b"pay")))[0] == 502
        assert b0.octets.count(b"pay") + b1.octets.count(b"pay") == 1
        assert proxy.pool_cell(ledger.POOL_RETRIES_REFUSED + 3) == 1
        assert parts(await proxy.ask(request("PUT", "/", b"", b"put")))[0] == 502
        assert b0.octets.count(b"put") == b1.octets.count(b"put") == 1


async def test_deadlines() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await reader.read()

    quick = PoolTimeouts(connect=0.2, first_byte=0.2, idle=0.2)
    slow_client = ListenerTimeouts(request_head=0.2, body_idle=0.2, keep_alive=0.2)
    async with backend(silent) as b0, running(replace(pool_of(b0.port), timeout=quick), timeouts=slow_client) as proxy:
        status, _, _ = parts(await proxy.ask(request()))
        assert status == 504
        assert proxy.lines[-1].reason == "first_byte_timeout"
        assert parts(await proxy.ask(b"GET / HT"))[0] == 408
        assert await proxy.ask(b"") == b""
        assert parts(await proxy.ask(request("POST", "/", b"Content-Length: 5\r\n") + b"12"))[0] == 408
        assert proxy.lines[-1].reason == "body_timeout"
        assert proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0
    async with backend(stalls) as b0, running(replace(pool_of(b0.port), timeout=quick)) as proxy:
        assert (await proxy.ask(request())).endswith(b"half")
        assert proxy.lines[-1].reason == "idle_timeout"
    async with backend(answering(answer())) as b0, running(pool_of(b0.port), timeouts=slow_client) as proxy:
        assert (await proxy.ask(request(close=False))).endswith(b"ok")  # closed when idle for too long


async def test_limits() -> None:
    async with (
        backend(answering(answer())) as b0,
        running(pool_of(b0.port), limits=Limits(body_bytes=10, connections=2)) as proxy,
    ):
        refused = await proxy.ask(request("POST", "/", b"", b"x" * 11))
        assert refused.startswith(b"HTTP/1.1 413 Content Too Large\r\n")  # RFC 9110 15.5.14, whatever Python calls it
        assert b0.octets == b""
        got = await proxy.ask(
            request("POST", "/", b"Transfer-Encoding: chunked\r\n") + b"b\r\n" + b"x" * 11 + b"\r\n0\r\n\r\n"
        )
        assert parts(got)[0] == 413
        refused = await proxy.ask(request("GET", "/" + "x" * 20_000))
        assert refused.startswith(b"HTTP/1.1 414 URI Too Long\r\n")
        first, second = await proxy.connect(), await proxy.connect()
        await proxy.settled(lambda: proxy.cell("listener", "l", column=ledger.LISTENER_OPEN) == 2)
        assert await proxy.ask(request()) == b""
        assert proxy.cell("listener", "l", column=ledger.LISTENER_REFUSED) == 1
        first[1].close()
        second[1].close()


async def test_keys_decide_and_requests_without_one_are_balanced() -> None:
    async with (
        backend(answering(answer(b"0"))) as b0,
        backend(answering(answer(b"1"))) as b1,
        running(pool_of(b0.port, b1.port)) as proxy,
    ):
        for user in (b"kim", b"eve", b"leo"):
            assert len({await proxy.ask(request(key=user)) for _ in range(4)}) == 1
        plain = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        for extra in (b"", b"X-User-ID: \r\n"):
            bodies = [parts(await proxy.ask(plain + extra + b"\r\n"))[2] for _ in range(10)]
            assert bodies.count(b"0") == bodies.count(b"1") == 5
        assert proxy.pool_cell(ledger.POOL_DECISIONS + ledger.NO_KEY) == 20
    async with (
        backend(answering(answer())) as b0,
        running(replace(pool_of(b0.port), sticky=Sticky(on_missing="reject"))) as proxy,
    ):
        assert parts(await proxy.ask(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))[0] == 400
        assert proxy.lines[0].reason == "no_key"


async def test_routes_by_host_and_path() -> None:
    async with (
        backend(answering(answer(b"web"))) as b0,
        backend(answering(answer(b"api"))) as b1,
        running(
            replace(pool_of(b0.port), name="web"),
            replace(pool_of(b1.port), name="api"),
            routes=(Route("web", "www.example"), Route("api", "*.example", "/api")),
        ) as proxy,
    ):

        async def served(host: str, path: str) -> bytes:
            return parts(await proxy.ask(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()))[
                2
            ]

        assert await served("WWW.example:8080", "/api") == b"web"
        assert await served("x.example", "/api/1") == b"api"
        assert await served("x.example", "/api?q") == b"api"
        assert await served("x.example", "/apix") == b"404 Not Found\n"
        assert await served("other", "/") == b"404 Not Found\n"


async def test_transfers_of_any_size_hold_little_memory() -> None:
    size = 64 * 1024 * 1024
    piece = b"x" * 65536

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        reader.feed_data = type(reader).feed_data.__get__(reader)  # type: ignore[method-assign]
        left = size
        while left:
            left -= len(await reader.read(min(left, 1 << 20)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request("POST", "/", b"Content-Length: %d\r\n" % size))
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()
        await read_head(reader)
        left = size
        while left:
            data = await reader.read(1 << 20)
            assert data
            left -= len(data)
        writer.close()
        await proxy.settled(lambda: len(proxy.lines) == 1)
        assert (proxy.lines[0].request_bytes, proxy.lines[0].response_bytes) == (size, size)


async def test_a_client_that_leaves_is_not_the_backends_fault() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with backend(silent) as b0, running(pool_of(b0.port)) as proxy:
        _, writer = await proxy.connect()
        writer.write(request())
        await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1 and len(b0.octets) > 0)
        writer.transport.abort()
        await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0)
        assert proxy.pool_cell(ledger.POOL_ABORTS) == 1
        assert sum(proxy.backend_cell("b0", ledger.BACKEND_ERRORS + n) for n in range(8)) == 0


async def test_a_swap_keeps_what_stays_and_closes_what_goes() -> None:
    async with (
        backend(answering(answer(b"0"))) as b0,
        backend(answering(answer(b"1"))) as b1,
        running(pool_of(b0.port, b1.port)) as proxy,
    ):
        owners = {}
        for n in range(20):
            owners[n] = parts(await proxy.ask(request(key=b"u%d" % n)))[2]
        assert set(owners.values()) == {b"0", b"1"}
        reload(proxy, replace(proxy.config, pools=(pool_of(b0.port),)))
        await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IDLE) == 1)
        for n in range(20):
            assert parts(await proxy.ask(request(key=b"u%d" % n)))[2] == b"0"
        assert len(b0.received) == 1
        reload(proxy, proxy.config, 3)
        for n in range(20):
            assert parts(await proxy.ask(request(key=b"u%d" % n)))[2] == owners[n]


@pytest.mark.parametrize("is_pool_gone", [False, True])
async def test_what_leaves_and_comes_back_with_its_exchanges_is_counted_once(is_pool_gone: bool) -> None:
    may_answer = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await may_answer.wait()
        writer.write(answer(b"late"))

    async with backend(talk) as b0, backend(answering(answer(b"1"))) as b1:
        whole = replace(pool_of(b0.port, b1.port), bounded_load=BoundedLoad(factor=None))
        only_second = replace(whole, backends=whole.backends[1:])
        other = replace(only_second, name="q")
        async with running(whole, other) as proxy:
            asking = request(key=proxy.key_of("b0"))
            routes = (Route("q"),) if is_pool_gone else proxy.config.routes
            pools = (other,) if is_pool_gone else (only_second, other)
            asked = [asyncio.create_task(proxy.ask(asking)) for _ in range(3)]

            def held() -> int:
                return proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT)

            await proxy.settled(lambda: held() == 3)
            reload(proxy, replace(proxy.config, pools=pools, routes=routes))
            reload(proxy, replace(proxy.config, pools=pools, routes=routes), 3)
            assert held() == 3
            reload(proxy, proxy.config, 4)
            assert held() == 3
            asked.append(asyncio.create_task(proxy.ask(asking)))
            await proxy.settled(lambda: held() == 4)
            assert proxy.pool.account.in_flight == 4
            may_answer.set()
            assert all([(await each).endswith(b"late") for each in asked])
            await proxy.settled(lambda: held() == 0)
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_ACTIVE) == 0)
            reload(proxy, replace(proxy.config, pools=pools, routes=routes), 5)
            snapshot = proxy.plane._plane.snapshot
            assert not snapshot.leaving
            assert not any(pool.account.leaving for pool in snapshot.pools.values())


async def test_a_backend_at_a_new_address_is_a_new_machine_with_the_old_keys() -> None:
    async with (
        backend(answering(answer(b"old"))) as old,
        backend(answering(answer(b"new"))) as new,
        backend(answering(answer(b"1"))) as b1,
        running(pool_of(old.port, b1.port)) as proxy,
    ):

        async def served() -> list[bytes]:
            return [parts(await proxy.ask(request(key=b"u%d" % n)))[2] for n in range(20)]

        before = await served()
        assert set(before) == {b"old", b"1"}
        reload(proxy, replace(proxy.config, pools=(pool_of(new.port, b1.port),)))
        assert await served() == [body.replace(b"old", b"new") for body in before]
        assert proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0


async def test_draining_lets_what_runs_end() -> None:
    go = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await go.wait()
        writer.write(answer(b"finished"))
        await writer.drain()

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        idle_reader, idle_writer = await proxy.connect()
        writer.write(request(close=False))
        await proxy.settled(lambda: len(b0.octets) > 0)
        draining = asyncio.create_task(proxy.plane.drain(PATIENCE_S))
        assert await asyncio.wait_for(idle_reader.read(), PATIENCE_S) == b""
        go.set()
        got = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert got.endswith(b"finished")
        assert b"Connection: close" in got
        assert await draining == 0
        writer.close()
        idle_writer.close()


async def test_what_is_full_waits_and_is_served_in_order_or_told_when_to_come_back() -> None:
    gate = asyncio.Semaphore(0)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_head(reader)
            await gate.acquire()
            writer.write(answer())
            await writer.drain()

    async with backend(talk) as b0:
        pool = pool_of(b0.port)
        one_seat = replace(pool.backends[0], max_in_flight=1)
        async with running(replace(pool, backends=(one_seat,), queue=Queue(size=2, timeout=PATIENCE_S))) as proxy:
            first = asyncio.create_task(proxy.ask(request("GET", "/1")))
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
            second = asyncio.create_task(proxy.ask(request("GET", "/2")))
            account = proxy.pool.account
            await proxy.settled(lambda: len(account.waiting) == 1)
            third = asyncio.create_task(proxy.ask(request("GET", "/3")))
            await proxy.settled(lambda: len(account.waiting) == 2)
            refused = await proxy.ask(request("GET", "/4"))
            assert parts(refused)[0] == 503
            assert b"Retry-After: 1" in refused
            assert proxy.lines[-1].reason == "queue_full"
            for asked in (first, second, third):
                assert not asked.done()
                gate.release()
                assert parts(await asked)[0] == 200
            assert not account.waiting
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0)
        async with running(replace(pool, backends=(one_seat,), queue=Queue(size=2, timeout=0.3))) as proxy:
            first = asyncio.create_task(proxy.ask(request("GET", "/1")))
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
            assert parts(await proxy.ask(request("GET", "/2")))[0] == 503  # its time in the queue was over
            assert proxy.lines[-1].reason == "queue_timeout"
            assert not proxy.pool.account.waiting
            gate.release()
            assert parts(await first)[0] == 200


@interpreted_only
async def test_what_goes_wrong_with_one_that_waits_for_a_seat_is_not_the_others_affair() -> None:
    gates = [asyncio.Semaphore(0), asyncio.Semaphore(0)]

    def talking(gate: asyncio.Semaphore) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await read_head(reader)
                await gate.acquire()
                writer.write(answer())

        return talk

    async with backend(talking(gates[0])) as b0, backend(talking(gates[1])) as b1:
        pool = pool_of(b0.port, b1.port)
        seats = tuple(replace(each, max_in_flight=1) for each in pool.backends)
        async with running(replace(pool, backends=seats, queue=Queue(timeout=PATIENCE_S))) as proxy:
            told: list[str] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
            waiting = proxy.pool.account.waiting
            asked = [asyncio.create_task(proxy.ask(request())) for _ in range(2)]
            await proxy.settled(lambda: proxy.pool.account.in_flight == 2)
            for count in (1, 2, 3):
                asked.append(asyncio.create_task(proxy.ask(request())))
                await proxy.settled(lambda count=count: len(waiting) == count)  # type: ignore[misc]
            once, broken, _ = cast("list[Exchange]", list(waiting))
            once.tried.append(proxy.pool.backends["b0"])  # it has been there, and waits for the other one
            broken.h = cast(int, "no hash")
            gates[0].release()
            assert await asked[3] == b""
            gates[0].release()
            assert parts(await asked[4])[0] == 200
            assert not asked[2].done()
            for _ in range(2):
                gates[1].release()
            assert [parts(await asked[at])[0] for at in (0, 1, 2)] == [200] * 3
            assert told == ["a request that waited could not have its seat"]
            assert not waiting


async def test_a_backend_has_no_more_connections_than_it_may() -> None:
    gate = asyncio.Semaphore(0)
    open_now = most = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            while True:
                head = await read_head(reader)
                await gate.acquire()
                switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
                writer.write(switched if b"echo" in head else answer())
                await writer.drain()
        finally:
            open_now -= 1

    async with backend(talk) as b0:
        pool = pool_of(b0.port)
        two_connections = replace(pool.backends[0], max_connections=2)
        async with running(replace(pool, backends=(two_connections,), queue=Queue(size=9, timeout=5.0))) as proxy:
            account = proxy.pool.account
            asked = [asyncio.create_task(proxy.ask(request("GET", f"/{number}"))) for number in range(5)]
            await proxy.settled(lambda: len(account.waiting) == 3)
            for _ in asked:
                gate.release()
            assert {parts(one)[0] for one in await asyncio.gather(*asked)} == {200}
            assert most == 2
            # A tunnel has its connection for itself, although it has given its seat back.
            gate.release()
            _, writer = await proxy.connect()
            writer.write(request("GET", "/ws", b"Connection: Upgrade\r\nUpgrade: echo\r\n", close=False))
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_UPGRADED_OPEN) == 1)
            asked = [asyncio.create_task(proxy.ask(request("GET", f"/{number}"))) for number in range(2)]
            await proxy.settled(lambda: len(account.waiting) == 1)
            writer.close()
            await proxy.settled(lambda: not account.waiting)
            gate.release()
            gate.release()
            assert {parts(one)[0] for one in await asyncio.gather(*asked)} == {200}
            assert most == 2


async def test_states_from_the_control_plane_decide_who_is_asked() -> None:
    async with (
        backend(answering(answer(b"0"))) as b0,
        backend(answering(answer(b"1"))) as b1,
        running(pool_of(b0.port, b1.port)) as proxy,
    ):

        async def served() -> list[bytes]:
            return [parts(await proxy.ask(request(key=b"u%d" % n)))[2] for n in range(20)]

        before = await served()
        assert set(before) == {b"0", b"1"}
        proxy.plane.adopt({"p": {"b0": OUT}})
        assert set(await served()) == {b"1"}
        assert proxy.pool_cell(ledger.POOL_DECISIONS + ledger.FAILOVER) == before.count(b"0")
        assert proxy.backend_cell("b0", ledger.BACKEND_SPILLS + 2) == before.count(b"0")
        assert proxy.backend_cell("b1", ledger.BACKEND_SPILLS_RECEIVED) == before.count(b"0")
        proxy.plane.adopt({"p": {"b1": OUT}})
        assert parts(await proxy.ask(request()))[0] == 503
        assert proxy.lines[-1].reason == "no_backend"
        proxy.plane.adopt({"p": {"b0": SERVING, "b1": SERVING}})
        assert await served() == before


async def test_failures_in_a_row_are_reported_and_a_success_ends_the_row() -> None:
    bad, good = answer(b"", "500 Internal Server Error"), answer()
    reports: list[tuple[str, str, str]] = []
    async with (
        backend(answering(bad, bad, good, bad, bad, bad, good)) as b0,
        running(
            replace(pool_of(b0.port), ejection=Ejection(consecutive_errors=3)),
            report=lambda *facts: reports.append(facts),
        ) as proxy,
    ):
        reader, writer = await proxy.connect()
        for n in range(7):
            writer.write(request(close=False))
            head = await read_head(reader)
            if b"200" in head:
                await reader.readexactly(2)
            assert len(reports) == (1 if n >= 5 else 0)
        writer.close()
    assert reports == [("p", "b0", "status")]


async def test_retries_on_configured_statuses_and_on_a_try_that_takes_too_long() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    bad = answer(b"bad", "503 Service Unavailable")
    async with (
        backend(answering(bad)) as b0,
        backend(answering(answer(b"good"))) as b1,
        running(replace(pool_of(b0.port, b1.port), retry=Retry(statuses=(503,)))) as proxy,
    ):
        for n in range(20):
            assert parts(await proxy.ask(request(key=b"u%d" % n)))[2] == b"good"
        assert proxy.retries("status", "success") > 0
        assert proxy.retries("status", "failure") == 0
        posts = {parts(await proxy.ask(request("POST", key=b"u%d" % n)))[0] for n in range(20)}
        assert posts == {200, 503}
    async with (
        backend(slow) as b0,
        backend(answering(answer(b"good"))) as b1,
        running(replace(pool_of(b0.port, b1.port), retry=Retry(per_try=0.1))) as proxy,
    ):
        got = await asyncio.gather(*(proxy.ask(request(key=b"u%d" % n)) for n in range(20)))
        assert {parts(response)[2] for response in got} == {b"good"}
        assert proxy.retries("timeout", "success") > 0


async def test_the_retry_budget_says_when_it_refuses() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)

    async with (
        backend(talk) as b0,
        backend(talk) as b1,
        running(replace(pool_of(b0.port, b1.port), retry=Retry(budget=0.0, min_budget=2))) as proxy,
    ):
        for _ in range(4):
            assert parts(await proxy.ask(request()))[0] == 502
        assert proxy.retries("reset", "failure") == 2
        assert proxy.pool_cell(ledger.POOL_RETRIES_REFUSED + 1) == 2


async def test_the_requests_of_the_last_seconds_count_when_one_is_first_to_be_repeated() -> None:
    answers = [answer(b"first", extra=b"Connection: close\r\n")] * 5

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        if answers:
            writer.write(answers.pop())

    async with (
        backend(talk) as b0,
        backend(answering(answer(b"second"))) as b1,
        running(replace(pool_of(b0.port, b1.port), retry=Retry(budget=0.2, min_budget=0))) as proxy,
    ):
        bodies = [parts(await proxy.ask(request(key=proxy.key_of("b0"))))[2] for _ in range(6)]
        assert bodies == [b"first"] * 5 + [b"second"]


async def test_pins_and_the_limit_of_one_key() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with (
        backend(answering(answer(b"0"))) as b0,
        backend(answering(answer(b"1"))) as b1,
        running(
            replace(
                pool_of(b0.port, b1.port),
                pins=(Pin("vip", "b1"), Pin("eu-", "b0", is_prefix=True, on_down="reject")),
            )
        ) as proxy,
    ):
        for key, body in ((b"vip", b"1"), (b"eu-1", b"0"), (b"eu-2", b"0")):
            assert parts(await proxy.ask(request(key=key)))[2] == body
        assert {line.decision for line in proxy.lines} == {"pinned"}
        proxy.plane.adopt({"p": {"b0": OUT}})
        assert parts(await proxy.ask(request(key=b"eu-1")))[0] == 503
        assert proxy.lines[-1].reason == "pin_down"
    async with backend(silent) as b0, running(replace(pool_of(b0.port), hot_keys=HotKeys(max_in_flight=2))) as proxy:
        waiting = [asyncio.create_task(proxy.ask(request())) for _ in range(2)]
        await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 2)
        refused = await proxy.ask(request())
        assert parts(refused)[0] == 429
        assert b"Retry-After" in refused
        for task in waiting:
            task.cancel()


async def test_what_waits_for_a_seat_counts_against_its_keys_limit() -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0:
        pool = replace(pool_of(b0.port), hot_keys=HotKeys(max_in_flight=2), queue=Queue(timeout=PATIENCE_S))
        one_seat = replace(pool.backends[0], max_in_flight=1)
        async with running(replace(pool, backends=(one_seat,))) as proxy:
            account = proxy.pool.account
            asking = [asyncio.create_task(proxy.ask(request())) for _ in range(2)]
            await proxy.settled(lambda: len(account.waiting) == 1)
            assert parts(await proxy.ask(request()))[0] == 429
            asking.append(asyncio.create_task(proxy.ask(request(key=b"another"))))
            await proxy.settled(lambda: len(account.waiting) == 2)
            gate.set()
            assert [parts(await each)[0] for each in asking] == [200] * 3


async def test_a_session_with_a_cookie_stays_when_the_ring_changes() -> None:
    async with (
        backend(answering(answer(b"0"))) as b0,
        backend(answering(answer(b"1"))) as b1,
        backend(answering(answer(b"2"))) as b2,
        running(
            replace(pool_of(b0.port, b1.port), sticky=Sticky(cookie=AffinityCookie(secret="hush"))),
        ) as proxy,
    ):
        homes: dict[bytes, bytes] = {}
        for n in range(12):
            got = await proxy.ask(request(key=b"u%d" % n))
            homes[got.partition(b"Set-Cookie: ")[2].partition(b";")[0]] = parts(got)[2]
        assert set(homes.values()) == {b"0", b"1"}
        grown = replace(proxy.config.pools[0], backends=pool_of(b0.port, b1.port, b2.port).backends)
        for at, spec in enumerate(grown.backends):
            proxy.rows.setdefault(("backend", "p", spec.name), at)
        reload(proxy, replace(proxy.config, pools=(grown,)))
        for cookie, home in homes.items():
            got = await proxy.ask(request("GET", "/", b"Cookie: " + cookie + b"\r\n"))
            assert parts(got)[2] == home
            assert b"Set-Cookie" not in got
        proxy.plane.adopt({"p": {"b0": OUT}})
        for cookie in homes:
            got = await proxy.ask(request("GET", "/", b"Cookie: " + cookie + b"\r\n"))
            assert parts(got)[2] != b"0"
            assert (b"Set-Cookie" in got) == (homes[cookie] == b"0")


@pytest.mark.parametrize("on_move", ["keep", "close", "pin"])
async def test_a_tunnel_when_its_key_moves(on_move: Literal["keep", "close", "pin"]) -> None:
    def named(name: bytes) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                head = await read_head(reader)
                if b"Upgrade: echo" in head:
                    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
                    while data := await reader.read(100):
                        writer.write(data)
                    return
                writer.write(answer(name))

        return talk

    async with (
        backend(named(b"0")) as b0,
        backend(named(b"1")) as b1,
        running(replace(pool_of(b0.port, b1.port), on_move=on_move)) as proxy,
    ):
        home = parts(await proxy.ask(request()))[2]
        reader, writer = await proxy.connect()
        writer.write(request("GET", "/", b"Connection: Upgrade\r\nUpgrade: echo\r\n", close=False))
        await read_head(reader)
        proxy.plane.adopt({"p": {"b" + home.decode(): DRAINING}})
        if on_move == "close":
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        else:
            writer.write(b"still here")
            assert await asyncio.wait_for(reader.readexactly(10), PATIENCE_S) == b"still here"
        elsewhere = parts(await proxy.ask(request()))[2]
        assert (elsewhere == home) == (on_move == "pin")
        writer.close()
        await proxy.settled(lambda: proxy.pool_cell(ledger.POOL_UPGRADED_OPEN) == 0)
        assert parts(await proxy.ask(request()))[2] != home


async def test_a_flood_of_pipelined_requests_is_answered_in_order_and_held_within_bounds() -> None:
    count = 20_000

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            writer.write(answer(head.split(b" ", 2)[1]))

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        flood = b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(count))
        writer.write(flood)
        (connection,) = proxy.plane._listeners["l"].connections
        most = 0
        for n in range(count):
            head = await read_head(reader)
            length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
            assert await reader.readexactly(length) == b"/%d" % n
            most = max(most, len(connection.pending) - connection._at)
        assert most <= flow.HOLD + 262_144  # and what one read brings
        writer.close()


@pytest.mark.parametrize("end", ["stops", "breaks", "too much"])
async def test_a_request_that_is_refused_while_it_waits_for_a_seat_never_reaches_a_backend(end: str) -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0:
        pool = pool_of(b0.port)
        one_seat = replace(pool.backends[0], max_in_flight=1)
        async with running(
            replace(pool, backends=(one_seat,), queue=Queue(timeout=PATIENCE_S)), limits=Limits(body_bytes=10)
        ) as proxy:
            first = asyncio.create_task(proxy.ask(request("GET", "/1")))
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
            reader, writer = await proxy.connect()
            writer.write(request("POST", "/refused", b"Transfer-Encoding: chunked\r\n", close=False) + b"3\r\nabc\r\n")
            account = proxy.pool.account
            await proxy.settled(lambda: len(account.waiting) == 1)
            if end == "stops":
                writer.write_eof()
            else:
                writer.write(b"ZZ\r\n" if end == "breaks" else b"b\r\n12345678901\r\n")
            assert parts(await asyncio.wait_for(reader.read(), PATIENCE_S))[0] in (400, 413)
            writer.close()
            assert not account.waiting
            gate.set()
            assert parts(await first)[0] == 200
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0)
            assert b"refused" not in b0.octets
            assert parts(await proxy.ask(request("GET", "/2")))[0] == 200


@pytest.mark.parametrize("how", ["plain", "half-closed", "pipelined"])
async def test_a_client_that_never_reads_does_not_keep_its_connection(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    for name in ("HALF_CLOSED_S", "LINGER_S"):  # which are longer, and compiled they stay so
        monkeypatch.setattr(downstream, name, 0.3)
    huge = b"x" * 8_000_000
    timeouts = ListenerTimeouts(body_idle=0.3, keep_alive=0.3)
    async with backend(answering(answer(huge))) as b0, running(pool_of(b0.port), timeouts=timeouts) as proxy:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", proxy.port))
        await asyncio.get_running_loop().sock_sendall(sock, request(close=False) * (5 if how == "pipelined" else 1))
        if how == "half-closed":
            await proxy.settled(lambda: len(b0.octets) > 0)
            sock.shutdown(socket.SHUT_WR)
        await proxy.settled(lambda: proxy.cell("listener", "l", column=ledger.LISTENER_OPEN) == 1)
        await proxy.settled(lambda: proxy.cell("listener", "l", column=ledger.LISTENER_OPEN) == 0)
        assert proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0
        sock.close()


@pytest.mark.parametrize("size", [1_500_000, 12_000_000])
async def test_a_client_that_reads_slowly_gets_everything(size: int) -> None:
    huge = b"x" * size
    timeouts = ListenerTimeouts(body_idle=0.3, keep_alive=0.3)
    async with backend(answering(answer(huge))) as b0, running(pool_of(b0.port), timeouts=timeouts) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=4096)
        writer.write(request())
        await read_head(reader)
        got = 0
        while data := await reader.read(size // 100):
            got += len(data)
            await asyncio.sleep(0.02)
        assert got == len(huge)
        writer.close()


async def test_a_client_that_ends_before_its_tunnel_begins_leaves_nothing_behind() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
        await reader.read()  # the client's end comes through

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request("GET", "/", b"Connection: Upgrade\r\nUpgrade: echo\r\n", close=False))
        writer.write_eof()
        assert b"101" in await read_head(reader)
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0)
        assert proxy.pool_cell(ledger.POOL_UPGRADED_OPEN) == 0
        writer.close()


@interpreted_only
async def test_a_tunnel_to_a_backend_that_does_not_read_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "LAST_WORD_S", 0.1)
    stop = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await stop.wait()

    quick = PoolTimeouts(idle=0.5)
    async with backend(talk) as b0, running(replace(pool_of(b0.port), timeout=quick)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request("GET", "/", b"Connection: Upgrade\r\nUpgrade: echo\r\n", close=False))
        await read_head(reader)
        while True:
            writer.write(b"x" * 1_000_000)
            try:
                await asyncio.wait_for(writer.drain(), 0.3)
            except TimeoutError:
                break
        writer.transport.abort()
        (account,) = [pool.backends["b0"] for pool in proxy.plane._plane.snapshot.pools.values()]
        await proxy.settled(lambda: account.connections == 0)
        stop.set()


async def test_an_answer_cut_by_a_reset_is_counted_once_and_is_not_the_clients_fault() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(b"GET / HTTP/1.0\r\nX-User-ID: kim\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), PATIENCE_S)
        await proxy.settled(lambda: proxy.cell("listener", "l", column=ledger.LISTENER_OPEN) == 0)
        assert [line.reason for line in proxy.lines] == ["reset"]
        assert proxy.pool_cell(ledger.POOL_ABORTS) == 0
        assert proxy.pool_cell(ledger.POOL_REQUESTS + 1) == 1


async def test_interim_answers_without_end_are_no_answer() -> None:
    async with backend(answering(b"HTTP/1.1 100 Continue\r\n\r\n" * 4000)) as b0, running(pool_of(b0.port)) as proxy:
        got = await proxy.ask(request())
        assert got.count(b"HTTP/1.1 100 Continue") == upstream.MAX_INTERIM
        assert b"HTTP/1.1 502 Bad Gateway" in got


@pytest.mark.parametrize(("size", "status"), [(upstream.MAX_HEAD_BYTES, 200), (upstream.MAX_HEAD_BYTES + 1, 502)])
async def test_an_answers_head_is_as_long_as_it_may_be_however_it_arrives(size: int, status: int) -> None:
    """Up to its last octet no part of it is too long, so only the whole of it can be."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nA: \r\n\r\n"
    head = head.replace(b"A: ", b"A: " + b"a" * (size - len(head)))
    async with backend(answering(head)) as b0, running(pool_of(b0.port)) as proxy:
        assert (await proxy.ask(request())).startswith(b"HTTP/1.1 %d " % status)


async def test_an_open_connection_follows_a_reload_with_its_next_request() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port), trusted=("127.0.0.0/8",)) as proxy:
        reader, writer = await proxy.connect()
        sent = b"X-Forwarded-For: 6.6.6.6\r\n"
        writer.write(request("GET", "/", sent, close=False))
        await read_head(reader)
        await reader.readexactly(2)
        listener = replace(proxy.config.listeners[0], trusted_proxies=())
        reload(proxy, replace(proxy.config, listeners=(listener,)))
        writer.write(request("GET", "/", sent))
        await reader.read()
        assert [line.client for line in proxy.lines] == ["6.6.6.6", "127.0.0.1"]
        assert b0.octets.count(b"6.6.6.6") == 1
        writer.close()


async def test_a_refused_request_is_not_given_the_key_of_the_one_before() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        await proxy.ask(request(close=False) + b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
        assert [line.key for line in proxy.lines] == [b"kim", None]


async def test_a_lack_of_our_own_is_no_backends_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(pool_of(1, 1)) as proxy:

        async def no_more(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        reader, writer = await proxy.connect()
        monkeypatch.setattr(proxy.plane._plane.loop, "create_connection", no_more)
        writer.write(request())
        assert parts(await reader.read())[0] == 503
        assert proxy.lines[0].reason == "no_resources"
        assert sum(proxy.backend_cell(b, ledger.BACKEND_ERRORS + n) for b in ("b0", "b1") for n in range(8)) == 0
        writer.close()


async def test_a_request_whose_first_backend_is_dead_waits_for_a_seat_of_another() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_head(reader)
            await asyncio.sleep(0.01)
            writer.write(answer())

    async with backend(talk) as b0:
        pool = pool_of(b0.port, 1)
        few_seats = replace(pool.backends[0], max_in_flight=2)
        waiting = replace(pool, backends=(few_seats, pool.backends[1]), queue=Queue(size=100, timeout=PATIENCE_S))
        async with running(waiting) as proxy:
            users = [request(key=b"u%d" % n) for n in range(30)]
            got = await asyncio.gather(*map(proxy.ask, users))
            assert {parts(response)[0] for response in got} == {200}
            assert proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0


async def test_answers_that_are_cut_each_time_are_failures_in_a_row() -> None:
    reports: list[tuple[str, str, str]] = []
    cut_short = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
    async with (
        backend(answering(cut_short, close=True)) as b0,
        running(
            replace(pool_of(b0.port), ejection=Ejection(consecutive_errors=3)),
            report=lambda *facts: reports.append(facts),
        ) as proxy,
    ):
        for _ in range(3):
            await proxy.ask(request())
    assert reports == [("p", "b0", "closed_early")]


@pytest.mark.parametrize("framing", ["length", "chunked", "stops"])
async def test_a_body_that_comes_while_its_request_waits_after_a_failed_attempt_is_kept_whole(framing: str) -> None:
    gate = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            if b"Content-Length: 10" in head:
                await reader.readexactly(10)
            elif b"chunked" in head:
                await reader.readuntil(b"0\r\n\r\n")
            else:
                await gate.wait()
            writer.write(answer(head.split(b" ", 2)[1]))

    async with backend(talk) as b0:
        pool = pool_of(b0.port, 1)
        one_seat = replace(pool.backends[0], max_in_flight=1)
        waiting = replace(pool, backends=(one_seat, pool.backends[1]), queue=Queue(timeout=PATIENCE_S))
        async with running(waiting) as proxy:
            of_dead, of_busy = proxy.key_of("b1"), proxy.key_of("b0")
            first = asyncio.create_task(proxy.ask(request("GET", "/busy", key=of_busy)))
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
            reader, writer = await proxy.connect()
            length = b"Transfer-Encoding: chunked\r\n" if framing == "chunked" else b"Content-Length: 10\r\n"
            head = request("POST", "/one", length, close=False, key=of_dead)
            writer.write(head + (b"3\r\nabc\r\n" if framing == "chunked" else b"abc"))
            await proxy.settled(lambda: len(proxy.pool.account.waiting) == 1)
            one = cast(Exchange, proxy.pool.account.waiting[0])
            if framing == "stops":
                writer.write_eof()
                assert parts(await reader.read())[0] == 400
            else:
                writer.write(b"7\r\ndefghij\r\n0\r\n\r\n" if framing == "chunked" else b"defghij")
                writer.write(request("GET", "/two", key=of_busy))
                await proxy.settled(lambda: one.request_bytes == 10)
            gate.set()
            assert parts(await first)[2] == b"/busy"
            if framing != "stops":
                everything = await asyncio.wait_for(reader.read(), PATIENCE_S)
                assert everything.index(b"\r\n\r\n/one") < everything.index(b"\r\n\r\n/two")
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0)
            assert (b"/one" in b0.octets) == (framing != "stops")
            writer.close()


@pytest.mark.parametrize("size", [1, 4096, 4097, 16_384, 16_385, 300_000])
@pytest.mark.parametrize("framing", ["length", "chunked", "end"])
async def test_bodies_of_every_size_come_through_both_ways_to_the_octet(size: int, framing: str) -> None:
    """Those that are passed on without being copied, those that are, and those of several reads."""
    body = bytes(n * 31 % 251 for n in range(size))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if b"chunked" in head:
            received = b""
            while length := int(await reader.readline(), 16):
                received += await reader.readexactly(length)
                await reader.readline()
            await reader.readline()
        else:
            received = await reader.readexactly(size)
        same = b"same" if received == body else b"other"
        if framing == "length":
            writer.write(b"HTTP/1.1 200 OK\r\nX-Got: %b\r\nContent-Length: %d\r\n\r\n%b" % (same, size, body))
        elif framing == "chunked":
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (size, body)
            writer.write(b"HTTP/1.1 200 OK\r\nX-Got: %b\r\nTransfer-Encoding: chunked\r\n\r\n%b" % (same, chunks))
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nX-Got: %b\r\n\r\n%b" % (same, body))
        writer.close()

    sent = b"POST / HTTP/1.%d\r\nHost: a\r\nConnection: close\r\n%b\r\n\r\n%b"
    ways = {
        "length": sent % (1, b"Content-Length: %d" % size, body),
        "of 1.0": sent % (0, b"Content-Length: %d" % size, body),
        "chunked": sent % (1, b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (size, body)),
    }
    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        for octets in ways.values():
            status, head, got = parts(await proxy.ask(octets))
            assert status == 200
            assert b"X-Got: same" in head
            if b"chunked" in head:
                rest, got = got, b""
                while rest:
                    length, _, rest = rest.partition(b"\r\n")
                    got, rest = got + rest[: int(length, 16)], rest[int(length, 16) + 2 :]
            assert got == body
        assert [line.response_bytes for line in proxy.lines] == [size] * 3
        assert [line.request_bytes for line in proxy.lines] == [size] * 3

"""What is held of a client that asks for much and takes little, and what becomes of it when the client ends."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from lbproxy.core import ledger
from lbproxy.core.spec import HeaderPolicy, Limits, ListenerTimeouts, Route, TracingSpec
from lbproxy.dataplane import downstream as downstream_module
from lbproxy.dataplane.downstream import Downstream
from tests.dataplane.harness import (
    PATIENCE_S,
    Plane,
    answer,
    answering,
    backend,
    pool_of,
    read_head,
    reload,
    request,
    running,
)
from tests.loops import on_both_loops

SMALL = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: echo\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"


def only_client(plane: Plane) -> Downstream:
    (client,) = plane.plane._listeners["l"].connections
    return client


async def slow_client(plane: Plane) -> socket.socket:
    """A client for which the kernel keeps little of what it has not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.connect(("127.0.0.1", plane.port))
    sock.setblocking(False)
    await plane.settled(lambda: bool(plane.plane._listeners["l"].connections))
    near = only_client(plane).transport.get_extra_info("socket")
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    return sock


async def read_all(sock: socket.socket, size: int = 1 << 18, pause_s: float = 0.0) -> bytes:
    loop = asyncio.get_running_loop()
    octets = b""
    async with asyncio.timeout(PATIENCE_S):
        while data := await loop.sock_recv(sock, size):
            octets += data
            await asyncio.sleep(pause_s)
    return octets


@on_both_loops
async def test_an_end_in_the_turn_of_an_answer_loses_no_request_behind_it() -> None:
    """The client's end is read when one request has been answered and the next has not been taken up yet."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"/first" not in await read_head(reader):
            writer.write(answer(b"well"))
        await reader.read()

    async with backend(talk) as served, running(pool_of(served.port)) as plane:
        reader, writer = await plane.connect()
        writer.write(b"".join(request(target=target, close=False) for target in ("/first", "/2", "/3", "/4", "/5")))
        await plane.settled(lambda: plane.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
        client = only_client(plane)
        await plane.settled(lambda: client.exchange.upstream is not None)  # it has its seat before its connection
        assert client.exchange.upstream is not None
        client.exchange.upstream.data_received(answer(b"well", extra=b"Connection: close\r\n"))
        assert client.pending
        assert client.eof_received()
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).count(b"well") == 5
        writer.close()


@on_both_loops
async def test_an_end_loses_no_request_of_those_that_are_refused() -> None:
    async with running(pool_of(1), routes=(Route("p", host="b.example"),)) as plane:
        reader, writer = await plane.connect()
        writer.write(SMALL * 20 + b"GET / HT")
        writer.write_eof()
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).count(b"HTTP/1.1 404") == 20
        writer.close()


@pytest.mark.parametrize(
    "body",
    [
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"Content-Length: 5\r\n\r\n",
        b"Content-Length: 5\r\n\r\nhel",
    ],
)
@on_both_loops
async def test_an_end_inside_a_request_behind_another_one_is_its_end_too(body: bytes) -> None:
    """Nothing tells of the end again when that request's turn comes."""
    async with backend(answering(answer(b"well"))) as served, running(pool_of(served.port)) as plane:
        reader, writer = await plane.connect()
        writer.write(request(close=False) + b"POST /cut HTTP/1.1\r\nHost: a\r\n" + body)
        writer.write_eof()
        said = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert said.count(b"HTTP/1.1 ") == 2
        assert said.index(b"200 OK") < said.index(b"400 Bad Request")
        assert [line.reason for line in plane.lines] == ["", "bad_request"]
        assert plane.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0
        writer.close()


@on_both_loops
async def test_an_end_that_comes_while_the_client_is_full_loses_nothing() -> None:
    async with running(pool_of(1), routes=(Route("p", host="b.example"),)) as plane:
        reader, writer = await plane.connect()
        await plane.settled(lambda: bool(plane.plane._listeners["l"].connections))
        client = only_client(plane)
        client.pause_writing()
        writer.write(SMALL * 20)
        await plane.settled(lambda: bool(client.pending))
        assert client.eof_received()
        client.resume_writing()
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).count(b"HTTP/1.1 404") == 20
        writer.close()


@on_both_loops
async def test_a_client_that_has_ended_and_takes_its_answer_slowly_gets_all_of_it() -> None:
    body = b"x" * 1_000_000
    with pytest.MonkeyPatch.context() as patch:
        # A third of what it takes at this pace, and many times its pauses: a machine may stand still for a while.
        patch.setattr(downstream_module, "HALF_CLOSED_S", 0.5)
        async with backend(answering(answer(body))) as served, running(pool_of(served.port)) as plane:
            sock = await slow_client(plane)
            sock.send(SMALL)
            sock.shutdown(socket.SHUT_WR)
            assert (await read_all(sock, 16_384, 0.025)).count(b"x") == len(body)
            sock.close()


@on_both_loops
async def test_refusals_that_nobody_reads_do_not_pile_up() -> None:
    async with running(pool_of(1), routes=(Route("p", host="b.example"),)) as plane:
        sock = await slow_client(plane)
        client = only_client(plane)
        asked = 0
        for _ in range(600):
            try:
                asked += sock.send(SMALL * 10)
            except BlockingIOError:
                break
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert client.transport.get_write_buffer_size() < 300_000
        sock.shutdown(socket.SHUT_WR)
        assert (await read_all(sock)).count(b"HTTP/1.1 404") == asked // len(SMALL)
        sock.close()


@on_both_loops
async def test_requests_with_bodies_that_are_asked_in_a_row_are_not_all_read_at_once() -> None:
    one = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
    async with backend(answering(answer())) as served, running(pool_of(served.port)) as plane:
        reader, writer = await plane.connect()
        writer.write(one * 100_000)
        most = 0
        for _ in range(300):
            await reader.readuntil(b"ok")
            client = only_client(plane)
            most = max(most, len(client.pending) - client._at)
        assert most < 600_000
        writer.transport.abort()


@on_both_loops
async def test_what_comes_right_behind_a_request_to_switch_goes_through_the_tunnel() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await asyncio.sleep(0.05)
        writer.write(SWITCHED)
        await reader.readexactly(500_000)
        writer.write(b"done")

    async with backend(talk) as served, running(pool_of(served.port)) as plane:
        reader, writer = await plane.connect()
        writer.write(request(extra=UPGRADE, close=False) + b"x" * 500_000)
        await read_head(reader)
        assert await asyncio.wait_for(reader.readexactly(4), PATIENCE_S) == b"done"
        writer.close()


@on_both_loops
async def test_a_long_head_behind_another_request_is_read_to_its_end() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._limit = 1 << 20  # type: ignore[attr-defined]
        while True:
            await read_head(reader)
            await asyncio.sleep(0.05)
            writer.write(answer(b"well"))

    limits, timeouts = Limits(head_bytes=400_000), ListenerTimeouts(request_head=1.0)
    long = b"".join(b"X-%d: %b\r\n" % (number, b"y" * 10_000) for number in range(30))
    async with backend(talk) as served, running(pool_of(served.port), limits=limits, timeouts=timeouts) as plane:
        octets = await plane.ask(request(close=False) + request(extra=long))
        assert octets.count(b"well") == 2


async def test_a_trace_is_not_kept_beyond_the_policy_that_made_it() -> None:
    async with (
        backend(answering(answer(b"well"))) as served,
        running(pool_of(served.port), tracing=TracingSpec(otlp="http://127.0.0.1:9", sample=1.0)) as plane,
    ):
        reader, writer = await plane.connect()
        for tracing in (plane.config.tracing, TracingSpec()):
            reload(plane, replace(plane.config, tracing=tracing))
            writer.write(request(close=False))
            await reader.readuntil(b"well")
        assert [line.trace is not None for line in plane.lines] == [True, False]
        writer.close()


async def test_the_next_request_on_a_connection_follows_the_policy_of_its_time() -> None:
    """Its fields have the same names as those of the one before."""
    async with backend(answering(answer(b"well"))) as served, running(pool_of(served.port)) as plane:
        reader, writer = await plane.connect()
        policies = (HeaderPolicy(), HeaderPolicy(x_forwarded="pass"), HeaderPolicy(request_id="make"), HeaderPolicy())
        for generation, policy in enumerate(policies):
            reload(plane, replace(plane.config, headers=policy), generation + 2)
            writer.write(request(extra=b"X-Forwarded-For: 1.1.1.1\r\nX-Request-ID: mine\r\n", close=False))
            await reader.readuntil(b"well")
        heads = served.octets.split(b"\r\n\r\n")
        assert [b"1.1.1.1" in head for head in heads] == [False, True, False, False, False]
        assert [b": mine" in head for head in heads] == [True, True, False, True, False]
        writer.close()


LARGE_HEADERS = {
    "names": b"".join(b"%b-%d: x\r\n" % (b"n" * 300, line) for line in range(80)),
    "a value": b"X: " + b"v" * 12_000 + b"\r\n",
    "names that end here": b"Connection: %b\r\n" % b",".join(b"%b-%d" % (b"n" * 150, line) for line in range(80))
    + b"".join(b"%b-%d: x\r\n" % (b"n" * 150, line) for line in range(80)),
}


@pytest.mark.parametrize("traceparent", [b"", b"traceparent: 00-%b-%b-01\r\n" % (b"a" * 32, b"b" * 16)])
async def test_no_header_is_kept_while_its_connection_waits_for_the_next_request(traceparent: bytes) -> None:
    """There are thousands of such connections, and a browser with its cookies says a few thousand octets."""
    extra = traceparent + b"Cookie: " + b"c" * 6_000 + b"\r\n"
    tracing = TracingSpec(otlp="http://127.0.0.1:1", sample=1.0)
    async with backend(answering(answer())) as served, running(pool_of(served.port), tracing=tracing) as plane:
        reader, writer = await plane.connect()
        writer.write(request(extra=extra, close=False))
        assert (await read_head(reader)).startswith(b"HTTP/1.1 200")
        await plane.settled(lambda: only_client(plane).mode == downstream_module.AWAIT)
        exchange = only_client(plane).exchange
        assert exchange.head == b""
        assert exchange.values == ()
        writer.close()


@pytest.mark.parametrize("what", list(LARGE_HEADERS))
async def test_a_large_header_is_not_kept_while_its_connection_waits_for_the_next_request(what: str) -> None:
    async with backend(answering(answer())) as served, running(pool_of(served.port)) as plane:
        reader, writer = await plane.connect()
        for extra in (LARGE_HEADERS[what], b"", LARGE_HEADERS[what]):
            writer.write(request(extra=extra, close=False))
            assert (await read_head(reader)).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(2) == b"ok"
            await plane.settled(lambda: only_client(plane).mode == downstream_module.AWAIT)
            exchange = only_client(plane).exchange
            assert len(exchange.head) + sum(map(len, exchange.shape.names + exchange.values)) < 2048
        assert [line.status for line in plane.lines] == [200] * 3
        writer.close()

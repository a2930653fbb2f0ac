"""Who leaves in the middle of what the other side sends says a last word, and it arrives.

The kernel keeps what has come before a reset, but a loop that fails to write closes at once. The clients here are bare
sockets, for one whose write failed must go on reading too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import cast

import pytest

from lbproxy.core import ledger
from lbproxy.core.spec import Limits, ListenerTimeouts
from lbproxy.dataplane import flow
from tests.dataplane.harness import PATIENCE_S, Plane, Talk, answer, backend, pool_of, read_head, request, running
from tests.loops import on_both_loops

UPGRADE = b"Connection: Upgrade\r\nUpgrade: echo\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"


class Client:
    """A client that says its last word, or sends without an end, and reads whatever happens to that."""

    def __init__(self, proxy: Plane) -> None:
        self._loop = asyncio.get_running_loop()
        self.socket = socket.create_connection(("127.0.0.1", proxy.port))
        self.socket.setblocking(False)
        self._sending: asyncio.Task[None] | None = None

    async def say(self, octets: bytes) -> None:
        await self._loop.sock_sendall(self.socket, octets)

    def upload(self) -> None:
        self._sending = asyncio.create_task(self._upload())

    async def _upload(self) -> None:
        try:
            while True:
                await self.say(b"x" * 65536)
        except OSError:
            pass

    async def read(self, enough: bytes | int | None = None) -> bytes:
        """What comes, up to some octets, or so many, or the end."""
        octets = b""
        async with asyncio.timeout(PATIENCE_S):
            while enough is None or (enough not in octets if isinstance(enough, bytes) else len(octets) < enough):
                try:
                    data = await self._loop.sock_recv(self.socket, 65536)
                except ConnectionError:
                    return octets
                if not data:
                    return octets
                octets += data
        return octets

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        self.socket.close()


def cut(sock: socket.socket) -> None:
    """Let its closing be a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def leaving(last_word: bytes, *, is_reset: bool, switched: bytes = SWITCHED) -> Talk:
    """A backend that takes a part of what is sent to it, says its last word and goes: what it has not read makes the
    kernel reset the connection."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(switched)
        await reader.readexactly(300_000)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.transport.set_write_buffer_limits(0)
        writer.write(last_word)
        await writer.drain()
        while flow.unsent(cast(asyncio.Transport, writer.transport)):  # noqa: ASYNC110  # a reset takes along what has not arrived; nobody tells
            await asyncio.sleep(0.001)
        if is_reset:
            cut(writer.get_extra_info("socket"))
        writer.transport.abort()

    return talk


@pytest.mark.parametrize("is_reset", [True, False])
@pytest.mark.parametrize("size", [2, 100_000])
@on_both_loops
async def test_the_last_word_of_a_backend_that_leaves_an_upload_arrives(is_reset: bool, size: int) -> None:
    last_word = b"\x88\x00" * (size // 2)
    async with (
        backend(leaving(last_word, is_reset=is_reset)) as served,
        running(pool_of(served.port)) as proxy,
    ):
        for _ in range(20):
            client = Client(proxy)
            await client.say(request("GET", "/", UPGRADE, close=False))
            assert await client.read(len(SWITCHED)) == SWITCHED
            client.upload()
            assert await client.read(size) == last_word
            await client.close()
        await proxy.settled(lambda: proxy.pool_cell(ledger.POOL_UPGRADED_OPEN) == 0)


@on_both_loops
async def test_the_last_word_to_a_client_that_does_not_read_yet_arrives() -> None:
    """So much that the proxy stops reading from the backend, and learns of its end by not being able to write."""
    last_word = b"\x88\x00" * 180_000
    async with (
        backend(leaving(last_word, is_reset=True)) as served,
        running(pool_of(served.port)) as proxy,
    ):
        client = Client(proxy)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        await client.say(request("GET", "/", UPGRADE, close=False))
        assert await client.read(len(SWITCHED)) == SWITCHED
        client.upload()
        await proxy.settled(lambda: proxy.pool_cell(ledger.POOL_UPGRADED_OPEN) == 0)
        assert await client.read(len(last_word)) == last_word
        await client.close()


@pytest.mark.parametrize("size", [3, 30_000])
@on_both_loops
async def test_the_last_word_of_a_client_that_leaves_a_download_arrives(size: int) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        sock = writer.get_extra_info("socket").dup()
        writer.write(SWITCHED)
        await writer.drain()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        loop = asyncio.get_running_loop()

        async def send() -> None:
            try:
                while True:
                    await loop.sock_sendall(sock, b"x" * 65536)
            except OSError:
                pass

        sending = asyncio.create_task(send())
        said = b""
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(sock, 65536):
                said += data
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        sock.close()
        heard.put_nowait(said)

    async with backend(talk) as served, running(pool_of(served.port)) as proxy:
        for _ in range(20):
            client = Client(proxy)
            await client.say(request("GET", "/", UPGRADE, close=False))
            await client.read(300_000)
            await client.say(b"bye" * (size // 3))
            cut(client.socket)
            await client.close()
            assert await asyncio.wait_for(heard.get(), PATIENCE_S) == b"bye" * (size // 3)
        await proxy.settled(lambda: proxy.pool_cell(ledger.POOL_UPGRADED_OPEN) == 0)


@pytest.mark.parametrize("is_reset", [True, False])
@on_both_loops
async def test_an_early_answer_to_an_upload_arrives_when_its_backend_goes_at_once(is_reset: bool) -> None:
    refusal = answer(b"n" * 50_000, "413 Content Too Large", b"Connection: close\r\n")
    async with (
        backend(leaving(refusal, is_reset=is_reset, switched=b"")) as served,
        running(pool_of(served.port)) as proxy,
    ):
        for _ in range(20):
            client = Client(proxy)
            await client.say(b"POST / HTTP/1.1\r\nHost: a\r\nX-User-ID: kim\r\nContent-Length: 1000000000\r\n\r\n")
            client.upload()
            got = await client.read(b"n" * 50_000)
            assert got.startswith(b"HTTP/1.1 413")
            assert got.endswith(b"\r\n\r\n" + b"n" * 50_000)
            await client.close()
        await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0)


@pytest.mark.parametrize(
    ("status", "rest"),
    [
        (413, b"Content-Length: 100000\r\n\r\n"),
        (431, b"Content-Length: 100000\r\nX: " + b"x" * 20_000 + b"\r\n\r\n"),
        (501, b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
        (400, b"Content-Length: 100000\r\nContent-Length: 100000\r\n\r\n"),
        (400, b"X y\r\n"),
        (408, b"X: y\r\n"),
    ],
)
@on_both_loops
async def test_who_is_refused_by_the_head_may_send_the_body_and_read_why(status: int, rest: bytes) -> None:
    """Many clients read no answer when they cannot write, and on some systems a reset takes away what was not read."""
    limits, timeouts = Limits(body_bytes=50_000), ListenerTimeouts(request_head=0.3)
    async with running(pool_of(1), limits=limits, timeouts=timeouts) as proxy:
        client = Client(proxy)
        await client.say(b"POST / HTTP/1.1\r\nHost: a\r\n" + rest)
        assert (await client.read(b"%d " % status)).startswith(b"HTTP/1.1 %d " % status)
        for _ in range(100):
            await client.say(b"x" * 1000)
            await asyncio.sleep(0)
        assert await client.read() == b""
        await client.close()
        await proxy.settled(lambda: proxy.plane.open_connections() == 0)


@pytest.mark.parametrize("event", ["the client's end", "a deadline"])
@on_both_loops
async def test_a_connection_is_given_up_though_its_peer_has_just_reset_it(event: str) -> None:
    """The loop has not read of the reset yet, and to say the end fails at once."""
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        async with running(pool_of(listening.getsockname()[1])) as proxy:
            client = Client(proxy)
            await client.say(request("GET", "/", UPGRADE, close=False))
            served, _ = await loop.sock_accept(listening)
            assert b"Upgrade: echo" in await loop.sock_recv(served, 65536)
            await loop.sock_sendall(served, SWITCHED)
            assert await client.read(len(SWITCHED)) == SWITCHED
            (downstream,) = proxy.plane._listeners["l"].connections
            upstream = downstream.exchange.upstream
            assert upstream is not None
            served.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await client.say(b"x" * 200_000)
            async with asyncio.timeout(PATIENCE_S):
                while downstream.exchange.request_bytes < 200_000:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0.001)
            cut(served)
            served.close()
            if event == "a deadline":
                downstream.pass_deadline()
            else:
                downstream.eof_received()
            downstream.transport.abort()
            await proxy.settled(lambda: proxy.pool_cell(ledger.POOL_UPGRADED_OPEN) == 0)
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_ACTIVE) == 0)
            await client.close()
    assert not failures


@on_both_loops
async def test_to_say_the_end_to_somebody_who_is_gone_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
        lost = asyncio.Event()

        class Protocol(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                lost.set()

        transport, _ = await asyncio.get_running_loop().create_connection(Protocol, sock=near)
        cut(far)
        far.close()
        flow.end(transport)
        await asyncio.wait_for(lost.wait(), PATIENCE_S)
        flow.end(transport)

"""Answers of every kind to clients that take them in pieces and ask on before they have: each whole, and in order."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from tests.dataplane.harness import answer, backend, pool_of, read_head, running
from tests.loops import on_both_loops
from tests.test_hardening import no_exceptions

EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
TURNS = 12


def body_of(path: bytes) -> bytes:
    chance = random.Random(path)
    return chance.randbytes(1000) * chance.choice([0, 1, 30, 100, 200, 240])


class SlowClient:
    """Reads a few octets, or many, as chance has it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
        self._socket.setblocking(False)
        self._octets = b""

    async def connect(self, port: int) -> None:
        await self._loop.sock_connect(self._socket, ("127.0.0.1", port))

    async def say(self, octets: bytes) -> None:
        await self._loop.sock_sendall(self._socket, octets)

    async def _read_more(self) -> None:
        data = await self._loop.sock_recv(self._socket, self._chance.choice([10, 5_000, 100_000]))
        assert data
        self._octets += data

    async def read_head(self) -> bytes:
        while b"\r\n\r\n" not in self._octets:
            await self._read_more()
        head, _, self._octets = self._octets.partition(b"\r\n\r\n")
        return head

    async def read(self, size: int) -> bytes:
        while len(self._octets) < size:
            await self._read_more()
        data, self._octets = self._octets[:size], self._octets[size:]
        return data

    def close(self) -> None:
        assert not self._octets
        self._socket.close()


async def expect_answer(client: SlowClient, method: bytes, path: bytes) -> None:
    head = await client.read_head()
    while head.startswith(b"HTTP/1.1 103"):
        head = await client.read_head()
    if method == b"GET" and path.endswith((b"304", b"204")):
        assert head[9:12] == path[-3:]
        return
    body = body_of(path)
    assert head.startswith(b"HTTP/1.1 200")
    assert b"Content-Length: %d\r\n" % len(body) in head + b"\r\n"
    if method == b"GET":
        assert await client.read(len(body)) == body


@pytest.mark.parametrize("seed", range(2))
@on_both_loops
async def test_answers_of_every_kind_stay_whole_and_in_order(seed: int) -> None:
    chance = random.Random(seed)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            method, path = (await read_head(reader)).split(b" ")[:2]
            octets = answer(body_of(path))
            if method == b"HEAD":
                octets = octets[: octets.index(b"\r\n\r\n") + 4]
            elif path.endswith(b"304"):
                octets = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n"
            elif path.endswith(b"204"):
                octets = b"HTTP/1.1 204 No Content\r\n\r\n"
            writer.write(chance.choice([b"", b"", EARLY]) + octets)
            await writer.drain()

    async with backend(talk) as served, running(pool_of(served.port)) as plane:

        async def ask(number: int) -> None:
            client = SlowClient(chance)
            await client.connect(plane.port)
            open_requests = []
            for turn in range(TURNS):
                method = chance.choice([b"GET", b"GET", b"HEAD"])
                path = b"/%d/%d/%b" % (number, turn, chance.choice([b"", b"", b"304", b"204"]))
                await client.say(b"%b %b HTTP/1.1\r\nHost: a\r\n\r\n" % (method, path))
                open_requests.append((method, path))
                most = chance.choice([0, 0, 0, 1, 3]) if turn < TURNS - 1 else 0
                while len(open_requests) > most:
                    await expect_answer(client, *open_requests.pop(0))
            client.close()

        with no_exceptions():
            async with asyncio.timeout(10):
                await asyncio.gather(*(ask(number) for number in range(20)))

"""What is left for the end of a turn: counted before it is sent, sent in order, and never to anybody else."""

from __future__ import annotations

import asyncio
import os

import pytest
import uvloop

from lbproxy.core import ledger
from tests.dataplane.harness import answer, answering, backend, pool_of, read_head, request, running


async def test_an_answer_has_been_counted_when_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = asyncio.Semaphore(0)
    is_time = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        arrived.release()
        await is_time.wait()
        writer.write(answer(b"hello"))
        await read_head(reader)

    async with backend(talk) as served, running(pool_of(served.port)) as plane:
        counts = []
        write = os.write

        def observed(fd: int, octets: bytes) -> int:
            counts.append(plane.pool_cell(ledger.POOL_REQUESTS + 1))
            return write(fd, octets)

        connections = [await plane.connect() for _ in range(12)]
        for _, writer in connections:
            writer.write(request(close=False))
            await arrived.acquire()
        monkeypatch.setattr("lbproxy.dataplane.downstream.os.write", observed)
        is_time.set()
        for reader, writer in connections:
            await read_head(reader)
            assert await reader.readexactly(5) == b"hello"
            writer.close()
        assert plane.pool_cell(ledger.POOL_REQUESTS + 1) == 12
        assert counts
        assert all(count > before for before, count in enumerate(counts))


@pytest.mark.parametrize("size", [0, 100, 50_000])
def test_answers_to_many_clients_in_one_turn_each_reach_their_own(size: int) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            path = head.split(b" ")[1]
            writer.write(answer(path + b"x" * size))

    async def main() -> None:
        async with backend(talk) as served, running(pool_of(served.port)) as plane:

            async def client(name: int) -> None:
                reader, writer = await plane.connect()
                for turn in range(20):
                    path = b"/%d-%d-" % (name, turn)
                    writer.write(b"GET %b HTTP/1.1\r\nHost: a\r\nX-User-ID: %d\r\n\r\n" % (path, name))
                    await read_head(reader)
                    assert await reader.readexactly(len(path) + size) == path + b"x" * size
                writer.close()

            await asyncio.gather(*(client(name) for name in range(30)))
            assert plane.pool_cell(ledger.POOL_REQUESTS + 1) == 600

    uvloop.run(main())
    asyncio.run(main())


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_client_that_ends_or_is_gone_while_its_answer_waits(is_closed: bool) -> None:
    """The client's end, and the answer, come in one turn; its descriptor may be somebody else's by the turn's end."""

    async def main() -> None:
        async with backend(answering(answer(b"hello"))) as served, running(pool_of(served.port)) as plane:
            for _ in range(50):
                reader, writer = await plane.connect()
                writer.write(request(close=False))
                if is_closed:
                    writer.transport.abort()
                    continue
                writer.write_eof()
                assert (await reader.read()).endswith(b"hello")
                writer.close()
            if is_closed:
                reader, writer = await plane.connect()
                writer.write(request("HEAD", close=False))
                writer.write_eof()
                assert (await reader.read()).count(b"HTTP/1.1") == 1

    uvloop.run(main())
    asyncio.run(main())

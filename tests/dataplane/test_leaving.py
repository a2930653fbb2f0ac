"""Connections that are to be given up: at a drain, with their listener, or because the other side stands still."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace

from lbproxy.core import ledger
from lbproxy.core.exchange import Finished
from lbproxy.core.spec import ListenerTimeouts
from tests.dataplane.harness import PATIENCE_S, answer, answering, backend, pool_of, read_head, reload, request, running


class Halves:
    """A backend that says half of its answer, and the other half when it may go on."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_head(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")
            await self.go.wait()
            writer.write(b"half")


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A backend that takes requests and says nothing."""
    await reader.read()


async def test_a_drain_is_over_when_an_answer_that_had_begun_has_ended() -> None:
    halves = Halves()
    async with backend(halves.talk) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request(close=False))
        await reader.readuntil(b"half")
        draining = asyncio.create_task(proxy.plane.drain(PATIENCE_S))
        await proxy.settled(lambda: proxy.plane._plane.draining)
        halves.go.set()
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"half"
        writer.close()
        assert await asyncio.wait_for(draining, 2 * PATIENCE_S) == 0


async def test_a_connection_goes_with_its_listener_when_it_has_been_answered() -> None:
    halves = Halves()
    async with backend(halves.talk) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        behind_reader, behind_writer = await proxy.connect()
        writer.write(request(close=False))
        await reader.readuntil(b"half")
        behind_writer.write(request(close=False)[:-2])  # the end of the head is still to come
        await proxy.settled(lambda: any(c.pending for c in proxy.plane._listeners["l"].connections))
        reload(proxy, replace(proxy.config, listeners=()))
        halves.go.set()
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"half"
        behind_writer.write(b"\r\n")
        assert (await asyncio.wait_for(behind_reader.read(), PATIENCE_S)).endswith(b"halfhalf")
        writer.close()
        behind_writer.close()
        await proxy.settled(lambda: not proxy.plane.open_connections())
        assert [line.status for line in proxy.lines] == [200, 200]


async def test_a_client_is_not_to_blame_for_a_backend_that_takes_its_time_with_an_upload_that_it_has_answered() -> None:
    size = 8_000_000

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(answer(b"early"))
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        await reader.readexactly(size)
        await read_head(reader)
        writer.write(answer(b"next"))

    async with (
        backend(talk) as b0,
        running(pool_of(b0.port), timeouts=ListenerTimeouts(body_idle=0.5)) as proxy,
    ):
        reader, writer = await proxy.connect()
        writer.write(request("POST", "/", b"Content-Length: %d\r\n" % size, close=False) + b"x" * size)
        writer.write(request())
        got = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
        assert got.index(b"early") < got.index(b"next")
        assert [(line.status, line.reason) for line in proxy.lines] == [(200, ""), (200, "")]


async def test_a_client_that_takes_nothing_is_logged_and_counted_as_one_that_has_left() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n" + b"x" * 50_000_000)
        await reader.read()

    async with (
        backend(talk) as b0,
        running(pool_of(b0.port), timeouts=ListenerTimeouts(body_idle=0.2)) as proxy,
    ):
        reader, writer = await proxy.connect()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request())
        await proxy.settled(lambda: len(proxy.lines) == 1)
        (line,) = proxy.lines
        assert (line.status, line.reason) == (200, "client_abort")
        assert proxy.pool_cell(ledger.POOL_ABORTS) == 1
        writer.close()


async def test_what_goes_wrong_with_one_connection_at_its_deadline_leaves_the_others_theirs() -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context.get("exception")))

    async with backend(silent) as b0:
        pool = pool_of(b0.port)
        async with running(replace(pool, timeout=replace(pool.timeout, first_byte=0.2))) as proxy:
            keep = proxy.keep

            def stumble(exchange: Finished) -> None:
                keep(exchange)
                if len(proxy.lines) == 1:
                    raise ValueError("the first")

            proxy.keep = stumble  # type: ignore[method-assign]
            got = await asyncio.gather(*(proxy.ask(request()) for _ in range(5)))
            assert [octets[9:12] for octets in got].count(b"504") >= 4
            assert [str(problem) for problem in problems] == ["the first"]
            assert (await proxy.ask(request()))[9:12] == b"504"
            await proxy.settled(lambda: not proxy.plane.open_connections())
            assert proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0


async def test_a_client_that_stops_sending_is_served_by_another_backend_than_one_that_does_not_accept() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, contextlib.ExitStack() as stack:
        for _ in range(4):  # more than its queue takes
            other = stack.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(deaf.getsockname())
        async with backend(answering(answer())) as b0:
            pool = pool_of(b0.port, deaf.getsockname()[1])
            async with running(replace(pool, timeout=replace(pool.timeout, connect=0.2))) as proxy:
                reader, writer = await proxy.connect()
                writer.write(request(key=proxy.key_of("b1")))
                writer.write_eof()
                assert (await reader.read())[9:12] == b"200"
                writer.close()
                (line,) = proxy.lines
                assert (line.backend, line.attempts) == ("b0", 2)
                assert proxy.backend_cell("b1", ledger.BACKEND_ERRORS + 1) == 1


async def test_a_client_that_stops_sending_is_taken_for_gone_after_a_second() -> None:
    async with backend(silent) as b0, running(pool_of(b0.port)) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request())
        await proxy.settled(lambda: len(b0.octets) > 0)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        await proxy.settled(lambda: [line.reason for line in proxy.lines] == ["client_abort"])
        writer.close()

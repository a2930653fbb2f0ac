"""What is left for the end of a turn: counted before it is sent, sent in order, and never to anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from lbproxy.core import ledger
from lbproxy.core.account import CROWD
from lbproxy.core.exchange import IDLE
from lbproxy.core.spec import Retry
from lbproxy.dataplane.turn import FEW, LARGE_CROWD, MOST, Turn
from lbproxy.dataplane.upstream import Upstream
from tests.dataplane.harness import (
    PATIENCE_S,
    Plane,
    answer,
    answering,
    backend,
    pool_of,
    read_head,
    request,
    running,
    waiting_for,
)
from tests.loops import on_both_loops

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Observed:
    """A transport that takes a look whenever something is written to it."""

    def __init__(self, transport: asyncio.Transport, look: Callable[[], None]) -> None:
        self._transport = transport
        self._look = look

    def write(self, octets: bytes) -> None:
        self._look()
        self._transport.write(octets)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def seen_at_answers(plane: Plane, look: Callable[[], int]) -> list[int]:
    """What `look` says whenever a client that is connected now is written an answer."""
    seen: list[int] = []
    for connection in plane.plane._listeners["l"].connections:
        connection.transport = cast(asyncio.Transport, Observed(connection.transport, lambda: seen.append(look())))
    return seen


def counted_at_answers(plane: Plane) -> list[int]:
    """How many requests have been counted by then."""
    return seen_at_answers(plane, lambda: plane.pool_cell(ledger.POOL_REQUESTS + 1))


async def twelve_asking(plane: Plane, arrived: asyncio.Semaphore, close: bool) -> list[Streams]:
    """Clients whose requests have all reached the backend, which lets each of them be known by `arrived`."""
    connections = [await plane.connect() for _ in range(12)]
    for _, writer in connections:
        writer.write(request(close=close))
        await arrived.acquire()
    return connections


async def test_nobody_waits_for_the_line_in_the_log() -> None:
    async with backend(answering(answer(b"hello"))) as served, running(pool_of(served.port)) as plane:
        reader, writer = await plane.connect()
        seen: list[int] = []
        for number in range(3):
            writer.write(request(close=False))
            await reader.readuntil(b"hello")
            assert len(plane.lines) == number + 1
            if not seen:
                seen = seen_at_answers(plane, lambda: len(plane.lines))
        assert seen == [1, 2]
        writer.close()


async def test_an_answer_has_been_counted_when_it_is_sent() -> None:
    arrived = asyncio.Semaphore(0)
    is_time = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        arrived.release()
        await is_time.wait()
        writer.write(answer(b"hello"))
        await read_head(reader)

    async with backend(talk) as served, running(pool_of(served.port)) as plane:
        connections = await twelve_asking(plane, arrived, close=False)
        counts = counted_at_answers(plane)
        is_time.set()
        for reader, writer in connections:
            await read_head(reader)
            assert await reader.readexactly(5) == b"hello"
            writer.close()
        assert plane.pool_cell(ledger.POOL_REQUESTS + 1) == 12
        assert len(counts) == 12
        assert all(count > before for before, count in enumerate(counts))


@pytest.mark.parametrize("size", [0, 100, 50_000])
@on_both_loops
async def test_answers_to_many_clients_in_one_turn_each_reach_their_own(size: int) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            path = head.split(b" ")[1]
            writer.write(answer(path + b"x" * size))

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


@pytest.mark.parametrize("is_closed", [False, True])
@on_both_loops
async def test_a_client_that_ends_or_is_gone_while_its_answer_waits(is_closed: bool) -> None:
    """The client's end, and the answer, come in one turn; its descriptor may be somebody else's by the turn's end."""

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


@pytest.mark.parametrize("event", ["speaks", "ends", "is reset"])
@pytest.mark.parametrize("buffer", [Retry().buffer, 0])
async def test_a_backend_that_leaves_before_it_has_been_asked_costs_nothing(event: str, buffer: int) -> None:
    """The request for it waits for the end of the turn; nothing has been sent, so even a POST may go elsewhere."""
    may_answer = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            if b"POST" in head:
                await reader.readexactly(4)
            if b"/slow" in head:
                await may_answer.wait()
            writer.write(answer(b"well"))

    async with backend(talk) as served, running(replace(pool_of(served.port), retry=Retry(buffer=buffer))) as plane:
        slow = [asyncio.create_task(plane.ask(request(target="/slow"))) for _ in range(6)]
        await plane.settled(lambda: plane.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 6)
        reader, writer = await plane.connect()
        writer.write(request(target="/first", close=False))
        await read_head(reader)
        await reader.readexactly(4)
        (client,) = [
            each
            for each in plane.plane._listeners["l"].connections
            if each.exchange.target == b"/first" and each.exchange.down == IDLE
        ]
        upstream = cast(Upstream, plane.pool.backends["b0"].idle[-1])
        client.data_received(request("POST", body=b"body"))
        assert upstream.unsent.endswith(b"body")
        if event == "speaks":
            upstream.data_received(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        elif event == "ends":
            upstream.eof_received()
        else:
            upstream.connection_lost(ConnectionResetError())
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"well")
        assert served.octets.count(b"POST / ") == 1
        writer.close()
        may_answer.set()
        assert all([(await each).endswith(b"well") for each in slow])


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("others", [0, CROWD])
@pytest.mark.parametrize("buffer", [Retry().buffer, 3])
async def test_a_body_that_has_been_sent_is_kept_only_if_it_may_be_sent_again(
    method: str, others: int, buffer: int
) -> None:
    """Whether it was sent at once, or at the end of the turn because there is traffic."""
    gate = asyncio.Event()
    asked = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if b"Content-Length: 4" in head:
            assert await reader.readexactly(4) == b"body"
            asked.set()
        await gate.wait()
        writer.write(answer(b"well"))
        await reader.read()

    async with backend(talk) as served, running(replace(pool_of(served.port), retry=Retry(buffer=buffer))) as plane:
        slow = [asyncio.create_task(plane.ask(request())) for _ in range(others)]
        await plane.settled(lambda: plane.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == others)
        known = set(plane.plane._listeners["l"].connections)
        asking = asyncio.create_task(plane.ask(request(method, body=b"body")))
        await asked.wait()
        (client,) = set(plane.plane._listeners["l"].connections) - known
        is_kept = method == "PUT" and buffer > 3
        assert (client.exchange.is_repeatable, client.exchange.held_size) == (is_kept, 4 if is_kept else 0)
        assert b"".join(client.exchange.held) == (b"body" if is_kept else b"")
        gate.set()
        assert all(each.endswith(b"well") for each in await asyncio.gather(asking, *slow))


@on_both_loops
async def test_an_answer_that_does_not_wait_for_the_end_of_the_turn_has_been_counted_too() -> None:
    """A client that has said its end gets its answer and the end at once."""
    arrived = asyncio.Semaphore(0)
    is_time = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if b"/warm" not in head:
            arrived.release()
            await is_time.wait()
        writer.write(answer(b"hello"))
        await talk(reader, writer)

    async with backend(talk) as served, running(pool_of(served.port)) as plane:
        connections = await twelve_asking(plane, arrived, close=False)
        is_time.set()
        for reader, _ in connections:
            await reader.readuntil(b"hello")
        is_time.clear()
        before = plane.pool_cell(ledger.POOL_REQUESTS + 1)
        for _, writer in connections:
            writer.write(request(close=False))
            writer.write_eof()
            await arrived.acquire()
        counts = counted_at_answers(plane)
        is_time.set()
        for reader, writer in connections:
            assert (await reader.read()).endswith(b"hello")
            writer.close()
        assert len(counts) == 12
        assert all(count > before + earlier for earlier, count in enumerate(counts))


@on_both_loops
async def test_the_last_answers_of_many_connections_are_counted_sent_and_followed_by_the_end() -> None:
    """Answers behind which the connection is closed wait for the end of the turn too, and the closing with them."""
    arrived = asyncio.Semaphore(0)
    is_time = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        arrived.release()
        await is_time.wait()
        writer.write(answer(b"x" * 5000))

    async with backend(talk) as served, running(pool_of(served.port)) as plane:
        connections = await twelve_asking(plane, arrived, close=True)
        before = list(plane.plane._listeners["l"].connections)
        counts = counted_at_answers(plane)
        is_time.set()
        for reader, writer in connections:
            octets = await reader.read()
            assert b"Connection: close" in octets
            assert octets.endswith(b"\r\n\r\n" + b"x" * 5000)
            writer.close()
        assert len(counts) == 12
        assert all(count > earlier for earlier, count in enumerate(counts))
        await plane.settled(lambda: plane.cell("listener", "l", column=ledger.LISTENER_OPEN) == 0)
        assert not any(connection.unsent for connection in before)


@pytest.mark.parametrize("others", [0, 12])
@on_both_loops
async def test_an_answer_in_pieces_has_been_counted_when_its_last_one_is_sent(others: int) -> None:
    """Alone, or beside so many others that last pieces wait for the end of the turn."""
    more = asyncio.Event()
    arrived = asyncio.Semaphore(0)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if b"/pieces" in head:
            octets = answer(b"x" * 200_000)
            writer.write(octets[:100_000])
            await more.wait()
            writer.write(octets[100_000:])
        else:
            arrived.release()
            await reader.read()

    async with backend(talk) as served, running(pool_of(served.port)) as plane:
        connections = await twelve_asking(plane, arrived, close=False) if others else []
        reader, writer = await plane.connect()
        writer.write(request(target="/pieces", close=False))
        await read_head(reader)
        client = next(each for each in plane.plane._listeners["l"].connections if each.exchange.target == b"/pieces")
        seen: list[tuple[int, int]] = []

        def look() -> None:
            counted = plane.pool_cell(ledger.POOL_REQUESTS + 1), plane.pool_cell(ledger.POOL_RESPONSE_BYTES)
            seen.append(counted)

        await plane.settled(lambda: client.exchange.response_bytes > 0)
        client.transport = cast(asyncio.Transport, Observed(client.transport, look))
        more.set()
        assert await reader.readexactly(200_000) == b"x" * 200_000
        assert seen[-1] == (1, 200_000)
        assert set(seen[:-1]) <= {(0, 0)}
        for _, each in [*connections, (reader, writer)]:
            each.close()


def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("side", ["client", "backend"])
@on_both_loops
async def test_one_that_cannot_be_sent_keeps_up_no_other(side: str) -> None:
    """Requests and answers of a turn, and those that were put off: all but the one are served, and it is said why."""
    gate = asyncio.Event()
    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["exception"]))
    async with backend(waiting_for(gate)) as served, running(pool_of(served.port)) as plane:
        streams = [await plane.connect() for _ in range(MOST + 8)]
        connections = plane.plane._listeners["l"].connections
        for _, writer in streams:
            writer.write(request(close=False))
        await plane.settled(lambda: plane.pool.account.in_flight == len(streams))
        gate.set()  # so that there are idle connections to the backend
        for reader, _ in streams:
            await read_head(reader)
            await reader.readexactly(2)
        gate.clear()
        for _, writer in streams[:8]:
            writer.write(request(close=False))
        await plane.settled(lambda: plane.pool.account.in_flight == 8)
        if side == "backend":
            idle = plane.pool.backends["b0"].idle
            victim = cast(Upstream, idle[-1])
            victim.transport = cast(asyncio.Transport, Observed(victim.transport, fail))
        else:
            client = next(each for each in connections if each.exchange.down == IDLE)
            client.transport = cast(asyncio.Transport, Observed(client.transport, fail))
        others = [each for each in connections if each.exchange.down == IDLE]
        for each in others:
            each.data_received(request(close=False))
        gate.set()
        served_well = 0
        for reader, writer in streams:
            try:
                await asyncio.wait_for(read_head(reader), PATIENCE_S)
                served_well += 1
            except asyncio.IncompleteReadError:
                pass
            writer.close()
        assert [type(error) for error in said] == [ZeroDivisionError]
        assert served_well == len(streams) - (side == "client")
        assert plane.pool.account.in_flight == 0


async def test_what_has_been_gathered_is_counted_when_draining_has_ended() -> None:
    """An answer that was cut off in the last moment, say."""
    async with backend(answering(answer())) as served, running(pool_of(served.port)) as plane:
        pool = plane.pool
        assert pool.account.tally.add(pool.backends["b0"], 1, 300, 300, 5)
        plane.plane._plane.turn.tallied(pool)
        await plane.plane.drain(0.1)
        assert plane.pool_cell(ledger.POOL_REQUESTS + 1) == 1


class Callbacks:
    """A loop that turns when it is told to."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._soon.append(callback)

    def turn(self) -> None:
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()


@pytest.mark.parametrize(
    ("answers", "crowd", "looks"),
    [
        (1, LARGE_CROWD, 2),
        (FEW - 1, LARGE_CROWD, 2),
        (FEW, LARGE_CROWD, 1),
        (1, LARGE_CROWD - 1, 1),
    ],
)
async def test_a_turn_of_a_crowd_with_little_to_send_looks_once_more(answers: int, crowd: int, looks: int) -> None:
    async with running(pool_of(9)) as plane:
        clients = [await plane.connect() for _ in range(answers + 1)]
        connections = list(plane.plane._listeners["l"].connections)
        loop = Callbacks()
        turn = Turn(cast(asyncio.AbstractEventLoop, loop), [])
        for _ in range(2):  # it begins anew every time
            for connection in connections[:answers]:
                connection.unsent = b"well"
                turn.send(connection, crowd)
            for _ in range(looks - 1):
                loop.turn()
                assert all(connection.unsent for connection in connections[:answers])
                connections[answers].unsent = b"well"
                turn.send(connections[answers], crowd)  # which goes with them, and makes them wait no longer
            loop.turn()
            assert not any(connection.unsent for connection in connections)
        loop.turn()
        for _, writer in clients:
            writer.close()

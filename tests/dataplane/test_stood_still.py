"""An event loop that stood still: nobody else is blamed for that, but deadlines are kept all the same."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from lbproxy.core import ledger
from lbproxy.core.spec import PoolTimeouts, Queue, Retry
from lbproxy.dataplane.deadlines import DUE_FIRST_BYTE, TICK
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

SHORT_S = 0.05
# Longer than any deadline here, with the sweep's own slack.
STILL_S = SHORT_S + 3 * TICK


async def ask(plane: Plane) -> bytes:
    reader, writer = await plane.connect()
    connections = plane.plane._listeners["l"].connections
    await plane.settled(lambda: len(connections) == 1)
    (side,) = connections
    side.data_received(request(close=False))
    time.sleep(STILL_S)  # noqa: ASYNC251  # which is the point
    head = await asyncio.wait_for(read_head(reader), PATIENCE_S)
    writer.close()
    return head


@on_both_loops
async def test_a_backend_that_could_not_accept_meanwhile_is_not_blamed() -> None:
    async with backend(answering(answer())) as served:
        pool = replace(pool_of(served.port), timeout=PoolTimeouts(connect=SHORT_S))
        async with running(pool) as plane:
            assert (await ask(plane)).startswith(b"HTTP/1.1 200")
            assert plane.backend_cell("b0", ledger.BACKEND_ERRORS + ledger.CONNECT_TIMEOUT) == 0


@pytest.mark.parametrize("is_late", [False, True])
@on_both_loops
async def test_a_loop_that_is_always_late_keeps_its_deadlines(is_late: bool) -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as served:
        pool = replace(pool_of(served.port), timeout=PoolTimeouts(first_byte=SHORT_S))
        async with running(pool) as plane:
            asked = asyncio.create_task(plane.ask(request()))
            for _ in range(20):
                if asked.done():
                    break
                if is_late:
                    time.sleep(2.5 * TICK)  # noqa: ASYNC251
                await asyncio.sleep(TICK)
            assert asked.done()
            assert (await asked).startswith(b"HTTP/1.1 504")


@on_both_loops
async def test_no_deadline_that_is_set_when_the_loop_goes_on_is_early() -> None:
    """A request is read before the clock has been looked at again; its time begins then, not when the loop stopped."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_head(reader)
            await asyncio.sleep(3 * TICK)
            writer.write(answer())

    async with backend(slow) as served:
        pool = replace(pool_of(served.port), timeout=PoolTimeouts(first_byte=5 * TICK))
        async with running(pool) as plane:
            reader, writer = await plane.connect()
            connections = plane.plane._listeners["l"].connections
            await plane.settled(lambda: len(connections) == 1)
            (side,) = connections
            for still_s in (0.0, 10 * TICK):  # the second one finds a connection to the backend
                time.sleep(still_s)  # noqa: ASYNC251
                side.data_received(request(close=False))
                assert (await asyncio.wait_for(read_head(reader), PATIENCE_S)).startswith(b"HTTP/1.1 200")
                await reader.readexactly(2)
            writer.close()


@on_both_loops
async def test_who_gets_a_seat_in_the_very_sweep_that_would_have_ended_its_wait_has_it() -> None:
    """Both deadlines have passed; that the one exchange is over gives the other one its seat, and a new deadline."""
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as served:
        pool = replace(pool_of(served.port), retry=Retry(attempts=1), queue=Queue(timeout=PATIENCE_S))
        async with running(replace(pool, backends=(replace(pool.backends[0], max_in_flight=1),))) as plane:
            connections = plane.plane._listeners["l"].connections
            clients = [await plane.connect() for _ in range(2)]
            await plane.settled(lambda: len(connections) == 2)
            in_order = list(connections)  # of the sweep
            streams = {writer.get_extra_info("sockname"): (reader, writer) for reader, writer in clients}
            (late, its_writer), (lucky, other_writer) = [
                streams[side.transport.get_extra_info("peername")] for side in in_order
            ]
            its_writer.write(request(close=False))
            await plane.settled(lambda: plane.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
            other_writer.write(request(close=False))
            await plane.settled(lambda: len(plane.pool.account.waiting) == 1)
            await plane.settled(lambda: in_order[0].due == DUE_FIRST_BYTE)
            for side in in_order:
                side.deadline = 0.0
            assert (await asyncio.wait_for(read_head(late), PATIENCE_S)).startswith(b"HTTP/1.1 504")
            gate.set()
            assert (await asyncio.wait_for(read_head(lucky), PATIENCE_S)).startswith(b"HTTP/1.1 200")
            for _, writer in clients:
                writer.close()

"""An event loop that stood still: nobody else is blamed for that, but deadlines are kept all the same."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from lbproxy.core import ledger
from lbproxy.core.spec import PoolTimeouts
from lbproxy.dataplane.deadlines import TICK
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

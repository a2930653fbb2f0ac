"""The times of an exchange that did not go to its backend at once are those of the attempt that served it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from lbproxy.core import ledger
from lbproxy.core.spec import Queue, Retry
from tests.dataplane.harness import PATIENCE_S, Talk, answer, backend, pool_of, read_head, request, running

WAIT_S = 0.15
WAIT_US = int(WAIT_S * 1e6)


def slow(octets: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_head(reader)
            await asyncio.sleep(WAIT_S)
            writer.write(octets)

    return talk


def quick(octets: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_head(reader)
            writer.write(octets)

    return talk


async def test_the_time_of_an_attempt_that_failed_is_not_the_next_backends() -> None:
    async with backend(slow(answer(status="503 Busy"))) as b0, backend(quick(answer())) as b1:
        pool = replace(pool_of(b0.port, b1.port), retry=Retry(statuses=(503,)))
        async with running(pool) as proxy:
            took_us: list[int] = []
            for number in range(40):  # those who live on b1 leave an idle connection there for the others
                began = time.monotonic()
                await proxy.ask(request(key=b"user-%d" % number))
                took_us.append(int((time.monotonic() - began) * 1e6))
                if len([line for line in proxy.lines if line.decision == "retry"]) == 2:
                    break
            retried = [(line, us) for line, us in zip(proxy.lines, took_us, strict=True) if line.decision == "retry"]
            for line, us in retried:
                assert (line.status, line.backend, line.attempts) == (200, "b1", 2)
                # Whatever else has held it up, so much of its time was the failed attempt's.
                assert 0 <= line.first_byte_us <= us - WAIT_US
                assert 0 <= line.attempt_us <= us - WAIT_US
            _, (second, _) = retried
            assert second.connect_us == -1
            of_b1 = proxy.backend_cell("b1", ledger.BACKEND_DURATION + ledger.DURATION_SUM)
            assert of_b1 <= sum(took_us) - len(retried) * WAIT_US


async def test_the_time_in_the_queue_is_not_the_backends() -> None:
    async with backend(slow(answer())) as b0:
        pool = pool_of(b0.port)
        one_seat = replace(pool.backends[0], max_in_flight=1)
        async with running(replace(pool, backends=(one_seat,), queue=Queue(timeout=PATIENCE_S))) as proxy:
            began = time.monotonic()
            await asyncio.gather(*(proxy.ask(request("GET", f"/{number}")) for number in range(3)))
            took_us = int((time.monotonic() - began) * 1e6)
            assert [line.status for line in proxy.lines] == [200, 200, 200]
            for line in proxy.lines:
                assert WAIT_US <= line.first_byte_us <= line.attempt_us
            # There is one seat, so what they took one after the other is no more than what all took together.
            assert sum(line.attempt_us for line in proxy.lines) <= took_us
            assert proxy.backend_cell("b0", ledger.BACKEND_DURATION + ledger.DURATION_SUM) < 3 * 2 * WAIT_US


async def test_without_an_attempt_there_is_no_time_of_one() -> None:
    async with running(pool_of(1)) as proxy:
        await proxy.ask(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await proxy.ask(b"NONSENSE\r\n\r\n")
        assert [(line.status, line.attempt_us >= 0) for line in proxy.lines] == [(502, True), (400, False)]

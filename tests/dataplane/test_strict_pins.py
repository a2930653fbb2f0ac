"""Pins with `on_down: reject`: their keys go nowhere else, whatever becomes of their backend."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lbproxy.core.account import OUT
from lbproxy.core.spec import Pin, PoolSpec, Queue, Retry
from tests.dataplane.harness import (
    PATIENCE_S,
    Backend,
    Plane,
    answer,
    answering,
    backend,
    pool_of,
    read_head,
    refusing,
    request,
    running,
    status,
    waiting_for,
)

PINNED = b"kim"


def pinned(*ports: int) -> PoolSpec:
    """A pool whose key "kim" is to be served by b0 or by nobody."""
    return replace(pool_of(*ports), pins=(Pin(PINNED.decode(), "b0", on_down="reject"),))


def one_seat(pool: PoolSpec, *names: str) -> PoolSpec:
    """The pool where each backend of these names has one seat."""
    return replace(
        pool, backends=tuple(replace(each, max_in_flight=1) if each.name in names else each for each in pool.backends)
    )


async def until_asked(proxy: Plane, b: Backend) -> None:
    await proxy.settled(lambda: b"\r\n\r\n" in b.octets)


async def until_waiting(proxy: Plane, count: int) -> None:
    await proxy.settled(lambda: len(proxy.pool.account.waiting) == count)


async def test_it_is_not_asked_for_elsewhere_when_nobody_can_be_reached() -> None:
    with refusing() as port:
        async with backend(answering(answer())) as b1, running(pinned(port, b1.port)) as proxy:
            assert status(await proxy.ask(request(key=PINNED))) == 502
            assert [(line.reason, line.backend, line.attempts) for line in proxy.lines] == [("connect_failed", "b0", 1)]
            assert b1.octets == b""


async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_head(reader)


async def test_it_is_not_asked_for_elsewhere_when_it_fails() -> None:
    busy = answering(answer(status="503 Busy"))
    for talk, code in ((closing, 502), (busy, 503)):
        async with (
            backend(talk) as b0,
            backend(answering(answer())) as b1,
            running(replace(pinned(b0.port, b1.port), retry=Retry(statuses=(503,)))) as proxy,
        ):
            assert status(await proxy.ask(request(key=PINNED))) == code
            assert b1.octets == b""


@pytest.mark.parametrize("per_try", [None, 0.1])
async def test_it_is_not_asked_for_elsewhere_when_it_hangs(per_try: float | None) -> None:
    gate = asyncio.Event()
    async with (
        backend(waiting_for(gate)) as b0,
        backend(answering(answer())) as b1,
        running(replace(pinned(b0.port, b1.port), retry=Retry(per_try=per_try))) as proxy,
    ):
        asking = asyncio.create_task(proxy.ask(request(key=PINNED)))
        await until_asked(proxy, b0)
        if per_try is None:
            proxy.plane.adopt({"p": {"b0": OUT}})
        (exchange,) = (each.exchange for each in proxy.plane._listeners["l"].connections)
        await proxy.settled(lambda: bool(exchange.tried))  # it has been asked whether to go elsewhere
        gate.set()
        assert status(await asking) == 200
        assert [(line.backend, line.attempts) for line in proxy.lines] == [("b0", 1)]


async def test_it_waits_while_its_backend_is_only_full_and_holds_nobody_up() -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0, backend(waiting_for(gate)) as b1:
        pool = replace(pinned(b0.port, b1.port), queue=Queue(timeout=PATIENCE_S))
        async with running(one_seat(pool, "b0", "b1")) as proxy:
            other = proxy.key_of("b1")
            asking = [asyncio.create_task(proxy.ask(request(key=key))) for key in (PINNED, other)]
            await until_asked(proxy, b0)
            await until_asked(proxy, b1)
            for count, key in enumerate((PINNED, other), 1):
                asking.append(asyncio.create_task(proxy.ask(request(key=key))))
                await until_waiting(proxy, count)
            asking.pop(1).cancel()  # b1 has a seat again, for which the first one in the queue has no use
            await until_waiting(proxy, 1)
            gate.set()
            assert [status(octets) for octets in await asyncio.gather(*asking)] == [200] * 3
            lines = {(line.key, line.backend, line.decision) for line in proxy.lines if line.status}
            assert lines == {(PINNED, "b0", "pinned"), (other, "b1", "owner")}


async def test_it_is_refused_when_its_backend_is_taken_out_while_it_waits() -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0, backend(answering(answer())) as b1:
        pool = replace(pinned(b0.port, b1.port), queue=Queue(timeout=PATIENCE_S))
        async with running(one_seat(pool, "b0")) as proxy:
            asking = [asyncio.create_task(proxy.ask(request(key=PINNED)))]
            await until_asked(proxy, b0)
            asking.append(asyncio.create_task(proxy.ask(request(key=PINNED))))
            await until_waiting(proxy, 1)
            proxy.plane.adopt({"p": {"b0": OUT}})
            assert status(await asking[1]) == 503
            assert [line.reason for line in proxy.lines] == ["pin_down"]
            gate.set()
            assert status(await asking[0]) == 200
            assert b1.octets == b""

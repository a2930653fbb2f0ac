"""Tunnels on real sockets: what they count as, and that nobody's last octets are lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from lbproxy.core import ledger
from lbproxy.core.account import DRAINING, OUT, SERVING
from lbproxy.core.hashing import hash_key
from lbproxy.core.recency import SLOTS, Recency
from lbproxy.core.spec import AffinityCookie, BoundedLoad, HotKeys, Pin, PoolSpec, Queue, Sticky
from tests.dataplane.harness import (
    PATIENCE_S,
    Backend,
    Plane,
    answer,
    backend,
    pool_of,
    read_head,
    reload,
    request,
    running,
    waiting_for,
)

UPGRADE = b"Connection: Upgrade\r\nUpgrade: echo\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A backend that switches when asked to, and echoes then; everything else it answers."""
    while True:
        head = await read_head(reader)
        if b"Upgrade: echo" not in head:
            writer.write(answer())
            continue
        writer.write(SWITCHED)
        while data := await reader.read(65536):
            writer.write(data)
        return


@asynccontextmanager
async def echoing(count: int = 1, **changes: object) -> AsyncIterator[tuple[Backend, Plane]]:
    """A proxy in front of `count` names of one echoing backend."""
    async with backend(echo) as served:
        spec = replace(pool_of(*[served.port] * count), **changes)  # type: ignore[arg-type]
        async with running(spec) as proxy:
            yield served, proxy


class Tunnel:
    """A client's end of an open tunnel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def is_alive(self) -> bool:
        self.writer.write(b"hello")
        return await asyncio.wait_for(self.reader.readexactly(5), PATIENCE_S) == b"hello"

    async def end(self) -> None:
        self.writer.write_eof()
        assert await asyncio.wait_for(self.reader.read(), PATIENCE_S) == b""
        self.writer.close()


async def tunnel(proxy: Plane, key: bytes = b"kim") -> Tunnel:
    reader, writer = await proxy.connect()
    writer.write(request("GET", "/", UPGRADE, close=False, key=key))
    assert b"101" in await asyncio.wait_for(read_head(reader), PATIENCE_S)
    return Tunnel(reader, writer)


def held(proxy: Plane, name: str = "b0") -> tuple[int, int]:
    """In flight at the backend, and in the pool."""
    return proxy.backend_cell(name, ledger.BACKEND_IN_FLIGHT), proxy.pool_cell(ledger.POOL_IN_FLIGHT)


async def until_held(proxy: Plane, seats: int) -> None:
    """A backend's count is exact at once, the pool's with the next tick."""
    assert held(proxy)[0] == seats
    await proxy.settled(lambda: held(proxy) == (seats, seats))


def upgraded(proxy: Plane, name: str = "b0") -> tuple[int, int]:
    """Tunnels open to the backend, and in the pool."""
    return proxy.backend_cell(name, ledger.BACKEND_UPGRADED_OPEN), proxy.pool_cell(ledger.POOL_UPGRADED_OPEN)


def with_weight(spec: PoolSpec, weight: float) -> PoolSpec:
    return replace(spec, bounded_load=replace(spec.bounded_load, tunnel_weight=weight))


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.34, 1.0, 2.5])
async def test_tunnels_count_as_their_weight_and_no_more(weight: float) -> None:
    async with echoing(bounded_load=BoundedLoad(tunnel_weight=weight)) as (_, proxy):
        tunnels = []
        for number in range(1, 12):
            tunnels.append(await tunnel(proxy))
            await until_held(proxy, int(round(weight * number, 6)))
            assert upgraded(proxy) == (number, number)
        assert proxy.pool.account.meter.held == {}
        while tunnels:
            await tunnels.pop().end()
            left = len(tunnels)
            await proxy.settled(lambda left=left: upgraded(proxy) == (left, left))  # type: ignore[misc]
            await until_held(proxy, int(round(weight * left, 6)))
        assert held(proxy) == upgraded(proxy) == (0, 0)
        assert [line.upgraded for line in proxy.lines] == [True] * 11
        assert proxy.pool_cell(ledger.POOL_UPGRADED) == 11


async def test_who_waits_for_a_seat_has_it_when_its_holder_becomes_a_tunnel() -> None:
    switch = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if b"Upgrade" in head:
            await switch.wait()
            writer.write(SWITCHED)
            await reader.read()
        else:
            writer.write(answer())

    async with backend(talk) as served:
        spec = pool_of(served.port)
        narrow = replace(spec, backends=(replace(spec.backends[0], max_in_flight=1),), queue=Queue(10, 60.0))
        async with running(narrow) as proxy:
            reader, writer = await proxy.connect()
            writer.write(request("GET", "/", UPGRADE, close=False))
            await proxy.settled(lambda: held(proxy) == (1, 1))
            waiting = asyncio.create_task(proxy.ask(request()))
            account = proxy.pool.account
            await proxy.settled(lambda: len(account.waiting) == 1)
            switch.set()
            assert b"101" in await read_head(reader)
            assert (await asyncio.wait_for(waiting, PATIENCE_S)).startswith(b"HTTP/1.1 200")
            await proxy.settled(lambda: held(proxy) == (0, 0))
            writer.close()
            await proxy.settled(lambda: upgraded(proxy) == (0, 0))


async def test_who_waits_for_a_seat_has_it_when_a_tunnel_of_weight_ends() -> None:
    async with backend(echo) as served:
        spec = with_weight(pool_of(served.port), 1.0)
        narrow = replace(spec, backends=(replace(spec.backends[0], max_in_flight=2),), queue=Queue(10, 60.0))
        async with running(narrow) as proxy:
            first, second = await tunnel(proxy), await tunnel(proxy)
            await until_held(proxy, 2)
            waiting = asyncio.create_task(proxy.ask(request()))
            account = proxy.pool.account
            await proxy.settled(lambda: len(account.waiting) == 1)
            await first.end()
            assert (await asyncio.wait_for(waiting, PATIENCE_S)).startswith(b"HTTP/1.1 200")
            assert await second.is_alive()
            await second.end()
            await proxy.settled(lambda: held(proxy) == (0, 0))


async def test_tunnels_without_weight_leave_their_key_at_its_owner() -> None:
    hard = BoundedLoad(1.25, 0)
    async with echoing(4, bounded_load=hard, hot_keys=HotKeys("off")) as (_, proxy):
        tunnels = [await tunnel(proxy) for _ in range(20)]
        assert len({line.backend for line in proxy.lines}) == 0
        for _ in range(5):
            await proxy.ask(request())
        assert [line.decision for line in proxy.lines] == ["owner"] * 5
        await asyncio.gather(*[each.end() for each in tunnels])
        await proxy.settled(lambda: proxy.pool_cell(ledger.POOL_UPGRADED_OPEN) == 0)
        assert {line.decision for line in proxy.lines} == {"owner"}
        assert {line.backend for line in proxy.lines} == {proxy.lines[0].backend}


@pytest.mark.parametrize(("before", "after"), [(1.0, 0.0), (0.0, 1.0), (0.5, 0.25)])
async def test_another_weight_counts_for_the_tunnels_that_are_open(before: float, after: float) -> None:
    async with echoing(bounded_load=BoundedLoad(tunnel_weight=before)) as (_, proxy):
        old = [await tunnel(proxy) for _ in range(4)]
        await until_held(proxy, int(before * 4))
        reload(proxy, replace(proxy.config, pools=(with_weight(proxy.config.pools[0], after),)))
        await until_held(proxy, int(after * 4))
        new = await tunnel(proxy)
        await until_held(proxy, int(after * 5))
        await old.pop().end()
        await proxy.settled(lambda: upgraded(proxy) == (4, 4))
        await until_held(proxy, int(after * 4))
        for each in (*old, new):
            assert await each.is_alive()
            await each.end()
        await proxy.settled(lambda: upgraded(proxy) == (0, 0))
        await until_held(proxy, 0)


@pytest.mark.parametrize("weight", [0.0, 1.0])
async def test_tunnels_to_a_backend_that_a_reload_takes_away_live_and_are_counted(weight: float) -> None:
    async with echoing(2, bounded_load=BoundedLoad(tunnel_weight=weight)) as (_, proxy):
        tunnels = [await tunnel(proxy) for _ in range(3)]
        pool = proxy.config.pools[0]
        home = "b0" if upgraded(proxy, "b0")[0] else "b1"
        staying = tuple(each for each in pool.backends if each.name != home)
        reload(proxy, replace(proxy.config, pools=(replace(pool, backends=staying),)))
        assert upgraded(proxy, home) == (3, 3)
        for each in tunnels:
            assert await each.is_alive()
        reload(proxy, proxy.config, 3)  # and back, as a new backend of the old name
        another = await tunnel(proxy)
        assert upgraded(proxy, home) == (4, 4)
        for each in (*tunnels, another):
            await each.end()
        await proxy.settled(lambda: upgraded(proxy, home) == (0, 0))
        assert held(proxy, home) == (0, 0)
        await proxy.ask(request())
        assert held(proxy, home) == (0, 0)


async def test_tunnels_that_are_cut_leave_nothing_behind() -> None:
    async with echoing(bounded_load=BoundedLoad(tunnel_weight=1.0)) as (_, proxy):
        tunnels = [await tunnel(proxy) for _ in range(5)]
        tunnels[0].writer.transport.abort()
        await proxy.settled(lambda: held(proxy) == (4, 4))
        assert await proxy.plane.drain(0.0) == 4
        assert held(proxy) == upgraded(proxy) == (0, 0)
        for each in tunnels[1:]:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(each.reader.readexactly(1), PATIENCE_S)
            each.writer.close()


# Keys that move.


async def test_a_tunnel_is_not_closed_while_its_key_has_nowhere_to_go() -> None:
    async with echoing(2, on_move="close") as (_, proxy):
        open_one = await tunnel(proxy, proxy.key_of("b0"))
        proxy.plane.adopt({"p": {"b0": OUT, "b1": OUT}})
        assert await open_one.is_alive()
        proxy.plane.adopt({"p": {"b0": OUT, "b1": SERVING}})
        assert await asyncio.wait_for(open_one.reader.read(), PATIENCE_S) == b""
        open_one.writer.close()


async def test_a_tunnel_ends_with_its_users_session_on_a_backend_that_drains() -> None:
    async with echoing(2, on_move="close", session_drain=30.0) as (_, proxy):
        table = bytearray(SLOTS)
        proxy.pool.account.sessions = Recency(table, 30.0, time.monotonic())
        open_one = await tunnel(proxy, proxy.key_of("b0"))
        other = await tunnel(proxy, proxy.key_of("b1"))
        proxy.plane.adopt({"p": {"b0": DRAINING, "b1": SERVING}})
        assert await open_one.is_alive()
        table[:] = bytes(SLOTS)  # as if time had gone by
        assert await asyncio.wait_for(open_one.reader.read(), PATIENCE_S) == b""
        assert await other.is_alive()
        for each in (open_one, other):
            each.writer.close()


async def test_a_tunnel_stays_where_a_pin_says_while_that_serves() -> None:
    async with echoing(2, on_move="close") as (_, proxy):
        owner, b1 = proxy.pool.owner, proxy.pool.backends["b1"]
        strict, loose, *_ = [name for name in map(str, range(100)) if owner(hash_key(name.encode())) is b1]
        pins = (Pin(strict, "b0", on_down="reject"), Pin(loose, "b0"))
        reload(proxy, replace(proxy.config, pools=(replace(proxy.pool.spec, pins=pins),)))
        one, other = await tunnel(proxy, strict.encode()), await tunnel(proxy, loose.encode())
        assert upgraded(proxy) == (2, 2)
        for state in (SERVING, DRAINING, SERVING):
            proxy.plane.adopt({"p": {"b0": state, "b1": SERVING}})
            assert await one.is_alive()
            assert await other.is_alive()
        proxy.plane.adopt({"p": {"b0": OUT}})
        assert await asyncio.wait_for(other.reader.read(), PATIENCE_S) == b""
        assert await one.is_alive()  # it may go nowhere else
        for each in (one, other):
            each.writer.close()


async def test_a_tunnel_stays_where_its_sessions_cookie_says_while_that_serves() -> None:
    sticky = Sticky(cookie=AffinityCookie(secret="hush"))
    async with echoing(2, on_move="close", sticky=sticky) as (_, proxy):
        open_one = await tunnel(proxy, proxy.key_of("b0"))
        for state in (DRAINING, SERVING, DRAINING):
            proxy.plane.adopt({"p": {"b0": state}})
            assert await open_one.is_alive()
        proxy.plane.adopt({"p": {"b0": OUT}})
        assert await asyncio.wait_for(open_one.reader.read(), PATIENCE_S) == b""
        open_one.writer.close()


async def test_a_tunnel_that_was_spilled_stays_until_its_key_moves() -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0, backend(echo) as b1:
        pool = replace(pool_of(b0.port, b1.port), on_move="close")
        one_seat = replace(pool.backends[0], max_in_flight=1)
        async with running(replace(pool, backends=(one_seat, pool.backends[1]))) as proxy:
            key = proxy.key_of("b0")
            asking = asyncio.create_task(proxy.ask(request(key=key)))
            await proxy.settled(lambda: held(proxy)[0] == 1)
            open_one = await tunnel(proxy, key)
            assert upgraded(proxy, "b1") == (1, 1)
            gate.set()
            await asking
            proxy.plane.adopt({"p": {"b0": SERVING, "b1": SERVING}})
            assert await open_one.is_alive()
            for state in (OUT, SERVING):  # it is at home at b1, and then it is not any more
                assert await open_one.is_alive()
                proxy.plane.adopt({"p": {"b0": state}})
            assert await asyncio.wait_for(open_one.reader.read(), PATIENCE_S) == b""
            open_one.writer.close()

"""The affinity cookie in the data plane: a session stays where it is while it may, and gets a new cookie only when it
has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from lbproxy.core import ledger
from lbproxy.core.account import OUT, SERVING
from lbproxy.core.spec import AffinityCookie, BoundedLoad, Pin, PoolSpec, Queue, Sticky
from tests.dataplane.harness import (
    PATIENCE_S,
    Plane,
    Talk,
    answer,
    backend,
    pool_of,
    read_head,
    reload,
    request,
    running,
)
from tests.dataplane.test_tunnel import SWITCHED, UPGRADE, Tunnel

STICKY = Sticky(cookie=AffinityCookie(secret="hush"))
KEYLESS = b"GET %b HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n%b\r\n"


def named(name: bytes, gate: asyncio.Event) -> Talk:
    """A backend that says its name, to /held when the gate is open, and switches when it is asked to."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            if b"Upgrade: echo" in head:
                writer.write(SWITCHED)
                await reader.read()
                return
            if b" /held " in head:
                await gate.wait()
            writer.write(answer(name))

    return talk


@asynccontextmanager
async def two_backends(gate: asyncio.Event, **changes: object) -> AsyncIterator[Plane]:
    async with backend(named(b"b0", gate)) as b0, backend(named(b"b1", gate)) as b1:
        spec: PoolSpec = replace(pool_of(b0.port, b1.port), sticky=STICKY, bounded_load=BoundedLoad(factor=None))
        async with running(replace(spec, **changes)) as proxy:  # type: ignore[arg-type]
            yield proxy


def with_limit(proxy: Plane, name: str, most: int | None) -> PoolSpec:
    spec = proxy.pool.spec
    backends = tuple(replace(each, max_in_flight=most) if each.name == name else each for each in spec.backends)
    return replace(spec, backends=backends)


def parsed(response: bytes) -> tuple[str, bytes]:
    """Who has answered, and the cookie that was set."""
    head, _, body = response.partition(b"\r\n\r\n")
    return body.decode(), head.partition(b"Set-Cookie: ")[2].partition(b";")[0]


def with_cookie(cookie: bytes, target: bytes = b"/", extra: bytes = b"") -> bytes:
    return KEYLESS % (target, b"Cookie: %b\r\n%b" % (cookie, extra))


async def begin(proxy: Plane, name: str) -> bytes:
    """The cookie of a session that lives on this backend."""
    who, cookie = parsed(await proxy.ask(request(key=proxy.key_of(name))))
    assert who == name
    return cookie


async def hold(proxy: Plane, name: str) -> asyncio.Task[bytes]:
    task = asyncio.create_task(proxy.ask(request(target="/held", key=proxy.key_of(name))))
    await proxy.settled(lambda: proxy.backend_cell(name, ledger.BACKEND_IN_FLIGHT) == 1)
    return task


@pytest.mark.parametrize("has_key", [True, False])
async def test_a_session_does_not_move_because_its_backend_is_full_for_a_moment(has_key: bool) -> None:
    gate = asyncio.Event()
    async with two_backends(gate) as proxy:
        cookie = await begin(proxy, "b0")
        reload(proxy, replace(proxy.config, pools=(with_limit(proxy, "b0", 1),)))
        held = await hold(proxy, "b0")
        extra = b"X-User-ID: %b\r\n" % proxy.key_of("b0") if has_key else b""
        assert parsed(await proxy.ask(with_cookie(cookie, extra=extra))) == ("b1", b"")
        gate.set()
        await held
        assert parsed(await proxy.ask(with_cookie(cookie, extra=extra))) == ("b0", b"")


async def test_who_has_waited_for_a_seat_is_served_where_the_session_is() -> None:
    gate = asyncio.Event()
    async with two_backends(gate, queue=Queue(timeout=PATIENCE_S)) as proxy:
        cookie = await begin(proxy, "b0")
        full = with_limit(proxy, "b0", 1)
        full = replace(full, backends=tuple(replace(each, max_in_flight=1) for each in full.backends))
        reload(proxy, replace(proxy.config, pools=(full,)))
        held = [await hold(proxy, "b0"), await hold(proxy, "b1")]
        of_b1 = b"X-User-ID: %b\r\n" % proxy.key_of("b1")
        waits = asyncio.create_task(proxy.ask(with_cookie(cookie, extra=of_b1)))
        await proxy.settled(lambda: len(proxy.pool.account.waiting) == 1)
        reload(proxy, replace(proxy.config, pools=(proxy.config.pools[0],)), 3)  # room everywhere
        assert parsed(await waits) == ("b0", b"")
        gate.set()
        await asyncio.gather(*held)


async def test_who_has_waited_for_a_seat_is_served_where_its_key_is_pinned() -> None:
    gate = asyncio.Event()
    async with two_backends(gate, sticky=Sticky(), queue=Queue(timeout=PATIENCE_S)) as proxy:
        key = proxy.key_of("b1")
        pinned = replace(proxy.pool.spec, pins=(Pin(key.decode(), "b0"),))
        full = replace(pinned, backends=tuple(replace(each, max_in_flight=1) for each in pinned.backends))
        reload(proxy, replace(proxy.config, pools=(full,)))
        held = [await hold(proxy, "b0")]
        held.append(asyncio.create_task(proxy.ask(request(target="/held", key=key))))  # b0 is full: its ring's b1
        await proxy.settled(lambda: proxy.backend_cell("b1", ledger.BACKEND_IN_FLIGHT) == 1)
        waits = asyncio.create_task(proxy.ask(request(key=key)))
        await proxy.settled(lambda: len(proxy.pool.account.waiting) == 1)
        reload(proxy, replace(proxy.config, pools=(pinned,)), 3)
        assert parsed(await waits)[0] == "b0"
        gate.set()
        await asyncio.gather(*held)


async def test_a_session_whose_backend_is_out_moves_once() -> None:
    gate = asyncio.Event()
    async with two_backends(gate) as proxy:
        cookie = await begin(proxy, "b0")
        proxy.plane.adopt({"p": {"b0": OUT}})
        who, new = parsed(await proxy.ask(with_cookie(cookie)))
        assert who == "b1"
        proxy.plane.adopt({"p": {"b0": SERVING}})
        assert parsed(await proxy.ask(with_cookie(new))) == ("b1", b"")


async def test_a_session_has_moved_although_its_backend_is_back_before_the_answer() -> None:
    gate = asyncio.Event()
    async with two_backends(gate) as proxy:
        cookie = await begin(proxy, "b0")
        proxy.plane.adopt({"p": {"b0": OUT}})
        asking = asyncio.create_task(proxy.ask(with_cookie(cookie, b"/held")))
        await proxy.settled(lambda: proxy.backend_cell("b1", ledger.BACKEND_IN_FLIGHT) == 1)
        proxy.plane.adopt({"p": {"b0": SERVING}})
        gate.set()
        who, moved = parsed(await asking)
        assert (who, bool(moved)) == ("b1", True)
        assert parsed(await proxy.ask(with_cookie(moved))) == ("b1", b"")


async def test_a_session_that_follows_its_users_tunnel_is_told_nothing_that_it_knows() -> None:
    gate = asyncio.Event()
    async with two_backends(gate, on_move="pin") as proxy:
        key = proxy.key_of("b0")
        who, cookie = parsed(await proxy.ask(request(key=key)))
        assert who == "b0"
        reader, writer = await proxy.connect()
        writer.write(request(extra=UPGRADE + b"Cookie: %b\r\n" % cookie, key=key, close=False))
        assert b"Set-Cookie" not in await asyncio.wait_for(read_head(reader), PATIENCE_S)
        octets = with_cookie(cookie, extra=b"X-User-ID: %b\r\n" % key)
        assert parsed(await proxy.ask(octets)) == ("b0", b"")
        assert proxy.lines[-1].decision == "pinned"
        await Tunnel(reader, writer).end()

"""What a reload changes in a running data plane at once, and what goes on across it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal

import pytest

from lbproxy.core import ledger
from lbproxy.core.account import OUT, SERVING
from lbproxy.core.hashing import hash_key
from lbproxy.core.spec import Ejection, PoolSpec, Route, UpstreamConnections
from tests.dataplane.harness import PATIENCE_S, Plane, answer, answering, backend, pool_of, reload, request, running
from tests.dataplane.test_tunnel import echo, tunnel


def under(proxy: Plane, pool: PoolSpec) -> None:
    """Reload with this pool alone."""
    reload(proxy, replace(proxy.config, pools=(pool,)))


async def ask_and_keep(proxy: Plane) -> None:
    """A request whose connection to the backend is kept afterwards."""
    assert b" 200 " in await proxy.ask(request())
    await proxy.settled(lambda: bool(proxy.pool.backends["b0"].idle))


# Counters.


async def test_requests_are_counted_on_when_a_pool_has_gone() -> None:
    async with backend(answering(answer())) as b0:
        first, second = pool_of(b0.port), replace(pool_of(b0.port), name="q")
        routes = (Route("p", path="/p"), Route("q"))
        async with running(first, second, routes=routes) as proxy:

            def counted() -> int:
                return proxy.cell("worker", column=ledger.WORKER_REQUESTS)

            for _ in range(5):
                await proxy.ask(request(target="/p"))
            await proxy.settled(lambda: counted() == 5)
            reload(proxy, replace(proxy.config, pools=(second,), routes=(Route("q"),)))
            await proxy.ask(request())
            await proxy.settled(lambda: counted() == 6)
            reload(proxy, proxy.config, 3)  # with the counts that it had
            await proxy.ask(request(target="/p"))
            await proxy.ask(b"nonsense\r\n\r\n")
            await proxy.settled(lambda: counted() >= 8)
            ticks = proxy.cell("worker", column=ledger.WORKER_TICKS)
            await proxy.settled(lambda: proxy.cell("worker", column=ledger.WORKER_TICKS) > ticks + 1)
            assert counted() == 8


# Backends.


async def test_what_failed_at_another_address_is_not_held_against_a_new_machine() -> None:
    told: list[str] = []
    fine, broken = answer(), answer(status="500 Oops")
    async with backend(answering(broken)) as old, backend(answering(broken)) as new, backend(answering(fine)) as other:
        pool = replace(pool_of(old.port, other.port), ejection=Ejection(consecutive_errors=2))
        async with running(pool, report=lambda _pool, name, _reason: told.append(name)) as proxy:
            key = proxy.key_of("b0")
            await proxy.ask(request(key=key))
            under(proxy, replace(pool_of(new.port, other.port), ejection=pool.ejection))
            await proxy.ask(request(key=key))
            assert told == []
            await proxy.ask(request(key=key))
            assert told == ["b0"]


# Idle connections.


@pytest.mark.parametrize("changed", [UpstreamConnections(idle_timeout=0.05), UpstreamConnections(max_age=0.05)])
async def test_an_idle_connection_is_kept_no_longer_than_the_new_configuration_has_it(
    changed: UpstreamConnections,
) -> None:
    async with backend(answering(answer())) as b0:
        pool = pool_of(b0.port)
        async with running(pool) as proxy:
            await ask_and_keep(proxy)
            under(proxy, replace(pool, connections=changed))
            await proxy.settled(lambda: not proxy.pool.backends["b0"].idle)


async def test_an_idle_connection_is_kept_longer_if_the_new_configuration_has_it_so() -> None:
    async with backend(answering(answer())) as b0:
        pool = replace(pool_of(b0.port), connections=UpstreamConnections(idle_timeout=0.5, max_age=0.5))
        async with running(pool) as proxy:
            await ask_and_keep(proxy)
            under(proxy, pool_of(b0.port))
            await asyncio.sleep(1.0)
            await ask_and_keep(proxy)
            assert len(b0.received) == 1


async def test_an_idle_connection_is_in_use_again_after_a_reload_that_does_not_concern_it() -> None:
    async with backend(answering(answer())) as b0:
        pool = pool_of(b0.port)
        async with running(pool) as proxy:
            await ask_and_keep(proxy)
            under(proxy, replace(pool, retry=replace(pool.retry, attempts=2)))
            await ask_and_keep(proxy)
            assert len(b0.received) == 1


# Tunnels.


async def test_a_tunnel_stays_when_its_key_would_move_to_a_backend_that_may_not_be_asked_yet() -> None:
    async with backend(echo) as served:
        pool = replace(pool_of(served.port), on_move="close")
        async with running(pool_of(served.port, served.port)) as proxy:  # for the rows of both
            key = proxy.key_of("b1")
            under(proxy, pool)
            open_one = await tunnel(proxy, key)
            both = replace(pool_of(served.port, served.port), on_move="close")
            reload(proxy, replace(proxy.config, pools=(both,)), states={"p": {"b0": SERVING, "b1": OUT}})
            assert await open_one.is_alive()
            proxy.plane.adopt({"p": {"b0": SERVING, "b1": SERVING}})
            assert await asyncio.wait_for(open_one.reader.read(), PATIENCE_S) == b""
            open_one.writer.close()


@pytest.mark.parametrize("before", ["keep", "close"])
async def test_requests_follow_tunnels_that_were_open_before_they_were_to(before: Literal["keep", "close"]) -> None:
    async with backend(echo) as served:
        pool = replace(pool_of(served.port, served.port), on_move="pin")
        async with running(pool) as proxy:  # with rows for the entries
            key = proxy.key_of("b0")
            h = hash_key(key)
            under(proxy, replace(pool, on_move=before))
            assert proxy.pool.home(h) is None
            open_one = await tunnel(proxy, key)
            under(proxy, pool)
            assert proxy.pool.home(h) is proxy.pool.backends["b0"]
            under(proxy, replace(pool, on_move=before))
            homes = proxy.rows["homes", "p"]
            assert not any(proxy.cells[homes : homes + ledger.HOMES_SLOTS])  # which may be another pool's next
            under(proxy, pool)
            await open_one.end()
            assert proxy.pool.home(h) is None

"""The supervisor and real workers: states, weights, memories and samples reach everybody, the late ones too."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from lbproxy import supervisor as supervisor_module
from lbproxy.control.config import loads
from lbproxy.core.account import DRAINING, OUT, SERVING
from lbproxy.core.hashing import hash_key
from lbproxy.core.ledger import POOL_IN_FLIGHT
from lbproxy.core.spec import Address, Config
from lbproxy.observe.journal import Journal
from lbproxy.supervisor import Supervisor
from tests.loops import on_uvloop
from tests.running import PATIENCE_S, Backends, get, until_true

USERS = [f"user-{number}" for number in range(60)]


class Running:
    """A supervisor with workers and backends."""

    def __init__(self, backends: Backends, config: Config) -> None:
        self.backends = backends
        self.failing: list[tuple[str, str, str]] = []
        self.supervisor = Supervisor(config, Journal(lambda *_: None))
        self.supervisor.on_failing = lambda *told: self.failing.append(told)

    @property
    def port(self) -> int:
        (address,) = self.supervisor.addresses.values()
        return int(address.rpartition(":")[2])

    async def homes(self) -> dict[str, str]:
        """Where each user is, each asked on a connection of its own, so that all workers have their part."""
        answers = await asyncio.gather(*(get(self.port, user=user) for user in USERS))
        assert {status for status, _ in answers} == {200}
        return {user: text for user, (_, text) in zip(USERS, answers, strict=True)}

    async def until_heard(self) -> None:
        """Wait for everything that the workers have said up to now: they answer a question after it."""
        assert await self.supervisor.keys()


@asynccontextmanager
async def running(more: str = "", workers: int = 2) -> AsyncIterator[Running]:
    async with Backends("b1", "b2", "b3") as backends:
        lines = "\n".join(
            f"      - {{name: {name}, url: 'http://127.0.0.1:{port}'}}" for name, port in backends.ports.items()
        )
        config = loads(
            f"""
version: 1
listen: 127.0.0.1:0
workers: {workers}
admin: {{listen: null}}
log: {{access: {{path: ""}}}}
pools:
  api:
    {more}
    bounded_load: {{factor: null}}
    hot_keys: {{mode: 'off'}}
    backends:
{lines}
"""
        )
        made = Running(backends, config)
        try:
            with pytest.MonkeyPatch.context() as patch:
                # A supervisor does without a worker that is slow; the tests are about what those say that are not, and
                # on a busy machine all are.
                for patience in ("APPLY_TIMEOUT_S", "ADOPT_TIMEOUT_S", "KEYS_TIMEOUT_S"):
                    patch.setattr(supervisor_module, patience, PATIENCE_S)
                await made.supervisor.start()
                yield made
        finally:
            made.supervisor.kill()
            await made.supervisor.drain()
            made.supervisor.close()


def states(**of: int) -> dict[str, dict[str, int]]:
    return {"api": {"b1": SERVING, "b2": SERVING, "b3": SERVING} | of}


@on_uvloop
async def test_a_state_is_followed_by_every_worker_within_a_tenth_of_a_second() -> None:
    async with running(workers=4) as made:
        before = await made.homes()
        times = []
        for state in (OUT, SERVING, DRAINING, SERVING, OUT):
            began = time.perf_counter()
            number = made.supervisor.adopt(states(b1=state))
            assert await made.supervisor.adopted(number)
            times.append(time.perf_counter() - began)
            homes = await made.homes()
            if state == SERVING:
                assert homes == before
            else:
                assert "b1" not in homes.values()
                assert {user for user in USERS if homes[user] != before[user]} == {
                    user for user in USERS if before[user] == "b1"
                }
        assert sorted(times)[2] < 0.1


@on_uvloop
async def test_weights_and_states_come_together_and_a_replaced_worker_has_them_at_once() -> None:
    async with running() as made:
        supervisor = made.supervisor
        number = supervisor.reweigh({("api", "b2"): 0.0}, states(b1=OUT))
        assert await supervisor.acknowledged(number)
        assert set((await made.homes()).values()) == {"b3"}
        for status in supervisor.statuses():
            os.kill(status.pid, signal.SIGKILL)
        await until_true(lambda: sum(supervisor.restarts.values()) == 2 and supervisor.is_ready())
        assert set((await made.homes()).values()) == {"b3"}
        assert all(status.generation == 2 for status in supervisor.statuses())
        assert await supervisor.adopted()


@on_uvloop
async def test_a_new_backend_can_be_out_from_its_first_moment() -> None:
    async with running() as made:
        config = made.supervisor.config
        (pool,) = config.pools
        new = replace(pool.backends[0], name="new", address=Address("127.0.0.1", 1))
        other = replace(config, pools=(replace(pool, backends=(*pool.backends, new)),))
        number = made.supervisor.put(other, {}, {"api": states()["api"] | {"new": OUT}})
        homes = await made.homes()
        assert await made.supervisor.acknowledged(number)
        assert homes == await made.homes()
        assert made.failing == []


@on_uvloop
async def test_a_worker_tells_of_a_backend_that_fails_again_and_again() -> None:
    async with running("ejection: {consecutive_errors: 3}", workers=1) as made:
        homes = await made.homes()
        await made.backends.stop("b2")
        assert "b2" not in (await made.homes()).values()
        await made.until_heard()
        assert made.failing[0] == ("api", "b2", "connect_refused")
        assert sum(home == "b2" for home in homes.values()) // 3 == len(made.failing)


@on_uvloop
async def test_known_sessions_stay_on_a_draining_backend_whatever_worker_they_come_to() -> None:
    async with running("session_drain: 60s") as made:
        supervisor = made.supervisor
        before = await made.homes()
        assert await supervisor.adopted(supervisor.adopt(states(b1=DRAINING)))
        assert await made.homes() == before
        fresh = await asyncio.gather(*(get(made.port, user=f"fresh-{number}") for number in range(60)))
        assert {text for _, text in fresh} == {"b2", "b3"}
        for status in supervisor.statuses():
            os.kill(status.pid, signal.SIGKILL)
        await until_true(lambda: sum(supervisor.restarts.values()) == 2 and supervisor.is_ready())
        assert await made.homes() == before
        # What the supervisor would say of them is what happens to them.
        pool = supervisor.snapshot.pools["api"]
        picked = [pool.pick(hash_key(user.encode()))[0] for user in USERS]
        assert [backend.name for backend in picked if backend is not None] == list(before.values())


@on_uvloop
async def test_a_pool_gets_and_loses_its_memory_with_the_configuration() -> None:
    async with running() as made:
        supervisor = made.supervisor
        config = supervisor.config
        (pool,) = config.pools
        assert supervisor.snapshot.pools["api"].account.sessions is None
        with_memory = replace(config, pools=(replace(pool, session_drain=60.0),))
        assert await supervisor.acknowledged(supervisor.put(with_memory, {}, {}))
        before = await made.homes()
        assert await supervisor.adopted(supervisor.adopt(states(b1=DRAINING)))
        assert await made.homes() == before
        assert await supervisor.acknowledged(supervisor.put(config, {}, states(b1=DRAINING)))
        assert "b1" not in (await made.homes()).values()


@on_uvloop
@pytest.mark.parametrize("window_s", [20.0, 600.0])
async def test_sessions_are_known_on_when_their_time_is_changed_while_their_backend_drains(window_s: float) -> None:
    async with running("session_drain: 60s") as made:
        supervisor = made.supervisor
        before = await made.homes()
        assert await supervisor.adopted(supervisor.adopt(states(b1=DRAINING)))
        (pool,) = supervisor.config.pools
        changed = replace(supervisor.config, pools=(replace(pool, session_drain=window_s),))
        assert await supervisor.acknowledged(supervisor.put(changed, {}, states(b1=DRAINING)))
        assert await made.homes() == before
        fresh = await asyncio.gather(*(get(made.port, user=f"fresh-{number}") for number in range(60)))
        assert {text for _, text in fresh} == {"b2", "b3"}


@on_uvloop
async def test_the_sample_has_every_key_of_every_worker() -> None:
    async with running() as made:
        await made.homes()
        wanted = {hash_key(user.encode()) for user in USERS}
        keys = (await made.supervisor.keys())["api"]
        assert (set(keys.seen), keys.bits, set(keys.held)) == (wanted, 0, set())
        held = asyncio.create_task(get(made.port, "/held", user="held"))
        await until_true(lambda: made.supervisor.totals()[made.supervisor.layout.rows["pool", "api"] + POOL_IN_FLIGHT])
        assert (await made.supervisor.keys())["api"].held == frozenset([hash_key(b"held")])
        made.backends.release()
        await held

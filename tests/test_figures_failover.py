"""The figures of failover: whatever happens to backends under load, nothing is lost and nobody moves for nothing."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import hash_key
from tests.crowd import Crowd, backend_processes
from tests.running import Backends, Proxy, backend_list, get, in_thread, until_true

CALM: dict[str, Any] = {"bounded_load": {"factor": None}, "hot_keys": {"mode": "off"}}


def pools(ports: dict[str, int], **changes: Any) -> dict[str, Any]:
    return {"api": {**CALM, **changes, "backends": backend_list(ports)}}


def preferences(names: list[str], users: list[str]) -> dict[str, list[str]]:
    """Each user's preference list."""
    ring = build_ring([(name, 1.0) for name in names])
    return {user: [ring.names[member] for member in ring.walk(hash_key(user.encode()))] for user in users}


@pytest.mark.parametrize("hangs_first", [False, True])
async def test_one_of_five_killed_under_two_hundred_users(tmp_path: Path, hangs_first: bool) -> None:
    names = ["b1", "b2", "b3", "b4", "b5"]
    users = [f"user-{number}" for number in range(200)]
    lists = preferences(names, users)
    async with backend_processes(names) as backends:
        health = {"interval": "200ms", "timeout": "500ms", "fall": 2, "rise": 2}
        # Who hangs holds a request of each of its users, nearly all that are in flight. On new connections, of which
        # none can have been closed before it was used, all of them are repeated at once, out of the budget.
        hung = {"connections": {"max_idle": 0}, "retry": {"min_budget": 0}} if hangs_first else {}
        with Proxy(tmp_path, {}, pools=pools(backends.ports, health=health, **hung)) as proxy:
            crowd = Crowd(proxy.port, users, pause_s=0.03 if hangs_first else 0.0)
            await crowd.until_each_answered(3)
            if hangs_first:
                backends.send("b3", signal.SIGSTOP)
                await asyncio.sleep(0.2)
            await backends.end("b3")
            await until_named(proxy, "b3", "down", 1)
            await crowd.until_each_answered(3)
            await crowd.stop()
            lost = await asyncio.to_thread(proxy.metric, "requests_total", code="5xx")
            refused = await asyncio.to_thread(proxy.metric, "retries_refused_total")
    assert (crowd.failed, lost, refused) == ([], 0, 0)
    for user in users:
        owner, second, *_ = lists[user]
        assert crowd.moves(user) == ([owner] if owner != "b3" else [owner, second])


@contextmanager
def refusing(count: int) -> Iterator[list[int]]:
    """Ports on which nobody listens, and nobody else will while this lasts."""
    bound = [socket.socket() for _ in range(count)]
    try:
        for sock in bound:
            sock.bind(("127.0.0.1", 0))
        yield [sock.getsockname()[1] for sock in bound]
    finally:
        for sock in bound:
            sock.close()


@pytest.mark.parametrize("ejection", [{}, {"consecutive_errors": 0}])
async def test_four_of_ten_refuse_and_no_check_has_said_so(tmp_path: Path, ejection: dict[str, int]) -> None:
    names = [f"b{number}" for number in range(10)]
    dead = {"b1", "b4", "b5", "b8"}
    users = [f"user-{number}" for number in range(200)]
    lists = preferences(names, users)
    async with Backends(*[name for name in names if name not in dead]) as backends:
        with refusing(4) as ports:
            every = dict(sorted((backends.ports | dict(zip(sorted(dead), ports, strict=True))).items()))
            # One attempt more than there are dead ones.
            changed = pools(every, retry={"attempts": 5}, ejection=ejection)
            with Proxy(tmp_path, {}, pools=changed) as proxy:
                crowd = Crowd(proxy.port, users)
                await crowd.until_each_answered(5)
                await crowd.stop()
                ejected = await asyncio.to_thread(proxy.metric, "ejections_total")
    assert crowd.failed == []
    for user in users:
        assert crowd.moves(user) == [next(name for name in lists[user] if name not in dead)]
    assert ejected == (0 if ejection else 4)


class Odd:
    """A backend that does one odd thing with every request: nothing at all, or half an answer and a reset."""

    def __init__(self, behaviour: str) -> None:
        self.behaviour = behaviour
        self.port = 0
        self.asked = 0

    async def __aenter__(self) -> Odd:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            if self.behaviour == "cut":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it")
                await writer.drain()
                await asyncio.sleep(0.05)
                writer.transport.abort()
            elif self.behaviour == "slow":
                await asyncio.sleep(0.7)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nodd")
                await writer.drain()
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def owned_by(name: str, names: list[str]) -> str:
    """A user whose owner it is."""
    users = [f"user-{number}" for number in range(200)]
    return next(user for user, found in preferences(names, users).items() if found[0] == name)


async def asked(proxy: Proxy, user: str) -> tuple[int, str, float]:
    began = time.monotonic()
    status, text = await get(proxy.port, user=user)
    return status, text, time.monotonic() - began


async def test_a_backend_that_accepts_and_never_answers(tmp_path: Path) -> None:
    user = owned_by("odd", ["b1", "odd"])
    async with Backends("b1") as backends, Odd("silent") as odd:
        ports = backends.ports | {"odd": odd.port}
        # By default it is waited for as long as first_byte says, and then nobody else is asked: it may be at work.
        slow = pools(ports, timeout={"first_byte": "300ms"}, ejection={"consecutive_errors": 2})
        with Proxy(tmp_path, {}, pools=slow, workers=1) as proxy:
            status, _, took_s = await asked(proxy, user)
            assert (status, 0.3 <= took_s < 3.0) == (504, True)
            assert (await asked(proxy, user))[0] == 504
            # Twice in a row is enough here: it is ejected, and the user is served elsewhere as soon as the worker has
            # heard of it, which takes less time than a request that is not answered.
            await in_thread(proxy, "backend ejected")
            await until_named(proxy, "odd", "ejected", 1)
            first, *others = [(await asked(proxy, user), odd.asked) for _ in range(3)]
            assert [(status, text) for (status, text, _), _ in others] == [(200, "b1")] * 2
            # The first may have come before the worker had heard; the others were not even tried on it.
            assert {count for _, count in others} == {first[1]}
            assert first[1] <= 3
        # With a time for each try, the next one on the list has it.
        tried = pools(ports, retry={"per_try": "200ms"}, ejection={"consecutive_errors": 0})
        (tmp_path / "tried").mkdir()
        with Proxy(tmp_path / "tried", {}, pools=tried) as proxy:
            status, text, took_s = await asked(proxy, user)
            assert (status, text, 0.2 <= took_s < 2.0) == (200, "b1", True)


async def test_a_backend_that_resets_in_mid_answer(tmp_path: Path) -> None:
    user = owned_by("odd", ["b1", "odd"])
    async with Backends("b1") as backends, Odd("cut") as odd:
        changed = pools(backends.ports | {"odd": odd.port}, ejection={"consecutive_errors": 3})
        with Proxy(tmp_path, {}, pools=changed, workers=1) as proxy:
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
                writer.write(f"GET / HTTP/1.1\r\nHost: x\r\nX-User-ID: {user}\r\n\r\n".encode())
                got = await reader.read()
                # What has begun is cut where it broke: neither repeated nor made up.
                assert got.startswith(b"HTTP/1.1 200 OK\r\n")
                assert got.endswith(b"\r\n\r\nhalf of it")
                writer.close()
            assert await asyncio.to_thread(proxy.metric, "upstream_errors_total", backend="odd") == 3


async def test_a_backend_that_answers_slowly(tmp_path: Path) -> None:
    user = owned_by("odd", ["b1", "odd"])
    async with Backends("b1") as backends, Odd("slow") as odd:
        with Proxy(tmp_path, {}, pools=pools(backends.ports | {"odd": odd.port})) as proxy:
            answers = await asyncio.gather(*(asked(proxy, user) for _ in range(20)))
            assert {(status, text) for status, text, _ in answers} == {(200, "odd")}
            assert await asyncio.to_thread(proxy.metric, "retries_total") == 0
            assert await asyncio.to_thread(proxy.metric, "upstream_errors_total") == 0


async def test_ten_flaps_send_each_session_out_once_and_home_once(tmp_path: Path) -> None:
    names = ["b1", "b2", "b3", "b4"]
    users = [f"user-{number}" for number in range(80)]
    lists = preferences(names, users)
    health = {"interval": "100ms", "timeout": "5s", "fall": 2, "rise": 2, "hold": "1s"}
    async with backend_processes(names) as backends:
        with Proxy(tmp_path, {}, pools=pools(backends.ports, health=health)) as proxy:
            crowd = Crowd(proxy.port, users, pause_s=0.05)
            await crowd.until_each_answered(3)
            for flap in range(1, 11):
                backends.send("b2", signal.SIGUSR1)
                await until_named(proxy, "b2", "down", flap)
                backends.send("b2", signal.SIGUSR1)
                await until_named(proxy, "b2", "held", flap)
            # Up to now it has never been good for long enough to be trusted.
            assert count_named(proxy, "b2", "up") == 1
            await until_named(proxy, "b2", "up", 2)
            await crowd.until_each_answered(3)
            await crowd.stop()
    assert crowd.failed == []
    for user in users:
        owner, second, *_ = lists[user]
        assert crowd.moves(user) == ([owner] if owner != "b2" else [owner, second, owner])


def count_named(proxy: Proxy, backend: str, state: str) -> int:
    """How often a backend has come into this state."""
    return sum((each["backend"], each["state"]) == (backend, state) for each in proxy.named("backend state"))


async def until_named(proxy: Proxy, backend: str, state: str, count: int) -> None:
    await until_true(lambda: count_named(proxy, backend, state) >= count)

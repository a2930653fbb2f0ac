"""WebSockets through a running proxy: what the metrics, `status` and a drain make of them, and a worker that dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.running import Proxy
from tests.test_operating import cli

COUNT = 8
GAUGES = {
    "requests_in_flight",
    "upstream_requests_in_flight",
    "upgraded_connections_open",
    "upstream_upgraded_connections_open",
}


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A backend that echoes what its WebSockets say."""

    async def talk(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        if not socket.can_prepare(request):
            return web.Response(text="b1")
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(str(message.data))
        return socket

    app = web.Application()
    app.router.add_get("/", talk)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield int(runner.addresses[0][1])
    await runner.cleanup()


class Users:
    """WebSockets of as many users."""

    def __init__(self, proxy: Proxy) -> None:
        self._url = f"http://127.0.0.1:{proxy.port}/"
        self._session = aiohttp.ClientSession()
        self.sockets: list[aiohttp.ClientWebSocketResponse] = []

    async def come(self, count: int) -> None:
        for number in range(count):
            self.sockets.append(
                await self._session.ws_connect(self._url, headers={"X-User-ID": f"user-{number}"}, autoping=True)
            )

    async def those_alive(self) -> int:
        alive = [socket for socket in self.sockets if await self._is_alive(socket)]
        self.sockets = alive
        return len(alive)

    @staticmethod
    async def _is_alive(socket: aiohttp.ClientWebSocketResponse) -> bool:
        try:
            await socket.send_str("hello")
            message = await socket.receive(5.0)
        except (aiohttp.ClientError, ConnectionError):
            return False
        return message.type is aiohttp.WSMsgType.TEXT and message.data == "hello"

    async def leave(self) -> None:
        for socket in self.sockets:
            await socket.close()
        await self._session.close()


async def gauges(proxy: Proxy) -> tuple[set[float], set[float]]:
    """What is in flight, and what is upgraded, each as the pool's and the backend's gauge have it."""
    values = {name: await asyncio.to_thread(proxy.metric, name, pool="api") for name in GAUGES}
    upgraded = {value for name, value in values.items() if "upgraded" in name}
    return {value for name, value in values.items() if "upgraded" not in name}, upgraded


async def until_gauges(proxy: Proxy, in_flight: float, upgraded: float) -> None:
    """Those of pools come with the next tick of a worker."""
    async with asyncio.timeout(10):
        while await gauges(proxy) != ({in_flight}, {upgraded}):  # noqa: ASYNC110  # a scrape is a question, nobody calls
            await asyncio.sleep(0.05)


def proxied(folder: Path, port: int, weight: float) -> Proxy:
    pools: dict[str, Any] = {
        "api": {
            "backends": [{"name": "b1", "url": f"http://127.0.0.1:{port}"}],
            "bounded_load": {"factor": 1.25, "tunnel_weight": weight},
        }
    }
    admin = {"listen": "127.0.0.1:0", "socket": str(folder / "admin.sock")}
    return Proxy(folder, {}, pools=pools, admin=admin)


@pytest.mark.parametrize("weight", [0.0, 1.0])
async def test_open_websockets_are_counted_apart_and_survive_a_reload(tmp_path: Path, port: int, weight: float) -> None:
    with proxied(tmp_path, port, weight) as proxy:
        users = Users(proxy)
        await users.come(COUNT)
        await until_gauges(proxy, weight * COUNT, COUNT)
        code, out, _ = await cli(proxy, "status")
        assert code == 0
        assert f"{weight * COUNT:g} in flight, {COUNT} upgraded" in out
        assert f"[{COUNT} upgraded]" in out
        proxy.config["pools"]["api"]["bounded_load"]["tunnel_weight"] = 0.5
        proxy.write_config()
        assert (await cli(proxy, "reload"))[0] == 0
        await until_gauges(proxy, sum(await halves(proxy)), COUNT)
        assert await users.those_alive() == COUNT
        await users.leave()
        await until_gauges(proxy, 0, 0)
        assert await asyncio.to_thread(proxy.metric, "upgraded_connections_total", pool="api") == COUNT


async def halves(proxy: Proxy) -> list[int]:
    """What each worker's tunnels count as when two are one seat: every worker rounds down for itself."""
    per_worker = await asyncio.to_thread(proxy.document, "/v1/workers")
    connections = [worker["connections_open"] for worker in per_worker["workers"]]
    return [count // 2 for count in connections]


async def test_a_killed_worker_takes_its_websockets_out_of_the_count(tmp_path: Path, port: int) -> None:
    with proxied(tmp_path, port, 1.0) as proxy:
        users = Users(proxy)
        await users.come(COUNT)
        await until_gauges(proxy, COUNT, COUNT)
        os.kill((await asyncio.to_thread(proxy.worker_pids))[0], signal.SIGKILL)
        await asyncio.to_thread(proxy.wait_event, "worker ready", 3)
        alive = await users.those_alive()
        await until_gauges(proxy, alive, alive)
        await users.leave()
        await until_gauges(proxy, 0, 0)
        assert await asyncio.to_thread(proxy.metric, "upgraded_connections_total", pool="api") == COUNT


async def test_a_draining_backend_is_not_empty_while_it_has_a_websocket(tmp_path: Path, port: int) -> None:
    with proxied(tmp_path, port, 0.0) as proxy:
        users = Users(proxy)
        await users.come(1)
        await until_gauges(proxy, 0, 1)
        code, out, _ = await cli(proxy, "drain", "b1", "--force", "--wait", "3s")
        assert (code, "not empty" in out) == (1, True), (code, out)
        assert await users.those_alive() == 1
        await users.leave()
        assert (await cli(proxy, "drain", "b1", "--force", "--wait", "10s"))[0] == 0

"""The figure of reloading: under load, with WebSockets open, nothing is lost and nobody moves needlessly."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.crowd import Crowd, backend_processes
from tests.running import Proxy, backend_list, until

# Nothing but the ring decides, however busy the machine is.
CALM: dict[str, Any] = {
    "bounded_load": {"factor": None},
    "hot_keys": {"mode": "off"},
    "ring": {"vnodes": 128},
    "timeout": {"connect": "20s"},
    "ejection": {"consecutive_errors": 0},
}


class Echo:
    """A backend that upgrades and echoes."""

    def __init__(self) -> None:
        self.port = 0

    async def __aenter__(self) -> Echo:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            while data := await reader.read(65536):
                writer.write(data)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class Socket:
    """One user's upgraded connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.sent = 0

    @classmethod
    async def opened(cls, port: int, user: str) -> Socket:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET /ws HTTP/1.1\r\nHost: x\r\nX-User-ID: {user}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        return cls(reader, writer)

    async def echo(self) -> None:
        """One message there and back."""
        self.sent += 1
        message = b"message %d" % self.sent
        self._writer.write(message)
        assert await self._reader.readexactly(len(message)) == message

    def close(self) -> None:
        self._writer.close()


async def test_two_hundred_reloads_in_twenty_seconds(tmp_path: Path) -> None:
    chance = random.Random(3)
    names = ["b1", "b2", "b3", "b4"]
    users = [f"user-{number}" for number in range(40)]
    async with backend_processes(names) as backends, Echo() as echo:
        pools = {
            "api": {**CALM, "backends": backend_list(backends.ports)},
            "ws": {**CALM, "match": {"path": "/ws"}, "backends": backend_list({"w1": echo.port})},
        }
        with Proxy(tmp_path, {}, pools=pools) as proxy:
            sockets = [await Socket.opened(proxy.port, user) for user in users]
            crowd = Crowd(proxy.port, users, pause_s=0.02)
            took_s, moves = 0.0, 0
            for name, backend in zip(names, proxy.config["pools"]["api"]["backends"], strict=True):
                # One backend's weight at a time, so that a move between two others is one that nothing explains.
                await crowd.until_each_answered(2)
                before = {user: len(crowd.way[user]) - 1 for user in users}
                began = time.monotonic()
                for number in range(50):
                    backend["weight"] = chance.choice([0.5, 0.75, 1.25, 1.5, 2])
                    proxy.write_config()
                    proxy.signal(signal.SIGHUP)
                    await asyncio.sleep(max(0.0, began + (number + 1) * 0.1 - time.monotonic()))
                took_s += time.monotonic() - began
                await asyncio.to_thread(until, lambda: is_in_force(proxy, name, backend["weight"]))  # noqa: B023
                await asyncio.gather(*(socket.echo() for socket in sockets))
                await crowd.until_each_answered(2)
                changes = [pair for user in users for pair in pairwise(crowd.way[user][before[user] :])]
                moved = [pair for pair in changes if pair[0] != pair[1]]
                assert [pair for pair in moved if name not in pair] == []
                moves += len(moved)
            await crowd.stop()
            reloads = len(proxy.named("configuration applied")) + len(proxy.named("configuration unchanged"))
            failed = [await asyncio.to_thread(proxy.metric, "requests_total", code=code) for code in ("4xx", "5xx")]
            open_sockets = await asyncio.to_thread(proxy.metric, "upgraded_connections_open", pool="ws")
            for socket in sockets:
                socket.close()
    assert took_s < 24
    # What is asked for while a reload is under way is one reload more, however often it was asked.
    assert reloads >= 150
    assert (crowd.failed, failed, open_sockets) == ([], [0, 0], len(users))
    assert moves > len(users)


def is_in_force(proxy: Proxy, name: str, weight: float) -> bool:
    return proxy.metric("backend_configured_weight", backend=name) == weight

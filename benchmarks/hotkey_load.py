"""Slow backends and clients in a closed loop for `benchmarks.hotkey`, all in one event loop, and what they record.

A backend answers each request after a while; a client asks for a user, waits for the answer, and asks for the next. The
backends count by themselves what they hold and whose requests they are given: nothing is taken from the proxy's word.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import hash_key

SERVICE_S: Final = 0.2
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"
_HEADER: Final = b"x-user-id: "
_RETRY_S: Final = 0.2


@dataclass(slots=True)
class Count:
    """Requests of one kind, and how many of them came to another backend than their user's owner."""

    requests: int = 0
    away: int = 0

    @property
    def share(self) -> float:
        return self.away / self.requests if self.requests else 0.0


@dataclass(slots=True)
class Phase:
    """What happens from one moment on: the hot user, if any, and its part of the requests; and what is counted of it.

    `area` is seats times seconds by backend, `peak` the most that each held; `latencies_s` are those of cold users.
    """

    hot: bytes = b""
    share: float = 0.0
    hot_count: Count = field(default_factory=Count)
    neighbours: Count = field(default_factory=Count)
    others: Count = field(default_factory=Count)
    area: list[float] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    errors: int = 0
    lasted_s: float = 0.0

    def p99_s(self) -> float:
        """The 99th percentile of the cold users' latencies."""
        ordered = sorted(self.latencies_s)
        return ordered[int(len(ordered) * 0.99)] if ordered else 0.0

    @property
    def in_flight(self) -> float:
        """What all backends together held on average."""
        return sum(self.area) / self.lasted_s if self.lasted_s else 0.0

    @property
    def peak_over_mean(self) -> float:
        return max(self.peak) * len(self.peak) / self.in_flight if self.in_flight else 0.0

    @property
    def busiest_over_mean(self) -> float:
        return max(self.area) * len(self.area) / sum(self.area) if sum(self.area) else 0.0


class World:
    """The backends, the clients and the phase that is counted now."""

    def __init__(self, count: int, users: int, seed: int) -> None:
        self.names: Final = [f"b{number}" for number in range(1, count + 1)]
        self.users: Final = [b"user-%d-%d" % (seed, number) for number in range(users)]
        self.ports: list[int] = []
        self.phase = Phase()
        self._counted = self._empty()
        self._chance: Final = random.Random(seed)
        self._ring: Final = build_ring((name, 1.0) for name in self.names)
        self._place: Final = [self.names.index(name) for name in self._ring.names]
        self._owners: Final = {user: self.owner(user) for user in self.users}
        self._held: Final = [0] * count
        self._changed_at: Final = [0.0] * count
        self._began = 0.0
        self._servers: list[asyncio.Server] = []
        self._clients: list[_Client] = []

    def owner(self, user: bytes) -> int:
        """The backend that owns a user, by its number."""
        return self._place[self._ring.owner(hash_key(user))]

    def home_of_hot(self) -> int:
        return self.owner(self.phase.hot) if self.phase.hot else -1

    async def start(self) -> None:
        """Open the backends on free ports."""
        loop = asyncio.get_running_loop()
        for number in range(len(self.names)):

            def new(number: int = number) -> _Backend:
                return _Backend(self, number, loop)

            server = await loop.create_server(new, "127.0.0.1", 0, backlog=4096)
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])

    async def connect(self, port: int, clients: int) -> None:
        """Open the clients' connections and let them ask."""
        loop = asyncio.get_running_loop()
        for _ in range(clients):
            _, client = await loop.create_connection(lambda: _Client(self), "127.0.0.1", port)
            self._clients.append(client)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for server in self._servers:
            server.close()

    def begin(self, phase: Phase) -> None:
        """Let the traffic be as in this phase; nothing is counted yet."""
        self.phase = phase
        self._counted = self._empty()

    def count(self) -> None:
        """Count from now on."""
        now = time.monotonic()
        phase = self.phase
        phase.area = [0.0] * len(self.names)
        phase.peak = list(self._held)
        self._changed_at[:] = [now] * len(self.names)
        self._began = now
        self._counted = phase

    def end(self) -> None:
        """Count no more."""
        now = time.monotonic()
        for number in range(len(self.names)):
            self.hold(number, 0, now)
        self._counted.lasted_s = now - self._began
        self._counted = self._empty()

    def _empty(self) -> Phase:
        """Where that is counted which does not count."""
        return Phase(area=[0.0] * len(self.names), peak=[0] * len(self.names))

    # What backends and clients tell.

    def draw(self) -> bytes:
        phase = self.phase
        if phase.share and self._chance.random() < phase.share:
            return phase.hot
        return self._chance.choice(self.users)

    def hold(self, number: int, by: int, now: float) -> None:
        """A backend holds so many more or fewer requests."""
        held = self._held[number]
        phase = self._counted
        phase.area[number] += held * (now - self._changed_at[number])
        self._changed_at[number] = now
        self._held[number] = held = held + by
        if held > phase.peak[number]:
            phase.peak[number] = held

    def arrived(self, number: int, user: bytes) -> None:
        """A backend was given a user's request."""
        phase = self._counted
        if user == self.phase.hot:
            owner, count = self.home_of_hot(), phase.hot_count
        else:
            owner = self._owners[user]
            count = phase.neighbours if owner == self.home_of_hot() else phase.others
        count.requests += 1
        count.away += owner != number

    def answered(self, user: bytes, latency_s: float) -> None:
        """A client has its answer."""
        if user != self.phase.hot:
            self._counted.latencies_s.append(latency_s)

    def failed(self) -> None:
        """A client got no answer, or not the right one."""
        self._counted.errors += 1


class _Backend(asyncio.Protocol):
    """One connection of a backend; requests come one at a time."""

    def __init__(self, world: World, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._world = world
        self._number = number
        self._loop = loop
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._buffer.endswith(b"\r\n\r\n"):
            return
        head, self._buffer = self._buffer, b""
        at = head.lower().find(_HEADER)
        user = head[at + len(_HEADER) : head.index(b"\r\n", at)] if at >= 0 else b""
        if user not in self._world._owners and user != self._world.phase.hot and not user.startswith(b"hot-"):
            self._transport.write(_ANSWER)  # a probe, or the question whether the proxy is up
            return
        self._world.hold(self._number, 1, time.monotonic())
        if user in self._world._owners or user == self._world.phase.hot:
            self._world.arrived(self._number, user)
        self._loop.call_later(SERVICE_S, self._answer)

    def _answer(self) -> None:
        self._world.hold(self._number, -1, time.monotonic())
        if not self._transport.is_closing():
            self._transport.write(_ANSWER)


class _Client(asyncio.Protocol):
    """A client that asks, waits, and asks again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._buffer = b""
        self._user = b""
        self._asked = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Spread over the first service time, so that answers do not come in waves.
        asyncio.get_running_loop().call_later(self._world._chance.random() * SERVICE_S, self._ask)

    def close(self) -> None:
        self._transport.abort()

    def _ask(self) -> None:
        if self._transport.is_closing():
            return
        self._user = self._world.draw()
        self._asked = time.monotonic()
        self._transport.write(b"GET / HTTP/1.1\r\nHost: bench\r\nX-User-ID: %b\r\n\r\n" % self._user)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._buffer.startswith(b"HTTP/1.1 200 ") and not self._buffer.endswith(b"\r\n\r\nok\n"):
            return
        answer, self._buffer = self._buffer, b""
        if not answer.startswith(b"HTTP/1.1 200 "):
            self._world.failed()
            asyncio.get_running_loop().call_later(_RETRY_S, self._ask)
            return
        self._world.answered(self._user, time.monotonic() - self._asked)
        self._ask()


def hot_users(world: World, count: int) -> Sequence[bytes]:
    """Users to become hot, each with another owner."""
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < min(count, len(world.names)):
        user = b"hot-%d" % number
        found.setdefault(world.owner(user), user)
        number += 1
    return list(found.values())

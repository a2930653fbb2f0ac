"""Demo traffic: many users with Zipf-distributed activity, through the proxy, each watched for whether it stays put."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from itertools import accumulate
from typing import Final

import aiohttp

from lbproxy.demo.backends import KEY_HEADER

USERS: Final = 2000
EXPONENT: Final = 0.7
CLIENTS: Final = 12
PAUSE_S: Final = 0.04  # on average, per client; about 250 requests a second in all
HOT_USER: Final = "hot-user"
HOT_CLIENTS: Final = 16  # each of them asks again as soon as it has been answered, for something that takes
HOT_REQUEST_S: Final = 0.13  # so long: about a third of all requests, and most of the work
IDLE_S: Final = 0.05


class Zipf:
    """Ranks from 0, rank r as often as (r + 1) ** -exponent."""

    def __init__(self, count: int, exponent: float, chance: random.Random) -> None:
        self._sums = list(accumulate((rank + 1) ** -exponent for rank in range(count)))
        self._chance = chance

    def draw(self) -> int:
        return bisect_left(self._sums, self._chance.random() * self._sums[-1])


class Traffic:
    """Clients that ask without end. `homes` has the backend that served each user last, but for the hot one, which asks
    while `is_hot`."""

    def __init__(self, url: str, seed: int = 1) -> None:
        self.requests = 0
        self.failures = 0
        self.is_hot = False
        self.homes: dict[str, str] = {}
        self.moved: set[str] = set()
        self._url = url
        # What is random here only makes a picture.
        self._chance = random.Random(seed)  # noqa: S311
        self._users = Zipf(USERS, EXPONENT, self._chance)

    async def run(self) -> None:
        """Until cancelled."""
        timeout = aiohttp.ClientTimeout(total=10)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session,
            asyncio.TaskGroup() as clients,
        ):
            for _ in range(CLIENTS):
                clients.create_task(self._client(session))
            for _ in range(HOT_CLIENTS):
                clients.create_task(self._hot_client(session))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / PAUSE_S))
            user = f"user-{self._users.draw()}"
            backend = await self._ask(session, user, "")
            if backend is not None:
                self._saw(user, backend)

    async def _hot_client(self, session: aiohttp.ClientSession) -> None:
        while True:
            if not self.is_hot:
                await asyncio.sleep(IDLE_S)
            elif await self._ask(session, HOT_USER, f"slow?seconds={HOT_REQUEST_S}") is not None:
                self.requests += 1
            else:
                await asyncio.sleep(IDLE_S)

    async def _ask(self, session: aiohttp.ClientSession, user: str, path: str) -> str | None:
        """Which backend has answered; None when the request has failed."""
        try:
            async with session.get(self._url + path, headers={KEY_HEADER: user}) as answer:
                return str((await answer.json())["backend"])
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError):
            self.failures += 1
            return None

    def _saw(self, user: str, backend: str) -> None:
        self.requests += 1
        if self.homes.setdefault(user, backend) != backend:
            self.moved.add(user)
            self.homes[user] = backend

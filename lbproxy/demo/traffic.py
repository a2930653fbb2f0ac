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


class Zipf:
    """Ranks from 0, rank r as often as (r + 1) ** -exponent."""

    def __init__(self, count: int, exponent: float, chance: random.Random) -> None:
        self._sums = list(accumulate((rank + 1) ** -exponent for rank in range(count)))
        self._chance = chance

    def draw(self) -> int:
        return bisect_left(self._sums, self._chance.random() * self._sums[-1])


class Traffic:
    """Clients that ask without end. `homes` has the backend that served each user last."""

    def __init__(self, url: str, seed: int = 1) -> None:
        self.requests = 0
        self.failures = 0
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
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CLIENTS), timeout=timeout) as session,
            asyncio.TaskGroup() as clients,
        ):
            for _ in range(CLIENTS):
                clients.create_task(self._client(session))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / PAUSE_S))
            user = f"user-{self._users.draw()}"
            try:
                async with session.get(self._url, headers={KEY_HEADER: user}) as answer:
                    document = await answer.json()
                    self._saw(user, document["backend"])
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError):
                self.failures += 1

    def _saw(self, user: str, backend: str) -> None:
        self.requests += 1
        if self.homes.setdefault(user, backend) != backend:
            self.moved.add(user)
            self.homes[user] = backend

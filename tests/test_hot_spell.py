"""One user runs hot for a while, through a running proxy: it is found soon, spread, and forgotten soon."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import aiohttp

from lbproxy.core.hashing import hash_key
from tests.running import Backends, Proxy, backend_list

CLIENTS = 40
HOT = "the-hot-one"
HASH = f"0x{hash_key(HOT.encode()):016x}"
FOUND_WITHIN_S = 2.0
FORGOTTEN_WITHIN_S = 10.0


class Crowd:
    """Clients in a closed loop, of whom half ask for the hot user while `is_hot`. `served` is by whom."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/slow/0.05"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self.is_hot = False
        self.served: set[str] = set()
        self.failed: list[int] = []
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(CLIENTS)]

    async def _ask(self, number: int) -> None:
        chance = random.Random(number)
        while True:
            hot = self.is_hot and number % 2 == 0
            user = HOT if hot else f"user-{chance.randrange(500)}"
            async with self._session.get(self._url, headers={"X-User-ID": user}) as answer:
                name = await answer.text()
                if answer.status != 200:
                    self.failed.append(answer.status)
                elif hot:
                    self.served.add(name)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()


async def until_hot(proxy: Proxy, wanted: bool, bound_s: float) -> float:
    """How long it takes until the admin API calls the user hot, or no longer."""
    began = time.monotonic()
    while True:
        keys = (await asyncio.to_thread(proxy.document, "/v1/pools/api/hot-keys"))["keys"]
        took_s = time.monotonic() - began
        if any(key["hot"] and key["hash"] == HASH for key in keys) == wanted:
            return took_s
        assert took_s < 2 * bound_s, keys
        await asyncio.sleep(0.05)


async def test_a_hot_user_is_found_spread_and_forgotten(tmp_path: Path) -> None:
    async with Backends("b1", "b2", "b3", "b4", "b5") as backends:
        with Proxy(tmp_path, {}, pools={"api": {"backends": backend_list(backends.ports)}}) as proxy:
            crowd = Crowd(proxy.port)
            await asyncio.sleep(1.5)  # traffic as it always is
            crowd.is_hot = True
            found_s = await until_hot(proxy, True, FOUND_WITHIN_S)
            await asyncio.sleep(1.0)
            crowd.is_hot = False
            forgotten_s = await until_hot(proxy, False, FORGOTTEN_WITHIN_S)
            spilled = await asyncio.to_thread(proxy.metric, "route_decisions_total", decision="spill:hot")
            await crowd.end()
    assert found_s <= FOUND_WITHIN_S
    assert forgotten_s <= FORGOTTEN_WITHIN_S
    assert len(crowd.served) > 1
    assert spilled > 0
    assert crowd.failed == []

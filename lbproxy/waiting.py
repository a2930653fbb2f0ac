"""Waiting until something is true that changes now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import final


@final
class Waiting:
    """Those who wait; whoever changes something wakes them, and each looks whether it is what it has waited for."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        """Something has changed."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, is_true: Callable[[], bool], bound_s: float | None = None) -> bool:
        """Wait until something is true, looking at each change; False when it took too long."""
        try:
            async with asyncio.timeout(bound_s):
                while not is_true():
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError:
            return False
        return True

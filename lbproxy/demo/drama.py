"""What happens in the demo so that there is something to see: a user runs hot now and then, a backend dies and returns.

The first seconds are calm, so that everybody is seen at home first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lbproxy.demo.backends import DemoBackend
from lbproxy.demo.traffic import Traffic

STEP_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Act:
    """Something that begins after `first_s` seconds, goes on for `lasts_s`, and begins again every `every_s`."""

    first_s: float
    lasts_s: float
    every_s: float

    def is_on(self, elapsed_s: float) -> bool:
        """Whether it goes on so many seconds after the start."""
        return elapsed_s >= self.first_s and (elapsed_s - self.first_s) % self.every_s < self.lasts_s


HOT_USER: Final = Act(first_s=5.5, lasts_s=15.0, every_s=40.0)
DEAD_BACKEND: Final = Act(first_s=8.0, lasts_s=10.0, every_s=60.0)


class Drama:
    """Has both acts played. `victim` is the backend that dies, None for nobody."""

    def __init__(
        self, traffic: Traffic, victim: DemoBackend | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._traffic = traffic
        self._victim = victim
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled."""
        began = self._clock()
        while True:
            await self.play(self._clock() - began)
            await asyncio.sleep(STEP_S)

    async def play(self, elapsed_s: float) -> None:
        """Bring everything to where it is so many seconds after the start."""
        self._traffic.is_hot = HOT_USER.is_on(elapsed_s)
        if self._victim is not None and self._victim.is_alive is DEAD_BACKEND.is_on(elapsed_s):
            await (self._victim.die() if self._victim.is_alive else self._victim.revive())

"""Reloading: read, check, compare, put in force, report. Every way to ask for it comes through here, one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from lbproxy.control.problems import ConfigError
from lbproxy.control.restart import needs_restart
from lbproxy.core.spec import Config
from lbproxy.observe.facts import RELOAD_RESULTS, ReloadStatus
from lbproxy.observe.journal import Journal

MAX_TOLD: Final = 10  # problems that get a line of their own in the journal


class Refused(Exception):
    """A checked configuration that could not be put in force: one line that says why."""


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """What came of a reload. `problems` say why it was refused, `needs_restart` what was read but is not in force,
    `is_complete` whether all workers have acknowledged."""

    outcome: Literal["applied", "unchanged", "refused"]
    problems: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    is_complete: bool = True


class Reloader:
    """Reads the configuration again when asked. `started_with` is what is in force as far as only a start decides."""

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        apply: Callable[[Config], Awaitable[bool]],
        journal: Journal,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`load` raises ConfigError, `apply` raises Refused and tells whether all workers have acknowledged."""
        self.started_with: Final = config
        self.last: ReloadResult | None = None
        self._current = config
        self._load = load
        self._apply = apply
        self._journal = journal
        self._wall = wall
        self._turn = asyncio.Lock()
        # Called when a reload begins, and when it has ended, whatever came of it.
        self.on_begin: Callable[[], None] = _nothing
        self.on_end: Callable[[], None] = _nothing
        self.status = ReloadStatus(dict.fromkeys(RELOAD_RESULTS, 0), True, wall())

    @property
    def current(self) -> Config:
        """What was read last and put in force, without what is laid over it."""
        return self._current

    @property
    def needs_restart(self) -> tuple[str, ...]:
        """What has been read since and is not in force."""
        return needs_restart(self.started_with, self._current)

    async def reload(self) -> ReloadResult:
        """Do it, after any that is under way. Never raises for what a file can hold."""
        async with self._turn:
            self.on_begin()
            try:
                result = await self._reload()
                counts = dict(self.status.counts)
                counts[result.outcome] += 1
                self.last = result
                self.status = ReloadStatus(counts, result.outcome != "refused", self._wall())
                return result
            finally:
                self.on_end()

    async def again(self) -> bool:
        """Put what was read last in force once more, because what is laid over it has changed; whether all workers have
        acknowledged. Raises Refused."""
        async with self._turn:
            return await self._apply(self._current)

    async def _reload(self) -> ReloadResult:
        try:
            config = await asyncio.to_thread(self._load)
        except ConfigError as error:
            return self._refuse(tuple([problem.headline() for problem in error.problems]))
        if config == self._current:
            self._journal.info("configuration unchanged")
            return ReloadResult("unchanged", needs_restart=needs_restart(self.started_with, config))
        try:
            is_complete = await self._apply(config)
        except Refused as error:
            return self._refuse((str(error),))
        self._current = config
        waiting = needs_restart(self.started_with, config)
        if waiting:
            self._journal.warning("a restart is needed", fields=", ".join(waiting))
        if not is_complete:
            self._journal.warning("a worker has not acknowledged the configuration yet")
        return ReloadResult("applied", (), waiting, is_complete)

    def _refuse(self, problems: tuple[str, ...]) -> ReloadResult:
        for problem in problems[:MAX_TOLD]:
            self._journal.error("configuration refused", problem=problem)
        if len(problems) > MAX_TOLD:
            self._journal.error("configuration refused", more_problems=len(problems) - MAX_TOLD)
        return ReloadResult("refused", problems)


def _nothing() -> None:
    """Nobody wants to know."""

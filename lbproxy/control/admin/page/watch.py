"""The one who looks, for all viewers: samples while nobody watches, pieces of the page while somebody does."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, final

from lbproxy.control.admin.page import frame
from lbproxy.control.admin.page import pool as pools
from lbproxy.control.admin.page.board import Board
from lbproxy.control.admin.page.judge import judge
from lbproxy.control.admin.page.shares import hot_keys
from lbproxy.control.admin.page.sight import PoolSight
from lbproxy.control.admin.page.source import Document, Source, look
from lbproxy.control.admin.page.window import Past
from lbproxy.waiting import Waiting

WATCHED_S: Final = 1.0
UNWATCHED_S: Final = 5.0
# Events make for a look at once, but not for more than so many a second, and a page asked for twice within it is the
# same.
HASTE_S: Final = 0.1
# However much there is to look at, looking takes a small part of the time.
IDLE_FOR_BUSY: Final = 20

Clock = Callable[[], float]


@final
class Watch:
    """Looks at a source once a second while somebody watches, every few seconds otherwise, and when told to hurry.

    A look reads memory and takes a few milliseconds at 200 backends. `boot` tells this life of the process from others.
    """

    def __init__(self, source: Source, clock: Clock = time.monotonic, wall: Clock = time.time) -> None:
        self.source: Final = source
        self.boot: Final = secrets.token_hex(4)
        self.board: Final = Board()
        self.viewers = 0
        self.is_closing = False
        self._clock = clock
        self._wall = wall
        self._past = Past()
        self._sights: list[PoolSight] = []
        self._info: Document = {}
        # What viewers are told of the present look, by what they have seen; most have seen the same.
        self._messages: dict[int, str] = {}
        self._rings: dict[str, tuple[str, str]] = {}
        self._hurry = asyncio.Event()
        self._waiting = Waiting()
        self._shown_at = float("-inf")

    async def run(self) -> None:
        """Look, for ever. What goes wrong in a look is told, and the next one comes."""
        loop = asyncio.get_running_loop()
        unsubscribe = self.source.subscribe(self._hurry.set)
        try:
            while True:
                began = time.thread_time()  # a processor that was somebody else's meanwhile was not busy with this
                try:
                    self.look()
                except Exception as error:
                    loop.call_exception_handler({"message": "the page's look failed", "exception": error})
                pause_s = max(HASTE_S, (time.thread_time() - began) * IDLE_FOR_BUSY)
                await asyncio.sleep(pause_s)
                with suppress(TimeoutError):
                    async with asyncio.timeout((WATCHED_S if self.viewers else UNWATCHED_S) - pause_s):
                        await self._hurry.wait()
                self._hurry.clear()
        finally:
            unsubscribe()

    def look(self) -> None:
        """Take a sample, and make the pieces if somebody wants them."""
        self._past.add(look(self.source.pools(), self._clock(), self._wall()))
        if self.viewers:
            self._show()

    def close(self) -> None:
        """Let everybody who waits go."""
        self.is_closing = True
        self._waiting.wake()

    # For viewers

    def enter(self) -> None:
        """Somebody watches from now on."""
        self.viewers += 1
        self._hurry.set()

    def leave(self) -> None:
        self.viewers -= 1

    async def newer(self, number: int) -> None:
        """Wait for a look after `number`, or until closing."""
        await self._waiting.until(lambda: self.board.number > number or self.is_closing)

    def page(self, version: str, said: Mapping[int, str]) -> str:
        """The whole page as of now."""
        if self._clock() - self._shown_at > HASTE_S:
            self._past.add(look(self.source.pools(), self._clock(), self._wall()))
            self._show()
        return frame.page(self._main(said), self.board.piece, version)

    def _main(self, said: Mapping[int, str]) -> str:
        return frame.main(self._info, self._sights, self.board.piece, self.boot, self.board.number, said)

    def message(self, seen: int) -> str:
        """What a viewer who has seen `seen` is to be told, as JSON."""
        if seen in self._messages:
            return self._messages[seen]
        pieces = self.board.since(seen)
        content = {"main": self._main({})} if pieces is None else pieces
        told = self._messages[seen] = frame.as_json({"number": self.board.number, "pieces": content})
        return told

    def number_of(self, pool: str) -> int | None:
        """The place of a pool on the page."""
        names = [each["name"] for each in self.source.pools()["pools"]]
        return names.index(pool) if pool in names else None

    def _show(self) -> None:
        source = self.source
        self._shown_at = self._clock()
        self._messages.clear()
        self._info, workers, events = source.info(), source.workers(), source.events()
        self._sights = [self._sight(number, name) for number, name in enumerate(self._past.last.pools)]
        self._rings = {name: ring for name, ring in self._rings.items() if name in self._past.last.pools}
        shape = [(each.now.name, tuple([backend.name for backend in each.now.backends])) for each in self._sights]
        writes = self._info.get("writes")
        self.board.show((shape, writes), self._pieces(workers, events))
        self._waiting.wake()

    def _pieces(self, workers: Document, events: Sequence[Document]) -> list[tuple[str, str]]:
        pieces = list(frame.blocks(self._info, workers, events, self._sights))
        for each in self._sights:
            pieces += pools.blocks(each)
            pieces.append((f"{each.id}-ring", self._ring(each)))
        return pieces

    def _ring(self, each: PoolSight) -> str:
        """The drawn ring, which is costly, and stays as it is while its fingerprint does."""
        name, fingerprint = each.now.name, each.now.fingerprint
        known = self._rings.get(name)
        ring = self.source.ring(name) if known is None or known[0] != fingerprint else None
        if ring is not None:
            known = self._rings[name] = ring.fingerprint, pools.ring_figure(each, ring)
        return known[1] if known is not None else ""

    def _sight(self, number: int, name: str) -> PoolSight:
        now = self._past.last.pools[name].now
        span = self._past.span(name)
        keys = hot_keys(self.source.hot_keys(name))
        wall = self._past.last.wall
        return PoolSight(
            number=number,
            now=now,
            span=span,
            brisk=self._past.brisk(name),
            rates=self._past.rates(name),
            keys=keys,
            verdict=judge(now, span, keys),
            states={each.name: self._past.states(name, each.name) for each in now.backends},
            wall=wall,
        )

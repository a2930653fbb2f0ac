"""Orders to the workers: what is decided about states and weights takes effect, and nobody stands still for it.

States go out at once. New weights need new rings, and large rings take a while to build: they are built between the
other work of the event loop, and meanwhile the newest decision replaces those before it. Two rules hold all the time:
whoever may not be asked any more is not asked from now on, and whoever comes is asked only together with the weight
that it is to have.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, final

from lbproxy.channel import without_comers
from lbproxy.control.ring_changes import RingChanges, serving_in_pieces
from lbproxy.control.wellbeing import Mandate
from lbproxy.core.pieces import Pieces
from lbproxy.core.ring import Ring
from lbproxy.core.snapshot import States
from lbproxy.core.spec import PoolSpec
from lbproxy.ease import at_ease, begin
from lbproxy.observe.journal import Journal, describe
from lbproxy.supervisor import Supervisor

Standing = Mapping[str, tuple[PoolSpec, Ring, frozenset[str]]]


@final
class StandingOrders:
    """Of one supervisor (`wellbeing.Orders`). How the rings change by them is told to `rings`."""

    def __init__(self, supervisor: Supervisor, rings: RingChanges, journal: Journal) -> None:
        self._supervisor: Final = supervisor
        self._rings: Final = rings
        self._journal: Final = journal
        # What is to be in force when its rings are built, and who builds them.
        self._wanted: Mandate | None = None
        self._forging: asyncio.Task[None] | None = None
        self._measures: Final[deque[Pieces[None]]] = deque()
        self._measuring: asyncio.Task[None] | None = None

    def tell(self, states: States) -> None:
        """These pools have these states now; the weights are as they were."""
        if self._wanted is None:
            self._supervisor.adopt(states)
        else:
            self._wanted = replace(self._wanted, states={**self._wanted.states, **states})
            self._let_go(states)

    def reweigh(self, mandate: Mandate) -> None:
        """Weights have changed, and states may have."""
        if self._wanted is not None:
            self._wanted = replace(mandate, causes={**self._wanted.causes, **mandate.causes})
            self._let_go(mandate.states)
            return
        forging = self._supervisor.forge(self._supervisor.config, mandate.weights)
        if begin(forging):
            self._enforce(mandate)
            return
        self._wanted = mandate
        self._let_go(mandate.states)
        self._forging = asyncio.create_task(self._forge(forging, mandate))

    async def settled(self) -> None:
        """Wait until everything that has been decided has been ordered."""
        if self._forging is not None:
            await asyncio.wait((self._forging,))

    def replaced(self) -> None:
        """What was to be in force has been ordered in another way."""
        self._wanted = None
        if self._forging is not None:
            self._forging.cancel()

    def stop(self) -> None:
        """Order and measure nothing more."""
        self.replaced()
        if self._measuring is not None:
            self._measuring.cancel()

    def _let_go(self, states: States) -> None:
        known = self._supervisor.states
        leaving = without_comers(states, known)
        changed = {pool: of_pool for pool, of_pool in leaving.items() if of_pool != known.get(pool)}
        if changed:
            self._supervisor.adopt(changed)

    async def _forge(self, forging: Pieces[None], mandate: Mandate) -> None:
        try:
            await at_ease(forging)
            while (wanted := self._wanted) is not None and wanted.weights != mandate.weights:
                # Should the newest always be a newer one, the way there goes on all the same.
                self._enforce(replace(mandate, states=without_comers(wanted.states, self._supervisor.states)))
                mandate = wanted
                await at_ease(self._supervisor.forge(self._supervisor.config, mandate.weights))
            if wanted is not None:
                self._wanted = None
                self._enforce(wanted)
        except Exception as error:  # a bug; the next decision is another chance
            self._wanted = None
            self._journal.error("weights not in force", error=describe(error))

    def _enforce(self, mandate: Mandate) -> None:
        before = self.standing()
        self._supervisor.reweigh(mandate.weights, mandate.states)
        self.account(before, mandate.causes)

    # The account.

    def standing(self) -> Standing:
        """Each pool's ring, and who serves."""
        states = self._supervisor.states
        return {
            name: (pool.spec, pool.ring, frozenset([each for each, state in states.get(name, {}).items() if not state]))
            for name, pool in self._supervisor.snapshot.pools.items()
        }

    def account(self, before: Standing, causes: Mapping[str, str]) -> None:
        """Measure what has changed since `before`; of large rings the measure is known a moment later."""
        measure = self._measure(before, self.standing(), causes, time.time())
        if self._measures or not begin(measure):
            self._measures.append(measure)
            if len(self._measures) == 1:
                self._measuring = asyncio.create_task(self._measure_all())

    def _measure(self, before: Standing, after: Standing, causes: Mapping[str, str], wall: float) -> Pieces[None]:
        for name, (spec, ring, serving) in after.items():
            old = before.get(name)
            if old is None or old[1].fingerprint == ring.fingerprint:
                continue
            one = yield from serving_in_pieces(old[1], old[2], old[0])
            other = yield from serving_in_pieces(ring, serving, spec)
            yield from self._rings.observe(name, one, other, causes.get(name, "reload"), wall)

    async def _measure_all(self) -> None:
        while self._measures:
            try:
                await at_ease(self._measures[0])
            except Exception as error:  # a bug, and no reason not to measure what comes after it
                self._journal.error("change not measured", error=describe(error))
            self._measures.popleft()

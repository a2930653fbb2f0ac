"""The wellbeing of all pools: results in, orders for the workers out, and an account of everything that happened.

`PoolState` says what follows from the facts; here the facts arrive, from checks, from workers, from the slabs, from the
operator and from the clock, and whatever changes is handed on at once: states as a small order, weights as a new
generation. A reload is prepared as a copy and installed only once it has been put in force.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, final

from lbproxy.control.overrides import Ended, Override, Overrides, What
from lbproxy.control.pool_state import Change, Flip, PoolState, effective_weights
from lbproxy.control.probes import OK, UNABLE
from lbproxy.core.snapshot import States, Weights
from lbproxy.core.spec import Config
from lbproxy.ease import at_ease
from lbproxy.observe.journal import Journal, Level, describe

# How often slabs are looked at: failure rates, and whether what drains is empty.
LOOK_S: Final = 1.0
# Why a backend is ejected.
EJECTION_REASONS: Final = ("consecutive_errors", "failure_rate")

Name = tuple[str, str]  # pool and backend


@dataclass(frozen=True, slots=True)
class Mandate:
    """What the data plane is to go by: states by pool and backend, and weights where they are not the file's. `causes`
    says of each pool whose weights change why, as one of `pool_state.CAUSES`."""

    states: States
    weights: Weights
    causes: Mapping[str, str] = field(default_factory=dict)


class Orders(Protocol):
    """Where decisions go. Both take effect in all workers within milliseconds, in the order in which they are given."""

    def tell(self, states: States) -> None:
        """These pools have these states now; the weights are as they were."""
        ...

    def reweigh(self, mandate: Mandate) -> None:
        """Weights have changed, and states may have."""
        ...


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a backend has done so far, and what it holds now, tunnels included. `loops` of the bad answers speak against
    the request and not against the backend; such a one is counted as a loop first, and as bad when all of it has
    come."""

    good: int
    bad: int
    in_flight: int
    loops: int = 0


@dataclass(slots=True)
class Tally:
    """What has happened to one backend since it is known. It has been in its state `since`, a wall time, like
    `checked_at`, when its last check ended as `last_check`, with more of it in `check_why`."""

    checks: dict[str, int] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    ejections: dict[str, int] = field(default_factory=dict)
    spared: int = 0
    since: float = 0.0
    last_check: str = ""
    check_why: str = ""
    checked_at: float = 0.0
    traffic: Traffic | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """The state of things under a configuration that is not in force yet."""

    pools: dict[str, PoolState]
    overrides: Overrides
    ended: list[Ended]
    changes: dict[str, Change]
    mandate: Mandate


@final
class Wellbeing:
    """Of one supervisor. Call `start` once the loop runs; without it, `turn` is the clock (as tests use it)."""

    def __init__(
        self,
        overrides: Iterable[Override],
        orders: Orders,
        journal: Journal,
        read: Callable[[str, str], Traffic] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`read(pool, backend)` looks at the slabs."""
        self.overrides = Overrides(overrides)
        self.pools: dict[str, PoolState] = {}
        self.tallies: dict[Name, Tally] = {}
        # How often nobody was left in a pool, and the pools where nobody is.
        self.panics: dict[str, int] = {}
        self._panicking: set[str] = set()
        self._orders = orders
        self._journal = journal
        self._read = read
        self._clock = clock
        self._wall = wall
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._planning: asyncio.Task[None] | None = None
        self._looked_at = clock()
        self.changed: Callable[[], None] = _nothing

    # A configuration comes into force.

    def prepare(self, config: Config) -> Prepared:
        """What a configuration would come to now; nothing is changed yet."""
        overrides, ended = self.overrides.under(config)
        now = self._clock()
        pools = {spec.name: PoolState(spec, overrides, self.pools.get(spec.name)) for spec in config.pools}
        for state in pools.values():
            state.is_patient = self._loop is not None
        changes = {name: state.advance(now, "reload") for name, state in pools.items()}
        return Prepared(pools, overrides, ended, changes, self._mandate(pools, changes))

    def install(self, prepared: Prepared) -> None:
        """The configuration is in force."""
        self.pools = prepared.pools
        self.overrides = prepared.overrides
        names = {(pool, backend) for pool, state in self.pools.items() for backend in state.states}
        self.tallies = {name: self.tallies.get(name, Tally()) for name in sorted(names)}
        for pool, backend in names:
            if self.pools[pool].spec.ejection.failure_rate is None:
                # What has failed until somebody looks at rates again is not of that moment.
                self.tallies[pool, backend].traffic = None
        self.panics = {name: self.panics.get(name, 0) for name in self.pools}
        self._panicking &= self.pools.keys()
        self._tell_ended(prepared.ended)
        for name, change in prepared.changes.items():
            self._account(name, change, self._clock())
        if prepared.ended:
            self.changed()
        self._arm()

    # The facts.

    def note_probe(self, pool: str, backend: str, result: str, why: str = "") -> None:
        """A check has ended as one of `probes.RESULTS`; `why` says more of it."""
        state = self.pools.get(pool)
        if state is None or backend not in state.states:
            return
        now = self._clock()
        tally = self.tallies[pool, backend]
        tally.checks[result] = tally.checks.get(result, 0) + 1
        tally.last_check, tally.check_why, tally.checked_at = result, why, self._wall()
        if result != UNABLE and state.health.observe_probe(backend, result == OK, now):
            self.turn([pool])

    def is_flipping(self, pool: str, backend: str) -> bool:
        """Whether a backend is about to change its state, or has none yet."""
        state = self.pools.get(pool)
        health = state.health.backends.get(backend) if state is not None else None
        return health is not None and (health.streak > 0 or health.healthy is None)

    def note_streak(self, pool: str, backend: str, error: str) -> None:
        """A worker has met as many failures in a row as the pool allows; the last one was `error`."""
        state = self.pools.get(pool)
        if state is None or backend not in state.states:
            return
        before = state.health.spared
        if state.health.observe_streak(backend, self._clock()):
            self._tell_ejection(state, backend, "consecutive_errors", error)
            self.turn([pool])
        elif state.health.spared > before:
            self._tell_spared(pool, backend, error)

    def look(self) -> None:
        """Look at the slabs: failure rates, and what drains."""
        if self._read is None:
            return
        now = self._clock()
        turning = []
        for pool, state in self.pools.items():
            names = state.states if state.spec.ejection.failure_rate is not None else state.leaving
            read = [(backend, self._read(pool, backend)) for backend in names]
            turning += [pool for backend, traffic in read if self._look_at(state, backend, traffic, now)]
        if turning:
            self.turn(turning)

    def _look_at(self, state: PoolState, backend: str, traffic: Traffic, now: float) -> bool:
        pool = state.spec.name
        tally = self.tallies[pool, backend]
        is_rated = state.spec.ejection.failure_rate is not None
        before, tally.traffic = tally.traffic, traffic if is_rated else None
        has_changed = False
        if state.observe_traffic(backend, traffic.good + traffic.bad, traffic.in_flight, now):
            self._journal.info("backend is empty", pool=pool, backend=backend)
            has_changed = True
        if not is_rated or before is None:
            return has_changed
        good, bad = traffic.good - before.good, traffic.bad - before.bad
        if good < 0 or bad < 0 or traffic.loops < before.loops:
            return has_changed
        loops = min(bad, traffic.loops - before.loops)
        tally.traffic = replace(traffic, loops=before.loops + loops)
        spared = state.health.spared
        if state.health.observe_counts(backend, good, bad - loops, now):
            self._tell_ejection(state, backend, "failure_rate", "")
            return True
        if state.health.spared > spared:
            self._tell_spared(pool, backend, "")
        return has_changed

    # What the operator decides.

    def decide(self, put: Iterable[Override] = (), back: Iterable[tuple[str, str, What]] = ()) -> list[Ended]:
        """Put overrides in force and take others back (by pool, backend and what), all at once; returns the latter."""
        ended, pools = [], set()
        for pool, backend, what in back:
            ended += self.overrides.take_back(pool, backend, [what])
        for override in put:
            self._tell_ended(self.overrides.put(override))
            self._tell_set(override)
            pools.add(override.pool)
        self._tell_ended(ended)
        pools |= {each.override.pool for each in ended}
        if pools:
            self.changed()
            self.turn(sorted(pools), "override")
        return ended

    def _expire(self) -> None:
        ended = self.overrides.expire(self._wall())
        if ended:
            self._tell_ended(ended)
            self.changed()
            self.turn({each.override.pool for each in ended}, "override")

    # What follows.

    @staticmethod
    def _mandate(pools: Mapping[str, PoolState], changes: Mapping[str, Change]) -> Mandate:
        states = {name: dict(state.states) for name, state in pools.items()}
        causes = {name: change.cause for name, change in changes.items() if change.cause}
        return Mandate(states, effective_weights(pools), causes)

    def turn(self, pools: Iterable[str] | None = None, cause: str = "") -> None:
        """Let what is known take effect in these pools, by default in all."""
        now = self._clock()
        changes: dict[str, Change] = {}
        for name in self.pools if pools is None else dict.fromkeys(pools):
            state = self.pools.get(name)
            if state is not None:
                change = changes[name] = state.advance(now, cause)
                self._account(name, change, now)
        if any(change.cause for change in changes.values()):
            self._orders.reweigh(self._mandate(self.pools, changes))
        elif any(change.has_states for change in changes.values()):
            self._orders.tell({name: dict(self.pools[name].states) for name in changes if changes[name].has_states})
        self._arm()

    def _account(self, pool: str, change: Change, now: float) -> None:
        for flip in change.flips:
            tally = self.tallies[pool, flip.backend]
            tally.changes[flip.state] = tally.changes.get(flip.state, 0) + 1
            tally.since = self._wall()
            self._tell_flip(pool, flip, now)
        is_panicking = self.pools[pool].is_panicking
        if is_panicking and pool not in self._panicking:
            self.panics[pool] += 1
            self._panicking.add(pool)
            self._journal.error("no backend is eligible", pool=pool, panic=self.pools[pool].spec.panic)
        elif not is_panicking and pool in self._panicking:
            self._panicking.discard(pool)
            self._journal.info("backends are eligible again", pool=pool, count=len(self.pools[pool].serving))

    # Time.

    def start(self) -> None:
        """Let time do its work from now on."""
        self._loop = asyncio.get_running_loop()
        for state in self.pools.values():
            state.is_patient = True
        self._arm()

    def stop(self) -> None:
        """Do nothing more by itself."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        if self._planning is not None:
            self._planning.cancel()

    def _arm(self) -> None:
        """Set the one timer to when something is due next, and see that steps are planned."""
        if self._loop is None:
            return
        if self._planning is None and self._without_plan() is not None:
            self._planning = self._loop.create_task(self._plan())
        now = self._clock()
        dues = [state.due for state in self.pools.values() if state.due is not None]
        expiry = self.overrides.next_expiry()
        if expiry is not None:
            dues.append(now + expiry - self._wall())
        due = min([self._looked_at + LOOK_S, *dues])
        self._set_timer(max(0.0, due - now))

    def _set_timer(self, delay_s: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._on_time)

    def _without_plan(self) -> PoolState | None:
        """A pool whose next step takes long to work out."""
        now = self._clock()
        return next((state for state in self.pools.values() if state.needs_plan(now)), None)

    async def _plan(self) -> None:
        try:
            while (state := self._without_plan()) is not None:
                await at_ease(state.plan(self._clock()))
                self.turn([state.spec.name])
        except Exception as error:  # a bug; without a plan it goes on more slowly
            self._journal.error("pace not planned", error=describe(error))
        finally:
            self._planning = None

    def _on_time(self) -> None:
        try:
            self._let_time_pass()
        except Exception:  # a bug; without a timer no ejection would ever end, and what is due stays due
            self._set_timer(LOOK_S)
            raise

    def _let_time_pass(self) -> None:
        now = self._clock()
        self._expire()
        self.turn([name for name, state in self.pools.items() if state.due is not None and state.due <= now])
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self.look()
            self._arm()

    # What is told.

    def _tell_flip(self, pool: str, flip: Flip, now: float) -> None:
        health, tally = self.pools[pool].health.backends[flip.backend], self.tallies[pool, flip.backend]
        until = {"ejected": health.ejected_until, "held": health.held_until}.get(flip.state)
        level: Level = "warning" if flip.state in ("down", "ejected") else "info" if flip.was else "debug"
        self._journal.tell(
            level,
            "backend state",
            {
                "pool": pool,
                "backend": flip.backend,
                "state": flip.state,
                "was": flip.was or None,
                "check": tally.last_check or None,
                "why": tally.check_why or None,
                "for_s": None if until is None else round(until - now, 3),
            },
        )

    def _tell_ejection(self, state: PoolState, backend: str, reason: str, error: str) -> None:
        tally = self.tallies[state.spec.name, backend]
        tally.ejections[reason] = tally.ejections.get(reason, 0) + 1
        self._journal.warning(
            "backend ejected",
            pool=state.spec.name,
            backend=backend,
            reason=reason,
            error=error or None,
            for_s=state.health.backends[backend].ejection_s,
        )

    def _tell_spared(self, pool: str, backend: str, error: str) -> None:
        self.tallies[pool, backend].spared += 1
        self._journal.warning(
            "backend not ejected",
            pool=pool,
            backend=backend,
            error=error or None,
            why="max_share is ejected already, or it is the last one",
        )

    def _tell_set(self, override: Override) -> None:
        self._journal.info(
            "override set",
            pool=override.pool,
            backend=override.backend,
            what=override.what,
            weight=override.weight if override.what == "weight" else None,
            who=override.who,
            for_s=None if override.until is None else round(override.until - override.since, 3),
            reason=override.reason,
        )

    def _tell_ended(self, ended: Iterable[Ended]) -> None:
        for each in ended:
            override = each.override
            self._journal.info(
                "override ended", pool=override.pool, backend=override.backend, what=override.what, why=each.why
            )


def _nothing() -> None:
    """Nobody wants to know."""

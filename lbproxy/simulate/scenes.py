"""One run: a pool, its traffic and a way to place it, from the first event to the outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, final

from lbproxy.core.hotkeys import Room
from lbproxy.core.spec import PoolSpec
from lbproxy.simulate.engine import START, Engine
from lbproxy.simulate.machine import Machine, Router
from lbproxy.simulate.placements import Members, Placement, RingOf, placements
from lbproxy.simulate.routers import Plain, RandomJump
from lbproxy.simulate.tally import Outcome, Tally
from lbproxy.simulate.traffic import Load, Traffic

LBPROXY: Final = "lbproxy"
BOUNDED: Final = "bounded"
RANDOM_JUMP: Final = "random-jump"
ALGORITHMS: Final = (
    LBPROXY, BOUNDED, RANDOM_JUMP, "ring", "one-point", "rendezvous", "maglev", "jump", "partitions", "mod",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scene:
    """What a run is about. `zone` is the proxy's own."""

    pool: PoolSpec
    traffic: Traffic
    load: Load
    zone: str = ""

    @property
    def members(self) -> Members:
        """The backends by name and weight."""
        return [(backend.name, backend.weight) for backend in self.pool.backends]

    @property
    def seats(self) -> float:
        """About how much is in flight."""
        recorded = self.traffic.recorded
        if recorded:
            return sum(arrival.duration_s for arrival in recorded) / self.load.seconds
        return self.load.clients if self.load.rate is None else self.load.rate * self.load.service_s


@dataclass(frozen=True, slots=True)
class Result:
    """`found_s` is when all workers had found the hot key, from its beginning; `forgotten_s` when all had forgotten it,
    from its end; both None when it did not come to that. `reach` is over how many backends it was spread at most."""

    outcome: Outcome
    found_s: float | None = None
    forgotten_s: float | None = None
    reach: int = 0


@final
class _Watch:
    """Looks at what a machine thinks of the hot key, tick by tick."""

    def __init__(self, machine: Machine, h: int) -> None:
        self._machine = machine
        self._h = h
        self.found_at: float | None = None
        self.forgotten_at: float | None = None
        self.reach = 0

    def look(self, now: float) -> None:
        reach = self._machine.reach(self._h)
        if min(reach):
            self.found_at = self.found_at or now
        if any(reach):
            self.forgotten_at = None
        elif self.found_at is not None:
            self.forgotten_at = self.forgotten_at or now
        self.reach = max(self.reach, *reach)


def run(scene: Scene, algorithm: str = LBPROXY, report: Callable[[float], None] | None = None) -> Result:
    """Run the scene with one of ALGORITHMS. `report` is told how far it has come, from 0 to 1."""
    router = _router(scene, algorithm)
    end = START + scene.load.seconds
    tally = Tally(router, scene.traffic, hot_keys(scene, router), START + scene.load.warm_up_s)
    hot = scene.traffic.hot
    watch = _Watch(router, scene.traffic.hashes[hot]) if isinstance(router, Machine) and hot is not None else None
    Engine(router, scene.traffic, scene.load, tally, watch.look if watch else None, report).run()
    if watch is None:
        return Result(tally.outcome(end))
    habits = scene.traffic.habits
    began, ended = START + habits.hot_from_s, START + habits.hot_until_s
    return Result(
        tally.outcome(end),
        watch.found_at - began if watch.found_at is not None else None,
        watch.forgotten_at - ended if watch.forgotten_at is not None and watch.forgotten_at >= ended else None,
        watch.reach,
    )


def placement(algorithm: str, members: Members, vnodes: int) -> Placement:
    """Who owns what with one of ALGORITHMS."""
    ways = placements(vnodes)
    return ways[algorithm](members) if algorithm in ways else RingOf(members, vnodes)


def hot_keys(scene: Scene, router: Router) -> frozenset[int]:
    """The keys that are more than their owners can carry: what the core would find with perfect knowledge."""
    bounded = scene.pool.bounded_load
    room = Room(scene.seats, bounded.factor, bounded.min_gap)
    traffic = scene.traffic
    hot = {traffic.hot} if traffic.hot is not None else set()
    for key, share in enumerate(traffic.shares):
        if share > room.threshold(router.shares[router.owner(traffic.hashes[key])]):
            hot.add(key)
    return frozenset(hot)


def _router(scene: Scene, algorithm: str) -> Router:
    pool = scene.pool
    if algorithm == LBPROXY:
        return Machine(pool, scene.load.workers, scene.zone)
    if algorithm == BOUNDED:
        plain = replace(pool, hot_keys=replace(pool.hot_keys, mode="off"))
        return Machine(plain, scene.load.workers, scene.zone)
    if algorithm == RANDOM_JUMP:
        return RandomJump(pool)
    return Plain(pool, placement(algorithm, scene.members, pool.vnodes))

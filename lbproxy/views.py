"""What a running instance shows of itself: the documents and metrics behind the admin API (`admin.view.View`).

Everything is answered from memory. What is said of a key comes from the supervisor's own snapshot, which stands as
those of the workers do, through the very code that routes: so it is what happens to the key.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from lbproxy import __version__
from lbproxy.control.admin.documents import override_document, pin_document, pools_document, workers_document
from lbproxy.control.admin.key_documents import hot_keys_document, key_document
from lbproxy.control.admin.openapi import STEPS
from lbproxy.control.admin.view import Decision, Document, Rejected
from lbproxy.control.events import Events
from lbproxy.control.foresight import check_tokens, coming_to_rest
from lbproxy.control.health_families import health_families
from lbproxy.control.pins import Pins
from lbproxy.control.plan import Plan, Side, plan, plan_pool
from lbproxy.control.plan_text import pool_to_json, to_json
from lbproxy.control.pool_state import PoolState
from lbproxy.control.reload import Reloader
from lbproxy.control.ring_changes import RingChanges
from lbproxy.control.scene import Scene, Shares
from lbproxy.control.source import Source
from lbproxy.control.wellbeing import Wellbeing
from lbproxy.core.balance import Pool
from lbproxy.core.ring import Ring
from lbproxy.core.sample import Keys
from lbproxy.core.spec import Config, PoolSpec
from lbproxy.ease import at_ease
from lbproxy.observe.facts import process_families
from lbproxy.observe.lines import iso_time
from lbproxy.observe.names import KeyNames
from lbproxy.supervisor import Supervisor

T = TypeVar("T")

SECTORS: Final = 720  # in how many places a ring is shown
# So many plans may be asked for at a time; they are worked out one after the other.
MOST_PLANS: Final = 8


class Views:
    """The shown side of an instance; `instance.Instance` adds what can be done."""

    supervisor: Supervisor
    being: Wellbeing
    rings: RingChanges
    kept_events: Events
    reloader: Reloader
    source: Source
    set_pins: Pins
    writes: str
    # The fields of the file that is in force.
    fields: Document | None

    def __init__(self) -> None:
        self._shares = Shares()
        self.names = KeyNames()
        # Why what operators have decided is not on disk, by what it is (`Store.what`).
        self.not_saved: dict[str, str] = {}
        self._started_at = time.time()
        self._plans = 0
        self._plan_turn = asyncio.Lock()

    # The instance.

    def readiness(self) -> tuple[bool, str]:
        supervisor = self.supervisor
        if supervisor.is_draining:
            return False, "draining"
        statuses = supervisor.statuses()
        ready = sum(status.state == "ready" for status in statuses)
        said = [f"{ready} of {len(statuses)} workers ready"]
        said += [
            f"worker {status.slot} has been silent for {status.silent_s} s" for status in statuses if status.is_silent
        ]
        return supervisor.is_ready(), ", ".join(said)

    def metrics(self) -> str:
        supervisor = self.supervisor
        families = process_families(supervisor.statuses(), supervisor.restarts, self.reloader.status)
        return supervisor.page.render(supervisor.slabs, (*families, *health_families(self.scene())))

    def info(self) -> Document:
        supervisor = self.supervisor
        return {
            "version": __version__,
            "python": platform.python_version(),
            "pid": os.getpid(),
            "started_at": iso_time(int(self._started_at * 1000)),
            "uptime_s": round(time.time() - self._started_at, 3),
            "zone": supervisor.config.zone,
            "config": supervisor.config.source,
            "generation": supervisor.generation,
            "fingerprint": supervisor.snapshot.fingerprint,
            "ready": supervisor.is_ready(),
            "draining": supervisor.is_draining,
            "workers": len(supervisor.statuses()),
            "silent_workers": [
                {"worker": status.slot, "silent_s": status.silent_s}
                for status in supervisor.statuses()
                if status.is_silent
            ],
            "listeners": [{"name": name, "address": text} for name, text in supervisor.addresses.items()],
            "writes": self.writes,
            "reload": self._last_reload(),
            "needs_restart": list(self.reloader.needs_restart),
            "overrides": [override_document(override) for override in self.being.overrides],
            "not_saved": list(self.not_saved.values()),
        }

    def _last_reload(self) -> Document | None:
        last = self.reloader.last
        if last is None:
            return None
        at = iso_time(int(self.reloader.status.at * 1000))
        return {"result": last.outcome, "at": at, "problem": last.problems[0] if last.problems else None}

    def config(self) -> Document:
        config = self.supervisor.config
        return {
            "source": config.source,
            "generation": self.supervisor.generation,
            "fingerprint": self.supervisor.snapshot.fingerprint,
            # Not that of `config`, which has the pins of operators in it, and not that of a file that was refused.
            "config": self.source.fields(self.reloader.current) or self.fields,
            "overrides": [override_document(override) for override in self.being.overrides],
        }

    def workers(self) -> Document:
        supervisor = self.supervisor
        lists = supervisor.slabs.lists(supervisor.layout.end)
        return workers_document(supervisor.statuses(), supervisor.layout.rows, lists)

    def events(self, after: int = 0) -> Sequence[Document]:
        return self.kept_events.after(after)

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        return self.kept_events.subscribe(notify)

    # Pools.

    def scene(self) -> Scene:
        """How everything stands now."""
        supervisor = self.supervisor
        return Scene(
            supervisor.snapshot,
            supervisor.layout.rows,
            supervisor.totals(),
            self.being,
            self.rings,
            self._shares,
            time.monotonic(),
            time.time(),
        )

    def pools(self) -> Document:
        return pools_document(self.scene())

    def _pool(self, name: str) -> Pool:
        pool = self.supervisor.snapshot.pools.get(name)
        if pool is None:
            raise Rejected(404, f"there is no pool {name}")
        return pool

    def ring(self, pool: str) -> Ring | None:
        found = self.supervisor.snapshot.pools.get(pool)
        return found.ring if found is not None else None

    def ring_document(self, pool: str) -> Document:
        found = self._pool(pool)
        ring = found.ring
        owned = self._shares.of(found)
        members = zip(ring.names, ring.weights, ring.counts, strict=True)
        places = range(0, ring.size, ring.size // SECTORS)[:SECTORS]
        return {
            "pool": pool,
            "generation": self.supervisor.generation,
            "fingerprint": ring.fingerprint,
            "hash_version": found.spec.hash_version,
            "vnodes": found.spec.vnodes,
            "points": len(ring.tokens),
            "members": [
                {"name": name, "effective_weight": weight, "points": count, "ring_share": owned[name]}
                for name, weight, count in members
            ],
            "sectors": [ring.owner(place) for place in places] if ring.tokens else [],
        }

    def pins(self, pool: str) -> Document:
        set_pins = {each.place: each for each in self.set_pins}
        return {
            "pool": pool,
            "pins": [
                pin_document(pin, set_pins.get((pool, pin.key, pin.is_prefix))) for pin in self._pool(pool).spec.pins
            ],
            "not_saved": self.not_saved.get("pins"),
        }

    # Keys.

    def hot_keys(self, pool: str) -> Document:
        name_of = self.names.get if self.supervisor.config.admin.show_keys else None
        return hot_keys_document(self._pool(pool), name_of, time.monotonic(), time.time())

    async def explain(self, pool: str, key: bytes, most: int = STEPS) -> Document:
        found = self._pool(pool)
        words, generation = self.being.pools[pool].words, self.supervisor.generation
        return await at_ease(key_document(found, key, words, generation, most))

    # Plans.

    async def plan_change(self, pool: str, decisions: Sequence[Decision]) -> Document:
        self._pool(pool)
        state = self.being.pools[pool]
        check_tokens(state, decisions)
        here, there = self._side_now(state), self._side_after(state, state, decisions)
        samples = await self.supervisor.keys()
        keys = samples.get(pool, Keys())
        found = await self._worked_out(lambda: plan_pool(here(), there(), keys))
        return {"generation": self.supervisor.generation, **pool_to_json(found)}

    async def plan_config(self, config: Config, needs_restart: Sequence[str]) -> Document:
        """What this configuration would change."""
        prepared = self.being.prepare(config)
        makers = {
            name: (self._side_now(self.being.pools[name]), self._side_after(self.being.pools[name], state, ()))
            for name, state in prepared.pools.items()
            if name in self.being.pools
        }
        before, samples = self.supervisor.config, await self.supervisor.keys()

        def make() -> Plan:
            sides = {name: (here(), there()) for name, (here, there) in makers.items()}
            return plan(before, config, sides, samples, needs_restart)

        found = await self._worked_out(make)
        return {
            "generation": self.supervisor.generation,
            "overrides_ended": [override_document(each.override) for each in prepared.ended],
            **to_json(found),
        }

    async def _worked_out(self, make: Callable[[], T]) -> T:
        """What `make` comes to, worked out in a thread. With large rings that takes many seconds, and all who may read
        may ask: they must not take the threads that a reload needs, nor the memory. Raises Rejected."""
        if self._plans >= MOST_PLANS:
            raise Rejected(503, f"{MOST_PLANS} plans are being worked out already, ask again later")
        self._plans += 1
        try:
            async with self._plan_turn:
                return await asyncio.to_thread(make)
        finally:
            self._plans -= 1

    # A `Side` takes long to make of a large ring, and is made in a thread.

    def _side_now(self, state: PoolState) -> Callable[[], Side]:
        return self._side(state.spec, state.weights, state.serving)

    def _side_after(self, before: PoolState, state: PoolState, decisions: Sequence[Decision]) -> Callable[[], Side]:
        return self._side(state.spec, *coming_to_rest(before, state, decisions))

    def _side(self, spec: PoolSpec, weights: Mapping[str, float], serving: Collection[str]) -> Callable[[], Side]:
        ring = self.ring(spec.name)
        return partial(Side, spec, weights, serving, self.supervisor.config.zone, ring)

"""What a running instance shows of itself: the documents and metrics behind the admin API (`admin.view.View`).

Everything is answered from memory. What is said of a key comes from the supervisor's own snapshot, which stands as
those of the workers do, through the very code that routes: so it is what happens to the key.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from lbproxy import __version__
from lbproxy.control.admin.documents import override_document, pin_document, pools_document, workers_document
from lbproxy.control.admin.openapi import STEPS
from lbproxy.control.admin.view import Decision, Document, Rejected
from lbproxy.control.checks import MAX_TOKENS
from lbproxy.control.events import Events
from lbproxy.control.explain import Step, steps
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
from lbproxy.core.account import DRAINING, OUT, Backend
from lbproxy.core.balance import Pool
from lbproxy.core.hashing import hash_key
from lbproxy.core.ledger import DECISIONS, FAILOVER, NO_KEY, OWNER, PINNED, SPILL_FULL, SPILL_HOT
from lbproxy.core.reasons import reasons
from lbproxy.core.ring import Ring
from lbproxy.core.sample import Keys
from lbproxy.core.spec import Config, PoolSpec
from lbproxy.observe.facts import process_families
from lbproxy.observe.lines import iso_time
from lbproxy.observe.names import MOST_NAMED, KeyNames
from lbproxy.supervisor import Supervisor

HOT_KEYS_SHOWN = MOST_NAMED
SECTORS = 720


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

    def __init__(self) -> None:
        self._shares = Shares()
        self.names = KeyNames()
        self._started_at = time.time()

    # The instance.

    def readiness(self) -> tuple[bool, str]:
        supervisor = self.supervisor
        if supervisor.is_draining:
            return False, "draining"
        statuses = supervisor.statuses()
        ready = sum(status.state == "ready" for status in statuses)
        return supervisor.is_ready(), f"{ready} of {len(statuses)} workers ready"

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
            "listeners": [{"name": name, "address": text} for name, text in supervisor.addresses.items()],
            "writes": self.writes,
            "reload": self._last_reload(),
            "needs_restart": list(self.reloader.needs_restart),
            "overrides": [override_document(override) for override in self.being.overrides],
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
            "config": self.source.fields(config),
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
        }

    def hot_keys(self, pool: str) -> Document:
        found = self._pool(pool)
        hot = found.account.hot
        top = hot.top
        now, wall = time.monotonic(), time.time()
        is_shown = self.supervisor.config.admin.show_keys
        keys = []
        for rank, row in enumerate(top.rows[:HOT_KEYS_SHOWN], start=1):
            known = hot.hot.get(row.key)
            homes = [backend.name for backend in found.replicas(row.key)]
            keys.append(
                {
                    "rank": rank,
                    "hash": f"0x{row.key:016x}",
                    "key": self.names.get(row.key) if is_shown else None,
                    "requests_share": row.requests / top.requests if top.requests else 0.0,
                    "work_share": row.work / top.work if top.work else 0.0,
                    "in_flight": row.held,
                    "hot": known is not None,
                    "reach": known.reach if known is not None else 1,
                    "backends": homes[: known.reach if known is not None else 1],
                    "since": iso_time(int((wall + known.since - now) * 1000)) if known is not None else None,
                }
            )
        return {"pool": pool, "mode": found.spec.hot_keys.mode, "names_shown": is_shown, "keys": keys}

    # A key.

    def explain(self, pool: str, key: bytes, most: int = STEPS) -> Document:
        found = self._pool(pool)
        h = hash_key(key)
        backend, decision, why = _decide(found, key, h)
        hot = found.account.hot.hot.get(h)
        pin = found.pinned(key)
        words = self.being.pools[pool].words
        listed = reasons(found, h)
        told = zip(listed[:most], islice(self._steps(found, h), most), strict=True)
        return {
            "pool": pool,
            "key": key.decode("utf-8", "backslashreplace"),
            "key_hex": key.hex(),
            "hash": f"0x{h:016x}",
            "hash_version": found.spec.hash_version,
            "generation": self.supervisor.generation,
            "fingerprint": found.ring.fingerprint,
            "hot": None
            if hot is None
            else {"requests_share": hot.requests, "work_share": hot.work, "reach": hot.reach},
            "pin": None if pin is None else {"backend": pin.backend, "on_down": pin.on_down},
            "decision": {
                "backend": backend.name if backend is not None else None,
                "decision": DECISIONS[decision] if backend is not None else None,
                "why": why,
            },
            "preference": [_preference(found, each, reason, words[each.name], step) for (each, reason), step in told],
            "further": max(0, len(listed) - most),
        }

    @staticmethod
    def _steps(pool: Pool, h: int) -> Iterable[Step]:
        specs = {backend.name: backend.spec for backend in pool.backends.values()}
        return steps(pool.ring, h, specs, pool.spec.hash_version)

    # Plans.

    async def plan_change(self, pool: str, decisions: Sequence[Decision]) -> Document:
        self._pool(pool)
        state = self.being.pools[pool]
        check_tokens(state, decisions)
        here, there = self._side_now(state), self._side_after(state, state, decisions)
        samples = await self.supervisor.keys()
        keys = samples.get(pool, Keys())
        found = await asyncio.to_thread(lambda: plan_pool(here(), there(), keys))
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

        found = await asyncio.to_thread(make)
        return {
            "generation": self.supervisor.generation,
            "overrides_ended": [override_document(each.override) for each in prepared.ended],
            **to_json(found),
        }

    # A `Side` takes long to make of a large ring, and is made in a thread.

    def _side_now(self, state: PoolState) -> Callable[[], Side]:
        return self._side(state.spec, state.weights, state.serving)

    def _side_after(self, before: PoolState, state: PoolState, decisions: Sequence[Decision]) -> Callable[[], Side]:
        return self._side(state.spec, *self._after(before, state, decisions))

    def _side(self, spec: PoolSpec, weights: Mapping[str, float], serving: Collection[str]) -> Callable[[], Side]:
        ring = self.ring(spec.name)
        return partial(Side, spec, weights, serving, self.supervisor.config.zone, ring)

    def _after(
        self, before: PoolState, state: PoolState, decisions: Sequence[Decision]
    ) -> tuple[dict[str, float], list[str]]:
        """The weights of a pool and who serves, once everything has come to rest: those that are down now stay so,
        newcomers turn out well."""
        names = [backend.name for backend in state.spec.backends]
        _check_names(state.spec.name, names, decisions)
        of = {decision.backend: decision for decision in decisions}
        weights = {name: _weight_after(state, name, of.get(name)) for name in names}
        serving = [
            name
            for name in names
            if weights[name]
            and not _drains_after(state, name, of.get(name))
            and (name in before.serving or before.states.get(name, DRAINING) == DRAINING or name not in before.states)
        ]
        return weights, serving


def check_tokens(state: PoolState, decisions: Sequence[Decision]) -> None:
    """Before any ring is built. Raises Rejected for weights that make one too large."""
    of = {decision.backend: decision for decision in decisions}
    names = [backend.name for backend in state.spec.backends]
    _check_names(state.spec.name, names, decisions)
    tokens = sum(_weight_after(state, name, of.get(name)) for name in names) * state.spec.vnodes
    if tokens > MAX_TOKENS:
        raise Rejected(422, f"these weights make {tokens:,.0f} tokens, more than {MAX_TOKENS:,}")


def _check_names(pool: str, names: Sequence[str], decisions: Sequence[Decision]) -> None:
    for decision in decisions:
        if decision.backend not in names:
            raise Rejected(404, f"pool {pool} has no backend {decision.backend}")


def _weight_after(state: PoolState, name: str, decision: Decision | None) -> float:
    if decision is None or decision.weight is ...:
        return state.wanted(name)
    if decision.weight is None:
        return next(backend.weight for backend in state.spec.backends if backend.name == name)
    assert isinstance(decision.weight, float)
    return decision.weight


def _drains_after(state: PoolState, name: str, decision: Decision | None) -> bool:
    if decision is None or decision.is_drained is ...:
        return state.overrides.is_drained(state.spec.name, name)
    return bool(decision.is_drained)


def _decide(pool: Pool, key: bytes, h: int) -> tuple[Backend | None, int, str]:
    """What a worker does with a request of this key that has no cookie of ours, and why in a sentence."""
    account = pool.account
    if pool.spec.on_move == "pin":
        home = pool.home(h)
        if home is not None and account.load(home) < home.limit:
            return home, PINNED, f"the user has a WebSocket open to {home.name}"
    pin = pool.pinned(key)
    pinned = pool.backends.get(pin.backend) if pin is not None else None
    if pin is not None and pinned is not None:
        if pinned.state != OUT and account.load(pinned) < pinned.limit:
            return pinned, PINNED, f"the key is pinned to {pinned.name}"
        if pin.on_down == "reject":
            return None, PINNED, f"the key is pinned to {pinned.name}, which cannot serve, and may go nowhere else"
    backend, decision = pool.pick(h)
    return backend, decision, _why(pool, h, backend, decision)


def _why(pool: Pool, h: int, backend: Backend | None, decision: int) -> str:
    owner = pool.owner(h)
    if backend is None:
        if decision == FAILOVER:
            return "no backend is eligible: 503"
        return "every eligible backend is at its max_in_flight: the request waits for a seat"
    if owner is None or decision == NO_KEY:
        return f"{backend.name} is the least loaded"
    if decision == OWNER:
        return (
            f"{backend.name} owns the key" if backend is owner else f"{backend.name} is one of the hot key's backends"
        )
    sentences: Mapping[int, str] = {
        FAILOVER: f"{owner.name} owns the key and may not be asked; {backend.name} is the next that may serve",
        SPILL_HOT: f"the key is hot; of the backends it is spread over, {backend.name} is the least loaded",
        SPILL_FULL: f"{owner.name} owns the key and is full; {backend.name} is the next with room",
    }
    return sentences[decision]


def _preference(pool: Pool, backend: Backend, reason: str, word: str, step: Step) -> dict[str, Any]:
    return {
        "backend": backend.name,
        "address": str(backend.address),
        "zone": backend.spec.zone,
        "weight": backend.weight,
        "state": word,
        "token": f"0x{step.token:016x}",
        "token_number": step.number,
        "distance_ratio": step.distance,
        "in_flight": pool.account.load(backend),
        "slots": pool.slots(backend),
        "may_serve": reason.endswith("may serve"),
        "reason": reason,
    }

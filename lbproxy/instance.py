"""A running proxy: the workers, the health of the backends, reloading and what operators decide, wired together.

facts (checks, workers, slabs, operators, the clock) -> Wellbeing -> states and weights -> Supervisor -> workers
file -> Reloader -> Wellbeing.prepare -> Supervisor.put -> Wellbeing.install
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final

from lbproxy.control.admin.documents import pool_document
from lbproxy.control.admin.view import Decision, Document, Rejected
from lbproxy.control.build import build
from lbproxy.control.config import decode, examine_text, reads
from lbproxy.control.events import EventJournal, Events
from lbproxy.control.foresight import check_tokens, coming_to_rest
from lbproxy.control.hot_watch import HotWatch
from lbproxy.control.lookups import Lookups
from lbproxy.control.overrides import Override, What, override_store
from lbproxy.control.pins import MOST_PINS, Pins, SetPin, pin_store
from lbproxy.control.probes import Prober
from lbproxy.control.problems import ConfigError, Problem
from lbproxy.control.reload import Refused, Reloader, ReloadResult
from lbproxy.control.restart import needs_restart
from lbproxy.control.ring_changes import RingChanges
from lbproxy.control.source import Source, Watcher
from lbproxy.control.store import Store, StoreBroken, T
from lbproxy.control.wellbeing import Mandate, Traffic, Wellbeing
from lbproxy.core.ledger import (
    BACKEND_ERRORS,
    BACKEND_IN_FLIGHT,
    BACKEND_LOOPS,
    BACKEND_REQUESTS,
    BACKEND_UPGRADED_OPEN,
    CODE_CLASSES,
    UPSTREAM_ERRORS,
)
from lbproxy.core.snapshot import States
from lbproxy.core.spec import Config, Pin
from lbproxy.ease import at_ease
from lbproxy.observe.journal import Stderr, describe
from lbproxy.observe.tracing import CannotTrace, Tracing, check
from lbproxy.orders import StandingOrders
from lbproxy.supervisor import CannotApply, CannotStart, Supervisor
from lbproxy.views import Views

# Which of the counted answers are a backend's good ones.
_GOOD: Final = len(CODE_CLASSES) - 1
# The name of a configuration that came with a request.
_REQUEST: Final = "<request>"


class Instance(Views):
    """What runs. Also what the admin API sees and has done (`admin.view.Instance`)."""

    def __init__(self, config: Config, source: Source, emit: Stderr) -> None:
        """`source` is where `config` came from. Raises CannotStart."""
        super().__init__()
        self._emit = emit
        self.source = source
        self.fields = source.fields(config)
        self.writes = "token" if config.admin.token_file else "off"
        self.kept_events = Events()
        self.journal = EventJournal(emit, self.kept_events)
        self.rings = RingChanges(self.journal)
        self.stop_wanted = asyncio.Event()
        self._tracing = Tracing(self.journal)
        try:
            self._tracing.follow(config)
        except CannotTrace as error:
            raise CannotStart(str(error)) from None
        # What operators decide is kept beside the admin socket, if there is one.
        socket = config.admin.socket
        self._override_store = override_store(f"{socket}.overrides") if socket else None
        self._pin_store = pin_store(f"{socket}.pins") if socket else None
        self.being = Wellbeing(self._load(self._override_store), self, self.journal, self._read_traffic)
        self.being.changed = lambda: self._save(self._override_store, self.being.overrides)
        self.being.overrides.expire(time.time())
        self._pinning = asyncio.Lock()
        self._kept_pins = Pins(self._load(self._pin_store))
        pinned, self.set_pins = self._kept_pins.under(config)
        prepared = self.being.prepare(pinned)
        self.supervisor = Supervisor(pinned, self.journal, prepared.mandate.weights, prepared.mandate.states)
        self._orders = StandingOrders(self.supervisor, self.rings, self.journal)
        self.being.install(prepared)
        self.rings.keep(self.being.pools)
        self.supervisor.on_failing = self.being.note_streak
        self.supervisor.on_spans = self._tracing.take
        self.supervisor.on_names = self.names.take
        hot_watch = HotWatch(self.journal)
        self.supervisor.on_sweep = lambda: hot_watch.look(self.supervisor.snapshot.pools)
        self.reloader = Reloader(config, source.load, self._apply, self.journal)
        self._prober = Prober(self.being.note_probe, self.being.is_flipping)
        self._lookups = Lookups(self.journal)
        self._watcher = Watcher(source, lambda: self.supervisor.config.watch, self._on_file_changed)
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Check the backends, start the workers; return when all serve. Raises CannotStart."""
        self.being.start()
        self._prober.follow(self.supervisor.config)
        self._lookups.follow(self.supervisor.config)
        if self.source.is_file:
            self._watching = asyncio.create_task(self._watcher.run())
        await self.supervisor.start()

    async def stop(self) -> None:
        """Let running exchanges end, and end everything."""
        await self._stop_steering()
        await self.supervisor.drain()
        await self._tracing.close()

    async def abort(self) -> None:
        """End everything at once."""
        await self._stop_steering()
        self.supervisor.kill()
        await self.supervisor.drain()

    async def _stop_steering(self) -> None:
        self.being.stop()
        self._orders.stop()
        if self._watching is not None:
            self._watching.cancel()
        self._lookups.stop()
        await self._prober.close()

    def close(self) -> None:
        """Give everything back, at the very end."""
        self.supervisor.close()

    # Orders (`wellbeing.Orders`).

    def tell(self, states: States) -> None:
        self._orders.tell(states)

    def reweigh(self, mandate: Mandate) -> None:
        self._orders.reweigh(mandate)

    def _read_traffic(self, pool: str, backend: str) -> Traffic:
        row = self.supervisor.layout.rows[("backend", pool, backend)]
        slabs = self.supervisor.slabs.cells
        first, errors = row + BACKEND_REQUESTS, row + BACKEND_ERRORS
        good = sum(sum(cells[first : first + _GOOD]) for cells in slabs)
        bad = sum(cells[first + _GOOD] + sum(cells[errors : errors + len(UPSTREAM_ERRORS)]) for cells in slabs)
        in_flight = sum(cells[row + BACKEND_IN_FLIGHT] + cells[row + BACKEND_UPGRADED_OPEN] for cells in slabs)
        return Traffic(good, bad, in_flight, sum(cells[row + BACKEND_LOOPS] for cells in slabs))

    # Reloading.

    async def reload_now(self) -> ReloadResult:
        """Read the configuration again and put it in force, or tell why not."""
        return await self.reloader.reload()

    async def _on_file_changed(self) -> None:
        self.journal.info("configuration file has changed", path=self.source.path)
        try:
            await self.reloader.reload()
        except Exception as error:  # a bug, and no reason to stop watching
            self.journal.error("reload failed", error=describe(error))

    async def _apply(self, config: Config) -> bool:
        try:
            check(config.tracing)
        except CannotTrace as error:
            raise Refused(str(error)) from None
        fields = self.source.fields(config)
        weights = self.being.prepare(config).mandate.weights
        await at_ease(self.supervisor.forge(config, weights))
        # The world has gone on meanwhile: pins that have been set are in force from here on, or they would be lost.
        config, pins = self.set_pins.under(config)
        prepared = self.being.prepare(config)
        before = self._orders.standing()
        try:
            number = self.supervisor.put(config, prepared.mandate.weights, prepared.mandate.states)
        except CannotApply as error:
            raise Refused(str(error)) from None
        self._orders.replaced()
        self.fields = fields or self.fields
        self.set_pins = pins
        self._save_pins()
        self.being.install(prepared)
        self.rings.keep(self.being.pools)
        self._shares.keep(self.being.pools)
        self._orders.account(before, prepared.mandate.causes)
        self._prober.follow(config)
        self._lookups.follow(config)
        self._tracing.follow(config)
        if not config.admin.show_keys:
            self.names.clear()
        self._emit.configure(config.log.level, config.log.format)
        is_complete = await self.supervisor.acknowledged(number)
        self.journal.info("configuration applied", generation=number, fingerprint=self.supervisor.snapshot.fingerprint)
        return is_complete

    # What operators have done (`admin.view.Operator`).

    async def reload(self) -> Document:
        result = await self.reloader.reload()
        if result.outcome == "refused":
            raise Rejected(
                409,
                "the configuration is refused, the one before it stays in force",
                problems=list(result.problems),
                generation=self.supervisor.generation,
            )
        return {
            "outcome": result.outcome,
            "generation": self.supervisor.generation,
            "fingerprint": self.supervisor.snapshot.fingerprint,
            "needs_restart": list(result.needs_restart),
            "complete": result.is_complete,
        }

    async def check_text(self, text: bytes) -> Document:
        config, problems = await asyncio.to_thread(_examined, text)
        waiting = None if config is None else list(needs_restart(self.reloader.started_with, config))
        return {
            "ok": not problems,
            "problems": [problem.as_dict() for problem in problems],
            "needs_restart": waiting,
        }

    async def plan_text(self, text: bytes | None) -> Document:
        try:
            if text is None and not self.source.is_file:
                config = self.supervisor.config
            elif text is None:
                config = await asyncio.to_thread(self.source.read_again)
            else:
                config = await asyncio.to_thread(_config_of, text)
        except ConfigError as error:
            problems = [problem.as_dict() for problem in error.problems]
            raise Rejected(422, str(error).partition("\n")[0], problems=problems) from None
        config, _ = self.set_pins.under(config)
        return await self.plan_config(config, needs_restart(self.reloader.started_with, config))

    async def decide(
        self, pool: str, decisions: Sequence[Decision], who: str, ttl_s: float | None, reason: str, is_forced: bool
    ) -> Document:
        self._pool(pool)
        self._check_decisions(pool, decisions, is_forced)
        put, back = self._overrides(pool, decisions, who, ttl_s, reason)
        self.being.decide(put, back)
        await self._orders.settled()
        if not await self.supervisor.adopted():
            self.journal.warning("a worker has not acknowledged a decision yet")
        return {**pool_document(self.scene(), self._pool(pool)), "not_saved": self.not_saved.get("overrides")}

    def _check_decisions(self, pool: str, decisions: Sequence[Decision], is_forced: bool) -> None:
        state = self.being.pools[pool]
        check_tokens(state, decisions)
        _, serving = coming_to_rest(state, state, decisions)
        if state.serving and not serving and not is_forced:
            raise Rejected(
                409,
                f"nobody in {pool} would be left to serve; if that is meant, say so (--force, or `force` in the API)",
            )

    def _overrides(
        self, pool: str, decisions: Sequence[Decision], who: str, ttl_s: float | None, reason: str
    ) -> tuple[list[Override], list[tuple[str, str, What]]]:
        """What is to be in force, and what is to be taken back."""
        now = time.time()
        until = None if ttl_s is None else now + ttl_s
        weights = {backend.name: backend.weight for backend in self.being.pools[pool].spec.backends}
        put: list[Override] = []
        back: list[tuple[str, str, What]] = []
        for decision in decisions:
            name = decision.backend
            if isinstance(decision.weight, float):
                put.append(Override(pool, name, "weight", decision.weight, weights[name], who, now, until, reason))
            elif decision.weight is None:
                back.append((pool, name, "weight"))
            if decision.is_drained is True:
                put.append(Override(pool, name, "drain", 0.0, weights[name], who, now, until, reason))
            elif decision.is_drained is False:
                back.append((pool, name, "drain"))
        return put, back

    async def pin(self, pool: str, pin: Pin, who: str, reason: str) -> Document:
        backends = self._pool(pool).backends
        if pin.backend not in backends:
            raise Rejected(404, f"there is no backend {pin.backend} in {pool}")
        made = SetPin(pool, pin, who, time.time(), reason)
        async with self._pinning:
            if len(self.set_pins.with_one(made).of(pool)) > MOST_PINS:
                raise Rejected(409, f"{pool} has {MOST_PINS} pins already, and no more can be set")
            await self._put_pins(self.set_pins.with_one(made))
        self.journal.info("pin set", pool=pool, backend=pin.backend, by=who, reason=reason)
        return self.pins(pool)

    async def unpin(self, pool: str, key: str, is_prefix: bool, who: str) -> Document:
        self._pool(pool)
        async with self._pinning:
            place = (pool, key, is_prefix)
            if place not in {each.place for each in self.set_pins}:
                raise Rejected(404, "no operator has set that pin")
            await self._put_pins(self.set_pins.without(place))
        self.journal.info("pin taken back", pool=pool, by=who)
        return self.pins(pool)

    async def _put_pins(self, pins: Pins) -> None:
        before, self.set_pins = self.set_pins, pins
        try:
            await self.reloader.again()
        except Refused as error:
            raise Rejected(409, f"the pins cannot be put in force: {error}") from None
        finally:
            if self.set_pins is pins:  # what is in force is a copy of them
                self.set_pins = before

    def drain_process(self) -> None:
        self.stop_wanted.set()

    # Keeping what they have decided.

    def _load(self, store: Store[T] | None) -> list[T]:
        if store is None:
            return []
        try:
            return store.load()
        except StoreBroken as error:
            self.journal.error(f"{store.what} not read", problem=str(error))
            return []

    def _save(self, store: Store[T] | None, decisions: Iterable[T]) -> None:
        if store is None:
            return
        self.not_saved.pop(store.what, None)
        try:
            store.save(decisions)
        except StoreBroken as error:
            self.not_saved[store.what] = str(error)
            self.journal.error(f"{store.what} not kept", problem=str(error))

    def _save_pins(self) -> None:
        if list(self.set_pins) != list(self._kept_pins):
            self._kept_pins = self.set_pins
            self._save(self._pin_store, self.set_pins)


def _config_of(text: bytes) -> Config:
    """The configuration in a text. Raises ConfigError."""
    return build(reads(decode(text, _REQUEST), _REQUEST), source=_REQUEST)


def _examined(text: bytes) -> tuple[Config | None, Sequence[Problem]]:
    """The configuration in a text, if it is one, and everything that would keep this process from running it."""
    try:
        found = examine_text(decode(text, _REQUEST), _REQUEST)
    except ConfigError as error:
        return None, error.problems
    return None if found.file is None else build(found.file, source=_REQUEST), found.wrong(is_proxy=True)

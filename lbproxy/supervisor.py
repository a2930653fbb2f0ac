"""The supervisor's core: listening sockets, slabs, worker slots, and the generation that all of them are on.

It never touches user traffic. `start` brings everything up, `put` moves all workers to another configuration or raises
and has changed nothing, `drain` lets everything end in peace. Whoever owns it (the server) turns signals and files into
calls of these.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, cast

from lbproxy.channel import (
    MAX_DESCRIPTORS,
    Adopt,
    Generation,
    Order,
    ReopenLogs,
    Report,
    Sockets,
    Tables,
    TellKeys,
    pack_order,
)
from lbproxy.core.ledger import WORKER_TICKS, Cells, RowKey
from lbproxy.core.pieces import Pieces, at_once
from lbproxy.core.rings import Rings
from lbproxy.core.sample import Keys
from lbproxy.core.snapshot import Snapshot, States, Weights, build_snapshot, previous_rings, snapshot_rings
from lbproxy.core.spec import Config
from lbproxy.memories import Memories, Memory, give_back, remember
from lbproxy.observe.access_log import open_sink
from lbproxy.observe.facts import WorkerStatus, snapshot_families
from lbproxy.observe.journal import Journal, describe
from lbproxy.observe.metrics import Page
from lbproxy.observe.slabs import CAPACITY, CELL_BYTES, Layout, LayoutFull, Slabs, sums
from lbproxy.samples import Answers
from lbproxy.slot import Package, Slot
from lbproxy.sockets import CannotListen, Listeners
from lbproxy.waiting import Waiting

SWEEP_INTERVAL_S: Final = 1.0
APPLY_TIMEOUT_S: Final = 15.0
ADOPT_TIMEOUT_S: Final = 2.0
KEYS_TIMEOUT_S: Final = 1.0
DRAIN_MARGIN_S: Final = 2.0  # what a worker gets beyond drain.timeout before it is killed
START_ATTEMPTS: Final = 3


class CannotStart(Exception):
    """Why the proxy cannot start: one clear line."""


class CannotApply(Exception):
    """Why a checked configuration cannot be put in force: one clear line. The old one is in force as before."""


def row_keys(config: Config) -> Iterator[RowKey]:
    """The rows that a configuration needs, in the order of the metrics page."""
    yield ("worker",)
    for listener in config.listeners:
        yield ("listener", listener.name)
    for pool in config.pools:
        yield ("pool", pool.name)
    for pool in config.pools:
        for backend in pool.backends:
            yield ("backend", pool.name, backend.name)
    for pool in config.pools:
        yield ("sketch", pool.name)
        if pool.on_move == "pin":
            yield ("homes", pool.name)


class Supervisor:
    """Worker processes and what they share.

    `snapshot` is what the workers read too: nobody serves from it here, but it stands as theirs do (states, weights,
    what is in flight, which keys are hot), so that what it says of a key is what happens to the key.
    """

    def __init__(
        self, config: Config, journal: Journal, weights: Weights | None = None, states: States | None = None
    ) -> None:
        """`weights` and `states` are those of `put`. Raises CannotStart."""
        self.is_draining = False
        self.states: dict[str, Mapping[str, int]] = {}
        # Told when a worker has met too many failures in a row at a backend: pool, backend, the last error.
        self.on_failing: Callable[[str, str, str], None] = _nobody
        # Told what a worker says of sampled requests, and how many of them it has left out.
        self.on_spans: Callable[[str, int], None] = _nobody
        # Told what a worker says of the names of hot keys.
        self.on_names: Callable[[str], None] = _nobody
        # Called about once a second, when the pools here have judged which of their keys are hot.
        self.on_sweep: Callable[[], None] = _nobody
        self.restarts: dict[str, int] = {}
        self.slabs = Slabs.create(config.workers)
        self.layout = Layout()
        self._journal = journal
        self._listeners = Listeners(config.workers)
        self._weights: Weights = {}
        self._adopted = 0
        self._asked = 0
        self._memories = Memories()
        self._keys: dict[int, Answers] = {}
        # Rings that have been built ahead, by pool.
        self._forged: dict[str, Rings] = {}
        # Pools write what they hold into their worker's slab; the supervisor's hold nothing, and have a place for it.
        self._own_cells = cast(Cells, memoryview(mmap.mmap(-1, CAPACITY * CELL_BYTES)).cast("q"))
        # For a change of a slot, or an answer.
        self._waiting = Waiting()
        self._slots = [
            Slot(index, self.slabs.fds, journal, self._greet, self._waiting.wake, self._hear, self._on_end)
            for index in range(config.workers)
        ]
        self._sweeper: asyncio.TimerHandle | None = None
        self.config = config
        try:
            made = self._make_memories(config)
            self.snapshot = self._build(config, 1, None, weights or {})
        except CannotApply as error:
            raise CannotStart(str(error)) from None
        self._memories.follow(config, made)
        self._stand(weights or {}, states or {}, made)
        self._page = self._make_page(None)

    @property
    def page(self) -> Page:
        """The metrics page of the snapshot."""
        if self._page_of is not self.snapshot:
            self._page = self._make_page(self._page)
        return self._page

    @property
    def generation(self) -> int:
        return self.snapshot.generation

    @property
    def addresses(self) -> dict[str, str]:
        """Where each listener really listens, by its name; they differ when the port was left to the system."""
        return self._listeners.addresses

    def statuses(self) -> list[WorkerStatus]:
        return [slot.status() for slot in self._slots]

    def is_ready(self) -> bool:
        """Whether every worker serves and none is about to end."""
        return not self.is_draining and all(slot.state == "ready" for slot in self._slots)

    def totals(self) -> list[int]:
        """All cells, summed over the slabs."""
        return sums(self.slabs.lists(self.layout.end))

    async def start(self) -> None:
        """Listen, start the workers and wait until all of them serve. Raises CannotStart."""
        try:
            self._check_access_log(self.config)
            self._listen(self.config)
        except CannotApply as error:
            raise CannotStart(str(error)) from None
        for slot in self._slots:
            slot.start()
        self._sweep()
        await self._waiting.until(lambda: self.is_ready() or self.is_draining or self._hopeless() is not None)
        hopeless = self._hopeless()
        if hopeless is not None and not self.is_ready():
            raise CannotStart(f"worker {hopeless.index} does not start: {hopeless.last_words}")

    def forge(self, config: Config, weights: Weights) -> Pieces[None]:
        """Build the rings that a configuration with these weights will need, so that `put` and `reweigh` find them."""
        known = previous_rings(self.snapshot) | self._forged
        rings = yield from snapshot_rings(config, weights, known)
        for of_pool in rings.values():
            yield from of_pool.whole.survey()
        self._forged = rings

    def put(self, config: Config, weights: Weights, states: States) -> int:
        """Put a configuration in force, together with effective weights where they are not its own, and states.

        Returns the new generation, which workers read in a moment. Raises CannotApply, and has changed nothing.
        """
        if self.is_draining:
            raise CannotApply("the proxy is ending")
        self._check_access_log(config)
        with ExitStack() as undo:
            added = self._listen(config)
            undo.callback(self._listeners.close, added)
            made = self._make_memories(config)
            undo.callback(give_back, made)
            snapshot = self._build(config, self.generation + 1, self.snapshot, weights)
            undo.pop_all()
        self.config = config
        self.snapshot = snapshot
        self._memories.follow(config, made)
        self._stand(weights, states, made)
        for slot in self._slots:
            for order, descriptors in [*self._socket_orders(slot.index, added), *self._table_orders(list(made))]:
                slot.send(order, descriptors)
        self._send(self._generation_order())
        return self.generation

    async def acknowledged(self, number: int) -> bool:
        """Wait until every worker reads this generation; False when that takes too long, one that does not yet will
        when it can, or when all ends before."""
        await self._waiting.until(lambda: self._oldest_read() >= number or self.is_draining, APPLY_TIMEOUT_S)
        self._listeners.close_others(self.config)
        return self._oldest_read() >= number

    def reweigh(self, weights: Weights, states: States) -> int:
        """Put other effective weights in force under the same configuration; returns the new generation. Raises
        CannotApply."""
        number = self.generation + 1
        self.snapshot = self._build(self.config, number, self.snapshot, weights)
        self._stand(weights, states)
        self._send(self._generation_order())
        return number

    def adopt(self, states: States) -> int:
        """Tell every worker what the states of these pools' backends are; returns a number to wait for."""
        self._adopted += 1
        self._take_states(states)
        self._send(Adopt(self._adopted, states))
        return self._adopted

    async def adopted(self, number: int | None = None) -> bool:
        """Wait until every worker goes by these states, by default the newest; False when that takes too long."""
        wanted = self._adopted if number is None else number
        return await self._waiting.until(
            lambda: all(slot.adopted >= wanted or slot.state != "ready" for slot in self._slots), ADOPT_TIMEOUT_S
        )

    async def keys(self) -> dict[str, Keys]:
        """A fair sample of each pool's live keys, from the workers that answer in time."""
        self._asked += 1
        answers = self._keys[self._asked] = Answers()
        self._send(TellKeys(self._asked))
        ready = sum(slot.state == "ready" for slot in self._slots)
        await self._waiting.until(lambda: answers.ended >= ready, KEYS_TIMEOUT_S)
        del self._keys[self._asked]
        return answers.pools

    def _send(self, order: Order) -> None:
        payload = pack_order(order)
        for slot in self._slots:
            slot.send_packed(payload)

    def _stand(self, weights: Weights, states: States, new_memories: Collection[str] = ()) -> None:
        """Let the snapshot here stand as those of the workers will."""
        self._weights = weights
        self._adopted += 1
        self.states = {name: known for name, known in self.states.items() if name in self.snapshot.pools}
        self._take_states(states)
        tables, now = self._memories.tables(), time.monotonic()
        for name, pool in self.snapshot.pools.items():
            account = pool.account
            is_new = name in new_memories
            account.sessions = remember(account.sessions, tables.get(name), pool.spec.session_drain, is_new, now)

    def _take_states(self, states: States) -> None:
        self.states |= states
        for name, known in states.items():
            self.snapshot.pools[name].adopt(known)

    def reopen_logs(self) -> None:
        """After logrotate."""
        self._send(ReopenLogs())

    async def drain(self) -> None:
        """Accept nothing new, let running exchanges end within `drain_timeout`, and end all workers."""
        self.is_draining = True
        self._waiting.wake()
        self._listeners.close_all()
        for slot in self._slots:
            slot.drain()
        ends = asyncio.gather(*(slot.wait_stopped() for slot in self._slots))
        try:
            await asyncio.wait_for(asyncio.shield(ends), self.config.drain_timeout + DRAIN_MARGIN_S)
        except TimeoutError:
            self.kill()
            await ends

    def kill(self) -> None:
        """End all workers now."""
        for slot in self._slots:
            slot.kill()

    def close(self) -> None:
        """Give everything back. Only when the workers are gone."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._listeners.close_all()
        self._memories.close()
        self.slabs.close()

    def _build(self, config: Config, number: int, previous: Snapshot | None, weights: Weights) -> Snapshot:
        """Give a configuration its rows and build its snapshot. Raises CannotApply and has changed nothing."""
        try:
            rows = self.layout.assign(row_keys(config), number)
        except LayoutFull as error:
            raise CannotApply(f"too many listeners, pools and backends: {error}") from None
        try:
            rings = at_once(snapshot_rings(config, weights, previous_rings(previous) | self._forged))
            snapshot = build_snapshot(
                config,
                number,
                rows,
                previous,
                cells=self._own_cells,
                peers=self.slabs.cells,
                weights=weights,
                rings=rings,
            )
        except Exception as error:
            self.layout.assign(row_keys(self.config), number)
            raise CannotApply(f"cannot be built: {describe(error)}") from error
        self._forged = {}
        return snapshot

    def _listen(self, config: Config) -> list[str]:
        """Listen on what is not listened on yet; returns those listeners. Raises CannotApply."""
        try:
            return self._listeners.listen(config)
        except CannotListen as error:
            raise CannotApply(str(error)) from None

    def _make_memories(self, config: Config) -> dict[str, Memory]:
        """Of keys seen, those that are not there yet. Raises CannotApply."""
        try:
            return self._memories.make(config)
        except OSError as error:
            raise CannotApply(f"there can be no memory of sessions: {error.strerror}") from None

    def _make_page(self, previous: Page | None) -> Page:
        self._page_of = self.snapshot
        return Page(self.layout.rows, len(self._slots), snapshot_families(self.snapshot), previous)

    @staticmethod
    def _check_access_log(config: Config) -> None:
        path = config.log.access.path
        if not path:
            return
        try:
            os.close(open_sink(path))
        except OSError as error:
            raise CannotApply(f"cannot open the access log {path}: {error.strerror}") from None

    def _greet(self, index: int) -> Iterator[Package]:
        """What a fresh worker must be told."""
        yield from self._socket_orders(index, [listener.name for listener in self.config.listeners])
        yield from self._table_orders(self._memories.pools)
        yield self._generation_order(), ()

    def _generation_order(self) -> Generation:
        adopt = Adopt(self._adopted, dict(self.states))
        return Generation(self.generation, self.config, dict(self.layout.rows), dict(self._weights), adopt)

    def _table_orders(self, pools: Sequence[str]) -> Iterator[Package]:
        for part in _in_parts(pools):
            yield Tables(tuple(part)), self._memories.fds(part)

    def _socket_orders(self, slot: int, names: Sequence[str]) -> Iterator[Package]:
        for part in _in_parts(names):
            yield Sockets(tuple(part)), self._listeners.descriptors(part, slot)

    def _hear(self, slot: Slot, report: Report) -> None:
        fields = report.fields or {}
        if report.kind == "failing":
            self.on_failing(str(fields.get("pool")), str(fields.get("backend")), str(fields.get("error")))
        elif report.kind == "spans":
            self.on_spans(str(fields.get("spans")), report.number)
        elif report.kind == "names":
            self.on_names(str(fields.get("names")))
        elif report.kind == "keys" and report.number in self._keys:
            self._keys[report.number].take(fields)
            self._waiting.wake()

    def _on_end(self, slot: Slot, reason: str) -> None:
        self.slabs.zero_gauges(slot.index, self.layout.every_row())
        self.restarts[reason] = self.restarts.get(reason, 0) + 1
        self._waiting.wake()

    def _hopeless(self) -> Slot | None:
        return next((slot for slot in self._slots if slot.early_deaths >= START_ATTEMPTS), None)

    def _oldest_read(self) -> int:
        return min(slot.generation for slot in self._slots)

    def _sweep(self) -> None:
        try:
            self._look_around()
        finally:  # whatever has gone wrong: somebody must see that a worker hangs
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep)

    def _look_around(self) -> None:
        """Look whether the workers live, give freed rows back, and judge keys anew."""
        ticks = self.layout.rows[("worker",)] + WORKER_TICKS
        for slot in self._slots:
            slot.look(self.slabs.cells[slot.index][ticks])
        for start, width in self.layout.release(self._oldest_read(), time.monotonic(), self.slabs.is_quiet):
            self.slabs.zero(start, width)
        now = time.monotonic()
        for pool in self.snapshot.pools.values():
            pool.tick(now)
        self.on_sweep()


def _in_parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many at a time as one order can have descriptors."""
    for start in range(0, len(names), MAX_DESCRIPTORS):
        yield names[start : start + MAX_DESCRIPTORS]


def _nobody(*_: object) -> None:
    """Wants to know."""

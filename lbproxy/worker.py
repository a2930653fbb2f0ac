"""One data-plane process: orders in, traffic through, a slab and an access log out.

The supervisor starts it as a fresh interpreter with its slot's number, its end of the control channel and the slabs:

    python -P -m lbproxy.worker SLOT CHANNEL_FD SLAB_FD...

It serves from its first `Generation` on. SIGTERM drains it: nothing new is accepted, running exchanges have
`drain.timeout` to end. If the channel closes, the supervisor is gone, and it drains likewise; no worker outlives that
by more than the timeout. It imports nothing that it does not need for traffic: starting takes a fraction of a second.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from lbproxy import open_files
from lbproxy.channel import (
    Adopt,
    Channel,
    Generation,
    Order,
    ReopenLogs,
    Report,
    Sockets,
    Tables,
    TellKeys,
    pack_report,
    unpack_order,
    without_comers,
)
from lbproxy.child import NOT_FOR_WORKERS
from lbproxy.core.exchange import Finished
from lbproxy.core.sample import pack_keys
from lbproxy.core.snapshot import Snapshot, build_snapshot, previous_rings, snapshot_rings
from lbproxy.core.spec import Config
from lbproxy.dataplane.listener import DataPlane
from lbproxy.ease import at_ease
from lbproxy.ending import run_to_end
from lbproxy.memories import map_memory, remember
from lbproxy.observe.access_log import AccessLog
from lbproxy.observe.journal import Fields, Journal, Level, LoggingBridge, describe, tell_loop_exception
from lbproxy.observe.names import MOST_NAMED, NameFinder
from lbproxy.observe.slabs import Slabs
from lbproxy.observe.spans import SpanLog

# Cyclic garbage is rare on the hot path, and what lives at start lives for ever.
GC_THRESHOLDS: Final = (50_000, 50, 100)
# Beyond drain.timeout, the kernel ends a worker whose event loop no longer turns.
LAST_RESORT_S: Final = 5.0
# Open files that a worker needs besides those of its connections: listening sockets, channel, loop, log.
_OWN_FILES: Final = 32
# Open files that are kept for connections to backends: of few half, of many so many.
_MOST_KEPT: Final = 4096


class Worker:
    """What one worker holds, from its first order to its last exchange."""

    def __init__(self, slot: int, control: socket.socket, slabs: Slabs, loop: asyncio.AbstractEventLoop) -> None:
        self._slot = slot
        self._cells = slabs.cells[slot]
        self._peers = [cells for index, cells in enumerate(slabs.cells) if index != slot]
        self._loop = loop
        self._orders: asyncio.Queue[tuple[Order, list[int]]] = asyncio.Queue()
        # Those among them that say nothing but states.
        self._adopts: deque[Adopt] = deque()
        self._sockets: dict[str, socket.socket] = {}
        # Memories of keys seen, by pool, and those that have come since the last generation.
        self._tables: dict[str, memoryview] = {}
        self._new_tables: set[str] = set()
        self._snapshot: Snapshot | None = None
        self._is_building = False
        self._plane: DataPlane | None = None
        self._log: AccessLog | None = None
        self._spans: SpanLog | None = None
        self._names: NameFinder | None = None
        self._drain_timeout_s = 0.0
        self._allowed_clients = 0  # by the configuration, at the most so far
        self._stopping = asyncio.Event()
        self._channel = Channel(control, loop, self._receive, self._stopping.set)
        self.journal = Journal(self._emit)

    async def run(self) -> int:
        """Serve until told to stop, or until the supervisor is gone; then drain. Returns the exit code."""
        self._loop.set_exception_handler(partial(tell_loop_exception, self.journal))
        self._loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        following = asyncio.create_task(self._follow_orders())
        stopped = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((following, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        # Following orders never ends but by an error.
        failure = following.exception() if following.done() else None
        following.cancel()
        if failure is not None:
            self.journal.error("worker failed", error=describe(failure))
        await self._drain()
        return 0 if failure is None else 1

    def _receive(self, payload: bytes, descriptors: list[int]) -> None:
        order = unpack_order(payload)
        if isinstance(order, TellKeys):
            self._tell_keys(order)
            return
        if isinstance(order, Adopt):
            if self._is_building or not self._orders.empty():
                self._let_go(order)
            self._adopts.append(order)
        self._orders.put_nowait((order, descriptors))

    def _let_go(self, order: Adopt) -> None:
        """Whoever may not be asked any more is not asked from now on, though a generation that was ordered before is
        still to be built. Whoever comes, comes in its turn, with the weight that it is to have."""
        if self._plane is not None and self._snapshot is not None:
            known = {
                name: {backend.name: backend.state for backend in pool.backends.values()}
                for name, pool in self._snapshot.pools.items()
                if name in order.states
            }
            self._plane.adopt(without_comers(order.states, known))

    async def _follow_orders(self) -> None:
        while True:
            order, descriptors = await self._orders.get()
            if isinstance(order, Sockets):
                for name, descriptor in zip(order.names, descriptors, strict=True):
                    self._sockets[name] = socket.socket(fileno=descriptor)
            elif isinstance(order, Tables):
                for name, descriptor in zip(order.pools, descriptors, strict=True):
                    self._tables[name] = map_memory(descriptor)
                    self._new_tables.add(name)
                    os.close(descriptor)
            elif isinstance(order, Generation):
                await self._apply(order)
            elif isinstance(order, Adopt):
                self._adopts.popleft()
                self._adopt(order)
            elif isinstance(order, ReopenLogs) and self._log is not None:
                self._log.reopen()

    async def _apply(self, order: Generation) -> None:
        self._is_building = True
        rings = await at_ease(snapshot_rings(order.config, order.weights, previous_rings(self._snapshot)))
        self._is_building = False
        snapshot = build_snapshot(
            order.config,
            order.number,
            order.rows,
            self._snapshot,
            cells=self._cells,
            peers=self._peers,
            weights=order.weights,
            rings=rings,
        )
        self._snapshot = snapshot
        adopt = self._without_leavers(order.adopt)
        self._remember_keys(snapshot)
        self._drain_timeout_s = order.config.drain_timeout
        new = {name: self._sockets.pop(name) for name in snapshot.listeners if name in self._sockets}
        if self._plane is None:
            log = AccessLog(order.config.log.access, self._cells, snapshot.row, self._log_trouble)
            log.start(self._loop)
            self._log = log
            told = self._log_of(order.config, log)
            most = self._most_clients(order.config)
            self._plane = DataPlane(self._loop, snapshot, self._cells, told, self._on_failing_backend, most)
            self._adopt(adopt)
            await self._plane.start(new)
            settle()
        else:
            assert self._log is not None
            if self._wanted_clients(order.config) > self._allowed_clients:
                self._most_clients(order.config)
            self._plane.apply(snapshot, adopt.states)
            self._plane.log_to(self._log_of(order.config, self._log))
            self._say(Report("adopted", adopt.number))
            await self._plane.start(new)
            self._reconfigure_log(self._log, order)
        self._close_unused_sockets()
        self._say(Report("applied", order.number))

    def _without_leavers(self, adopt: Adopt) -> Adopt:
        """The states that come with a generation, but nobody is to be asked who leaves by an order that waits behind
        it: it has left already."""
        states = adopt.states
        for later in self._adopts:
            states = without_comers(states, later.states)
        return Adopt(adopt.number, states)

    def _log_of(self, config: Config, log: AccessLog) -> Callable[[Finished], None]:
        """What is told of each exchange that ends: the access log, by way of tracing once there was any."""
        if self._spans is None and config.tracing.otlp:
            self._spans = SpanLog(log.note, self._send_spans, self._loop)
        return self._named(self._spans or log.note, config.admin.show_keys)

    def _named(self, told: Callable[[Finished], None], are_keys_shown: bool) -> Callable[[Finished], None]:
        """The same, with an eye for the names of the hottest keys where these may be shown."""
        if self._names is not None:
            self._names.close()
        self._names = NameFinder(told, self._hottest, self._send_names, self._loop) if are_keys_shown else None
        return self._names or told

    def _hottest(self) -> Iterator[int]:
        pools = self._snapshot.pools if self._snapshot is not None else {}
        for pool in pools.values():
            yield from [row.key for row in pool.account.hot.top.rows[:MOST_NAMED]]

    def _send_names(self, text: str) -> None:
        self._say(Report("names", fields={"names": text}))

    def _send_spans(self, text: str, dropped: int) -> bool:
        if not self._channel.is_clear:
            return False
        self._say(Report("spans", dropped, fields={"spans": text}))
        return True

    def _adopt(self, order: Adopt) -> None:
        if self._plane is not None:
            self._plane.adopt(order.states)
            self._say(Report("adopted", order.number))

    def _remember_keys(self, snapshot: Snapshot) -> None:
        """Give each pool that wants one its memory of keys seen."""
        now = time.monotonic()
        for name, pool in snapshot.pools.items():
            table, is_new = self._tables.get(name), name in self._new_tables
            pool.account.sessions = remember(pool.account.sessions, table, pool.spec.session_drain, is_new, now)
        self._new_tables.clear()
        self._tables = {name: table for name, table in self._tables.items() if name in snapshot.pools}

    def _tell_keys(self, order: TellKeys) -> None:
        pools = self._snapshot.pools if self._snapshot is not None else {}
        now = time.monotonic()
        for name, pool in pools.items():
            account = pool.account
            account.sample.note(account.meter.seen, now)
            keys = account.sample.read(account.meter.held, now)
            fields: Fields = {
                "pool": name,
                "bits": keys.bits,
                "seen": pack_keys(keys.seen),
                "held": pack_keys(keys.held),
            }
            self._say(Report("keys", order.number, fields=fields))
        self._say(Report("keys", order.number))

    def _close_unused_sockets(self) -> None:
        """A socket of a listener that has gone again would keep its port taken."""
        while self._sockets:
            self._sockets.popitem()[1].close()

    def _reconfigure_log(self, log: AccessLog, order: Generation) -> None:
        try:
            log.reconfigure(order.config.log.access)
        except OSError as error:
            self._log_trouble(f"cannot open {order.config.log.access.path}: {error.strerror}")

    async def _drain(self) -> None:
        if self._plane is not None:
            signal.setitimer(signal.ITIMER_REAL, self._drain_timeout_s + LAST_RESORT_S)
            cut = await self._plane.drain(self._drain_timeout_s)
            if cut:
                self.journal.warning("exchanges cut off", count=cut)
        if self._names is not None:
            self._names.close()
        if self._spans is not None:
            self._spans.close()
        if self._log is not None:
            self._log.close()
        self._channel.close()

    def _say(self, report: Report) -> None:
        self._channel.send(pack_report(report))

    def _emit(self, level: Level, event: str, fields: Fields) -> None:
        self._say(Report("event", level=level, event=event, fields=fields))

    def _log_trouble(self, problem: str) -> None:
        self.journal.error("access log", problem=problem)

    def _most_clients(self, config: Config) -> int:
        """How many clients may be connected, so that connections to backends can still be opened for those that ask
        something. Says so if that is less than the configuration allows: the first worker does, for it is the same with
        all of them."""
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        usable = max(2, allowed - _OWN_FILES)
        kept = min(usable // 2, _MOST_KEPT)
        most = usable - kept
        wanted = self._allowed_clients = self._wanted_clients(config)
        if most < wanted and self._slot == 0:
            needed = wanted + min(wanted, _MOST_KEPT) + _OWN_FILES
            self.journal.warning(
                "open files are limited",
                allowed=allowed,
                clients=most,
                wanted=needed,
                how=f"LimitNOFILE={needed} with systemd, --ulimit nofile={needed} with docker, ulimit -n {needed} in a "
                "shell; or a lower limits.connections",
            )
        return most

    @staticmethod
    def _wanted_clients(config: Config) -> int:
        return sum(listener.limits.connections for listener in config.listeners)

    def _on_failing_backend(self, pool: str, backend: str, reason: str) -> None:
        self._say(Report("failing", fields={"pool": pool, "backend": backend, "error": reason}))


def settle() -> None:
    """Take everything that lives now out of the garbage collector's sight, and let it look seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _run(slot: int, channel_fd: int, slab_fds: Sequence[int]) -> int:
    loop = asyncio.get_running_loop()
    worker = Worker(slot, socket.socket(fileno=channel_fd), Slabs(slab_fds), loop)
    logging.getLogger().addHandler(LoggingBridge(worker.journal))
    return await worker.run()


def main(arguments: Sequence[str]) -> None:
    """Run a worker with the arguments that the supervisor gave it."""
    # A Ctrl-C reaches the whole foreground group, but it is the supervisor who decides what follows from it.
    for ignored in NOT_FOR_WORKERS:
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOT_FOR_WORKERS)
    open_files.raise_limit()
    slot, channel_fd, *slab_fds = map(int, arguments)
    for descriptor in (channel_fd, *slab_fds):
        os.set_inheritable(descriptor, False)
    sys.exit(run_to_end(_run(slot, channel_fd, slab_fds)))


if __name__ == "__main__":
    main(sys.argv[1:])

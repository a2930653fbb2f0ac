"""One worker slot: the process that is in it now, and the rule that there always is one.

A worker that ends without having been told to is replaced at once. Only when one dies again and again soon after its
start, or before it was ready, does the next one wait, longer each time, so that a worker that cannot live does
not eat the machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import site
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import lbproxy
from lbproxy.channel import MAX_REPORT_BYTES, Channel, Order, Report, pack_order, unpack_report
from lbproxy.child import Child
from lbproxy.observe.facts import WorkerState, WorkerStatus
from lbproxy.observe.journal import Fields, Journal, describe, level_of

Package = tuple[Order, Sequence[int]]  # an order and the descriptors that go with it

EARLY_S: Final = 2.0  # a worker that dies within this time of its start, or before it was ready, died early
START_TIMEOUT_S: Final = 60.0
# At so many looks in a row, one a second, a worker's event loop has not turned: it hangs.
HANGS_AFTER: Final = 10
FIRST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 10.0

# glibc's malloc gives large blocks back to the kernel and takes them anew for each large body unless told otherwise
# before the process starts; 32 MiB is the most that it accepts for the second.
MALLOC: Final = {"MALLOC_TRIM_THRESHOLD_": str(256 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}


def restart_delay_s(early_deaths: int) -> float:
    """How long the next worker waits after so many early deaths in a row; the first one costs nothing."""
    if early_deaths < 2:
        return 0.0
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(early_deaths - 2, 30))


def ending(code: int, was_ready: bool) -> str:
    """The restart reason (`facts.RESTART_REASONS`) for a process's return code as asyncio gives it."""
    if code == -signal.SIGKILL:
        return "killed"
    if not was_ready:
        return "start_failed"
    return "exited" if code == 0 else "crashed"


def worker_environment() -> dict[str, str]:
    """What a worker's environment is: ours, the allocator's thresholds, and where this package was imported from."""
    environment = MALLOC | dict(os.environ)
    home = str(Path(lbproxy.__file__).parents[1])
    if home not in site.getsitepackages():
        path = environment.get("PYTHONPATH", "").split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join([*filter(None, path), home])
    return environment


class Slot:
    """Keeps one worker running until `drain` or `kill`. Everything happens in the event loop's thread.

    `greet(index)` gives what a fresh worker must be told. `changed()` is called after every change of state,
    `heard(slot, report)` for every report that is not the slot's own business, `ended(slot, reason)` when a process is
    gone for good and has been reaped.
    """

    def __init__(
        self,
        index: int,
        slab_fds: Sequence[int],
        journal: Journal,
        greet: Callable[[int], Iterable[Package]],
        changed: Callable[[], None],
        heard: Callable[[Slot, Report], None],
        ended: Callable[[Slot, str], None],
    ) -> None:
        self.index = index
        self.state: WorkerState = "down"
        self.generation = 0
        self.adopted = 0
        self.early_deaths = 0
        self.last_words = ""
        self._slab_fds = tuple(slab_fds)
        self._journal = journal
        self._greet = greet
        self._changed = changed
        self._heard = heard
        self._ended = ended
        self._restarts = 0
        # Why the present worker is killed, when that is our own decision; one of `facts.RESTART_REASONS`.
        self._killed_as = ""
        self._ticks = -1
        self._still = 0
        self._since = 0.0
        self._process: Child | None = None
        self._channel: Channel | None = None
        self._stop = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to keep a worker running."""
        self._life = asyncio.create_task(self._live())

    def status(self) -> WorkerStatus:
        pid = self._process.pid if self._process is not None else 0
        return WorkerStatus(self.index, self.state, pid, self.generation, self._since, self._restarts, self._still)

    def send(self, order: Order, descriptors: Sequence[int] = ()) -> None:
        """Tell the worker; one that starts later hears it from `greet`."""
        if self._channel is not None:
            self.send_packed(pack_order(order), descriptors)

    def send_packed(self, payload: bytes, descriptors: Sequence[int] = ()) -> None:
        """`send` of what `pack_order` has made of an order."""
        if self._channel is not None:
            self._channel.send(payload, descriptors)

    def drain(self) -> None:
        """Ask the worker to end when its exchanges have, and start no other."""
        self._stop.set()
        if self._process is not None:
            self._signal(signal.SIGTERM)
            self._become("draining")

    def kill(self) -> None:
        """End the worker now, and start no other."""
        self._stop.set()
        if self._process is not None:
            self._signal(signal.SIGKILL)

    def look(self, ticks: int) -> None:
        """Be told once a second how often the worker's event loop has turned. A worker that hangs keeps its part of the
        new connections and answers none of them, so it is ended as soon as that is beyond doubt. Looks are counted, and
        not seconds: when the whole machine has stood still, the worker has until the next looks to go on."""
        if self.state != "ready" or ticks != self._ticks:
            self._ticks = ticks
            self._still = 0
            return
        self._still += 1
        if self._still == HANGS_AFTER:
            self._journal.error("worker hangs", worker=self.index, pid=self.status().pid)
            self._killed_as = "hung"
            self._signal(signal.SIGKILL)

    async def wait_stopped(self) -> None:
        """Wait until the worker is gone, after `drain` or `kill`."""
        if self._life is not None:
            await asyncio.wait((self._life,))

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def _live(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            reason, was_ready = await self._one_life()
            if self._stop.is_set():
                break
            self._restarts += 1
            is_early = not was_ready or time.monotonic() - started < EARLY_S
            self.early_deaths = self.early_deaths + 1 if is_early else 0
            self._ended(self, reason)
            await self._rest(restart_delay_s(self.early_deaths))

    async def _rest(self, seconds: float) -> None:
        """Sleep, unless told to stop."""
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            pass

    async def _one_life(self) -> tuple[str, bool]:
        """Start a worker and wait for its end; returns why it ended, and whether it was ever ready."""
        try:
            process = self._spawn()
        except OSError as error:
            self.last_words = f"cannot start a process: {error.strerror}"
            self._journal.error("worker not started", worker=self.index, error=describe(error))
            return "start_failed", False
        guard = asyncio.get_running_loop().call_later(START_TIMEOUT_S, self._give_up_starting)
        code = await process.wait()
        guard.cancel()
        was_ready = self.state in ("ready", "draining")
        if self._channel is not None:
            self._channel.finish()
        self._process = self._channel = None
        self.generation = self.adopted = 0
        reason = self._killed_as or ending(code, was_ready)
        self._killed_as = ""
        self._still = 0
        if not self._stop.is_set():
            self.last_words = self.last_words or f"it ended with {_exit_text(code)}"
            self._journal.warning("worker ended", worker=self.index, pid=process.pid, end=_exit_text(code))
        self._become("down")
        return reason, was_ready

    def _spawn(self) -> Child:
        loop = asyncio.get_running_loop()
        self.last_words = ""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                fds = (theirs.fileno(), *self._slab_fds)
                command = (sys.executable, "-P", "-m", "lbproxy.worker", str(self.index), *map(str, fds))
                process = Child(command, fds, worker_environment())
            except BaseException:
                ours.close()
                raise
        self._process = process
        self._since = time.time()
        self._channel = Channel(ours, loop, self._receive, self._on_closed, MAX_REPORT_BYTES)
        self._become("starting")
        for order, descriptors in self._greet(self.index):
            self.send(order, descriptors)
        if self._stop.is_set():
            self._signal(signal.SIGTERM)
        return process

    def _receive(self, payload: bytes, descriptors: list[int]) -> None:
        try:
            report = unpack_report(payload)
        except ValueError:
            self._journal.error("worker not understood", worker=self.index)
            self._on_closed()
            return
        if report.kind == "applied":
            self.generation = report.number
            if self.state == "starting":
                self._journal.info("worker ready", worker=self.index, pid=self.status().pid)
                self._become("ready")
            else:
                self._changed()
        elif report.kind == "adopted":
            self.adopted = report.number
            self._changed()
        elif report.kind != "event":
            self._heard(self, report)
        elif (level := level_of(report.level)) is not None:
            fields: Fields = {"worker": self.index, **(report.fields or {})}
            fields["worker"] = self.index  # whoever it says it is
            if self.state == "starting":
                self.last_words = str(fields.get("error", report.event))
            self._journal.tell(level, report.event, fields)

    def _on_closed(self) -> None:
        """A worker that closes its channel is about to end; one that does not end could not be steered any more."""
        if self._process is not None and self.state != "draining":
            self._signal(signal.SIGTERM)

    def _give_up_starting(self) -> None:
        if self.state == "starting" and self._process is not None:
            self.last_words = f"it was not ready within {START_TIMEOUT_S:.0f} s"
            self._killed_as = "start_failed"
            self._signal(signal.SIGKILL)

    def _become(self, state: WorkerState) -> None:
        self.state = state
        self._changed()


def _exit_text(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

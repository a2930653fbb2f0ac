"""The access log of one worker: lines gathered in memory, written by a thread of its own, never in the way of traffic.

The event loop's side formats a line and appends it to a list; once the list holds `BATCH_BYTES`, or at the next tick
of a timer, the whole list is handed to the sink. The sink's thread writes it with the GIL released, so a slow disk or
a full pipe stops that thread and nothing else. What is handed over and not yet written is bounded; beyond that, lines
are dropped and counted.

Several workers write to the same file or pipe. A file is opened with O_APPEND and takes a batch of whole lines in one
write; anything else takes whole lines in pieces of at most PIPE_BUF, which a pipe never mixes.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final

from lbproxy.core.ledger import WORKER_LOG_DROPPED, Cells
from lbproxy.core.spec import AccessLogSpec
from lbproxy.observe.lines import LINE_MAX, CombinedLines, Gathered, JsonLines, Lines

# Each batch costs the loop and the thread a few turns of taking the GIL from one another. With 64 KiB a small request
# took 0.5 us more CPU (12.6 and 12.1), and 1.1 us where workers share their cores (15.7 and 14.6).
BATCH_BYTES: Final = 512 << 10
PENDING_BYTES: Final = 4 << 20
FLUSH_INTERVAL_S: Final = 0.25
CLOSE_TIMEOUT_S: Final = 1.0
# A sink that goes on losing lines, or begins to again, is told of so often at most.
REPEAT_S: Final = 60.0
_MODE: Final = 0o640

_REOPEN: Final = "reopen"
_END: Final = "end"


def open_sink(path: str) -> int:
    """A descriptor to append to: "-" is stdout. Raises OSError."""
    if path == "-":
        return os.dup(1)
    # A named pipe that nobody reads is an error, and not a wait for ever.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    fd = os.open(path, flags, _MODE)
    os.set_blocking(fd, True)
    return fd


class Sink:
    """A thread that writes batches of lines to one path.

    Of the counts, `handed_*` are written by the owner alone and `written_*`, `lost_lines` and `problem` by the thread
    alone, so neither needs a lock.
    """

    def __init__(self, path: str) -> None:
        """Open the path and start the thread. Raises OSError."""
        self._path = path
        self._fd = open_sink(path)
        self._is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
        self._torn = False
        self._queue: SimpleQueue[list[bytes] | str] = SimpleQueue()
        self.handed_bytes = 0
        self.handed_lines = 0
        self.written_bytes = 0  # or lost
        self.written_lines = 0
        self.lost_lines = 0
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def hand_over(self, lines: list[bytes], size: int) -> bool:
        """Queue a batch; False when too much is waiting already. The list belongs to the sink from here on."""
        if self.handed_bytes - self.written_bytes > PENDING_BYTES:
            return False
        self.handed_bytes += size
        self.handed_lines += len(lines)
        self._queue.put(lines)
        return True

    def reopen(self) -> None:
        """Open the path anew after what is queued has been written: the old file has been renamed."""
        self._queue.put(_REOPEN)

    def end(self) -> None:
        """Write what is queued, and nothing after that."""
        self._queue.put(_END)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, for so long at most; returns whether it has come."""
        if timeout_s > 0.0:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def missing_lines(self) -> int:
        """Those that are not written, or not yet."""
        return self.lost_lines + self.handed_lines - self.written_lines

    def _run(self) -> None:
        item: list[bytes] | str = []
        while item is not _END:
            item = self._queue.get()
            if isinstance(item, list):
                lines = item
                while isinstance(item := self._next(), list):
                    lines += item
                self._write_batch(lines)
            if item is _REOPEN:
                self._open_again()
        os.close(self._fd)

    def _next(self) -> list[bytes] | str:
        """What else waits already, so that a thread that seldom gets the GIL writes much at a time."""
        try:
            return self._queue.get_nowait()
        except Empty:
            return ""

    def _write_batch(self, lines: list[bytes]) -> None:
        whole = [(b"".join(lines), len(lines))]
        for piece, count in whole if self._is_file else pieces(lines, min(select.PIPE_BUF, LINE_MAX)):
            self.lost_lines += self._write(piece, count)
            self.written_bytes += len(piece)
            self.written_lines += count

    def _write(self, piece: bytes, count: int) -> int:
        """Write `count` lines, or as much of them as can be; return how many are not all there."""
        if self._torn:  # the last write stopped within a line
            piece = b"\n" + piece
        view = memoryview(piece)
        while view:
            try:
                done = os.write(self._fd, view)
            except BlockingIOError:  # somebody who shares the descriptor made it non-blocking
                _wait_writable(self._fd)
                continue
            except OSError as error:  # of a batch that fills the disk, some lines may be there
                self.problem = f"cannot write to {self._path}: {error.strerror}"
                return min(count, bytes(view).count(b"\n"))
            view = view[done:]
            self._torn = not piece.endswith(b"\n", 0, len(piece) - len(view))
        return 0

    def _open_again(self) -> None:
        try:
            fd = open_sink(self._path)
        except OSError as error:
            self.problem = f"cannot reopen {self._path}: {error.strerror}"
            return
        os.close(self._fd)
        self._fd = fd
        self._is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        self._torn = False


def pieces(lines: list[bytes], limit: int) -> Iterator[tuple[bytes, int]]:
    """The lines joined into pieces of at most `limit` bytes (one line may be longer), and how many are in each."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and size + len(line) > limit:
            yield b"".join(batch), len(batch)
            batch = []
            size = 0
        batch.append(line)
        size += len(line)
    if batch:
        yield b"".join(batch), len(batch)


def _wait_writable(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll()


class AccessLog:
    """`note` is called with every finished exchange, in the event loop's thread. Counts what it drops in the worker's
    row."""

    def __init__(self, spec: AccessLogSpec, cells: Cells, row: int, report: Callable[[str], None]) -> None:
        """`report` is told of a sink's trouble, once for each and again while lines are lost to it. Raises OSError when
        the path cannot be opened."""
        self._cells = cells
        self._row = row
        self._report = report
        self._reported = ""
        self._reported_at = 0.0
        self._gathered = Gathered(BATCH_BYTES, self.flush)
        self.note: Final = self._gathered.add
        self._lost = 0
        # Sinks that write what they have been handed, and nothing more: with how many of their lines count as dropped
        # already, and how long they are waited for.
        self._leaving: list[tuple[Sink, int, float]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._spec = spec
        self._sink = _sink_of(spec)
        self._gathered.format = _format_of(spec)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Flush by a timer from now on, so that a quiet proxy's lines are seen soon too."""
        self.flush()
        if self._leaving:
            self._see_off(0.0)
        self._timer = loop.call_later(FLUSH_INTERVAL_S, self.start, loop)

    def flush(self) -> None:
        """Hand what has gathered to the sink, or drop it."""
        sink = self._sink
        if sink is None:
            return
        lines, size = self._gathered.take()
        if lines and not sink.hand_over(lines, size):
            self._drop(len(lines))
        lost = sink.lost_lines
        now = monotonic()
        if sink.problem != self._reported or (lost != self._lost and now - self._reported_at >= REPEAT_S):
            self._reported = sink.problem
            self._reported_at = now
            self._report(sink.problem)
        self._drop(lost - self._lost)
        self._lost = lost

    def reopen(self) -> None:
        """After logrotate: what was logged so far goes to the old file, all else to a new one."""
        self.flush()
        if self._sink is not None:
            self._sink.reopen()

    def reconfigure(self, spec: AccessLogSpec) -> None:
        """Go on under another specification. Raises OSError, with nothing changed, when its path cannot be opened."""
        if spec == self._spec:
            return
        if spec.path != self._spec.path:
            sink = _sink_of(spec)
            self._end_sink()
            self._sink = sink
        self._spec = spec
        self._gathered.format = _format_of(spec)

    def close(self) -> None:
        """Write out what can be written within `CLOSE_TIMEOUT_S`, and count the rest as dropped."""
        if self._timer is not None:
            self._timer.cancel()
        self._end_sink()
        self._see_off(CLOSE_TIMEOUT_S)

    def _end_sink(self) -> None:
        """Have it write what it can, while nobody waits for it: a pipe may be full for ever."""
        self.flush()
        self._gathered.format = None
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.end()
            self._leaving.append((sink, self._lost, monotonic() + CLOSE_TIMEOUT_S))
        self._lost = 0
        self._reported = ""

    def _see_off(self, patience_s: float) -> None:
        """Take leave of the sinks that have written everything, or have had their time, and count what they could not
        write. With patience each is waited for, for the rest of its time, but not longer, and then none is kept."""
        leaving, self._leaving = self._leaving, []
        for sink, lost, until in leaving:
            if sink.wait(min(patience_s, until - monotonic())) or patience_s or monotonic() >= until:
                self._drop(sink.missing_lines - lost)
            else:
                self._leaving.append((sink, lost, until))

    def _drop(self, count: int) -> None:
        self._cells[self._row + WORKER_LOG_DROPPED] += count


def _sink_of(spec: AccessLogSpec) -> Sink | None:
    return Sink(spec.path) if spec.path else None


def _format_of(spec: AccessLogSpec) -> Lines | None:
    """None when nothing is logged."""
    if not spec.path:
        return None
    return JsonLines(spec.key) if spec.format == "json" else CombinedLines(spec.key)

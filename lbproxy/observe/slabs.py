"""Slabs: the shared memory that counters live in, and the layout that says which cell is whose.

There is one slab per worker slot: an anonymous memory file of signed 64-bit cells, written by that slot's worker
alone and read by the supervisor, which adds them up. The file belongs to the supervisor, so a worker that is killed
takes no count with it; its replacement goes on in the same slab. A slab is far larger than what is used, and sparse:
only touched pages cost memory.

One `Layout`, owned by the supervisor, gives each row (`core.ledger.RowKey`) its first cell, the same in every slab.
A row that the configuration no longer has is not reused at once: exchanges of an older generation may still write to
it. It is freed when every worker has acknowledged a generation without it and nobody has held anything of it for a
while (a pool's after its backends'), and it is zeroed in every slab before anyone else gets it. Until then, a name that
comes back gets its old row with its old counts.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Final, Self, cast

from lbproxy.core.ledger import (
    BACKEND_IN_FLIGHT,
    BACKEND_UPGRADED_OPEN,
    LISTENER_OPEN,
    POOL_UPGRADED_OPEN,
    TABLES,
    Cells,
    RowKey,
    RowKind,
    kind_of,
    row_width,
)

CELL_BYTES: Final = 8
CAPACITY: Final = 1 << 22  # cells in a slab; a backend takes about forty
REST_S: Final = 60.0  # how long a removed row must have been held by nobody before it may be reused


def _gauge_offsets(kind: RowKind) -> tuple[int, ...]:
    offsets = []
    position = 0
    for column in TABLES[kind]:
        if column.kind == "gauge":
            offsets.append(position)
        position += column.width
    return tuple(offsets)


WIDTHS: Final[dict[RowKind, int]] = {kind: row_width(kind) for kind in TABLES}
GAUGES: Final[dict[RowKind, tuple[int, ...]]] = {kind: _gauge_offsets(kind) for kind in TABLES}
# Rows that hold no metrics but what workers tell each other about a pool. Like a gauge, it is void when they die.
SHARED: Final = frozenset(kind for kind, columns in TABLES.items() if not columns)
# The gauges that are exact at every moment and not only since the last tick: while one is not zero, its row is in use.
HELD: Final[dict[RowKind, tuple[int, ...]]] = dict.fromkeys(TABLES, ()) | {
    "listener": (LISTENER_OPEN,),
    "pool": (POOL_UPGRADED_OPEN,),
    "backend": (BACKEND_IN_FLIGHT, BACKEND_UPGRADED_OPEN),
}


class LayoutFull(Exception):
    """The configuration needs more rows than a slab has room for."""


@dataclass(slots=True)
class _Retired:
    start: int
    generation: int  # the first generation without the row
    quiet_since: float | None = None


class Layout:
    """Where each row starts. `rows` is what the newest generation uses.

    Rows of metrics lie below `end`, shared ones at the top of the slab from `floor` on, so that a scrape reads no more
    than it shows.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.rows: dict[RowKey, int] = {}
        self.end = 0
        self.floor = capacity
        self._retired: dict[RowKey, _Retired] = {}
        self._free: dict[RowKind, list[int]] = {kind: [] for kind in TABLES}

    def assign(self, keys: Iterable[RowKey], generation: int) -> dict[RowKey, int]:
        """Give every key a row, retire the rows of all others; return a copy of the new `rows`.

        Raises LayoutFull, with nothing changed, when a slab has too few cells.
        """
        wanted = dict.fromkeys(keys)
        self._check_room(key for key in wanted if key not in self.rows and key not in self._retired)
        for key in [key for key in self.rows if key not in wanted]:
            self._retired[key] = _Retired(self.rows.pop(key), generation)
        for key in wanted:
            if key not in self.rows:
                self.rows[key] = self._take(key)
        return dict(self.rows)

    def release(self, acknowledged: int, now: float, is_quiet: Callable[[RowKey, int], bool]) -> list[tuple[int, int]]:
        """Free what may be freed; return (start, width) of each run of cells, for the caller to zero at once.

        `acknowledged` is the oldest generation that any worker still reads, `is_quiet(key, start)` whether nobody holds
        anything of the row.
        """
        freed = []
        held_pools = {key[1] for key in self._retired if key[0] == "backend"}
        for key, row in list(self._retired.items()):
            is_held = (key[0] == "pool" or key[0] in SHARED) and key[1] in held_pools
            if is_held or acknowledged < row.generation or not is_quiet(key, row.start):
                row.quiet_since = None
            elif row.quiet_since is None:
                row.quiet_since = now
            elif now - row.quiet_since >= REST_S:
                del self._retired[key]
                self._free[kind_of(key)].append(row.start)
                freed.append((row.start, WIDTHS[kind_of(key)]))
        return freed

    def every_row(self) -> dict[RowKey, int]:
        """The rows in use and the retired ones."""
        return self.rows | {key: row.start for key, row in self._retired.items()}

    def _check_room(self, new: Iterable[RowKey]) -> None:
        free = {kind: len(starts) for kind, starts in self._free.items()}
        needed = 0
        for key in new:
            kind = kind_of(key)
            if free[kind]:
                free[kind] -= 1
            else:
                needed += WIDTHS[kind]
        if needed > self.floor - self.end:
            raise LayoutFull(f"{needed} more cells are needed and {self.floor - self.end} are left")

    def _take(self, key: RowKey) -> int:
        retired = self._retired.pop(key, None)
        if retired is not None:
            return retired.start
        kind = kind_of(key)
        if self._free[kind]:
            return self._free[kind].pop()
        if kind in SHARED:
            self.floor -= WIDTHS[kind]
            return self.floor
        self.end += WIDTHS[kind]
        return self.end - WIDTHS[kind]


class Slabs:
    """The slabs of all worker slots, mapped into this process. `fds[slot]` and `cells[slot]` belong together."""

    def __init__(self, fds: Sequence[int]) -> None:
        """Map slabs that exist: what a worker does with the descriptors it was given."""
        self.fds = tuple(fds)
        self._maps = [mmap.mmap(fd, os.fstat(fd).st_size) for fd in self.fds]
        self._views = [memoryview(mapped).cast("q") for mapped in self._maps]
        self.cells: tuple[Cells, ...] = tuple(cast(Cells, view) for view in self._views)

    @classmethod
    def create(cls, count: int, capacity: int = CAPACITY) -> Self:
        """Make `count` slabs of `capacity` zeroed cells, of a size that nobody can change any more."""
        return cls([memory_file(f"lbproxy-slab-{slot}", capacity * CELL_BYTES) for slot in range(count)])

    def lists(self, end: int) -> list[list[int]]:
        """The first `end` cells of each slab, copied."""
        return [view[:end].tolist() for view in self._views]

    def is_quiet(self, key: RowKey, start: int) -> bool:
        """Whether nothing of the row is held in any slab: nothing in flight, nothing open."""
        offsets = HELD[kind_of(key)]
        return not any(cells[start + offset] for cells in self.cells for offset in offsets)

    def zero(self, start: int, width: int) -> None:
        """Set a run of cells to zero in all slabs. Only for rows that no worker writes to any more."""
        for view in self._views:
            _clear(view, start, width)

    def zero_gauges(self, slot: int, rows: Mapping[RowKey, int]) -> None:
        """Forget what a dead worker held open; what it counted stays. Only when its process has been reaped."""
        view = self._views[slot]
        for key, start in rows.items():
            kind = kind_of(key)
            if kind in SHARED:
                _clear(view, start, WIDTHS[kind])
            for offset in GAUGES[kind]:
                view[start + offset] = 0

    def close(self) -> None:
        """Unmap and close; nobody may hold `cells` any more."""
        for view in self._views:
            view.release()
        for mapped, fd in zip(self._maps, self.fds, strict=True):
            mapped.close()
            os.close(fd)


def sums(lists: Sequence[list[int]]) -> list[int]:
    """Cell by cell, the sum over all slabs."""
    total = lists[0]
    for cells in lists[1:]:
        total = list(map(add, total, cells))
    return total


def _clear(view: memoryview[int], start: int, width: int) -> None:
    view[start : start + width] = memoryview(bytes(width * CELL_BYTES)).cast("q")


def memory_file(name: str, size: int) -> int:
    """A descriptor of zeroed memory that processes may share, of a size that nobody can change any more."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd

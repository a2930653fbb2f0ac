"""Which keys are frequent, in fixed memory: a weighted Misra-Gries summary that fades, and the table workers exchange.

Counting every key would need as much memory as there are users. Misra and Gries (1982) keep `capacity` counters. A key
without one gets one; when there are too many, the amount of the first that would have to go is taken from all of them,
and those that reach zero are dropped. Each unit that a counter loses is lost by `capacity` others at the same time, so
no counter is ever short of the truth by more than (everything dropped) / (capacity + 1), and none is ever above it: a
key that looks frequent is. Whole batches are added at a time, which costs the same and comes to the same (Agarwal et
al., Mergeable Summaries, 2012); for the same reason the summaries of several workers can be added up.

Fading multiplies everything by a number below one, so a summary speaks of the last moments only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Final, final

# A table that is older than this is of a worker that has died.
STALE_S: Final = 2.0


@final
class Sketch:
    """A summary of weights by key. `total` is the weight of everything, kept or not."""

    __slots__ = ("capacity", "kept", "total")

    def __init__(self, capacity: int = 512) -> None:
        self.capacity: Final = capacity
        self.kept: dict[int, float] = {}
        self.total = 0.0

    def add(self, weights: Mapping[int, float], unkept: float = 0.0) -> None:
        """Add a batch of weights by key, and the weight `unkept` of keys that are not worth naming."""
        kept = self.kept
        for key, weight in weights.items():
            kept[key] = kept.get(key, 0.0) + weight
        self.total += sum(weights.values()) + unkept
        if len(kept) > self.capacity:
            cut = sorted(kept.values(), reverse=True)[self.capacity]
            self.kept = {key: weight - cut for key, weight in kept.items() if weight > cut}

    def fade(self, factor: float) -> None:
        """Multiply every weight by `factor`, from 0 to 1."""
        self.kept = {key: weight * factor for key, weight in self.kept.items()}
        self.total *= factor

    def clear(self) -> None:
        """Forget everything."""
        self.kept = {}
        self.total = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One key's part: requests in thousandths, seats held over time in microseconds, and seats held right now."""

    key: int
    requests: int = 0
    work: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """What one worker knows at the time `at_us`: its totals, and its most frequent keys in falling order."""

    at_us: int = 0
    requests: int = 0
    work: int = 0
    rows: tuple[Row, ...] = ()

    def is_stale(self, now: float) -> bool:
        """Whether it is of the past, because its worker has died."""
        return now - self.at_us / 1e6 > STALE_S


ROWS: Final = 64
_HEAD: Final = 5
_WIDTH: Final = 4
TABLE_CELLS: Final = _HEAD + ROWS * _WIDTH + 1


def write_table(cells: MutableSequence[int], at: int, table: Table) -> None:
    """Lay a table into the TABLE_CELLS cells from `at` on, for readers in other processes.

    The first cell takes a new number before anything else changes and the last one after everything has, so a reader
    that meets the same number in both has read a whole table. At most ROWS rows are written.
    """
    number = cells[at] + 1
    rows = table.rows[:ROWS]
    cells[at] = number
    cells[at + 1], cells[at + 2], cells[at + 3], cells[at + 4] = table.at_us, table.requests, table.work, len(rows)
    cell = at + _HEAD
    for row in rows:
        cells[cell] = row.key - (1 << 64) if row.key >> 63 else row.key
        cells[cell + 1], cells[cell + 2], cells[cell + 3] = row.requests, row.work, row.held
        cell += _WIDTH
    cells[at + TABLE_CELLS - 1] = number


def read_table(cells: Sequence[int], at: int) -> Table | None:
    """The table at `at`; None when none has been written, or when it is just being written."""
    number = cells[at + TABLE_CELLS - 1]
    at_us, requests, work, count = cells[at + 1], cells[at + 2], cells[at + 3], cells[at + 4]
    first = at + _HEAD
    flat = list(cells[first : first + min(count, ROWS) * _WIDTH])
    rows = tuple(
        Row(flat[cell] % (1 << 64), flat[cell + 1], flat[cell + 2], flat[cell + 3])
        for cell in range(0, len(flat), _WIDTH)
    )
    if not number or cells[at] != number:
        return None
    return Table(at_us, requests, work, rows)


def merged(tables: Iterable[Table]) -> Table:
    """The tables of several workers as one: of the newest time, every key once, the most work first."""
    at_us = requests = work = 0
    rows: dict[int, Row] = {}
    for table in tables:
        at_us = max(at_us, table.at_us)
        requests += table.requests
        work += table.work
        for row in table.rows:
            seen = rows.get(row.key)
            if seen is not None:
                row = Row(row.key, seen.requests + row.requests, seen.work + row.work, seen.held + row.held)
            rows[row.key] = row
    ranked = sorted(rows.values(), key=lambda row: (-row.work, -row.requests, row.key))
    return Table(at_us, requests, work, tuple(ranked))

"""What a backend has answered in one turn of the event loop, gathered, and then counted at once.

To raise a cell of the slab by one costs as much as a dozen steps of the interpreter, and a plain request raises
thirteen. Under load a turn ends dozens of plain requests, which raise the same few cells.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, final

from lbproxy.core.ledger import (
    BACKEND_DURATION,
    BACKEND_OWNED,
    BACKEND_REQUESTS,
    DURATION_BOUNDS,
    DURATION_SUM,
    OWNER,
    POOL_DECISIONS,
    POOL_DURATION,
    POOL_FIRST_BYTE,
    POOL_REQUESTS,
    POOL_RESPONSE_BYTES,
    Cells,
)


@final
class Tally:
    """Plain requests to one backend: of a key that it owns, answered by it in one piece, so that the first byte of the
    answer came when the attempt ended.

    `codes`, `durations` of the whole request and `attempts`, both in microseconds, have an entry for each. The two are
    the same unless requests had to wait for their attempt, of which `has_waited` tells. `size` is the octets of all
    bodies together.
    """

    __slots__ = ("attempts", "codes", "durations", "has_waited", "size")

    def __init__(self) -> None:
        self.codes: Final[list[int]] = []
        self.durations: Final[list[int]] = []
        self.attempts: Final[list[int]] = []
        self.has_waited = False
        self.size = 0

    def add(self, code: int, micros: int, attempt: int, size: int) -> None:
        """One request more, of this class of status, duration, duration of its attempt, and octets."""
        self.codes.append(code)
        self.durations.append(micros)
        self.attempts.append(attempt)
        if attempt != micros:
            self.has_waited = True
        self.size += size

    def count(self, cells: Cells, pool_row: int, row: int) -> None:
        """Count what has been gathered into the cells of the pool and of the backend, and forget it."""
        if len(self.durations) == 1:
            self._count_one(cells, pool_row, row)
        else:
            self._count_many(cells, pool_row, row)
        self.codes.clear()
        self.durations.clear()
        self.attempts.clear()
        self.has_waited = False
        self.size = 0

    def _count_many(self, cells: Cells, pool_row: int, row: int) -> None:
        codes, durations = self.codes, self.durations
        for code in set(codes):
            answers = codes.count(code)
            cells[pool_row + POOL_REQUESTS + code] += answers
            cells[row + BACKEND_REQUESTS + code] += answers
        cells[pool_row + POOL_DECISIONS + OWNER] += len(durations)
        cells[pool_row + POOL_RESPONSE_BYTES] += self.size
        cells[row + BACKEND_OWNED] += len(durations)
        if self.has_waited:
            _spread(cells, durations, (pool_row + POOL_DURATION,))
            _spread(cells, self.attempts, (pool_row + POOL_FIRST_BYTE, row + BACKEND_DURATION))
        else:
            _spread(cells, durations, (pool_row + POOL_DURATION, pool_row + POOL_FIRST_BYTE, row + BACKEND_DURATION))

    def _count_one(self, cells: Cells, pool_row: int, row: int) -> None:
        """The same for a single request, which otherwise takes three times as long; and where there is one alone, its
        client waits for that."""
        code, duration, attempt = self.codes[0], self.durations[0], self.attempts[0]
        cells[pool_row + POOL_REQUESTS + code] += 1
        cells[row + BACKEND_REQUESTS + code] += 1
        cells[pool_row + POOL_DECISIONS + OWNER] += 1
        cells[pool_row + POOL_RESPONSE_BYTES] += self.size
        cells[row + BACKEND_OWNED] += 1
        bucket = bisect_left(DURATION_BOUNDS, duration)
        cells[pool_row + POOL_DURATION + bucket] += 1
        cells[pool_row + POOL_DURATION + DURATION_SUM] += duration
        if self.has_waited:
            bucket = bisect_left(DURATION_BOUNDS, attempt)
        for histogram in (pool_row + POOL_FIRST_BYTE, row + BACKEND_DURATION):
            cells[histogram + bucket] += 1
            cells[histogram + DURATION_SUM] += attempt


def _spread(cells: Cells, durations: list[int], histograms: tuple[int, ...]) -> None:
    """Put all these durations into the buckets of each of these histograms. They are sorted."""
    total = sum(durations)
    durations.sort()
    for histogram in histograms:
        cells[histogram + DURATION_SUM] += total
    done = 0
    while done < len(durations):
        bucket = bisect_left(DURATION_BOUNDS, durations[done])
        end = len(durations)
        if bucket < len(DURATION_BOUNDS):
            end = bisect_right(durations, DURATION_BOUNDS[bucket], done)
        for histogram in histograms:
            cells[histogram + bucket] += end - done
        done = end

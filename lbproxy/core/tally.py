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
    """Plain requests to one backend: of a key that it owns, answered by it at the first attempt and on a kept
    connection, in one piece; so that all their durations are the same.

    `codes` and `durations`, in microseconds, have an entry for each; `size` is the octets of all bodies together.
    """

    __slots__ = ("codes", "durations", "size")

    def __init__(self) -> None:
        self.codes: Final[list[int]] = []
        self.durations: Final[list[int]] = []
        self.size = 0

    def count(self, cells: Cells, pool_row: int, row: int) -> None:
        """Count what has been gathered into the cells of the pool and of the backend, and forget it."""
        if len(self.durations) == 1:
            self._count_one(cells, pool_row, row)
        else:
            self._count_many(cells, pool_row, row)
        self.codes.clear()
        self.durations.clear()
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
        total = sum(durations)
        durations.sort()
        for histogram in (pool_row + POOL_DURATION, pool_row + POOL_FIRST_BYTE, row + BACKEND_DURATION):
            cells[histogram + DURATION_SUM] += total
        done = 0
        while done < len(durations):
            bucket = bisect_left(DURATION_BOUNDS, durations[done])
            end = len(durations)
            if bucket < len(DURATION_BOUNDS):
                end = bisect_right(durations, DURATION_BOUNDS[bucket], done)
            cells[pool_row + POOL_DURATION + bucket] += end - done
            cells[pool_row + POOL_FIRST_BYTE + bucket] += end - done
            cells[row + BACKEND_DURATION + bucket] += end - done
            done = end

    def _count_one(self, cells: Cells, pool_row: int, row: int) -> None:
        """The same for a single request, which otherwise takes three times as long; and where there is one alone, its
        client waits for that."""
        code, duration = self.codes[0], self.durations[0]
        bucket = bisect_left(DURATION_BOUNDS, duration)
        cells[pool_row + POOL_REQUESTS + code] += 1
        cells[row + BACKEND_REQUESTS + code] += 1
        cells[pool_row + POOL_DECISIONS + OWNER] += 1
        cells[pool_row + POOL_RESPONSE_BYTES] += self.size
        cells[row + BACKEND_OWNED] += 1
        for histogram in (pool_row + POOL_DURATION, pool_row + POOL_FIRST_BYTE, row + BACKEND_DURATION):
            cells[histogram + bucket] += 1
            cells[histogram + DURATION_SUM] += duration

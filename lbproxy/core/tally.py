"""What the backends have answered in one turn of the event loop, gathered, and then counted at once.

To raise a cell of the slab by one costs as much as a dozen steps of the interpreter, and a plain request raises
thirteen. Under load a turn ends dozens of plain requests, which raise the same few cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from lbproxy.core.ledger import (
    BACKEND_DURATION,
    BACKEND_OWNED,
    BACKEND_REQUESTS,
    CODE_CLASSES,
    DURATION_BOUNDS,
    DURATION_SUM,
    OWNER,
    POOL_DECISIONS,
    POOL_DURATION,
    POOL_FIRST_BYTE,
    POOL_REQUESTS,
    POOL_RESPONSE_BYTES,
    Cells,
    duration_bucket,
)

if TYPE_CHECKING:
    from lbproxy.core.account import Backend


@final
class Spread:
    """Durations in microseconds that wait for their histograms: how many are in each bucket, and their `sum`."""

    __slots__ = ("_counts", "_filled", "sum")

    def __init__(self) -> None:
        self._counts: Final = [0] * (len(DURATION_BOUNDS) + 1)
        self._filled: Final[list[int]] = []  # the buckets that are not empty
        self.sum = 0

    def add(self, micros: int, bucket: int) -> None:
        """One duration more, and the bucket that it belongs to."""
        counts = self._counts
        count = counts[bucket]
        if not count:
            self._filled.append(bucket)
        counts[bucket] = count + 1
        self.sum += micros

    def add_all(self, other: Spread) -> None:
        """All that `other` holds, as well."""
        for bucket in other._filled:
            if not self._counts[bucket]:
                self._filled.append(bucket)
            self._counts[bucket] += other._counts[bucket]
        self.sum += other.sum

    def pour(self, cells: Cells, histogram: int) -> None:
        """Count them into the histogram whose first cell this is; none are left."""
        for bucket in self._filled:
            cells[histogram + bucket] += self._counts[bucket]
            self._counts[bucket] = 0
        self._filled.clear()
        cells[histogram + DURATION_SUM] += self.sum
        self.sum = 0


@final
class BackendTally:
    """Plain requests to one backend: `requests` altogether, by class of status, and their attempts' durations."""

    __slots__ = ("attempts", "codes", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.codes: Final = [0] * len(CODE_CLASSES)
        self.attempts: Final = Spread()

    def count(self, cells: Cells, row: int) -> None:
        """Count them into the cells of the backend, whose `row` this is; none are left."""
        _pour_codes(self.codes, cells, row + BACKEND_REQUESTS)
        cells[row + BACKEND_OWNED] += self.requests
        self.requests = 0
        self.attempts.pour(cells, row + BACKEND_DURATION)


@final
class Tally:
    """Plain requests in one pool: of a key that its backend owns, answered by it in one piece, so that the first byte
    of the answer came when the attempt ended.

    Those of a backend are in its `tally`; here is what the whole pool has in common: the durations of the requests, and
    the octets of their bodies.
    """

    __slots__ = ("_backends", "_codes", "_durations", "_first_bytes", "_size")

    def __init__(self) -> None:
        self._backends: Final[list[Backend]] = []
        self._codes: Final = [0] * len(CODE_CLASSES)
        self._durations: Final = Spread()
        self._first_bytes: Final = Spread()
        self._size = 0

    def add(self, backend: Backend, code: int, micros: int, attempt: int, size: int) -> bool:
        """One request more, of this class of status, duration, duration of its attempt, both in microseconds, and
        octets. Whether it is the first one."""
        share = backend.tally
        is_first = False
        if not share.requests:
            is_first = not self._backends
            self._backends.append(backend)
        share.requests += 1
        share.codes[code] += 1
        bucket = duration_bucket(attempt)
        share.attempts.add(attempt, bucket)
        self._durations.add(micros, bucket if micros == attempt else duration_bucket(micros))
        self._size += size
        return is_first

    def count(self, cells: Cells, row: int) -> None:
        """Count what has been gathered into the cells of the backends and of the pool, whose `row` this is, and forget
        it."""
        codes = self._codes
        requests = 0
        for backend in self._backends:
            share = backend.tally
            requests += share.requests
            self._first_bytes.add_all(share.attempts)
            for code in range(len(CODE_CLASSES)):
                codes[code] += share.codes[code]
            share.count(cells, backend.row)
        self._backends.clear()
        _pour_codes(codes, cells, row + POOL_REQUESTS)
        cells[row + POOL_DECISIONS + OWNER] += requests
        cells[row + POOL_RESPONSE_BYTES] += self._size
        self._size = 0
        self._durations.pour(cells, row + POOL_DURATION)
        self._first_bytes.pour(cells, row + POOL_FIRST_BYTE)


def _pour_codes(codes: list[int], cells: Cells, start: int) -> None:
    """Count answers by class of status into the cells from `start` on; none are left."""
    for code in range(len(CODE_CLASSES)):
        answers = codes[code]
        if answers:
            cells[start + code] += answers
            codes[code] = 0

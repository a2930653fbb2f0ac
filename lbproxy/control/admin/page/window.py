"""What happened in the last moments: differences between samples.

Shares need many requests to mean anything, and a change must not be judged by what happened before it. So what is shown
is the last half a minute if it holds enough requests, else the last five minutes; and no more than since the pool last
changed its ring or who may serve, unless that was only seconds ago. Then the span says that it is not settled, and
shares are shown but not judged. (A pool in which something changes all the time is still worth looking at.)
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from lbproxy.control.admin.page.source import (
    ERRORS,
    FAILED,
    LATENCY,
    NO_KEY,
    OWNED,
    RECEIVED,
    REQUESTS,
    SAVED,
    SPILLED,
    PoolNow,
    Sample,
)
from lbproxy.core.ledger import SPILL_REASONS

BRISK_S: Final = 5.0
SHORT_S: Final = 30.0
LONG_S: Final = 300.0
LEAST_S: Final = 10.0
# Samples older than the short window are kept this far apart.
APART_S: Final = 10.0
# From so many requests per backend on, the short window is enough.
ENOUGH_PER_BACKEND: Final = 40
TIMELINE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Flow:
    """What passed a backend (or a pool) in `seconds`. `p50_s`, `p99_s` None: nothing was measured."""

    seconds: float
    requests: int = 0
    failed: int = 0
    errors: int = 0
    owned: int = 0
    spilled: tuple[int, ...] = (0,) * len(SPILL_REASONS)
    received: int = 0
    no_key: int = 0
    saved: int = 0
    p50_s: float | None = None
    p99_s: float | None = None

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def spilled_away(self) -> int:
        return sum(self.spilled)

    @property
    def trouble(self) -> float:
        """The share of what went wrong: answers of class 5xx and failures without any."""
        return min(1.0, (self.failed + self.errors) / max(1, self.requests, self.failed + self.errors))


@dataclass(frozen=True, slots=True)
class Span:
    """A pool over its window: what passed the pool, and each of its backends by name. `is_settled` when nothing has
    changed meanwhile."""

    pool: Flow
    backends: dict[str, Flow]
    is_settled: bool

    @property
    def seconds(self) -> float:
        return self.pool.seconds

    @property
    def served(self) -> int:
        """Answers of all backends."""
        return sum(flow.requests for flow in self.backends.values())


@final
class Past:
    """The samples of the last minutes, and the states of backends with the moments at which they changed."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()
        self._marks: dict[str, tuple[object, float]] = {}
        self._states: dict[tuple[str, str], list[tuple[float, str]]] = {}

    @property
    def last(self) -> Sample:
        return self._samples[-1]

    def add(self, sample: Sample) -> None:
        """Remember a sample, newer than all before it."""
        samples = self._samples
        if len(samples) > 2 and self._is_spare(sample.at):
            del samples[-2]
        samples.append(sample)
        while sample.at - samples[0].at > LONG_S + APART_S:
            samples.popleft()
        self._thin(sample.at)
        for name, pool in sample.pools.items():
            mark = (pool.now.fingerprint, frozenset(each.name for each in pool.now.eligible))
            if name not in self._marks or self._marks[name][0] != mark:
                self._marks[name] = mark, sample.at
        self._note_states(sample)

    def _is_spare(self, at: float) -> bool:
        """Whether the last two samples came so close on each other that one of them is enough."""
        return at - self._samples[-2].at < 0.5

    def _thin(self, now: float) -> None:
        """Of what has left the short window, keep one sample in each `APART_S`."""
        samples = self._samples
        for index in range(len(samples) - 2, 0, -1):
            if now - samples[index].at > SHORT_S and samples[index + 1].at - samples[index - 1].at < APART_S:
                del samples[index]

    def _note_states(self, sample: Sample) -> None:
        known = {(name, each.name): each for name, pool in sample.pools.items() for each in pool.now.backends}
        for gone in self._states.keys() - known.keys():
            del self._states[gone]
        for key, backend in known.items():
            changes = self._states.setdefault(key, [])
            if not changes:
                changes.append((min(backend.since or sample.wall, sample.wall), backend.state))
            elif changes[-1][1] != backend.state:
                changes.append((sample.wall, backend.state))
            while len(changes) > 1 and changes[1][0] < sample.wall - TIMELINE_S:
                del changes[0]

    def states(self, pool: str, backend: str) -> Sequence[tuple[float, str]]:
        """When it came into which state (wall time), the present one last."""
        return self._states.get((pool, backend), [])

    # What happened

    def span(self, pool: str) -> Span:
        """The pool's traffic over the window that has enough of it."""
        short = self._span(pool, SHORT_S)
        enough = ENOUGH_PER_BACKEND * len(short.backends)
        return short if short.served >= enough else self._span(pool, LONG_S)

    def brisk(self, pool: str) -> Flow:
        """The pool's traffic of the last seconds, or since the last look if that is longer ago."""
        known = [sample for sample in self._samples if pool in sample.pools]
        newest, now = known[-1].pools[pool], known[-1].at
        before = next((sample for sample in reversed(known) if now - sample.at >= BRISK_S - 0.5), known[0])
        return _flow(newest.now, newest.counts[""], before.pools[pool].counts[""], now - before.at)

    def rates(self, pool: str) -> list[tuple[float, float]]:
        """(seconds ago, requests per second) of the last minutes, oldest first."""
        points = [
            (sample.at, sample.pools[pool].counts[""][REQUESTS]) for sample in self._samples if pool in sample.pools
        ]
        now = self.last.at
        rates = []
        before_at, before = points[0] if points else (0.0, 0)
        for at, total in points[1:]:
            if at - before_at >= BRISK_S - 0.5:
                rates.append((now - at, max(0, total - before) / (at - before_at)))
                before_at, before = at, total
        return rates

    def _span(self, pool: str, length_s: float) -> Span:
        newest, now, mark = self.last.pools[pool], self.last.at, self._marks[pool][1]
        start = max(now - length_s, min(mark, now - LEAST_S))
        old = self._first(pool, start)
        backends = {}
        for each in newest.now.backends:
            first = old if each.name in old.pools[pool].counts else self._first(pool, start, each.name)
            counts = newest.counts[each.name], first.pools[pool].counts[each.name]
            backends[each.name] = _flow(newest.now, *counts, now - first.at)
        whole = _flow(newest.now, newest.counts[""], old.pools[pool].counts[""], now - old.at)
        return Span(whole, backends, old.at >= mark)

    def _first(self, pool: str, start: float, backend: str = "") -> Sample:
        """The first sample from `start` on that knows the pool and the backend."""
        return next(
            sample
            for sample in self._samples
            if sample.at >= start - 1e-3 and pool in sample.pools and backend in sample.pools[pool].counts
        )


def _flow(pool: PoolNow, now: array[int], before: array[int], seconds: float) -> Flow:
    """The difference of two counts, none of which runs backwards."""
    passed = [max(0, new - old) for new, old in zip(now, before, strict=True)]
    return Flow(
        seconds=seconds,
        requests=passed[REQUESTS],
        failed=passed[FAILED],
        errors=passed[ERRORS],
        owned=passed[OWNED],
        spilled=tuple(passed[SPILLED:RECEIVED]),
        received=passed[RECEIVED],
        no_key=passed[NO_KEY],
        saved=passed[SAVED],
        p50_s=quantile(0.5, pool.bounds_s, passed[LATENCY:]),
        p99_s=quantile(0.99, pool.bounds_s, passed[LATENCY:]),
    )


def quantile(q: float, bounds: Sequence[float], counts: Sequence[int]) -> float | None:
    """The value below which the share `q` lies, taking each bucket's content as spread evenly over it; the highest
    bound for what is beyond it. None when nothing was counted."""
    total = sum(counts)
    if not total or not bounds:
        return None
    wanted = q * total
    low = 0.0
    for bound, number in zip(bounds, counts, strict=False):
        if number and wanted <= number:
            return low + (bound - low) * wanted / number
        wanted -= number
        low = bound
    return low

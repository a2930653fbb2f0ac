"""Balls into bins with a capacity: what happens to a ball whose bin is full, as arXiv 1908.08762 asks.

m balls come one after the other, each bin takes at most ceil((1 + epsilon) m / n) of them. With *linear probing* a
ball goes on clockwise to the next bin of the ring that has room; with *random jump* it tries bins at random.
Four quantities say how well that goes: how many bins are full in the end, how uneven the loads are, how many bins one
more ball would look at, and how many balls came before the first bin was full.

Clockwise probing suffers when bins have one point each: a full stretch of the ring feeds all that falls on it into the
bin behind, which fills next. With many points per bin each full bin's balls are spread over all others, as by jumping,
and a ball's second choice stays what it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Final

from lbproxy.core.bound import Bound
from lbproxy.core.forge import build_ring
from lbproxy.core.ring import Ring

# How many further balls are asked for where they would go.
_PROBES: Final = 1000

# The bins that a ball looks at, in order.
Tries = Callable[[random.Random], Iterator[int]]


@dataclass(frozen=True, slots=True)
class Filling:
    """The four quantities: `full` bins (0 to 1), `variance` of the loads, `probes` of one more ball, `until_full` the
    balls placed when the first bin had become full."""

    full: float
    variance: float
    probes: float
    until_full: float


def clockwise(ring: Ring) -> Tries:
    """Linear probing: along the ring from a random position."""
    return lambda chance: ring.walk(chance.getrandbits(64))


def jumping(bins: int) -> Tries:
    """Random jump: any bin, again and again."""

    def tries(chance: random.Random) -> Iterator[int]:
        while True:
            yield int(chance.random() * bins)

    return tries


def fill(bins: int, balls: int, epsilon: float, tries: Tries, chance: random.Random) -> Filling:
    """Let the balls fall once."""
    capacity = Bound([1.0] * bins, 1 + epsilon, 0).slots(0, balls)
    assert capacity is not None
    loads = [0] * bins
    until_full = 0
    for ball in range(1, balls + 1):
        chosen = next(each for each in tries(chance) if loads[each] < capacity)
        loads[chosen] += 1
        if not until_full and loads[chosen] == capacity:
            until_full = ball
    probes = [_probes(tries(chance), loads, capacity) for _ in range(_PROBES)]
    return Filling(loads.count(capacity) / bins, pvariance(loads), fmean(probes), float(until_full or balls))


def _probes(tries: Iterator[int], loads: list[int], capacity: int) -> int:
    return next(count for count, each in enumerate(tries, start=1) if loads[each] < capacity)


def mean_filling(
    bins: int, balls: int, epsilon: float, points: int | None, trials: int, seed: int, step: Callable[[], None]
) -> Filling:
    """The mean of several fillings with bins of other names. `points` per bin on the ring, None to jump instead.
    `step` is called after each."""
    fillings = []
    for trial in range(trials):
        chance = random.Random(f"{seed}:{trial}")  # noqa: S311 - must come out the same again
        if points is None:
            tries = jumping(bins)
        else:
            tries = clockwise(build_ring([(f"bin-{seed}-{trial}-{bin_}", 1.0) for bin_ in range(bins)], points))
        fillings.append(fill(bins, balls, epsilon, tries, chance))
        step()
    return Filling(
        *(fmean(getattr(each, name) for each in fillings) for name in ("full", "variance", "probes", "until_full"))
    )

"""The bound: how many exchanges a backend may hold before its keys look further.

Consistent hashing alone keeps keys where they are and lets load fall as it may. Bounded loads (Mirrokni, Thorup,
Zadimoghaddam, arXiv 1608.01350) add one sentence: no backend holds more than `factor` times its fair share of what is
in flight; a request whose owner is there already goes on clockwise to the first backend that is not.

Let m be all exchanges in flight in the pool, the one being placed included, and q a backend's part of the weight of
those that are eligible. Its fair share is q*m, and its slots are

    slots = ceil(max(factor * q * m, q * m + gap))

It may be given the exchange while it holds fewer than that: strictly, so that it never holds slots + 1. What follows:

* Nobody is at zero. m counts the exchange being placed, so q*m > 0 and its ceiling is at least 1.
* There is always a seat. The slots sum to at least m, and at most m - 1 are taken when the question is asked.
* Rounding never decides. Weights and factor are taken as the decimal fractions that were written and scaled to
  integers once. A whole number x is below ceil(y) exactly when it is below y, so asking for room needs neither a
  ceiling nor a division, only products and comparisons, and a square instead of a root.

The gap is there because a ratio means nothing when numbers are small. What a backend holds swings by about the root of
its mean from chance alone: with 20 in flight each that is 4.5, and a ceiling of 25 turns some 6 % of the requests away
though nobody is overloaded. So a backend may hold some seats more than its share whatever the factor says:

* gap None: 2.5 times the root of its share. That is what chance explains at any load, and below 1 % of requests are
  turned away for nothing; what it costs is a higher peak while load is low, where it hurts nobody. From 100 seats a
  backend on, a factor of 1.25 is the larger of the two.
* gap N: that many seats. 0 is the hard bound of the paper.

    10 equal backends, 2,000 keys, in flight:        80             200             400            1000
    requests off their owner, peak over mean (`lbproxy simulate gap`):
        hard bound, factor 1.25                19.3 %, 1.25     6.3 %, 1.25     2.6 %, 1.25     0.5 %, 1.25
        gap 4                                   5.8 %, 1.50     6.3 %, 1.25     2.6 %, 1.25     0.5 %, 1.25
        gap 12                                  0.0 %, 2.38     0.3 %, 1.60     1.6 %, 1.30     0.5 %, 1.25
        gap None                                0.4 %, 2.00     0.3 %, 1.60     0.5 %, 1.40     0.5 %, 1.25

A hot key is held to its fair share (`below_share`): a backend that has reached it takes no more of that key, so that
the rest of its slots, everything between 1 and `factor` times the mean, stays free for the keys that live there. Such
a seat always exists, too: the fair shares, each rounded up, sum to at least m.

A proxy that keeps its traffic in its own zone counts only that traffic, and it is meant for the backends at home: q is
then a part of their weight, and for the others a part of the others' weight. The parts sum to more than 1, so there is
still always a seat. At home the weight of those that are not eligible counts too: when they fail, those that are left
hold `factor` times what they held before, and only the rest leaves the zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import gcd, isqrt, lcm
from typing import Final, final

# The square of how many times the root of its share a backend may hold above it: 2.5 * 2.5, as a fraction.
_CHANCE: Final = 25
_CHANCE_DIVISOR: Final = 4


def exact(weight: float) -> Fraction:
    """The decimal that a float is written as, which it stands for; not the binary fraction nearest to that."""
    return Fraction(repr(float(weight)))


def scaled(weights: Iterable[float]) -> list[int]:
    """The weights as the smallest whole numbers in exactly the same proportion. 0.1 and 0.25 become 2 and 5."""
    fractions = list(map(exact, weights))
    denominator = lcm(*(each.denominator for each in fractions))
    whole = [int(each * denominator) for each in fractions]
    divisor = gcd(*whole) or 1
    return [each // divisor for each in whole]


def _parts(weights: Sequence[float], wholes: Sequence[Fraction] | None) -> tuple[list[int], int]:
    """The backends' parts of their wholes, exactly, as numerators over one common denominator."""
    if wholes is None:
        numbers = scaled(weights)
        return numbers, sum(numbers)
    parts = [exact(weight) / whole if weight else Fraction(0) for weight, whole in zip(weights, wholes, strict=True)]
    denominator = lcm(*(part.denominator for part in parts))
    return [int(part * denominator) for part in parts], denominator


def gap_seats(fair: float, min_gap: int | None) -> float:
    """How many seats above a fair share of `fair` seats the gap allows, whatever the factor."""
    return (_CHANCE / _CHANCE_DIVISOR * fair) ** 0.5 if min_gap is None else float(min_gap)


@final
class Bound:
    """The bound of a pool for one set of eligible backends, which are indexes into `weights`.

    Backends that are not eligible, and those of weight 0, have weight 0 here: they have no slots, and the others share
    the whole. `factor` is at least 1, or None for no bound at all; `min_gap` as above. `wholes` says for each backend
    of which weight its own is a part, where that is not the sum of all. Raises ValueError for a factor below 1 or a
    negative gap. Build it anew when eligibility or a weight changes.
    """

    __slots__ = ("_by_chance", "_denominator", "_factored", "_gap", "_unbounded", "_weight", "_weights")

    def __init__(
        self,
        weights: Sequence[float],
        factor: float | None = 1.25,
        min_gap: int | None = None,
        wholes: Sequence[Fraction] | None = None,
    ) -> None:
        if factor is not None and not 1 <= factor < float("inf"):
            raise ValueError(f"a balance factor is a number from 1 up, not {factor!r}")
        if min_gap is not None and min_gap < 0:
            raise ValueError(f"a gap is a number from 0 up, not {min_gap}")
        ratio = exact(factor or 1)
        # A backend's part of the whole is _weights[member] / _weight.
        self._weights, self._weight = _parts(weights, wholes)
        # factor * q * m is _factored[member] * m / _denominator
        self._factored: Final = [weight * ratio.numerator for weight in self._weights]
        self._denominator: Final = self._weight * ratio.denominator
        self._by_chance: Final = min_gap is None
        self._gap: Final = min_gap or 0
        self._unbounded: Final = factor is None

    def has_room(self, member: int, in_flight: int, total: int) -> bool:
        """Whether `member`, which holds `in_flight`, may be given one more.

        `total` is what the pool holds, the one being placed included. The same as in_flight < slots(member, total).
        """
        if in_flight * self._denominator < self._factored[member] * total or self._unbounded:
            return True
        share = self._weights[member] * total
        excess = in_flight * self._weight - share
        if self._by_chance:
            return _CHANCE_DIVISOR * excess * excess < _CHANCE * share * self._weight
        return share > 0 and excess < self._gap * self._weight

    def below_share(self, member: int, in_flight: int, total: int) -> bool:
        """Whether `member` holds less than its fair share of `total`: the bound with factor 1 and no gap."""
        return in_flight * self._weight < self._weights[member] * total

    def share(self, member: int) -> float:
        """The backend's fair part of what is in flight."""
        return self._weights[member] / self._weight if self._weight else 0.0

    def slots(self, member: int, total: int) -> int | None:
        """How many exchanges `member` may hold when the pool holds `total`. None: as many as it likes."""
        if self._unbounded:
            return None
        whole = self._weight
        share = self._weights[member] * total
        if not share:
            return 0
        by_factor = -(-self._factored[member] * total // self._denominator)
        if self._by_chance:
            root = isqrt(_CHANCE * share * whole * _CHANCE_DIVISOR - 1) + 1
            return max(by_factor, -(-(_CHANCE_DIVISOR * share + root) // (_CHANCE_DIVISOR * whole)))
        return max(by_factor, -(-share // whole) + self._gap)


class Smoothed:
    """A level that rises at once and falls slowly: the larger of what is now and what was, fading over `time_s`.

    For the total in flight. A bound that follows every short lull down would turn requests away in the next moment.
    """

    __slots__ = ("_level", "_since", "_time_s")

    def __init__(self, time_s: float = 1.0) -> None:
        self._time_s = time_s
        self._level = 0.0
        self._since = 0.0

    def update(self, value: int, now: float) -> int:
        """Take note of `value` at `now` and return the level, never below `value`. Call it on the coarse timer."""
        elapsed = max(0.0, now - self._since)
        self._since = now
        self._level = max(float(value), self._level * (self._time_s / (self._time_s + elapsed)))
        return max(value, int(self._level))

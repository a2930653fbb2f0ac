"""Pace: moving keys little by little, so that no change of weight sends a wave of strangers to anybody.

A pool with `pace: 5%/min` never moves more than that share of its keys within any minute, whatever was asked for: a
new weight, a backend that joins, one that comes back. What it serves with lies on the straight line from the present
weights to the wanted ones, and every step along that line is measured before it is taken: exactly the share of the hash
space that changes hands between two rings (`moves.moved`), of those that serve, for a backend that nobody asks owns
nothing.

Steps come about once a second, less often on large rings, which take time to build. A step may move what the time since
the last one has earned, but not more than one pause's worth: nobody saves up for a wave. So that even the minute that
begins with a full step stays within its share, a pause's worth is taken off the rate. When tokens are so few that a
single one is more than a pause earns, it moves once it has been earned since the way began.

What the next step is depends on the weights and not on the time. So it can be worked out ahead, in pieces
(`core.pieces`): on a large ring that takes a second or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from lbproxy.core.forge import ring_in_pieces
from lbproxy.core.moves import moved_in_pieces
from lbproxy.core.pieces import Pieces, at_once
from lbproxy.core.ring import Ring, vnode_count

Weights = Mapping[str, float]
_Way = tuple[Weights, Weights, float]  # from, to, the share of keys that may move per second

MINUTE_S: Final = 60.0
LEAST_PAUSE_S: Final = 1.0
# How many tokens a ring may have for each second of pause between two steps.
TOKENS_PER_S: Final = 200_000
# On a ring of more tokens than this, a way of so many steps or more is not measured as a whole, which would take long;
# a guess does for the first step, which is measured like every other.
_LARGE: Final = 100_000
_FAR: Final = 16
_TRIES: Final = 4
_HALVINGS: Final = 24
# On a ring of so many tokens a step takes some 20 ms at the most, and need not be worked out ahead.
_SMALL: Final = 16_384


def rounded(weight: float) -> float:
    """The weight to six figures: finer than any token, and short enough to calculate with exactly."""
    return float(f"{weight:.6g}")


@final
class Pace:
    """How far a pool has come on its way. `now` never runs backwards."""

    __slots__ = ("_at", "_is_under_way", "_next", "_ring", "_share", "_version", "_vnodes", "_way")

    def __init__(self, vnodes: int, version: int) -> None:
        self._vnodes: Final = vnodes
        self._version: Final = version
        # Since when the next step is earned, and whether one is waited for.
        self._at = float("-inf")
        self._is_under_way = False
        self._ring: Ring | None = None
        # The way of which the next step is known: its weights, and the share of keys that it moves.
        self._way: _Way | None = None
        self._next: dict[str, float] = {}
        self._share = 0.0

    def copy(self) -> Pace:
        """One that goes on from here by itself."""
        other = Pace(self._vnodes, self._version)
        other._at, other._is_under_way, other._ring = self._at, self._is_under_way, self._ring
        other._way, other._next, other._share = self._way, self._next, self._share
        return other

    def is_ready(self, present: Weights, wanted: Weights, rate: float) -> bool:
        """Whether `step` has nothing long to work out any more."""
        return present == wanted or self._way == (present, wanted, rate) or sum(self._counts(present)) <= _SMALL

    def plan(self, present: Weights, wanted: Weights, rate: float) -> Pieces[None]:
        """Work out what `step` will need, if that is not known yet."""
        way = present, wanted, rate
        if present == wanted or self._way == way:
            return
        step, share = yield from self._choose(present, wanted, self._allowed(present, rate))
        self._way, self._next, self._share = way, step, share

    def step(self, now: float, present: Weights, wanted: Weights, rate: float) -> dict[str, float] | None:
        """The next weights on the way from `present` to `wanted`, which have the same names; None: not yet, or there.

        `rate` is the share of keys that may move per second.
        """
        if present == wanted:
            return None
        pause_s = self._pause_s(present)
        if not self._is_under_way:
            self._is_under_way = True
            self._at = max(self._at, now - pause_s)
        waited_s = now - self._at
        if waited_s < pause_s:
            return None
        at_once(self.plan(present, wanted, rate))
        if self._share > self._allowed(present, rate) * (waited_s / pause_s):
            return None
        self._at = now
        self._is_under_way = self._next != wanted
        return dict(self._next)

    def _pause_s(self, present: Weights) -> float:
        return max(LEAST_PAUSE_S, sum(self._counts(present)) / TOKENS_PER_S)

    def _allowed(self, present: Weights, rate: float) -> float:
        """The share that one pause earns."""
        pause_s = self._pause_s(present)
        return rate * pause_s * MINUTE_S / (MINUTE_S + pause_s)

    def _choose(self, present: Weights, wanted: Weights, allowed: float) -> Pieces[tuple[dict[str, float], float]]:
        """The next weights, and the share that they move, which is more than allowed if there is no smaller step."""
        before = yield from self._build(present)
        whole = self._guess(present, wanted) if len(before.tokens) > _LARGE else 0.0
        if whole <= _FAR * allowed:
            whole = yield from self._moved(before, wanted)
            if whole <= allowed:
                return dict(wanted), whole
        yield
        smallest = self._smallest(present, wanted)
        yield
        part = allowed / whole
        for _ in range(_TRIES):
            if part <= smallest:
                break
            weights = _between(present, wanted, part)
            share = yield from self._moved(before, weights)
            if share <= allowed:
                return weights, share
            part *= 0.95 * allowed / share
        weights = _between(present, wanted, smallest)
        share = yield from self._moved(before, weights)
        return weights, share

    def _guess(self, present: Weights, wanted: Weights) -> float:
        """About the share that the whole way moves: the tokens that come and go, of all that there are."""
        counts, aims = self._counts(present), self._counts(wanted)
        changed = sum([abs(aim - count) for count, aim in zip(counts, aims, strict=True)])
        return changed / max(sum(counts), sum(aims), 1)

    def _smallest(self, present: Weights, wanted: Weights) -> float:
        """The smallest part of the way that changes anybody's number of tokens."""
        counts = self._counts(present)
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if self._counts(_between(present, wanted, middle)) != counts:
                high = middle
            else:
                low = middle
        return high

    def _counts(self, weights: Weights) -> list[int]:
        return [vnode_count(weight, self._vnodes) for weight in weights.values()]

    def _build(self, weights: Weights) -> Pieces[Ring]:
        ring = yield from ring_in_pieces(weights.items(), self._vnodes, self._version, reuse=self._ring)
        self._ring = ring
        return ring

    def _moved(self, before: Ring, weights: Weights) -> Pieces[float]:
        """The share that changes hands when these weights take the place of a ring."""
        after = yield from self._build(weights)
        moves = yield from moved_in_pieces(before, after)
        return moves.share


def _between(present: Weights, wanted: Weights, part: float) -> dict[str, float]:
    if part == 1.0:
        return dict(wanted)
    return {name: rounded(weight + part * (wanted[name] - weight)) for name, weight in present.items()}

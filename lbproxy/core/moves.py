"""What changes hands between two rings: exactly, and from whom to whom.

An arc of the circle has another owner only if it ends at a point that one of the rings has and the other has not, or
that has passed to another member. When little has changed, only the arcs before those points are looked at; else both
rings are read side by side. Either way the result is exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lbproxy.core.pieces import Pieces, at_once
from lbproxy.core.ring import Ring

# How many arcs are looked at in one piece of the work, and how many tokens are compared.
_PIECE: Final = 4096
_STRETCH: Final = 16384
# Up to so many points that have changed, and up to which part of all, these alone are looked at.
_MOST: Final = 32768
_FEW: Final = 8

_Totals = dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Moves:
    """What changes hands between two rings, in positions of a circle of `size`.

    `flows` maps (from, to) to how many positions; a name "" stands for nobody (an empty ring). `needless` are those
    that no change explains: the one who gave has lost no token, and the one who took has won none.
    """

    flows: dict[tuple[str, str], int]
    needless: int
    size: int

    @property
    def share(self) -> float:
        """The share of the circle that changes hands."""
        return sum(self.flows.values()) / self.size


def moved(before: Ring, after: Ring) -> Moves:
    """Exactly which share of the circle moves from whom to whom when `after` takes the place of `before`.

    Raises ValueError when the circles differ in size.
    """
    return at_once(moved_in_pieces(before, after))


def moved_in_pieces(before: Ring, after: Ring) -> Pieces[Moves]:
    """`moved`, in pieces of a few milliseconds."""
    if before.size != after.size:
        raise ValueError(f"circles of {before.size} and {after.size} positions cannot be compared")
    points = yield from _changed_points(before, after)
    totals = yield from _side_by_side(before, after) if points is None else _arcs_before(points, before, after)
    old_counts = dict(zip(before.names, before.counts, strict=True))
    new_counts = dict(zip(after.names, after.counts, strict=True))
    flows: dict[tuple[str, str], int] = {}
    needless = 0
    for number, ((giver, taker), positions) in enumerate(totals.items(), start=1):
        if not number % _PIECE:
            yield
        source = before.names[giver] if giver >= 0 else ""
        target = after.names[taker] if taker >= 0 else ""
        if source == target or not positions:
            continue
        flows[source, target] = positions
        gave = not source or new_counts.get(source, 0) < old_counts[source]
        took = not target or old_counts.get(target, 0) < new_counts[target]
        if not gave and not took:
            needless += positions
    return Moves(flows, needless, before.size)


def _changed_points(before: Ring, after: Ring) -> Pieces[list[int] | None]:
    """The only points at which arcs can end that have another owner, sorted; None: they are many."""
    if before is after:
        return []
    if before.origin != after.origin or not before.tokens or not after.tokens:
        return None
    pairs = [(before.run(name), after.run(name)) for name in {*before.names, *after.names}]
    pairs = [(old, new) for old, new in pairs if old is not new and len(old) != len(new)]
    changed = sum([abs(len(old) - len(new)) for old, new in pairs])
    if changed > min(_MOST, (len(before.tokens) + len(after.tokens)) // _FEW):
        return None
    # Behind the last point, the first one's owner has the rest of the circle.
    points = {before.size - 1}
    read = 0
    for old, new in pairs:
        points.update(set(old).symmetric_difference(new))
        read += len(old) + len(new)
        if read > _STRETCH:
            read = 0
            yield
    return sorted(points)


def _arcs_before(points: list[int], before: Ring, after: Ring) -> Pieces[_Totals]:
    totals: _Totals = {}
    for number, point in enumerate(points, start=1):
        old, new = before.locate(point), after.locate(point)
        start = max(before.tokens[old - 1] if old else -1, after.tokens[new - 1] if new else -1)
        between = before.owners[old], after.owners[new]
        totals[between] = totals.get(between, 0) + point - start
        if not number % _PIECE:
            yield
    return totals


def _side_by_side(before: Ring, after: Ring) -> Pieces[_Totals]:
    totals: _Totals = {}
    previous = -1
    for number, (end, giver, taker) in enumerate(_segments(before, after), start=1):
        totals[giver, taker] = totals.get((giver, taker), 0) + end - previous
        previous = end
        if not number % _PIECE:
            yield
    return totals


def _segments(before: Ring, after: Ring) -> Iterator[tuple[int, int, int]]:
    """(last position, owner before, owner after) of each arc on which neither changes, from 0 to the end."""
    last = before.size - 1
    old_points, old_owners = before.tokens + array("Q", [last]), before.owners or [-1]
    new_points, new_owners = after.tokens + array("Q", [last]), after.owners or [-1]
    old = new = 0
    while True:
        old_end, new_end = old_points[old], new_points[new]
        end = min(old_end, new_end)
        yield end, old_owners[old], new_owners[new]
        if end == last:
            return
        old += old_end == end
        new += new_end == end

"""What a change of the backends moves: which keys, how many of them for no reason, and whose."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lbproxy.simulate.placements import Members, Placement


@dataclass(frozen=True, slots=True)
class Change:
    """Backends that come, that go, and that get another weight."""

    add: tuple[tuple[str, float], ...] = ()
    remove: tuple[str, ...] = ()
    weights: tuple[tuple[str, float], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.add or self.remove or self.weights)

    def __str__(self) -> str:
        parts = [f"{name} added" + (f" with weight {weight:g}" if weight != 1 else "") for name, weight in self.add]
        parts += [f"{name} removed" for name in self.remove]
        parts += [f"{name} at weight {weight:g}" for name, weight in self.weights]
        return ", ".join(parts)

    def apply(self, members: Members) -> Members:
        """The backends after the change. Raises ValueError when there is no such backend, or there already is."""
        names = [name for name, _ in members]
        for name in [*self.remove, *(name for name, _ in self.weights)]:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                raise ValueError(f"there is no backend {name}" + (f", did you mean {close[0]}?" if close else ""))
        for name, _ in self.add:
            if name in names:
                raise ValueError(f"there already is a backend {name}")
            names.append(name)
        weights = dict(self.weights)
        after = [(name, weights.get(name, weight)) for name, weight in members if name not in self.remove]
        after += self.add
        if not any(weight for _, weight in after):
            raise ValueError("no backend with a weight would be left")
        return after


@dataclass(frozen=True, slots=True)
class Moved:
    """`keys` and `requests` are the parts of them that move, from 0 to 1. `needless` is the part of the keys that move
    between two backends of which neither lost the one nor won the other anything by the change. `lost` and `won` are
    parts of the keys, by backend."""

    keys: float
    needless: float
    requests: float
    lost: dict[str, float]
    won: dict[str, float]


def moved_keys(
    before: Placement,
    after: Placement,
    members: tuple[Members, Members],
    hashes: Sequence[int],
    shares: Sequence[float],
) -> Moved:
    """Compare two placements key by key. `members` are the backends of each, `shares` the keys' parts of requests."""
    old, new = dict(members[0]), dict(members[1])
    lost: Counter[str] = Counter()
    won: Counter[str] = Counter()
    needless = 0
    requests = 0.0
    for h, share in zip(hashes, shares, strict=True):
        giver, taker = before.owner(h), after.owner(h)
        if giver == taker:
            continue
        lost[giver] += 1
        won[taker] += 1
        requests += share
        if new.get(giver, 0.0) >= old[giver] and new[taker] <= old.get(taker, 0.0):
            needless += 1
    count = len(hashes)
    return Moved(
        keys=lost.total() / count,
        needless=needless / count,
        requests=requests / sum(shares),
        lost={name: number / count for name, number in lost.items()},
        won={name: number / count for name, number in won.items()},
    )

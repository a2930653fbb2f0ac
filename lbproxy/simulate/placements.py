"""Other ways to place keys, to compare with: each says who owns a key's hash, and what it would say after a change.

Weights count in all of them, each in the way that is usual for it: by repeating a backend (mod N, jump, one point), by
score (rendezvous), by turns (Maglev) or by number (tokens, partitions).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import log
from typing import Final, Protocol, final

from lbproxy.core.bound import scaled
from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import SPACE, hash_key

# Backends by name and weight, in the order of the list that an operator keeps.
Members = Sequence[tuple[str, float]]

MAGLEV_SIZE: Final = 65537
PARTITIONS: Final = 4096


class Placement(Protocol):
    """Who owns what. `entries` is the number of entries in its table, or of what it must ask for every key."""

    entries: int

    def owner(self, h: int) -> str:
        """The backend that owns a key's hash."""
        ...

    def changed(self, members: Members) -> Placement:
        """What takes its place when these are the backends."""
        ...


@final
class Mod:
    """hash mod N."""

    def __init__(self, members: Members) -> None:
        self._ends, self._names = _repeated(members)
        self.entries = len(self._names)

    def owner(self, h: int) -> str:
        return self._names[bisect_right(self._ends, h % self._ends[-1])]

    def changed(self, members: Members) -> Placement:
        return Mod(members)


@final
class RingOf:
    """A ring with so many tokens per weight 1."""

    def __init__(self, members: Members, vnodes: int) -> None:
        self._ring: Final = build_ring(members, vnodes)
        self._vnodes: Final = vnodes
        self.entries = len(self._ring.tokens)

    def owner(self, h: int) -> str:
        return self._ring.names[self._ring.owner(h)]

    def changed(self, members: Members) -> Placement:
        return RingOf(members, self._vnodes)


@final
class Rendezvous:
    """The highest score of backend and key wins (Thaler, Ravishankar 1998); weighted as by Schindelhauer, Schomaker."""

    def __init__(self, members: Members) -> None:
        self._members: Final = [(name, name.encode(), weight) for name, weight in members if weight]
        self.entries = len(self._members)

    def owner(self, h: int) -> str:
        key = h.to_bytes(8, "little")
        best, best_score = "", -1.0
        for name, encoded, weight in self._members:
            score = weight / -log((hash_key(key + encoded) + 0.5) / SPACE)
            if score > best_score:
                best, best_score = name, score
        return best

    def changed(self, members: Members) -> Placement:
        return Rendezvous(members)


@final
class Jump:
    """Jump consistent hash (Lamping, Veach, arXiv 1406.2294): buckets are numbers, and only the last may come or go."""

    def __init__(self, members: Members) -> None:
        self._ends, self._names = _repeated(members)
        self.entries = 0

    def owner(self, h: int) -> str:
        return self._names[bisect_right(self._ends, jump_bucket(h, self._ends[-1]))]

    def changed(self, members: Members) -> Placement:
        return Jump(members)


def jump_bucket(h: int, buckets: int) -> int:
    """The bucket of a hash among so many."""
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        h = (h * 2862933555777941757 + 1) % SPACE
        following = int((bucket + 1) * (1 << 31) / ((h >> 33) + 1))
    return bucket


@final
class Maglev:
    """A table that backends fill in turns, each in an order of its own (Eisenbud et al., NSDI 2016)."""

    entries = MAGLEV_SIZE

    def __init__(self, members: Members) -> None:
        self._names: Final = [name for name, weight in members if weight]
        self._table: Final = _filled([(name, weight) for name, weight in members if weight])

    def owner(self, h: int) -> str:
        return self._names[self._table[h % MAGLEV_SIZE]]

    def changed(self, members: Members) -> Placement:
        return Maglev(members)


def _filled(members: Members) -> list[int]:
    orders = [
        (hash_key(b"offset:" + name.encode()) % MAGLEV_SIZE, hash_key(b"skip:" + name.encode()) % (MAGLEV_SIZE - 1) + 1)
        for name, _ in members
    ]
    heaviest = max(weight for _, weight in members)
    places = [offset for offset, _ in orders]
    credits = [0.0] * len(members)
    table = [-1] * MAGLEV_SIZE
    left = MAGLEV_SIZE
    while True:
        for member, (_, weight) in enumerate(members):
            credits[member] += weight
            if credits[member] < heaviest:
                continue
            credits[member] -= heaviest
            place, skip = places[member], orders[member][1]
            while table[place] >= 0:
                place = (place + skip) % MAGLEV_SIZE
            table[place] = member
            places[member] = place
            left -= 1
            if not left:
                return table


@final
class Partitions:
    """A fixed number of partitions and a list of who has which: what a change moves is for whoever keeps the list to
    choose, and here it is the least possible."""

    entries = PARTITIONS

    def __init__(self, members: Members, before: Sequence[str] | None = None) -> None:
        wanted = _apportioned(members, PARTITIONS)
        holders = list(before) if before is not None else [""] * PARTITIONS
        left = dict(wanted)
        free = []
        for number, name in enumerate(holders):
            if left.get(name, 0):
                left[name] -= 1
            else:
                free.append(number)
        takers = (name for name, count in left.items() for _ in range(count))
        for number, name in zip(free, takers, strict=True):
            holders[number] = name
        self._holders: Final = holders

    def owner(self, h: int) -> str:
        return self._holders[h % PARTITIONS]

    def changed(self, members: Members) -> Placement:
        return Partitions(members, self._holders)


def _apportioned(members: Members, count: int) -> dict[str, int]:
    """`count` shared out by weight, the largest remainders rounded up."""
    whole = sum(weight for _, weight in members)
    exact = {name: weight / whole * count for name, weight in members}
    shares = {name: int(part) for name, part in exact.items()}
    by_remainder = sorted(exact, key=lambda name: shares[name] - exact[name])
    for name in by_remainder[: count - sum(shares.values())]:
        shares[name] += 1
    return shares


def _repeated(members: Members) -> tuple[list[int], list[str]]:
    """Every backend as often as its weight says, in whole numbers: where its entries end, and its name."""
    counts = scaled(weight for _, weight in members)
    return list(accumulate(counts)), [name for name, _ in members]


def placements(vnodes: int) -> dict[str, Callable[[Members], Placement]]:
    """Each way by its name. `vnodes` is for those with a ring."""
    return {
        "mod": Mod,
        "one-point": lambda members: RingOf(members, 1),
        "ring": lambda members: RingOf(members, vnodes),
        "rendezvous": Rendezvous,
        "jump": Jump,
        "maglev": Maglev,
        "partitions": Partitions,
    }

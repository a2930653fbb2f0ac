"""The ring: who owns a key, and who comes next.

Bend the range of the hash into a circle. Every backend stands on it at many points, its tokens; a key belongs to the
backend of the first token at or after the key's own position, and past the last token the circle wraps. That is the
whole rule, and everything worth having follows from keeping it this plain:

* A backend that joins cuts arcs off others and gives them to itself; one that leaves lets its arcs fall to whoever
  stands next. No arc ever passes between two backends that did not change. This holds only if a token depends on its
  backend alone: on its name and its number, never on the list it came in, the other weights or the ring's size.
* A weight is a number of tokens. Weight w has the tokens 0, 1, ... n-1 with n = round(w * vnodes), so a changed
  weight adds or takes away the highest numbers, and only keys to or from that backend move. Totals are never
  normalised: a ring of fixed size would have to take tokens from everybody when somebody joins.
* One token each leaves the sizes of the arcs to chance (one of ten backends owns 2.9 times its share); the mean of
  many arcs does not. The spread of shares falls with the root of their number: about 8 % with 160 tokens, 3 % with
  1024. Many tokens also scatter a lost backend's keys over all the others instead of onto one.
* The order in which backends are met from a key's position on is that key's preference list: the owner, then its
  successors. Health, capacity and zones are questions asked on this walk; none of them touches the ring. When an
  unrelated backend leaves, the others keep their order, so a key's second choice is as stable as its first.

Two tokens on one position would make the ring depend on who came first. Here the smaller name has the point, and when
it leaves the next one has it: still a function of the set, and still no needless move.

A ring is built once and never changed. Building is a dict and a sort, both in C: members go in from the largest name
down, so that a smaller one overwrites a collision, and each brings its tokens as one sorted run, which the sort merges
instead of sorting afresh. Finding the owner is a bisection that never starts from the whole: hashes are spread evenly,
so their leading bits lead to a bucket of a few neighbouring tokens, and `starts` says where each bucket begins. The
tokens stand in an array of machine integers, eight bytes each, because in a large ring the time goes into fetching
memory and a list of int objects has to fetch each one from somewhere else. (A million tokens: 0.45 us, against 1.5 us
for a plain bisection of a list; ten thousand: 0.18 against 0.25.) The first owner stands once more at the end of the
owners, so that wrapping needs no test.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise, repeat
from math import isfinite
from struct import pack
from typing import Final, final

from xxhash import xxh3_64_hexdigest

from lbproxy.core.hashing import SPACE, tokens

Position = Callable[[str, int], int]

# About how many tokens share a bucket. Fewer make the table of buckets large, more make the bisection long.
_BUCKET: Final = 4
# How many tokens per member a walk reads one by one before it asks each missing member for its nearest token instead.
_PATIENCE: Final = 8
# Up to so many members, looking through a list is cheaper than keeping a set.
_FEW: Final = 8


def vnode_count(weight: float, vnodes: int) -> int:
    """How many tokens a backend of this weight has; none at weight 0, at least one above it.

    Raises ValueError for a weight that is negative, infinite or not a number.
    """
    if not isfinite(weight) or weight < 0:
        raise ValueError(f"a weight is a number from 0 up, not {weight!r}")
    return max(1, round(weight * vnodes)) if weight else 0


@final
class Ring:
    """Who owns which arc of the circle. Built by `build_ring`, never changed. Members are indexes into `names`.

    `owner` and the walks answer for any hash from 0 up to, not including, `size`.
    """

    __slots__ = (
        "_runs",
        "_standing",
        "counts",
        "fingerprint",
        "names",
        "origin",
        "owners",
        "shift",
        "size",
        "starts",
        "tokens",
        "weights",
    )

    def __init__(
        self,
        names: tuple[str, ...],
        weights: tuple[float, ...],
        counts: tuple[int, ...],
        runs: tuple[array[int], ...],
        size: int,
        origin: object,
        fingerprint: str,
    ) -> None:
        """For `build_ring`: `runs` are the members' tokens, sorted, and `origin` says what computed them."""
        owner_at: dict[int, int] = {}
        for member in range(len(names) - 1, -1, -1):
            owner_at.update(zip(runs[member], repeat(member)))
        # The members, sorted by name, whether they have tokens or not.
        self.names: Final = names
        self.weights: Final = weights
        self.counts: Final = counts
        # The points, sorted, and whose each is, with the first owner repeated at the end. Both empty in an empty ring.
        points = sorted(owner_at)
        self.tokens: Final = array("Q", points)
        self.owners: Final = list(map(owner_at.__getitem__, chain(points, points[:1])))
        # Where the tokens at or after each multiple of 2**shift begin, and the number of tokens once more at the end.
        width = (size - 1).bit_length()
        self.shift: Final = max(0, width - (len(points) // _BUCKET).bit_length())
        buckets = range(0, size, 1 << self.shift)
        self.starts: Final = array("I", chain(map(bisect_left, repeat(points), buckets), [len(points)]))
        self.size: Final = size
        self.origin: Final = origin
        self.fingerprint: Final = fingerprint
        self._runs: Final = runs
        # How many members a walk can meet: a member may have lost every one of its tokens to a smaller name.
        self._standing: Final = len(set(self.owners))

    def locate(self, h: int) -> int:
        """The index of the first token at or after `h`, which is len(tokens) past the last: an index into `owners`."""
        bucket = h >> self.shift
        return bisect_left(self.tokens, h, self.starts[bucket], self.starts[bucket + 1])

    def owner(self, h: int) -> int:
        """The member that owns position `h`. Raises IndexError on an empty ring."""
        bucket = h >> self.shift
        return self.owners[bisect_left(self.tokens, h, self.starts[bucket], self.starts[bucket + 1])]

    def walk(self, h: int) -> Iterator[int]:
        """Every member that has a token, once, in the order in which it is met clockwise from `h`."""
        points = self.tokens
        start = self.locate(h)
        seen: set[int] = set()
        standing = self._standing
        patience = _PATIENCE * len(self.names)
        for at in chain(range(start, len(points)), range(start)):
            member = self.owners[at]
            if member not in seen:
                yield member
                seen.add(member)
                if len(seen) == standing:
                    return
            patience -= 1
            if not patience:
                break
        yield from self._stragglers(h, seen)

    def preference(self, h: int, count: int) -> list[int]:
        """The first `count` members of the walk from `h`, or all when there are fewer."""
        if count > _FEW:
            return list(islice(self.walk(h), count))
        found: list[int] = []
        at = self.locate(h)
        for member in self.owners[at : at + _PATIENCE * _FEW]:
            if len(found) == count:
                return found
            if member not in found:
                found.append(member)
        return list(islice(self.walk(h), count))

    def spans(self) -> list[int]:
        """How many positions each member owns. They sum to `size` exactly, or to 0 in an empty ring."""
        spans = [0] * len(self.names)
        if self.tokens:
            previous = self.tokens[-1] - self.size
            for point, member in zip(self.tokens, self.owners, strict=False):
                spans[member] += point - previous
                previous = point
        return spans

    def ownership(self) -> list[float]:
        """The share of the circle that each member owns."""
        return [span / self.size for span in self.spans()]

    def run(self, name: str) -> array[int]:
        """The tokens of member `name`, sorted, lost collisions included; empty when it is no member."""
        at = bisect_left(self.names, name)
        return self._runs[at] if at < len(self.names) and self.names[at] == name else array("Q")

    def _stragglers(self, h: int, seen: set[int]) -> Iterator[int]:
        """The members not in `seen`, nearest first.

        A backend with one token among thousands may stand half a circle away; reading the tokens up to it would make
        the rare walk that must see everybody (everyone full, everyone down) cost as much as the ring is large.
        """
        distances = sorted(
            (distance, member)
            for member in range(len(self.names))
            if member not in seen and (distance := self._distance(h, member)) is not None
        )
        for _, member in distances:
            yield member

    def _distance(self, h: int, member: int) -> int | None:
        """How far clockwise of `h` the nearest point of `member` lies, or None when it stands nowhere."""
        run = self._runs[member]
        start = bisect_left(run, h)
        for at in chain(range(start, len(run)), range(start)):
            if self.owner(run[at]) == member:
                return (run[at] - h) % self.size
        return None


def build_ring(
    members: Iterable[tuple[str, float]],
    vnodes: int = 1024,
    version: int = 1,
    position: Position | None = None,
    size: int = SPACE,
    reuse: Ring | None = None,
) -> Ring:
    """The ring of these (name, weight) pairs, in whatever order they come.

    `vnodes` is the number of tokens per weight 1. `position(name, index)` replaces the hash of the version, on a circle
    of `size` positions, at most 2**64. `reuse` is an earlier ring: tokens that it has are not computed again; it makes
    no difference to the result.

    Raises ValueError for a name that is empty or comes twice, a bad weight, an unknown version, or a position outside
    the circle.
    """
    pairs = sorted(members)
    names = tuple(name for name, _ in pairs)
    if names and not names[0]:
        raise ValueError("a backend has no name")
    for name, following in pairwise(names):
        if name == following:
            raise ValueError(f"the backend name {name!r} comes twice")
    weights = tuple(float(weight) for _, weight in pairs)
    counts = tuple(vnode_count(weight, vnodes) for weight in weights)
    origin = (version, position, size)
    known = reuse if reuse is not None and reuse.origin == origin else None

    runs: list[array[int]] = []
    for name, count in zip(names, counts, strict=True):
        run = known.run(name) if known is not None else array("Q")
        if len(run) != count:
            points = sorted(_positions(name, count, version, position))
            if points and not 0 <= points[0] <= points[-1] < size:
                raise ValueError(f"a token of {name!r} lies outside 0 to {size - 1}")
            run = array("Q", points)
        runs.append(run)
    return Ring(names, weights, counts, tuple(runs), size, origin, _fingerprint(names, weights, vnodes, version))


def _positions(name: str, count: int, version: int, position: Position | None) -> list[int]:
    if position is None:
        return tokens(name, count, version)
    return [position(name, index) for index in range(count)]


def _fingerprint(names: tuple[str, ...], weights: tuple[float, ...], vnodes: int, version: int) -> str:
    """A hash of what decides who owns what, each part with its length or a fixed width before it."""
    parts = [pack("<II", version, vnodes)]
    for name, weight in zip(names, weights, strict=True):
        encoded = name.encode()
        parts.append(pack("<Id", len(encoded), weight + 0.0) + encoded)
    return xxh3_64_hexdigest(b"".join(parts))


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

    Walks both token lists side by side: between two neighbouring points of their union nothing changes.
    Raises ValueError when the circles differ in size.
    """
    if before.size != after.size:
        raise ValueError(f"circles of {before.size} and {after.size} positions cannot be compared")
    totals: dict[tuple[int, int], int] = {}
    previous = -1
    for end, giver, taker in _segments(before, after):
        totals[giver, taker] = totals.get((giver, taker), 0) + end - previous
        previous = end
    old_counts = dict(zip(before.names, before.counts, strict=True))
    new_counts = dict(zip(after.names, after.counts, strict=True))
    flows: dict[tuple[str, str], int] = {}
    needless = 0
    for (giver, taker), positions in totals.items():
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


def _segments(before: Ring, after: Ring) -> Iterator[tuple[int, int, int]]:
    """(last position, owner before, owner after) of each arc on which neither changes, from 0 to the end."""
    last = before.size - 1
    old_points, old_owners = [*before.tokens, last], before.owners or [-1]
    new_points, new_owners = [*after.tokens, last], after.owners or [-1]
    old = new = 0
    while True:
        old_end, new_end = old_points[old], new_points[new]
        end = min(old_end, new_end)
        yield end, old_owners[old], new_owners[new]
        if end == last:
            return
        old += old_end == end
        new += new_end == end

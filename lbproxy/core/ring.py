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

A ring is built once (`core.forge`) and never changed. Finding the owner never starts from the whole: hashes are spread
evenly, so their leading bits lead to a bucket of a few neighbouring tokens, and `starts` says where each bucket begins.
The tokens stand in an array of machine integers, eight bytes each, because in a large ring the time goes into fetching
memory and a list of int objects has to fetch each one from somewhere else. (Compiled, a million tokens: 0.3 us, against
1.5 us for a plain bisection of a list; ten thousand: 0.17 against 0.25.) The first owner stands once more at the end of
the owners, so that wrapping needs no test.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from math import isfinite
from typing import Final, final

from lbproxy.core.pieces import Pieces, at_once

# Tokens of one pool at the most, for those who decide on weights: more take seconds to build, and a gigabyte.
MAX_TOKENS: Final = 5_000_000
# About how many tokens share a bucket. Fewer make the table of buckets large, more make the way through one long.
BUCKET: Final = 4
# How many tokens per member a walk reads one by one before it asks each missing member for its nearest token instead.
_PATIENCE: Final = 8
# How many points are measured in one piece of the work.
_STRETCH: Final = 32768
NO_TOKENS: Final = array("Q")


def vnode_count(weight: float, vnodes: int) -> int:
    """How many tokens a backend of this weight has; none at weight 0, at least one above it.

    Raises ValueError for a weight that is negative, infinite or not a number.
    """
    if not isfinite(weight) or weight < 0:
        raise ValueError(f"a weight is a number from 0 up, not {weight!r}")
    return max(1, round(weight * vnodes)) if weight else 0


@final
class Points:
    """What a ring is looked up in."""

    __slots__ = ("owners", "shift", "starts", "tokens")

    def __init__(self, shift: int) -> None:
        self.tokens: Final = array("Q")
        self.owners: Final[list[int]] = []
        self.starts: Final = array("I")
        self.shift: Final = shift

    def finish(self) -> Points:
        """Add what stands once more at the end."""
        self.owners.extend(self.owners[:1])
        self.starts.append(len(self.tokens))
        return self


@final
class Ring:
    """Who owns which arc of the circle. Built by `forge.build_ring`, never changed. Members are indexes into `names`.

    `owner` and the walks answer for any hash from 0 up to, not including, `size`.
    """

    __slots__ = (
        "_spans",
        "_standing",
        "counts",
        "fingerprint",
        "names",
        "origin",
        "owners",
        "runs",
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
        points: Points,
        size: int,
        origin: object,
        fingerprint: str,
    ) -> None:
        """For `forge.ring_in_pieces`: `runs` are the members' tokens, sorted, and `origin` says what computed them."""
        # The members, sorted by name, whether they have tokens or not.
        self.names: Final = names
        self.weights: Final = weights
        self.counts: Final = counts
        # The points, sorted, and whose each is, with the first owner repeated at the end. Both empty in an empty ring.
        self.tokens: Final = points.tokens
        self.owners: Final = points.owners
        # Where the tokens at or after each multiple of 2**shift begin, and the number of tokens once more at the end.
        self.shift: Final = points.shift
        self.starts: Final = points.starts
        self.size: Final = size
        self.origin: Final = origin
        self.fingerprint: Final = fingerprint
        self.runs: Final = runs
        self._spans: list[int] | None = None
        # How many members a walk can meet: a member may have lost every one of its tokens to a smaller name.
        shares_points = self.has_shared_points()
        self._standing: Final = len(set(self.owners)) if shares_points else len(counts) - counts.count(0)

    def locate(self, h: int) -> int:
        """The index of the first token at or after `h`, which is len(tokens) past the last: an index into `owners`."""
        bucket = h >> self.shift
        at, end = self.starts[bucket], self.starts[bucket + 1]
        while at < end and self.tokens[at] < h:  # the few of one bucket: to search among them would take longer
            at += 1
        return at

    def owner(self, h: int) -> int:
        """The member that owns position `h`. Raises IndexError on an empty ring."""
        return self.owners[self.locate(h)]

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

    def spans(self) -> list[int]:
        """How many positions each member owns. They sum to `size` exactly, or to 0 in an empty ring."""
        return list(at_once(self.survey()))

    def survey(self) -> Pieces[list[int]]:
        """Measure the `spans`; done once, they are known."""
        if self._spans is not None:
            return self._spans
        spans = [0] * len(self.names)
        previous = self.tokens[-1] - self.size if self.tokens else 0
        for start in range(0, len(self.tokens), _STRETCH):
            if start:
                yield
            stretch = slice(start, start + _STRETCH)
            for point, member in zip(self.tokens[stretch], self.owners[stretch], strict=False):
                spans[member] += point - previous
                previous = point
        self._spans = spans
        return spans

    def ownership(self) -> list[float]:
        """The share of the circle that each member owns."""
        return [span / self.size for span in self.spans()]

    def run(self, name: str) -> array[int]:
        """The tokens of member `name`, sorted, lost collisions included; empty when it is no member."""
        at = bisect_left(self.names, name)
        return self.runs[at] if at < len(self.names) and self.names[at] == name else NO_TOKENS

    def has_shared_points(self) -> bool:
        """Whether any two tokens stand on one position."""
        return len(self.tokens) != sum(self.counts)

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
        run = self.runs[member]
        start = bisect_left(run, h)
        for at in chain(range(start, len(run)), range(start)):
            if self.owner(run[at]) == member:
                return (run[at] - h) % self.size
        return None

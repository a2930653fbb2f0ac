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

A ring is built once and never changed. It is built slice by slice of the circle, each with a dict and a sort, both in
C: members go in from the largest name down, so that a smaller one overwrites a collision, and each brings its tokens as
one sorted run, which the sort merges instead of sorting afresh. When little has changed since an earlier ring, its
arrays are copied with the changed tokens cut out and put in, which costs a fortieth. Both ways are work in pieces
(`core.pieces`), for a large ring takes a second to build, and no proxy may stand still so long.

Finding the owner is a bisection that never starts from the whole: hashes are spread evenly, so their leading bits lead
to a bucket of a few neighbouring tokens, and `starts` says where each bucket begins. The tokens stand in an array of
machine integers, eight bytes each, because in a large ring the time goes into fetching memory and a list of int objects
has to fetch each one from somewhere else. (A million tokens: 0.45 us, against 1.5 us for a plain bisection of a list;
ten thousand: 0.18 against 0.25.) The first owner stands once more at the end of the owners, so that wrapping needs no
test.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, pairwise, repeat
from math import isfinite
from struct import pack
from typing import Final, final

from xxhash import xxh3_64_hexdigest

from lbproxy.core.hashing import SPACE, tokens
from lbproxy.core.pieces import Pieces, at_once

Position = Callable[[str, int], int]
_Origin = tuple[int, Position | None, int]  # hash version, position, size

# About how many tokens share a bucket. Fewer make the table of buckets large, more make the bisection long.
_BUCKET: Final = 4
# How many tokens per member a walk reads one by one before it asks each missing member for its nearest token instead.
_PATIENCE: Final = 8
# Pieces of work: tokens that are computed and sorted, points that are looked at one by one or copied in one go, and
# points that are cut out or put in.
_PIECE: Final = 4096
_STRETCH: Final = 32768
_FEW_HUNDRED: Final = 256
# Up to so many changed tokens, mending an earlier ring is the shorter way.
_MOST_MENDED: Final = 32768
_NO_TOKENS: Final = array("Q")
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
        "_spans",
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
        points: _Points,
        size: int,
        origin: object,
        fingerprint: str,
    ) -> None:
        """For `ring_in_pieces`: `runs` are the members' tokens, sorted, and `origin` says what computed them."""
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
        self._runs: Final = runs
        self._spans: list[int] | None = None
        # How many members a walk can meet: a member may have lost every one of its tokens to a smaller name.
        shares_points = self.has_shared_points()
        self._standing: Final = len(set(self.owners)) if shares_points else len(counts) - counts.count(0)

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
        return self._runs[at] if at < len(self.names) and self.names[at] == name else _NO_TOKENS

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
    of `size` positions, at most 2**64. `reuse` is an earlier ring, of which is used again what can be; it makes no
    difference to the result.

    Raises ValueError for a name that is empty or comes twice, a bad weight, an unknown version, or a position outside
    the circle.
    """
    return at_once(ring_in_pieces(members, vnodes, version, position, size, reuse))


def ring_in_pieces(
    members: Iterable[tuple[str, float]],
    vnodes: int = 1024,
    version: int = 1,
    position: Position | None = None,
    size: int = SPACE,
    reuse: Ring | None = None,
) -> Pieces[Ring]:
    """`build_ring` in pieces of a few milliseconds; one that is to be as `reuse` is that ring itself."""
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
    fingerprint = _fingerprint(names, weights, vnodes, version)
    known = reuse if reuse is not None and reuse.origin == origin else None
    if known is not None and (known.fingerprint, known.names, known.weights) == (fingerprint, names, weights):
        return known

    runs: list[array[int]] = []
    fresh = 0
    for name, count in zip(names, counts, strict=True):
        run = known.run(name) if known is not None else _NO_TOKENS
        if len(run) != count:
            run = yield from _run(name, count, origin)
            fresh += count
        runs.append(run)
        if fresh >= _PIECE:
            fresh = 0
            yield
    points: _Points | None = None
    if known is not None:
        points = yield from _mended(known, names, runs)
    if points is None:
        points = yield from _sliced(runs, size)
    return Ring(names, weights, counts, tuple(runs), points, size, origin, fingerprint)


def _run(name: str, count: int, origin: _Origin) -> Pieces[array[int]]:
    """The sorted tokens of one member."""
    size = origin[2]
    parts = []
    for start in range(0, count, _PIECE):
        points = sorted(_positions(name, start, min(count, start + _PIECE), origin))
        if not 0 <= points[0] <= points[-1] < size:
            raise ValueError(f"a token of {name!r} lies outside 0 to {size - 1}")
        parts.append(array("Q", points))
        if count > _PIECE:
            yield
    if len(parts) < 2:
        return parts[0] if parts else _NO_TOKENS
    run = array("Q")
    places = [0] * len(parts)
    for _, high in _slices(size, count):
        slice_: list[int] = []
        for number, part in enumerate(parts):
            end = bisect_left(part, high, places[number])
            slice_.extend(part[places[number] : end])
            places[number] = end
        run.extend(sorted(slice_))
        yield
    return run


def _positions(name: str, start: int, stop: int, origin: _Origin) -> list[int]:
    version, position, _ = origin
    if position is None:
        return tokens(name, stop, version, start)
    return [position(name, index) for index in range(start, stop)]


@final
class _Points:
    """What a ring is looked up in."""

    __slots__ = ("owners", "shift", "starts", "tokens")

    def __init__(self, shift: int) -> None:
        self.tokens: Final = array("Q")
        self.owners: Final[list[int]] = []
        self.starts: Final = array("I")
        self.shift: Final = shift

    def finish(self) -> _Points:
        """Add what stands once more at the end."""
        self.owners.extend(self.owners[:1])
        self.starts.append(len(self.tokens))
        return self


def _shift(size: int, count: int) -> int:
    return max(0, (size - 1).bit_length() - (count // _BUCKET).bit_length())


def _slices(size: int, count: int) -> Iterator[tuple[int, int]]:
    """The circle in slices of about a piece of work, each from the beginning of a bucket: (first, past the last)."""
    width = 1 << max(_shift(size, count), (size - 1).bit_length() - (count // _PIECE).bit_length())
    for low in range(0, size, width):
        yield low, min(size, low + width)


def _sliced(runs: list[array[int]], size: int) -> Pieces[_Points]:
    """The points of these runs, from nothing."""
    count = sum(map(len, runs))
    made = _Points(_shift(size, count))
    members = [member for member in range(len(runs) - 1, -1, -1) if runs[member]]
    places = [0] * len(runs)
    for low, high in _slices(size, count):
        if low:
            yield
        owner_at: dict[int, int] = {}
        for member in members:
            start = places[member]
            end = places[member] = bisect_left(runs[member], high, start)
            if start != end:
                owner_at.update(zip(runs[member][start:end], repeat(member)))
        points = sorted(owner_at)
        buckets = map(bisect_left, repeat(points), range(low, high, 1 << made.shift))
        made.starts.extend(map(len(made.tokens).__add__, buckets))
        made.tokens.extend(points)
        made.owners.extend(map(owner_at.__getitem__, points))
    return made.finish()


def _mended(known: Ring, names: tuple[str, ...], runs: list[array[int]]) -> Pieces[_Points | None]:
    """The points of an earlier ring with what has changed cut out and put in; None when that is no shorter way, or when
    tokens share a position, of which only the whole knows who has it."""
    changes = yield from _changes(known, names, runs)
    if changes is None:
        return None
    gone, come = changes
    before = known.tokens
    made = _Points(known.shift)
    owners = yield from _renumbered(known, names)
    at = bucket = 0
    for number, point in enumerate(sorted(chain(gone, come)), start=1):
        start, at = at, known.locate(point)
        made.tokens.extend(before[start:at])
        made.owners.extend(owners[start:at])
        following = (point >> made.shift) + 1
        _shifted(made.starts, known.starts[bucket:following], len(made.tokens) - at)
        bucket = following
        if point in gone:
            at += 1
        elif at < len(before) and before[at] == point:
            return None
        else:
            made.tokens.append(point)
            made.owners.append(come[point])
        if not number % _FEW_HUNDRED:
            yield
    made.tokens.extend(before[at:])
    made.owners.extend(owners[at:-1])
    _shifted(made.starts, known.starts[bucket:-1], len(made.tokens) - len(before))
    return made.finish()


def _shifted(starts: array[int], stretch: array[int], by: int) -> None:
    """Add a stretch of starts that have moved."""
    starts.extend(array("I", map(by.__add__, stretch)) if by else stretch)


def _changes(
    known: Ring, names: tuple[str, ...], runs: list[array[int]]
) -> Pieces[tuple[set[int], dict[int, int]] | None]:
    """Which points are gone since an earlier ring, and which have come, with whose they are."""
    count = sum(map(len, runs))
    if not count or _shift(known.size, count) != known.shift or known.has_shared_points():
        return None
    stays = set(names)
    left = [run for name, run in zip(known.names, known._runs, strict=True) if name not in stays]
    pairs = [(member, known.run(name), runs[member]) for member, name in enumerate(names)]
    pairs = [(member, old, new) for member, old, new in pairs if old is not new and len(old) != len(new)]
    more = sum([max(0, len(new) - len(old)) for _, old, new in pairs])
    fewer = sum([max(0, len(old) - len(new)) for _, old, new in pairs]) + sum(map(len, left))
    if more + fewer > min(_MOST_MENDED, count // 4):
        return None
    gone = set(chain.from_iterable(left))
    come: dict[int, int] = {}
    read = 0
    for member, old, new in pairs:
        read += len(old) + len(new)
        if read > _STRETCH:
            read = 0
            yield
        if len(old) > len(new):
            gone.update(set(old).difference(new))
        else:
            come.update(zip(set(new).difference(old), repeat(member)))
    return (gone, come) if len(come) == more and len(gone) == fewer and gone.isdisjoint(come) else None


def _renumbered(known: Ring, names: tuple[str, ...]) -> Pieces[list[int]]:
    """The owners of an earlier ring as members of this one; of those that are none, the points are gone."""
    if names == known.names:
        return known.owners
    numbers = dict(zip(names, range(len(names)), strict=True))
    number_of = [numbers.get(name, -1) for name in known.names]
    owners: list[int] = []
    for start in range(0, len(known.owners), _STRETCH):
        if start:
            yield
        owners.extend(map(number_of.__getitem__, known.owners[start : start + _STRETCH]))
    return owners


def _fingerprint(names: tuple[str, ...], weights: tuple[float, ...], vnodes: int, version: int) -> str:
    """A hash of what decides who owns what, each part with its length or a fixed width before it."""
    parts = [pack("<II", version, vnodes)]
    for name, weight in zip(names, weights, strict=True):
        encoded = name.encode()
        parts.append(pack("<Id", len(encoded), weight + 0.0) + encoded)
    return xxh3_64_hexdigest(b"".join(parts))

"""Building rings (`core.ring`), in pieces of a few milliseconds (`core.pieces`).

A ring is built slice by slice of the circle, each with a dict and a sort, both in C: members go in from the largest
name down, so that a smaller one overwrites a collision, and each brings its tokens as one sorted run, which the sort
merges instead of sorting afresh. When little has changed since an earlier ring, its arrays are copied with the changed
tokens cut out and put in, which costs a fortieth. Which way is taken makes no difference to the ring.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise, repeat
from struct import pack
from typing import Final

from xxhash import xxh3_64_hexdigest

from lbproxy.core.hashing import SPACE, tokens
from lbproxy.core.pieces import Pieces, at_once
from lbproxy.core.ring import BUCKET, NO_TOKENS, Points, Ring, vnode_count

Position = Callable[[str, int], int]
_Origin = tuple[int, Position | None, int]  # hash version, position, size

# Pieces of work: tokens that are computed and sorted, points that are compared or copied in one go, and points that are
# cut out or put in.
_PIECE: Final = 4096
_STRETCH: Final = 32768
_FEW_HUNDRED: Final = 256
# Up to so many changed tokens, mending an earlier ring is the shorter way.
_MOST_MENDED: Final = 32768


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
        run = known.run(name) if known is not None else NO_TOKENS
        if len(run) != count:
            run = yield from _run(name, count, origin)
            fresh += count
        runs.append(run)
        if fresh >= _PIECE:
            fresh = 0
            yield
    points: Points | None = None
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
        return parts[0] if parts else NO_TOKENS
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


def _shift(size: int, count: int) -> int:
    return max(0, (size - 1).bit_length() - (count // BUCKET).bit_length())


def _slices(size: int, count: int) -> Iterator[tuple[int, int]]:
    """The circle in slices of about a piece of work, each from the beginning of a bucket: (first, past the last)."""
    width = 1 << max(_shift(size, count), (size - 1).bit_length() - (count // _PIECE).bit_length())
    for low in range(0, size, width):
        yield low, min(size, low + width)


def _sliced(runs: list[array[int]], size: int) -> Pieces[Points]:
    """The points of these runs, from nothing."""
    count = sum(map(len, runs))
    made = Points(_shift(size, count))
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


def _mended(known: Ring, names: tuple[str, ...], runs: list[array[int]]) -> Pieces[Points | None]:
    """The points of an earlier ring with what has changed cut out and put in; None when that is no shorter way, or when
    tokens share a position, of which only the whole knows who has it."""
    changes = yield from _changes(known, names, runs)
    if changes is None:
        return None
    gone, come = changes
    before = known.tokens
    made = Points(known.shift)
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
    left = [run for name, run in zip(known.names, known.runs, strict=True) if name not in stays]
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

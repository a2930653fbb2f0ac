"""Hot keys: noticing the one user that is too much for one backend, and over how many to spread it.

A ring deals out keys evenly, not requests. One key with a large part of the traffic fills its owner, and a bound that
does not know about keys then turns away whoever comes next: mostly the owner's other users, who did nothing. So the
key itself is found, and only it is moved.

*Measuring.* The hot path appends the key's hash to a list and counts the seats that each key holds. Every tick the
list goes into one sketch (requests) and the seats, times the time since the last tick, into another (work, in seat
seconds). Both fade with a memory of about a second. Each worker publishes its table; the sum of all tables is what
decides, so workers agree however the connections have fallen.

*Deciding.* What a backend can carry is counted in seats, so it is the share of work that decides. Let a backend's fair
part of m seats be q*m, and let it have room for `room` seats above that, by the bound's factor or by its gap. Half of
the room is left to chance, for which it is there; the other half one key may take. A key with share s makes its owner
hold s*m + (1 - s)*q*m, which is s*(1 - q)*m above the fair part: if that is more than half the room, the key is hot. A
light backend has little room, so on its keys the same share weighs more. A key is no longer hot when it has been under
half of that for a while, or at once when it has all but vanished.

*Spreading.* Over backends with the parts q1, q2, ... of the weight, Q together, each by its weight, every one of them
holds (s/Q + 1 - s) times its fair part. With `a` for half the room over the fair part, the first of the key's list are
enough when Q has reached s/(s + a): for equal backends and s at the threshold that is exactly one. R grows as soon as
that passes it. It shrinks when less would have been enough by half a backend for a while, and that while doubles each
time the key becomes hot again soon after it was not, up to a minute: a key that is only hot where it is concentrated
must not be gathered and spread again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil, exp
from typing import Final, final

from lbproxy.core.bound import gap_seats
from lbproxy.core.sketch import ROWS, Row, Sketch, Table, merged

MEMORY_S: Final = 1.0
HOLD_S: Final = 3.0
LONGEST_HOLD_S: Final = 60.0
# A key is judged by no smaller a share than a sketch can tell from its own error.
_SMALLEST_SHARE: Final = 1 / 256
# A key that holds fewer seats than this is nobody's trouble, and half of them a backend has always room for.
_FEWEST_SEATS: Final = 4
_FACTOR_WITHOUT_BOUND: Final = 1.25
# Below this part of the share at which a key stops being hot, it has ended.
_ENDED: Final = 1 / 8
_NOTHING: Final = Table()


@final
class Meter:
    """What one worker measures of a pool's keys.

    On the hot path: `seen.append(h)` for every request, and in `held`, the seats of each key, one more or one less with
    every seat (`account.Account`). Both stay the same objects for the meter's whole life, so they may be bound once.
    """

    __slots__ = ("_at", "_requests", "_work", "held", "seen")

    def __init__(self, capacity: int = 512) -> None:
        self.seen: Final[list[int]] = []
        self.held: Final[dict[int, int]] = {}
        self._requests: Final = Sketch(capacity)
        self._work: Final = Sketch(capacity)
        self._at = 0.0

    def fold(self, now: float) -> Table:
        """Take what has been seen since the last call into the sketches, and say what they know. Called every tick."""
        elapsed = max(0.0, now - self._at) if self._at else 0.0
        self._at = now
        fading = exp(-elapsed / MEMORY_S)
        for sketch in (self._requests, self._work):
            sketch.fade(fading)
        self._requests.add(Counter(self.seen))
        self.seen.clear()
        seats = sum(self.held.values())
        # With thousands of seats taken, a key that holds one or two is no news.
        least = seats / (2 * self._work.capacity)
        work = {h: held * elapsed for h, held in self.held.items() if held >= least}
        self._work.add(work, max(0.0, seats * elapsed - sum(work.values())))
        return self._table(now)

    def rest(self) -> None:
        """Forget what was measured: nobody asks. The time until somebody does again is not measured either."""
        self.seen.clear()
        if self._at:
            self._at = 0.0
            self._requests.clear()
            self._work.clear()

    def _table(self, now: float) -> Table:
        requests, work = self._requests, self._work
        per_request = 1 / requests.total if requests.total else 0.0
        per_work = 1 / work.total if work.total else 0.0
        share = {h: weight * per_request for h, weight in requests.kept.items()}
        for h, weight in work.kept.items():
            part = weight * per_work
            if part > share.get(h, 0.0):
                share[h] = part
        ranked: Iterable[int] = share
        if len(share) > ROWS:  # to rank the few that may be among the first takes a third of the time of ranking all
            least = sorted(share.values(), reverse=True)[ROWS - 1]
            ranked = [h for h, part in share.items() if part >= least]
        top = sorted(ranked, key=lambda h: (-share[h], h))[:ROWS]
        rows = tuple(
            Row(
                h,
                int(requests.kept.get(h, 0.0) * 1e3),
                int(work.kept.get(h, 0.0) * 1e6),
                self.held.get(h, 0),
            )
            for h in top
        )
        return Table(int(now * 1e6), int(requests.total * 1e3), int(work.total * 1e6), rows)


# The parts of the weight of a key's eligible backends, from 0 to 1, in the order of its list.
Parts = Callable[[int], Iterable[float]]


@final
class Room:
    """How far one key may lift a backend above its fair part of `seats`: half of the room that the bound leaves."""

    __slots__ = ("_factor", "_min_gap", "_seats")

    def __init__(self, seats: float, factor: float | None, min_gap: int | None) -> None:
        """`factor` and `min_gap` are the pool's bound; without one a factor of 1.25 is meant."""
        self._seats: Final = seats
        self._factor: Final = factor if factor is not None else _FACTOR_WITHOUT_BOUND
        self._min_gap: Final = min_gap

    def above(self, part: float) -> float:
        """The half room of a backend with this part of the weight, as a multiple of its fair part."""
        fair = part * self._seats
        if not fair:
            return float("inf")
        room = max((self._factor - 1) * fair, gap_seats(fair, self._min_gap))
        return max(room, _FEWEST_SEATS) / 2 / fair

    def threshold(self, part: float) -> float:
        """The share of work from which on a key is more than an owner with this part can carry; above 1: none is."""
        if part >= 1 or not self._seats:
            return 2.0
        return max(self.above(part) * part / (1 - part), _FEWEST_SEATS / self._seats, _SMALLEST_SHARE)

    def needed(self, share: float, parts: Iterable[float]) -> float:
        """Over how many of the backends with these parts a key of this share must be spread, as a real number."""
        sum_of_parts, above = 0.0, float("inf")
        count = 0
        for part in parts:
            above = min(above, self.above(part))
            missing = share / (share + above) - sum_of_parts if share else 0.0
            if missing <= part:
                return count + max(0.0, missing / part)
            sum_of_parts += part
            count += 1
        return float(count)


@dataclass(slots=True)
class HotKey:
    """A key that is hot now: its share of requests and of work, and over how many backends it is spread."""

    key: int
    requests: float
    work: float
    reach: int
    since: float
    hold_s: float = HOLD_S
    easy_since: float | None = None
    faint_since: float | None = None


@final
class HotKeys:
    """Which keys of a pool are hot. `reach` is what the hot path asks: hash -> the number of backends to spread over.

    `top` is the merged table that the last judgement was made from.
    """

    __slots__ = ("_cooled", "hot", "reach", "top")

    def __init__(self) -> None:
        self.hot: Final[dict[int, HotKey]] = {}
        self.reach: Final[dict[int, int]] = {}
        self.top = Table()
        self._cooled: Final[dict[int, tuple[float, float]]] = {}

    def judge(
        self, now: float, tables: Iterable[Table], parts: Parts, factor: float | None, min_gap: int | None
    ) -> None:
        """Judge every key by the tables of all workers. Called every tick.

        `parts` knows the weights along a key's list; `factor` and `min_gap` are the pool's bound. Tables of the past (a
        worker that has died) are left out.
        """
        self.top = merged(table for table in tables if not table.is_stale(now))
        room = Room(self.top.work / 1e6 / MEMORY_S, factor, min_gap)
        for row in self._candidates():
            requests = row.requests / self.top.requests if self.top.requests else 0.0
            work = row.work / self.top.work if self.top.work else 0.0
            self._judge_one(now, row.key, requests, work, room, tuple(parts(row.key)))
        self._forget_cooled(now)
        self.reach.clear()
        self.reach.update((key, hot.reach) for key, hot in self.hot.items())

    def rest(self, top: Table = _NOTHING) -> None:
        """Take no key for hot, whatever `top` says of them."""
        self.top = top
        self.hot.clear()
        self.reach.clear()
        self._cooled.clear()

    def _candidates(self) -> Iterator[Row]:
        """The keys that are hot, and those that may be."""
        gone = set(self.hot)
        least = max(_SMALLEST_SHARE * self.top.work, _FEWEST_SEATS * MEMORY_S * 1e6)
        for row in self.top.rows:
            if row.key in gone or row.work > least:
                gone.discard(row.key)
                yield row
        yield from map(Row, gone)

    def _judge_one(
        self, now: float, key: int, requests: float, work: float, room: Room, parts: tuple[float, ...]
    ) -> None:
        hot = self.hot.get(key)
        backends = len(parts)
        threshold = room.threshold(parts[0]) if parts else 2.0
        needed = room.needed(work, parts)
        if hot is None:
            if work > threshold:
                reach = max(1, min(backends, ceil(needed)))
                self.hot[key] = HotKey(key, requests, work, reach, now, self._hold_s(key))
            return
        hot.requests, hot.work = requests, work
        if work >= threshold / 2:
            hot.faint_since = None
        elif hot.faint_since is None:
            hot.faint_since = now
        if work < threshold / 2 * _ENDED or (hot.faint_since is not None and now - hot.faint_since >= hot.hold_s):
            del self.hot[key]
            self._cooled[key] = (now, hot.hold_s)
            return
        self._resize(now, hot, needed, backends)

    def _resize(self, now: float, hot: HotKey, needed: float, backends: int) -> None:
        if hot.reach > backends or needed > hot.reach:
            hot.reach = max(1, min(backends, ceil(needed)))
            hot.easy_since = None
        elif needed > hot.reach - 1.5:
            hot.easy_since = None
        elif hot.easy_since is None:
            hot.easy_since = now
        elif now - hot.easy_since >= hot.hold_s:
            hot.reach = max(1, min(backends, ceil(needed + 0.5)))
            hot.easy_since = None

    def _hold_s(self, key: int) -> float:
        cooled = self._cooled.get(key)
        return HOLD_S if cooled is None else min(2 * cooled[1], LONGEST_HOLD_S)

    def _forget_cooled(self, now: float) -> None:
        for key in [key for key, (at, _) in self._cooled.items() if now - at > LONGEST_HOLD_S or key in self.hot]:
            del self._cooled[key]

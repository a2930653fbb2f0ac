"""Hot keys: noticing the one user that is too much for one backend, and over how many to spread it.

A ring deals out keys evenly, not requests. One key with a large part of the traffic fills its owner, and a bound that
does not know about keys then turns away whoever comes next: mostly the owner's other users, who did nothing. So the
key itself is found, and only it is moved.

*Measuring.* The hot path appends the key's hash to a list and counts the seats that each key holds. Every tick the
list goes into one sketch (requests) and the seats, times the time since the last tick, into another (work, in seat
seconds). Both fade with a memory of about a second. Each worker publishes its table; the sum of all tables is what
decides, so workers agree however the connections have fallen.

*Deciding.* What a backend can carry is counted in seats, so it is the share of work that decides. Let a pool have n
backends and `slack` be how far above its fair share one key may lift a backend: factor - 1, or what the bound's gap
comes to at the present load, if that is more, half of it being left to chance; and never less than a few seats. A key
with share s makes its owner hold s + (1 - s)/n of everything, and that is more than (1 + slack)/n once
s > slack/(n - 1): then it is hot. It is no longer hot when it has been under half of that for a while, or at once when
it has all but vanished.

*Spreading.* Over R backends each of them holds s/R + (1 - s)/n. With half the slack left to chance, R must reach
n*s / (s + slack/2). R grows as soon as that passes it. It shrinks when less would have been enough by half a backend
for a while, and that while doubles each time the key becomes hot again soon after it was not, up to a minute: a key
that is only hot where it is concentrated must not be gathered and spread again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, exp
from typing import Final, final

from lbproxy.core.bound import gap_seats
from lbproxy.core.sketch import ROWS, Row, Sketch, Table, merged

MEMORY_S: Final = 1.0
HOLD_S: Final = 3.0
LONGEST_HOLD_S: Final = 60.0
STALE_S: Final = 2.0
# A key is judged by no smaller a share than a sketch can tell from its own error.
_SMALLEST_SHARE: Final = 1 / 256
# A key that lifts its owner by fewer seats than this above its share is nobody's trouble.
_FEWEST_SEATS: Final = 4
_SLACK_WITHOUT_BOUND: Final = 0.25
# Below this part of the share at which a key stops being hot, it has ended.
_ENDED: Final = 1 / 8


@final
class Meter:
    """What one worker measures of a pool's keys.

    On the hot path: `seen.append(h)` for every request, `acquire` and `release` with every seat. The list is the same
    object for the meter's whole life, so its `append` may be bound once.
    """

    __slots__ = ("_at", "_requests", "_work", "held", "seen")

    def __init__(self, capacity: int = 512) -> None:
        self.seen: Final[list[int]] = []
        self.held: Final[dict[int, int]] = {}
        self._requests: Final = Sketch(capacity)
        self._work: Final = Sketch(capacity)
        self._at = 0.0

    def acquire(self, h: int) -> None:
        """The key takes one more seat."""
        held = self.held
        held[h] = held.get(h, 0) + 1

    def release(self, h: int) -> None:
        """The key gives one seat back."""
        held = self.held
        seats = held[h]
        if seats > 1:
            held[h] = seats - 1
        else:
            del held[h]

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

    def _table(self, now: float) -> Table:
        requests, work = self._requests, self._work
        per_request = 1 / requests.total if requests.total else 0.0
        per_work = 1 / work.total if work.total else 0.0
        share = {
            h: max(requests.kept.get(h, 0.0) * per_request, work.kept.get(h, 0.0) * per_work)
            for h in requests.kept.keys() | work.kept.keys()
        }
        top = sorted(share, key=lambda h: (-share[h], h))[:ROWS]
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


def hot_share(backends: int, slack: float) -> float:
    """The share of work from which on one key is more than its owner can carry; above 1 when none is."""
    return max(slack / (backends - 1), _SMALLEST_SHARE) if backends > 1 else 2.0


def backends_needed(share: float, backends: int, slack: float) -> float:
    """Over how many of `backends` equal ones a key of this share must be spread, as a real number."""
    return backends * share / (share + slack / 2) if share else 0.0


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
        self, now: float, tables: Iterable[Table], backends: int, factor: float | None, min_gap: int | None
    ) -> bool:
        """Judge every key by the tables of all workers; returns whether `reach` has changed. Called every tick.

        `backends` is how many are eligible; `factor` and `min_gap` are the pool's bound. Tables of the past (a worker
        that has died) are left out.
        """
        self.top = merged(table for table in tables if now - table.at_us / 1e6 <= STALE_S)
        before = dict(self.reach)
        slack = self._slack(backends, factor, min_gap)
        threshold = hot_share(backends, slack)
        rows = {row.key: row for row in self.top.rows}
        for key in [*rows, *(self.hot.keys() - rows.keys())]:
            row = rows.get(key) or Row(key)
            requests = row.requests / self.top.requests if self.top.requests else 0.0
            work = row.work / self.top.work if self.top.work else 0.0
            self._judge_one(now, key, requests, work, threshold, backends_needed(work, backends, slack), backends)
        self._cooled_forget(now)
        self.reach.clear()
        self.reach.update((key, hot.reach) for key, hot in self.hot.items())
        return self.reach != before

    def _slack(self, backends: int, factor: float | None, min_gap: int | None) -> float:
        slack = factor - 1 if factor is not None else _SLACK_WITHOUT_BOUND
        fair = self.top.work / 1e6 / MEMORY_S / backends if backends else 0.0
        return max(slack, max(gap_seats(fair, min_gap) / 2, _FEWEST_SEATS) / fair) if fair else float("inf")

    def _judge_one(
        self, now: float, key: int, requests: float, work: float, threshold: float, needed: float, backends: int
    ) -> None:
        hot = self.hot.get(key)
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

    def _cooled_forget(self, now: float) -> None:
        for key in [key for key, (at, _) in self._cooled.items() if now - at > LONGEST_HOLD_S or key in self.hot]:
            del self._cooled[key]

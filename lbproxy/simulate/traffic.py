"""Who asks, how often and for how long: the traffic of a run, imagined or recorded."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, final

from lbproxy.core.hashing import hash_key

NO_KEY: Final = -1


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked of the pool, and for how long.

    `clients` in a closed loop each send a request, wait for its answer and send the next; with `rate` (requests per
    second, at random moments) nobody waits. An answer takes `service_s`, give or take the part `spread` of it. Nothing
    is counted in the first `warm_up_s` of the `seconds`.
    """

    clients: int = 200
    rate: float | None = None
    service_s: float = 0.2
    spread: float = 0.1
    seconds: float = 20.0
    warm_up_s: float = 3.0
    workers: int = 1
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Habits:
    """Which keys there are, and how unequal they are.

    The k-th of `keys` asks in proportion to k ** -`zipf`; 0 makes them alike. One more key, the hot one, has the part
    `hot` of all requests between `hot_from_s` and `hot_until_s`.
    """

    keys: int = 2000
    zipf: float = 0.0
    hot: float = 0.0
    hot_from_s: float = 0.0
    hot_until_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One recorded request: when it came, in seconds from the first; whose it was (NO_KEY: nobody's); how long it
    took."""

    at_s: float
    key: int
    duration_s: float


@final
class Traffic:
    """The keys of a run. `shares` is each one's part of the requests, and `hot` the index of the hot key, if any.

    `recorded` are the requests in the order in which they came; empty when they are drawn.
    """

    def __init__(
        self,
        keys: Sequence[bytes],
        shares: Sequence[float],
        hot: int | None = None,
        habits: Habits | None = None,
        recorded: Sequence[Arrival] = (),
    ) -> None:
        self.keys: Final = tuple(keys)
        self.hashes: Final = tuple(hash_key(key) for key in keys)
        self.shares: Final = tuple(shares)
        self.hot: Final = hot
        self.recorded: Final = tuple(recorded)
        self.habits: Final = habits or Habits()
        cold = [share for index, share in enumerate(shares) if index != hot]
        self._sums: Final = list(accumulate(cold))

    def draw(self, chance: random.Random, now: float) -> int:
        """The index of the key that asks at `now`."""
        habits = self.habits
        if habits.hot and habits.hot_from_s <= now < habits.hot_until_s and chance.random() < habits.hot:
            assert self.hot is not None
            return self.hot
        return bisect_left(self._sums, chance.random() * self._sums[-1])


def imagined(habits: Habits, seed: int) -> Traffic:
    """Keys with these habits. Another seed has other keys, which live on other backends."""
    keys = [b"user-%d-%d" % (seed, index) for index in range(habits.keys)]
    weights = [(rank + 1) ** -habits.zipf for rank in range(habits.keys)]
    cold = (1 - habits.hot) / sum(weights)
    shares = [weight * cold for weight in weights]
    if not habits.hot:
        return Traffic(keys, shares, None, habits)
    return Traffic([*keys, b"hot-%d" % seed], [*shares, habits.hot], habits.keys, habits)

"""What became of the requests of a run, and how full the backends were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, final

from lbproxy.core.ledger import DECISIONS
from lbproxy.simulate.machine import Router
from lbproxy.simulate.traffic import NO_KEY, Traffic

# What a key is to the hot ones.
HOT: Final = 0
NEIGHBOUR: Final = 1  # it lives where a hot key lives
OTHER: Final = 2


@dataclass(frozen=True, slots=True)
class Part:
    """Requests of some kind, and how many of them were served by another backend than the key's owner."""

    requests: int
    away: int

    @property
    def share(self) -> float | None:
        """The part that was away; None without requests."""
        return self.away / self.requests if self.requests else None


@dataclass(frozen=True, slots=True)
class BackendOutcome:
    """One backend. Shares are of all requests, `expected` by weight and `owned` by key; `mean` and `peak` are what it
    held, on average and at most, over its fair part of what the pool held on average; of the peak that is one request
    at the least, for where there is less, any request would be one."""

    name: str
    expected: float
    owned: float
    served: float
    spilled: int
    received: int
    mean: float
    peak: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole run. `decisions` and `refused` count requests by what `ledger.DECISIONS` and the refusals are called.

    `hot`, `neighbours` and `others` are the requests of hot keys, of cold keys with the same owner, and of all other
    cold keys. `cold_keys` are those that asked at all, `disturbed` those of them that were not always served by their
    owner. `in_flight` is what the pool held on average; `peak` and `busiest` are the largest of the backends' `peak`
    and `mean`, `imbalance` the largest part served over its part by weight.
    """

    requests: int
    decisions: dict[str, int]
    refused: dict[str, int]
    hot: Part
    neighbours: Part
    others: Part
    cold_keys: int
    disturbed: int
    in_flight: float
    peak: float
    busiest: float
    imbalance: float
    backends: tuple[BackendOutcome, ...]


@final
class Tally:
    """Counts a run from the moment `since` on."""

    def __init__(self, router: Router, traffic: Traffic, hot_keys: Collection[int], since: float) -> None:
        self._router: Final = router
        self._owners: Final = [router.owner(h) for h in traffic.hashes]
        homes = {self._owners[key] for key in hot_keys}
        self._kinds: Final = [
            HOT if key in hot_keys else NEIGHBOUR if owner in homes else OTHER for key, owner in enumerate(self._owners)
        ]
        self._since: Final = since
        count = len(router.names)
        self._held: Final = [0] * count
        self._changed_at: Final = [since] * count
        self._area: Final = [0.0] * count
        self._peak: Final = [0] * count
        self._owned: Final = [0] * count
        self._served: Final = [0] * count
        self._spilled: Final = [0] * count
        self._received: Final = [0] * count
        self._decisions: Final = Counter[int]()
        self._refused: Final = Counter[str]()
        self._requests: Final = [0, 0, 0]
        self._away: Final = [0, 0, 0]
        self._seen: Final = set[int]()
        self._disturbed: Final = set[int]()

    def place(self, now: float, key: int, backend: int, decision: int) -> None:
        """A backend has been given a request."""
        self._change(now, backend, 1)
        if now < self._since:
            return
        self._decisions[decision] += 1
        self._served[backend] += 1
        if key == NO_KEY:
            return
        owner, kind = self._owners[key], self._kinds[key]
        self._owned[owner] += 1
        self._requests[kind] += 1
        self._seen.add(key)
        if owner != backend:
            self._away[kind] += 1
            self._spilled[owner] += 1
            self._received[backend] += 1
            self._disturbed.add(key)

    def leave(self, now: float, backend: int) -> None:
        """A backend has answered."""
        self._change(now, backend, -1)

    def refuse(self, now: float, reason: str) -> None:
        """A request was answered by the proxy itself."""
        if now >= self._since:
            self._refused[reason] += 1

    def _change(self, now: float, backend: int, by: int) -> None:
        held = self._held[backend]
        if now > self._since:
            self._area[backend] += held * (now - self._changed_at[backend])
            self._changed_at[backend] = now
            self._peak[backend] = max(self._peak[backend], held, held + by)
        self._held[backend] = held + by

    def outcome(self, until: float) -> Outcome:
        """What there is to say when the run has ended at `until`."""
        for backend in range(len(self._held)):
            self._change(until, backend, 0)
        lasted = until - self._since
        means = [area / lasted if lasted > 0 else 0.0 for area in self._area]
        in_flight = sum(means)
        total = sum(self._served)
        keyed = sum(self._owned)
        backends = []
        for index, (name, share) in enumerate(zip(self._router.names, self._router.shares, strict=True)):
            fair = in_flight * share
            backends.append(
                BackendOutcome(
                    name=name,
                    expected=share,
                    owned=self._owned[index] / keyed if keyed else 0.0,
                    served=self._served[index] / total if total else 0.0,
                    spilled=self._spilled[index],
                    received=self._received[index],
                    mean=means[index] / fair if fair else 0.0,
                    peak=self._peak[index] / max(fair, 1.0) if fair else 0.0,
                )
            )
        hot, neighbours, others = (Part(*counts) for counts in zip(self._requests, self._away, strict=True))
        cold = {key for key in self._seen if self._kinds[key] != HOT}
        return Outcome(
            requests=total,
            decisions={DECISIONS[decision]: count for decision, count in sorted(self._decisions.items())},
            refused=dict(sorted(self._refused.items())),
            hot=hot,
            neighbours=neighbours,
            others=others,
            cold_keys=len(cold),
            disturbed=len(cold & self._disturbed),
            in_flight=in_flight,
            peak=max((backend.peak for backend in backends), default=0.0),
            busiest=max((backend.mean for backend in backends), default=0.0),
            imbalance=max((each.served / each.expected for each in backends if each.expected), default=0.0),
            backends=tuple(backends),
        )

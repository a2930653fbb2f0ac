"""What the page asks of the instance, and what it makes of the answers.

The page sees what every user of the admin API sees: the documents of `/v1/...`. `look` turns them into a `Sample`, with
the numbers apart that only grow, so that two samples give what happened in between.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from lbproxy.control.counts import requests, saved_by_retries
from lbproxy.core.ledger import SPILL_REASONS
from lbproxy.core.ring import Ring

Document = dict[str, Any]


class Source(Protocol):
    """Everything here answers at once from memory."""

    def info(self) -> Document: ...

    def pools(self) -> Document: ...

    def workers(self) -> Document: ...

    def events(self, after: int = 0) -> Sequence[Document]:
        """The events of late whose `id` is above `after`, the newest last."""
        ...

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Have `notify` called right after each event; returns what ends that."""
        ...

    def hot_keys(self, pool: str) -> Document: ...

    async def explain(self, pool: str, key: bytes) -> Document: ...

    def ring(self, pool: str) -> Ring | None:
        """The ring in force; None when there is no such pool."""
        ...


# What is counted of a backend, and of a pool, in this order; behind it come the buckets of the latency histogram.
REQUESTS: Final = 0
FAILED: Final = 1  # answers of class 5xx
ERRORS: Final = 2  # a backend: failures without an answer; a pool: requests turned away by the proxy itself
OWNED: Final = 3
SPILLED: Final = 4  # one for each of `ledger.SPILL_REASONS`
RECEIVED: Final = SPILLED + len(SPILL_REASONS)
NO_KEY: Final = RECEIVED + 1  # pools only
SAVED: Final = RECEIVED + 2  # pools only: requests that a further attempt answered well
LATENCY: Final = RECEIVED + 3


@dataclass(frozen=True, slots=True)
class BackendNow:
    """How a backend stands. `weight` is the file's, `wanted_weight` what it shall have, `effective_weight` what it has.
    `is_reweighed`: an operator has decided it. `takes_keys`: new ones, now. `slots` None: no cap. `decided` says why
    and by whom an operator has overridden the file, until `decided_until`. Times are wall time, 0.0 when there is
    none."""

    name: str
    address: str
    zone: str
    weight: float
    effective_weight: float
    wanted_weight: float
    is_reweighed: bool
    expected: float
    takes_keys: bool
    ring_share: float
    state: str
    since: float
    is_eligible: bool
    in_flight: int
    slots: int | None
    is_drained: bool
    decided: str
    decided_until: float


@dataclass(frozen=True, slots=True)
class PoolNow:
    """How a pool stands. `bounds_s` are the upper bounds of its latency buckets; `serves_all`: when nobody is eligible,
    everybody is asked."""

    name: str
    fingerprint: str
    points: int
    keys: tuple[str, ...]
    in_flight: int
    tunnels: int
    bounds_s: tuple[float, ...]
    serves_all: bool
    backends: tuple[BackendNow, ...]

    @property
    def eligible(self) -> list[BackendNow]:
        return [backend for backend in self.backends if backend.is_eligible]


@dataclass(frozen=True, slots=True)
class PoolSample:
    """A pool and its counts; `counts[""]` are those of the pool itself, the others those of its backends by name."""

    now: PoolNow
    counts: Mapping[str, array[int]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: `at` on the monotonic clock, `wall` on the wall."""

    at: float
    wall: float
    pools: Mapping[str, PoolSample]


def look(document: Document, at: float, wall: float) -> Sample:
    """Read the document of `/v1/pools`."""
    return Sample(at, wall, {pool["name"]: _pool(pool) for pool in document["pools"]})


def _pool(document: Document) -> PoolSample:
    backends = document["backends"]
    counts = {backend["name"]: _backend_counts(backend) for backend in backends}
    counts[""] = _pool_counts(document)
    now = PoolNow(
        name=document["name"],
        fingerprint=document["ring"]["fingerprint"],
        points=document["ring"]["points"],
        keys=tuple(document["key_sources"]),
        in_flight=document["in_flight"],
        tunnels=document["upgraded_open"],
        bounds_s=tuple(document["duration"]["bounds_s"]),
        serves_all=document["panic_mode"] == "serve_all",
        backends=tuple(map(_backend, backends)),
    )
    return PoolSample(now, counts)


def _backend(document: Document) -> BackendNow:
    override = document["override"] or {}
    return BackendNow(
        name=document["name"],
        address=document["address"],
        zone=document["zone"],
        weight=document["weight"],
        effective_weight=document["effective_weight"],
        wanted_weight=document["wanted_weight"],
        is_reweighed=override.get("weight") is not None,
        expected=document["expected_share"],
        takes_keys=document["current_share"] > 0,
        ring_share=document["ring_share"],
        state=document["state"],
        since=epoch(document["state_since"]),
        is_eligible=document["eligible"],
        in_flight=document["in_flight"],
        slots=document["slots"],
        is_drained=override.get("state") == "drain",
        decided=", ".join([override[field] for field in ("reason", "by") if override.get(field)]),
        decided_until=epoch(override.get("expires_at")),
    )


def _backend_counts(document: Document) -> array[int]:
    spilled = [document["spills"][reason] for reason in SPILL_REASONS]
    counts = [sum(document["errors"].values()), document["owned_requests"], *spilled, document["spills_received"], 0, 0]
    return array("q", [*_answers(document), *counts, *document["duration"]["counts"]])


def _pool_counts(document: Document) -> array[int]:
    turned_away = sum(document["rejected"].values())
    counts = [
        turned_away,
        0,
        *(0 for _ in SPILL_REASONS),
        0,
        document["decisions"]["no_key"],
        saved_by_retries(document),
    ]
    return array("q", [*_answers(document), *counts, *document["duration"]["counts"]])


def _answers(document: Document) -> tuple[int, int]:
    return requests(document), document["requests"]["5xx"]


def epoch(text: str | None) -> float:
    """A time as RFC 3339 writes it, in seconds since 1970; 0.0 when there is none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0

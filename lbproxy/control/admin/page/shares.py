"""Who gets which share of a pool's requests, why it is not what was expected, and which keys are the busiest.

Per backend, with shares of the pool's traffic:

    observed - expected = (ring share - expected) + (owned share - ring share) + (observed - owned share)
                              ring error                key skew                     spill

*Expected* follows from the weights in force. The *ring share* is how much of the circle the backend owns, the *owned
share* the requests whose key it owns, and *observed* what it has answered. The three causes add up to the difference
whatever the numbers are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lbproxy.control.admin.page.source import PoolNow
from lbproxy.control.admin.page.window import Span


@dataclass(frozen=True, slots=True)
class Share:
    """A backend's shares of its pool's traffic, 0 to 1. Without traffic, what it would be by the ring."""

    expected: float
    ring: float
    owned: float
    observed: float

    @property
    def ring_error(self) -> float:
        return self.ring - self.expected

    @property
    def key_skew(self) -> float:
        return self.owned - self.ring

    @property
    def spill(self) -> float:
        return self.observed - self.owned

    @property
    def ratio(self) -> float | None:
        """Observed to expected; None when nothing is expected."""
        return self.observed / self.expected if self.expected else None


def shares(pool: PoolNow, span: Span) -> dict[str, Share]:
    """The shares of each backend by name."""
    served = span.served
    owned = sum(flow.owned for flow in span.backends.values())
    found = {}
    for backend in pool.backends:
        flow = span.backends[backend.name]
        owned_share = flow.owned / owned if owned else backend.ring_share
        observed = flow.requests / served if served else owned_share
        found[backend.name] = Share(backend.expected, backend.ring_share, owned_share, observed)
    return found


@dataclass(frozen=True, slots=True)
class HotKey:
    """One of a pool's hottest keys. `text` "" unless keys may be shown; `backends` serve it, its owner first."""

    rank: int
    hash: str
    text: str
    requests_share: float
    work_share: float
    in_flight: int
    is_hot: bool
    backends: tuple[str, ...]


def hot_keys(document: Mapping[str, Any]) -> list[HotKey]:
    """Read the document of `/v1/pools/{p}/hot-keys`, but for keys that nobody asks for any more."""
    return [
        HotKey(
            rank=key["rank"],
            hash=key["hash"],
            text=key.get("key") or "",
            requests_share=key["requests_share"],
            work_share=key["work_share"],
            in_flight=key["in_flight"],
            is_hot=key["hot"],
            backends=tuple(key["backends"]),
        )
        for key in document.get("keys", ())
        if key["requests_share"] or key["work_share"]
    ]

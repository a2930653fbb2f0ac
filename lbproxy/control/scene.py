"""What documents and metrics about pools are made from: how everything stands at one moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from lbproxy.control.ring_changes import RingChanges
from lbproxy.control.wellbeing import Wellbeing
from lbproxy.core.balance import Pool
from lbproxy.core.ledger import RowKey
from lbproxy.core.ring import Ring
from lbproxy.core.snapshot import Snapshot
from lbproxy.observe.lines import iso_time


@final
class Shares:
    """The share of the circle that each backend owns. A ring never changes, so it is measured once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Ring, dict[str, float]]] = {}

    def of(self, pool: Pool) -> dict[str, float]:
        ring, shares = self._known.get(pool.name, (None, {}))
        if ring is not pool.ring:
            shares = dict(zip(pool.ring.names, pool.ring.ownership(), strict=True))
            self._known[pool.name] = pool.ring, shares
        return shares

    def keep(self, pools: Collection[str]) -> None:
        """Forget the rings of pools that are none of these."""
        self._known = {name: known for name, known in self._known.items() if name in pools}


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a document about pools is made from. `totals` are the cells of all workers, summed; `now` is
    monotonic and `wall` the same moment as wall time."""

    snapshot: Snapshot
    rows: Mapping[RowKey, int]
    totals: Sequence[int]
    being: Wellbeing
    rings: RingChanges
    shares: Shares
    now: float
    wall: float

    def moment(self, monotonic: float) -> str | None:
        """A time of the monotonic clock for people; None for one that is past."""
        return iso_time(int((self.wall + monotonic - self.now) * 1000)) if monotonic > self.now else None


def current_shares(pool: Pool) -> Mapping[str, float]:
    """The share of new keys that each backend should have as things stand: those of others go to whoever may be
    asked."""
    whole = sum(backend.weight for backend in pool.backends.values() if backend.eligible)
    return {
        name: backend.weight / whole if whole and backend.eligible else 0.0 for name, backend in pool.backends.items()
    }


def expected_shares(pool: Pool) -> Mapping[str, float]:
    """The share that each backend's effective weight asks for, whoever may be asked just now."""
    whole = sum(backend.weight for backend in pool.backends.values())
    return {name: backend.weight / whole if whole else 0.0 for name, backend in pool.backends.items()}

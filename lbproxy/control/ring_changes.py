"""How the rings have changed: how often, why, and how much moved the last time.

What is measured is what users notice: the share of the hash space whose keys are now served elsewhere because of
weights or membership. That is the difference between the rings of those that serve, for a key whose owner may not be
asked lives with the next on its list, just as if that owner had no tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, final

from lbproxy.control.pool_state import CAUSES
from lbproxy.core.forge import ring_in_pieces
from lbproxy.core.moves import moved_in_pieces
from lbproxy.core.pieces import Pieces, at_once
from lbproxy.core.ring import Ring
from lbproxy.core.spec import PoolSpec
from lbproxy.observe.journal import Journal, Level

# Causes that come again and again by themselves, and so are told in a low voice.
_QUIET: Final = ("slow_start", "pace")


def serving_ring(ring: Ring, serving: Collection[str], spec: PoolSpec) -> Ring:
    """The ring without those that do not serve."""
    return at_once(serving_in_pieces(ring, serving, spec))


def serving_in_pieces(ring: Ring, serving: Collection[str], spec: PoolSpec) -> Pieces[Ring]:
    """`serving_ring`, in pieces of a few milliseconds."""
    members = [(name, weight) for name, weight in zip(ring.names, ring.weights, strict=True) if name in serving]
    if len(members) == len(ring.names):
        return ring
    return (yield from ring_in_pieces(members, spec.vnodes, spec.hash_version, reuse=ring))


@dataclass(slots=True)
class Change:
    """Of one pool: how often its ring has changed by cause, and the last change (`at` wall time, 0: none yet)."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    cause: str = ""
    moved_share: float = 0.0
    at: float = 0.0


@final
class RingChanges:
    """Of all pools, by name."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.pools: dict[str, Change] = {}

    def keep(self, names: Iterable[str]) -> None:
        """Know exactly these pools."""
        self.pools = {name: self.pools.get(name, Change()) for name in names}

    def observe(self, pool: str, before: Ring, after: Ring, cause: str, wall: float) -> Pieces[None]:
        """A pool's ring of those that serve has changed; in pieces of a few milliseconds."""
        share = (yield from moved_in_pieces(before, after)).share if before.size == after.size else 1.0
        change = self.pools.setdefault(pool, Change())
        change.counts[cause] += 1
        change.cause, change.moved_share, change.at = cause, share, wall
        level: Level = "debug" if cause in _QUIET else "info"
        self._journal.tell(level, "ring changed", {"pool": pool, "cause": cause, "moved_share": round(share, 6)})

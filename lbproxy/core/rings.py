"""The rings of a pool: the one of all its backends, and the one of those at home when it prefers its own zone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbproxy.core.forge import ring_in_pieces
from lbproxy.core.pieces import Pieces
from lbproxy.core.ring import Ring
from lbproxy.core.spec import PoolSpec


@dataclass(frozen=True, slots=True)
class Rings:
    """`home` has the very tokens of the whole, so every key's first backend on it is the first of that zone on its
    preference list; None when there is no preference, or nobody at home."""

    whole: Ring
    home: Ring | None = None


def rings_in_pieces(
    spec: PoolSpec, weights: Mapping[str, float], zone: str, reuse: Rings | None = None
) -> Pieces[Rings]:
    """The rings of a pool with these weights by name, as a proxy in `zone` has them. What `reuse` has is not computed
    again; it makes no difference to the result."""
    known = reuse.whole if reuse is not None else None
    whole = yield from ring_in_pieces(weights.items(), spec.vnodes, spec.hash_version, reuse=known)
    if not spec.prefer_local or not zone:
        return Rings(whole)
    near = [(backend.name, weights[backend.name]) for backend in spec.backends if backend.zone == zone]
    if not any(weight for _, weight in near):
        return Rings(whole)
    known = reuse.home if reuse is not None and reuse.home is not None else whole
    return Rings(whole, (yield from ring_in_pieces(near, spec.vnodes, spec.hash_version, reuse=known)))

"""What a change would do before it is made: who comes and goes, and exactly which keys would move from whom to whom.

A pool is compared with itself as it routes: a `Side` is its weights and those of its backends that serve. The share of
the hash space that changes hands is exact, by walking both rings side by side; what it means for the users of today is
read off a sample of live keys (`core.sample`): how many of them would move, and how many have a request or a WebSocket
open at this moment. Slow start and pace change when keys move, not which, so the plan is about where it all ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, final

from lbproxy.control.ring_changes import serving_ring
from lbproxy.core.forge import build_ring
from lbproxy.core.moves import Moves, moved
from lbproxy.core.ring import Ring
from lbproxy.core.sample import Keys
from lbproxy.core.spec import Config, PoolSpec

SAME: Final = ""
ADDED: Final = "added"
REMOVED: Final = "removed"
CHANGED: Final = "changed"

# What of a backend may change, and what of a pool is told by other means.
_BACKEND_FIELDS: Final = ("address", "weight", "zone", "max_in_flight", "max_connections")
_TOLD_APART: Final = ("name", "backends")
# What of the whole configuration is told by other means.
_CONFIG_APART: Final = ("pools", "listeners", "routes", "source", "workers", "admin")


@final
class Side:
    """A pool as it routes, before or after. `zone` is the proxy's own when the pool prefers it."""

    def __init__(
        self,
        spec: PoolSpec,
        weights: Mapping[str, float],
        serving: Collection[str],
        own_zone: str = "",
        known: Ring | None = None,
    ) -> None:
        """`known` is a ring of which can be used again what is the same."""
        self.spec: Final = spec
        self.weights: Final = dict(weights)
        whole = build_ring(weights.items(), spec.vnodes, spec.hash_version, reuse=known)
        self.fingerprint: Final = whole.fingerprint
        zones = {backend.name: backend.zone for backend in spec.backends}
        near = [name for name in serving if zones.get(name) == own_zone and weights[name]]
        first = near if spec.prefer_local and own_zone and near else serving
        self.ring: Final = serving_ring(whole, set(first), spec)
        served, serve = sum(weights[name] for name in serving), set(serving)
        self.expected: Final = {name: weights[name] / served if name in serve and served else 0.0 for name in weights}
        self.owned: Final = dict(zip(self.ring.names, self.ring.ownership(), strict=True))

    @classmethod
    def of_spec(cls, spec: PoolSpec, own_zone: str = "") -> Side:
        """A pool as its file says, with everybody up."""
        return cls(spec, {b.name: b.weight for b in spec.backends}, [b.name for b in spec.backends], own_zone)


@dataclass(frozen=True, slots=True)
class BackendPlan:
    """One backend before and after; `fields` have changed. A weight of None: it is not there."""

    name: str
    change: str
    fields: tuple[str, ...]
    weight_before: float | None
    weight_after: float | None
    expected_before: float
    expected_after: float
    owned_before: float
    owned_after: float


@dataclass(frozen=True, slots=True)
class KeysPlan:
    """What happens to a sample of live keys, one in 2**bits: `moved` of `seen`, and of those that are open right now.
    `staying` of the moved have their session on a backend that drains, and stay there until it is idle."""

    bits: int
    seen: int
    moved: int
    open: int
    open_moved: int
    staying: int


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool. `settings` are fields that change besides the backends."""

    pool: str
    fingerprint_before: str
    fingerprint_after: str
    moves: Moves
    backends: tuple[BackendPlan, ...]
    settings: tuple[str, ...]
    keys: KeysPlan | None
    warnings: tuple[str, ...]

    @property
    def is_change(self) -> bool:
        return bool(self.moves.flows or self.settings or any(backend.change for backend in self.backends))


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole. `settings` are top-level fields that change, `needs_restart` those that only a restart changes."""

    pools: tuple[PoolPlan, ...]
    pools_added: tuple[str, ...]
    pools_removed: tuple[str, ...]
    listeners_added: tuple[str, ...]
    listeners_removed: tuple[str, ...]
    settings: tuple[str, ...]
    needs_restart: tuple[str, ...]

    @property
    def is_change(self) -> bool:
        others = (self.pools_added, self.pools_removed, self.listeners_added, self.listeners_removed)
        return any(pool.is_change for pool in self.pools) or any(others) or bool(self.settings or self.needs_restart)


def plan(
    before: Config,
    after: Config,
    sides: Mapping[str, tuple[Side, Side]] | None = None,
    samples: Mapping[str, Keys] | None = None,
    needs_restart: Sequence[str] = (),
) -> Plan:
    """What `after` in the place of `before` would do. `sides` are pools as they really stand, where that is known."""
    old = {pool.name: pool for pool in before.pools}
    new = {pool.name: pool for pool in after.pools}
    old_listeners = {listener.name: listener for listener in before.listeners}
    new_listeners = {listener.name: listener for listener in after.listeners}
    pools = []
    for name in (name for name in new if name in old):
        known = (sides or {}).get(name)
        here, there = known or (Side.of_spec(old[name], before.zone), Side.of_spec(new[name], after.zone))
        pools.append(plan_pool(here, there, (samples or {}).get(name)))
    changed = [name for name in new_listeners if name in old_listeners and new_listeners[name] != old_listeners[name]]
    return Plan(
        pools=tuple(pools),
        pools_added=_besides(new, old),
        pools_removed=_besides(old, new),
        listeners_added=_besides(new_listeners, old_listeners),
        listeners_removed=_besides(old_listeners, new_listeners),
        settings=(
            *_changed(before, after, _CONFIG_APART),
            *(["match"] if before.routes != after.routes else []),
            *[f"listen {name}" for name in changed],
            *(["admin.show_keys"] if before.admin.show_keys != after.admin.show_keys else []),
        ),
        needs_restart=tuple(needs_restart),
    )


def plan_pool(before: Side, after: Side, keys: Keys | None = None) -> PoolPlan:
    """What happens to one pool."""
    moves = moved(before.ring, after.ring)
    return PoolPlan(
        pool=after.spec.name,
        fingerprint_before=before.fingerprint,
        fingerprint_after=after.fingerprint,
        moves=moves,
        backends=tuple(_backends(before, after)),
        settings=_changed(before.spec, after.spec, _TOLD_APART),
        keys=None if keys is None else _keys(before, after, keys),
        warnings=tuple(_warnings(before, after)),
    )


def _besides(these: Iterable[str], others: Collection[str]) -> tuple[str, ...]:
    """The names that the others do not have."""
    return tuple([name for name in these if name not in others])


def _changed(before: object, after: object, apart: Collection[str]) -> tuple[str, ...]:
    """The fields of two dataclasses that differ."""
    names = [field.name for field in fields(before) if field.name not in apart]  # type: ignore[arg-type]
    return tuple([name for name in names if getattr(before, name) != getattr(after, name)])


def _backends(before: Side, after: Side) -> Iterable[BackendPlan]:
    old = {backend.name: backend for backend in before.spec.backends}
    new = {backend.name: backend for backend in after.spec.backends}
    for name in dict.fromkeys((*old, *new)):
        differing: tuple[str, ...] = ()
        if name in old and name in new:
            differing = tuple(
                [field for field in _BACKEND_FIELDS if getattr(old[name], field) != getattr(new[name], field)]
            )
        is_reweighed = before.weights.get(name) != after.weights.get(name)
        change = ADDED if name not in old else REMOVED if name not in new else CHANGED
        yield BackendPlan(
            name,
            change if change != CHANGED or differing or is_reweighed else SAME,
            differing,
            before.weights.get(name),
            after.weights.get(name),
            before.expected.get(name, 0.0),
            after.expected.get(name, 0.0),
            before.owned.get(name, 0.0),
            after.owned.get(name, 0.0),
        )


def _keys(before: Side, after: Side, keys: Keys) -> KeysPlan:
    moving = {h for h in keys.seen | keys.held if _owner(before.ring, h) != _owner(after.ring, h)}
    draining = after.weights.keys() - set(after.ring.names) if after.spec.session_drain else set()
    staying = [h for h in moving & keys.seen if _owner(before.ring, h) in draining]
    return KeysPlan(
        bits=keys.bits,
        seen=len(keys.seen),
        moved=len(keys.seen & moving),
        open=len(keys.held),
        open_moved=len(keys.held & moving),
        staying=len(staying),
    )


def _owner(ring: Ring, h: int) -> str:
    return ring.names[ring.owner(h)] if ring.tokens else ""


def _warnings(before: Side, after: Side) -> Iterable[str]:
    if not after.ring.tokens:
        yield "no backend would be eligible"
    if (
        before.spec.sticky.keys != after.spec.sticky.keys
        or before.spec.sticky.on_missing != after.spec.sticky.on_missing
    ):
        yield "keys would be found in another way, so every user may move"
    if (before.spec.vnodes, before.spec.hash_version) != (after.spec.vnodes, after.spec.hash_version):
        yield "the ring would be built in another way, which moves keys between backends that do not change"
    if before.spec.pins != after.spec.pins:
        yield "pins would change; which keys they hold is not in these figures"

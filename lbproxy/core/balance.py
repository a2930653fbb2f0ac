"""Who serves: the walk along a key's preference list, and the questions that are asked of every backend on it.

The ring never changes while it is read. Whether a backend may be asked *now* is another matter, and each reason against
it is a question of its own on the walk: is it eligible (health, ejection, draining), has it room (the bound, its own
limit). A key goes to its owner when nothing speaks against that, else to the first backend clockwise of which that is
true. So there is one preference list for spill, failover and retry, and a key that had to leave knows where it went.

A hot key (`core/hotkeys.py`) is served by the first R backends of its list, each time by the least loaded of them by
weight that is below its fair share; the seats between the fair share and the bound are for the keys that live there.
With `mode: spill` R stays 1: the hot key leaves its owner when that is at its fair share. In both modes a cold key is
treated as if no key were hot.

What the backends hold is in accounts (`core/account.py`), which outlive snapshots; a `Pool` belongs to the snapshots
that agree on it. `core/reasons.py` puts the same questions into words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final, final

from lbproxy.core.account import DRAINING, OUT, SERVING, Account, Backend
from lbproxy.core.affinity import KeyFinder, key_finder
from lbproxy.core.bound import Bound, exact
from lbproxy.core.cookies import CookieAffinity
from lbproxy.core.hashing import NO_HASH
from lbproxy.core.ledger import BACKEND_IN_FLIGHT, FAILOVER, NO_KEY, OWNER, SPILL_FULL, SPILL_HOT
from lbproxy.core.pieces import at_once
from lbproxy.core.pins import PinTable
from lbproxy.core.retry import RetryPolicy
from lbproxy.core.ring import Ring
from lbproxy.core.rings import Rings, rings_in_pieces
from lbproxy.core.spec import Pin, PoolSpec


@final
class Pool:
    """What the data plane reads of a pool.

    `_members` are the backends by their numbers on `_nearest`, the ring on which a key's owner is looked for.
    `_at_home` names the backends of the proxy's own zone when the pool prefers them, else none. `bound` says who has
    room. `reach` says of each hot key over how many backends it is spread, when the pool `spreads` them; of a pool that
    treats hot keys like others it is empty.
    """

    __slots__ = (
        # from the configuration
        "_at_home", "_by_member", "_home_ring", "_members", "_nearest", "_pins",
        "backends", "cookies", "find_key", "first_byte_s", "has_guides", "key_limit", "name", "per_try_s", "retry",
        "ring", "rings", "row", "spec", "spreads",
        # from the control plane
        "bound", "eligible", "is_panicking",
        # the traffic
        "_replicas", "account", "reach",
    )  # fmt: skip

    ring: Ring
    rings: Rings

    def __init__(
        self,
        spec: PoolSpec,
        account: Account,
        backends: dict[str, Backend],
        previous: Pool | None = None,
        zone: str = "",
        rings: Rings | None = None,
    ) -> None:
        """`account` and `backends`, by name and with their effective weights, are those that stay across snapshots.
        What `previous` had computed is used again. `rings` are the pool's, if they have been built already."""
        self.name: Final = spec.name
        self.spec: Final = spec
        self.account: Final = account
        account.budget.share, account.budget.floor = spec.retry.budget, spec.retry.min_budget
        self.row: Final = account.row
        self.backends: Final = backends
        if rings is None:
            weights = {name: backend.weight for name, backend in backends.items()}
            rings = at_once(rings_in_pieces(spec, weights, zone, previous.rings if previous is not None else None))
        self.rings = rings
        self.ring = rings.whole
        self._by_member: Final = [backends[name] for name in self.ring.names]
        for member, backend in enumerate(self._by_member):
            backend.member = member
            backend.keep = spec.connections if spec.connections.max_idle else None
            if backend.tunnels:
                account.count_tunnels(backend, spec.bounded_load.tunnel_weight)
        self._home_ring: Final = rings.home
        ring = rings.home or rings.whole
        self._at_home: Final = frozenset(self._home_ring.names if self._home_ring is not None else ())
        self._nearest: Final = ring
        # (A list of backends for all tokens would take longer to make than a worker may stand still.)
        self._members: Final = [backends[name] for name in ring.names]
        self.find_key: Final[KeyFinder] = key_finder(spec.sticky)
        self._pins: Final = PinTable(spec.pins)
        self.retry: Final = RetryPolicy(spec.retry)
        cookie = spec.sticky.cookie
        self.cookies: Final = CookieAffinity(cookie, spec.name, list(backends)) if cookie is not None else None
        # Whether something stronger than the ring may say where a request goes.
        self.has_guides: Final = bool(spec.pins) or cookie is not None or spec.on_move == "pin"
        self.key_limit: Final = spec.hot_keys.max_in_flight
        self.first_byte_s: Final = spec.timeout.first_byte
        self.per_try_s: Final = spec.retry.per_try
        self.spreads: Final = spec.hot_keys.mode == "spread"
        self.reach: Final = account.hot.reach if spec.hot_keys.mode != "off" else {}
        self._replicas: Final[dict[int, tuple[Backend, ...]]] = {}
        self.bound = Bound([])
        self.eligible = 0
        self.is_panicking = False
        self.adopt({})

    # What the control plane says.

    def adopt(self, states: Mapping[str, int]) -> None:
        """Take what the control plane says of these backends: SERVING, DRAINING or OUT."""
        for name, state in states.items():
            backend = self.backends.get(name)
            if backend is not None:
                backend.state = state
        eligible = [backend for backend in self.backends.values() if backend.state == SERVING]
        self.is_panicking = not eligible and self.spec.panic == "serve_all"
        if self.is_panicking:
            eligible = list(self.backends.values())
        chosen = set(eligible)
        # One that comes (back) begins where the others are, or all requests without a key would go to it for a while.
        served = min([backend.served for backend in eligible if backend.eligible], default=0.0)
        for backend in self.backends.values():
            if backend in chosen and not backend.eligible:
                backend.served = max(backend.served, served)
            backend.eligible = backend in chosen
        self.eligible = len(eligible)
        bounded = self.spec.bounded_load
        weights = [backend.weight if backend.eligible else 0.0 for backend in self._by_member]
        self.bound = Bound(weights, bounded.factor, bounded.min_gap, self._wholes())
        self._replicas.clear()

    def _wholes(self) -> list[Fraction] | None:
        """Of which weight each backend's own is a part, when traffic is kept at home: there of all, eligible or not,
        elsewhere of those that are eligible. With nowhere else to go, and without preference, of all eligible ones."""
        at_home = self._at_home
        elsewhere = self._weight_of(each for each in self._by_member if each.eligible and each.name not in at_home)
        if not at_home or not elsewhere:
            return None
        home = self._weight_of(each for each in self._by_member if each.name in at_home)
        return [home if each.name in at_home else elsewhere for each in self._by_member]

    @staticmethod
    def _weight_of(backends: Iterable[Backend]) -> Fraction:
        return sum(map(exact, [backend.weight for backend in backends]), Fraction(0))

    # The choice.

    def pick(self, h: int) -> tuple[Backend | None, int]:
        """The backend for a key's hash, and how it was decided. None when no backend is eligible (FAILOVER) or none has
        room (SPILL_FULL)."""
        ring = self._nearest
        if not ring.owners:
            return None, FAILOVER
        owner = self._members[ring.owner(h)]
        if owner.eligible and (not self.reach or h not in self.reach):
            account = self.account
            load = owner.in_flight
            for cells in account.peers:
                load += cells[owner.row + BACKEND_IN_FLIGHT]
            # At least so much is in flight. When there is room for that, and there nearly always is, the other workers'
            # totals need not be read.
            total = account.in_flight + 1
            if account.level > total:
                total = account.level
            if load < owner.limit and self.bound.has_room(owner.member, load, total):
                return owner, OWNER
        return self._look_further(h, owner)

    def _look_further(self, h: int, owner: Backend) -> tuple[Backend | None, int]:
        account = self.account
        if not owner.eligible and account.sessions is not None:
            residence = self.residence(h)
            if residence is not None and account.load(residence) < residence.limit:
                return residence, OWNER if residence is owner else FAILOVER
        if h in self.reach:
            backend = self._of_hot(h, self.reach[h] if self.spreads else 1)
            if backend is not None:
                if not owner.eligible:
                    return backend, FAILOVER
                return backend, OWNER if backend is owner else SPILL_HOT
        total = account.total_with_one_more()
        is_owner_out = not owner.eligible
        fallback: Backend | None = None
        for backend in self.walk(h):
            if not backend.eligible:
                continue
            load = account.load(backend)
            if load >= backend.limit:
                continue
            if self.bound.has_room(backend.member, load, total):
                return backend, FAILOVER if is_owner_out else OWNER if backend is owner else SPILL_FULL
            if fallback is None:
                fallback = backend
        # With every backend at its bound, which only counts that are a moment old can make seem so, the first one that
        # is below its own limit has the exchange.
        if fallback is None and self.eligible:
            return None, SPILL_FULL
        return fallback, FAILOVER if is_owner_out else SPILL_FULL

    def _of_hot(self, h: int, reach: int) -> Backend | None:
        """Of the first `reach` eligible backends of a hot key, the least loaded by weight that is below its fair share;
        if they are all at it, the next one that is below."""
        replicas = self._replicas_of(h)
        account = self.account
        total = account.total_with_one_more()
        below_share = self.bound.below_share
        best: Backend | None = None
        best_load = 0.0
        for backend in replicas[:reach]:
            load = account.load(backend)
            if load < backend.limit and below_share(backend.member, load, total):
                relative = (load + 1) / backend.weight
                if best is None or relative < best_load:
                    best, best_load = backend, relative
        if best is None:
            for backend in replicas[reach:]:
                load = account.load(backend)
                if load < backend.limit and below_share(backend.member, load, total):
                    return backend
        return best

    def _replicas_of(self, h: int) -> tuple[Backend, ...]:
        """The replicas of a hot key, remembered: they change only with what is eligible."""
        replicas = self._replicas.get(h)
        if replicas is None:
            replicas = self._replicas[h] = tuple(self.replicas(h))
        return replicas

    def walk(self, h: int) -> Iterator[Backend]:
        """The key's preference list: its owner, then the next distinct backends clockwise; those of the proxy's own
        zone first when the pool prefers them."""
        backends = self.backends
        names = self.ring.names
        home = self._home_ring
        if home is None:
            for member in self.ring.walk(h):
                yield backends[names[member]]
            return
        for member in home.walk(h):
            yield backends[home.names[member]]
        for member in self.ring.walk(h):
            if names[member] not in self._at_home:
                yield backends[names[member]]

    def replicas(self, h: int) -> Iterator[Backend]:
        """The eligible backends of the preference list, in an order that goes to a new zone each time while there are
        any: first of every zone the first, then the rest. When the pool prefers its own zone, that comes first."""
        zones: set[str] = set()
        later: list[Backend] = []
        for backend in self.walk(h):
            if not backend.eligible:
                continue
            zone = backend.spec.zone
            if zone and zone in zones and backend.name not in self._at_home:
                later.append(backend)
            else:
                zones.add(zone)
                yield backend
        yield from later

    def owner(self, h: int) -> Backend | None:
        """The backend that owns a key's hash, whether it may be asked or not; None on an empty ring."""
        return self._members[self._nearest.owner(h)] if self._nearest.owners else None

    def successor(self, h: int, tried: Collection[Backend]) -> Backend | None:
        """Where a failed attempt goes on: the first eligible backend of the list that has not been tried and is below
        its own limit. It is where the key will live once the failed one is taken out. Without a key (`NO_HASH`), the
        least loaded of those."""
        if h == NO_HASH:
            return self.least_loaded(tried)[0]
        account = self.account
        for backend in self.walk(h):
            if backend.eligible and backend not in tried and account.load(backend) < backend.limit:
                return backend
        return None

    def has_others(self, tried: Collection[Backend] = ()) -> bool:
        """Whether any backend is eligible that has not been tried, full or not. One of no weight is only in panic, and
        is on no list even then."""
        return any(each.eligible and each.weight and each not in tried for each in self.backends.values())

    def least_loaded(self, tried: Collection[Backend] = ()) -> tuple[Backend | None, int]:
        """The backend for a request without a key: the fewest in flight by weight, then the fewest served by weight,
        so that an idle pool is used in proportion too. When the pool prefers its own zone, one there that has room."""
        best = self._least_loaded_at_home(tried) if self._at_home else None
        if best is None:
            everybody = self.backends.values()
            best = self._least_loaded_of([each for each in everybody if each not in tried] if tried else everybody)
        if best is not None:
            best.served += 1.0 / best.weight
        return best, NO_KEY

    def _least_loaded_at_home(self, tried: Collection[Backend]) -> Backend | None:
        load, total = self.account.load, self.account.total_with_one_more()
        return self._least_loaded_of(
            [
                each
                for each in self.backends.values()
                if each.name in self._at_home
                and each not in tried
                and self.bound.has_room(each.member, load(each), total)
            ]
        )

    def _least_loaded_of(self, candidates: Iterable[Backend]) -> Backend | None:
        account = self.account
        best: Backend | None = None
        best_load = best_served = 0.0
        for backend in candidates:
            weight = backend.weight
            if not backend.eligible or not weight:
                continue
            load = account.load(backend)
            if load >= backend.limit:
                continue
            relative = load / weight
            if best is None or relative < best_load or (relative == best_load and backend.served < best_served):
                best, best_load, best_served = backend, relative, backend.served
        return best

    # Keys that are known.

    def pinned(self, key: bytes) -> Pin | None:
        """The pin that holds a key, an exact one before the longest prefix."""
        return self._pins.find(key)

    def slots(self, backend: Backend) -> int | None:
        """How many exchanges a backend may hold at present, by the bound and by its own limit; None: any number."""
        slots = self.bound.slots(backend.member, self.account.total_with_one_more())
        limit = backend.spec.max_in_flight
        return limit if slots is None else slots if limit is None else min(slots, limit)

    def home(self, h: int) -> Backend | None:
        """The backend to which the key has an open tunnel, if it is pinned there and can be asked."""
        homes = self.account.homes
        row = homes.find(h) if homes is not None else -1
        if row >= 0:
            for backend in self._by_member:
                if backend.row == row and backend.state != OUT:
                    return backend
        return None

    def place_of(self, h: int) -> Backend | None:
        """The backend that new requests of the key go to while it has room: of its list the first eligible one, or a
        draining one before that if the key's session lives there."""
        sessions = self.account.sessions
        for backend in self.walk(h):
            if backend.eligible or (
                sessions is not None and backend.state == DRAINING and sessions.has_seen(h ^ backend.salt)
            ):
                return backend
        return None

    def remember(self, h: int) -> None:
        """The key was seen now, at its place."""
        sessions = self.account.sessions
        if sessions is not None:
            owner = self.owner(h)
            place = owner if owner is not None and owner.eligible else self.place_of(h)
            if place is not None:
                sessions.mark(h ^ place.salt)

    def residence(self, h: int) -> Backend | None:
        """The draining backend on which the key was seen lately, so that its session may stay there; None if there is
        no such one."""
        if self.account.sessions is None:
            return None
        place = self.place_of(h)
        return place if place is not None and not place.eligible else None

    def tick(self, now: float) -> None:
        """Bring the account up to date. Called on the coarse timer."""
        self.account.tick(now, self.spec, self._parts)
        if len(self._replicas) > len(self.reach):
            self._replicas.clear()
        if self.account.sessions is not None:
            self.account.sessions.tick(now)

    def _parts(self, h: int) -> Iterator[float]:
        """The eligible backends' parts of the weight, along the key's list."""
        for backend in self.replicas(h):
            yield self.bound.share(backend.member)

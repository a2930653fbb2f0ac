"""What the data plane reads: one immutable value per generation, put in place by one assignment.

State that must outlive a configuration (what is in flight, idle connections, health) lives in `Backend`, which is
carried over by pool and name. At a new address it is a new machine on the old tokens: its idle connections are closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from xxhash import xxh3_64_hexdigest

from lbproxy.core.account import Account, Backend
from lbproxy.core.balance import Pool
from lbproxy.core.homes import Homes
from lbproxy.core.ledger import Cells, RowKey
from lbproxy.core.memo import keep_short
from lbproxy.core.pieces import Pieces, at_once
from lbproxy.core.rings import Rings, rings_in_pieces
from lbproxy.core.spec import BackendSpec, Config, HeaderPolicy, ListenerSpec, PoolSpec, Route, TracingSpec

Weights = Mapping[tuple[str, str], float]  # by pool and backend
States = Mapping[str, Mapping[str, int]]  # by pool and backend: SERVING, DRAINING or OUT, as `core.account` has them

_MEMO_LIMIT: Final = 4096
# Closer than any wildcard that a name may be long.
_EQUAL: Final = 1000


@final
class Router:
    """Which pool a request goes to: an exact host before a wildcard before any, then the longest path.

    A path "/api" takes "/api", "/api/..." and "/api?..." but not "/apix"; one that ends in "/" takes all below it.
    A wildcard "*.example.com" takes any host below example.com; among wildcards the longest wins. A host is the
    same with the dot at its end that makes a name absolute. The target "*", which is no path, goes where "/" does.
    """

    def __init__(self, routes: tuple[Route, ...], pools: Mapping[str, Pool]) -> None:
        self._routes = routes
        self._pools = pools
        self._memo: dict[bytes, tuple[tuple[bytes, Pool], ...]] = {}
        # The pool that takes everything, when nothing else is to be decided.
        self.only: Pool | None = None
        if len(routes) == 1 and not routes[0].host and routes[0].path == "/":
            self.only = pools[routes[0].pool]

    def find(self, host: bytes, target: bytes) -> Pool | None:
        """The pool for a host (lower case, no port) and a target in origin-form or "*"; None when no route fits."""
        paths = self._memo.get(host)
        if paths is None:
            paths = self._learn(host)
        for prefix, pool in paths:
            if target.startswith(prefix) and (
                len(target) == len(prefix) or prefix.endswith(b"/") or target[len(prefix)] in b"/?"
            ):
                return pool
        return self.find(host, b"/") if target == b"*" else None

    def _learn(self, host: bytes) -> tuple[tuple[bytes, Pool], ...]:
        name = host.decode("latin-1").removesuffix(".")
        fitting = [(self._closeness(route.host, name), len(route.path), route) for route in self._routes]
        fitting = sorted((entry for entry in fitting if entry[0] >= 0), key=lambda entry: entry[:2], reverse=True)
        paths = tuple([(route.path.encode(), self._pools[route.pool]) for _, _, route in fitting])
        keep_short(self._memo, _MEMO_LIMIT, host, paths)
        return paths

    @staticmethod
    def _closeness(pattern: str, host: str) -> int:
        """How closely a route's host fits: -1 not at all, 0 any host, more for a longer wildcard, most if equal."""
        if not pattern:
            return 0
        if pattern.startswith("*."):
            return len(pattern) if host.endswith(pattern[1:].lower()) and len(host) >= len(pattern) else -1
        return _EQUAL if host == pattern.lower() else -1


@final
@dataclass(frozen=True, slots=True)
class Snapshot:
    """One generation. `row` is where the worker's own cells start, `listener_rows` where each listener's do. `leaving`
    are pools that the configuration no longer has, while exchanges of theirs go on."""

    generation: int
    fingerprint: str
    pools: Mapping[str, Pool]
    router: Router
    listeners: Mapping[str, ListenerSpec]
    listener_rows: Mapping[str, int]
    headers: HeaderPolicy
    tracing: TracingSpec
    row: int
    leaving: Mapping[str, Pool]


def routing_fingerprint(config: Config, pools: Mapping[str, Pool]) -> str:
    """A hash of what decides routing: equal fingerprints route equally."""
    parts = [f"{route.host}\0{route.path}\0{route.pool}\1" for route in config.routes]
    parts += [f"{name}\0{_pool_fingerprint(pool)}\1" for name, pool in sorted(pools.items())]
    return xxh3_64_hexdigest("".join(parts).encode())


def _pool_fingerprint(pool: Pool) -> str:
    """What decides who is asked: which keys live where, who comes first and who next, and when one is full or hot."""
    spec, home = pool.spec, pool.rings.home
    backends = sorted([(each.name, each.zone, each.max_in_flight, each.max_connections) for each in spec.backends])
    pins = sorted(spec.pins, key=lambda pin: (pin.is_prefix, pin.key))
    rules = (spec.sticky, pins, spec.bounded_load, spec.hot_keys, spec.panic, spec.on_move, backends)
    return f"{pool.ring.fingerprint}\0{home.fingerprint if home is not None else ''}\0{rules!r}"


def snapshot_rings(config: Config, weights: Weights, known: Mapping[str, Rings]) -> Pieces[dict[str, Rings]]:
    """Every pool's rings with these weights. Of `known`, by pool, is used again what can be."""
    rings: dict[str, Rings] = {}
    for spec in config.pools:
        of_pool = {each.name: weights.get((spec.name, each.name), each.weight) for each in spec.backends}
        rings[spec.name] = yield from rings_in_pieces(spec, of_pool, config.zone, known.get(spec.name))
    return rings


def previous_rings(previous: Snapshot | None) -> dict[str, Rings]:
    """The rings of a snapshot's pools."""
    return {name: pool.rings for name, pool in previous.pools.items()} if previous is not None else {}


def build_snapshot(
    config: Config,
    generation: int,
    rows: Mapping[RowKey, int],
    previous: Snapshot | None = None,
    *,
    cells: Cells | None = None,
    peers: Sequence[Cells] = (),
    weights: Weights | None = None,
    rings: Mapping[str, Rings] | None = None,
) -> Snapshot:
    """The snapshot of a configuration. `rows` says where each row of the slab starts.

    What `previous` knew of backends that stay is carried over, and a pool in which nothing changed is the same object.
    `cells` is the worker's slab and `peers` are the other workers'; a process without traffic has none. `weights` are
    the effective weights, by pool and backend, where they are not the configured ones. `rings` are the pools' with
    these weights (`snapshot_rings`), if they have been built already.
    """
    if rings is None:
        rings = at_once(snapshot_rings(config, weights or {}, previous_rings(previous)))
    maker = _PoolMaker(rows, previous, [] if cells is None else cells, peers, weights or {}, config.zone)
    pools = {spec.name: maker.make(spec, rings[spec.name]) for spec in config.pools}
    return Snapshot(
        generation=generation,
        fingerprint=routing_fingerprint(config, pools),
        pools=pools,
        router=Router(config.routes, pools),
        listeners={listener.name: listener for listener in config.listeners},
        listener_rows={listener.name: rows[("listener", listener.name)] for listener in config.listeners},
        headers=config.headers,
        tracing=config.tracing,
        row=rows[("worker",)],
        leaving=_leaving(previous, pools),
    )


def _leaving(previous: Snapshot | None, pools: Mapping[str, Pool]) -> dict[str, Pool]:
    """Pools that are gone and hold something still. One that comes back takes its account up again: two would write
    into the same cells."""
    if previous is None:
        return {}
    return {
        name: pool
        for name, pool in {**previous.leaving, **previous.pools}.items()
        if name not in pools and (pool.account.waiting or _holders(pool))
    }


def _holders(pool: Pool) -> list[Backend]:
    """The backends at which something goes on, those that have left included."""
    return [each for each in (*pool.backends.values(), *pool.account.leaving.values()) if each.is_held]


@final
class _PoolMaker:
    """Makes the pools of one snapshot, each with what the one before knew of it; `build_snapshot` says from what."""

    def __init__(
        self,
        rows: Mapping[RowKey, int],
        previous: Snapshot | None,
        cells: Cells,
        peers: Sequence[Cells],
        weights: Weights,
        zone: str,
    ) -> None:
        self._rows = rows
        self._previous = previous
        self._cells = cells
        self._peers = peers
        self._weights = weights
        self._zone = zone

    def make(self, spec: PoolSpec, rings: Rings) -> Pool:
        """The pool, which is the one before when nothing in it has changed."""
        previous = self._previous
        old = (previous.pools.get(spec.name) or previous.leaving.get(spec.name)) if previous is not None else None
        account = self._account(spec, old)
        if old is None:
            return Pool(spec, account, self._backends(spec, {}), None, self._zone, rings)
        is_same = self._is_same(spec, old, rings)
        known = {**account.leaving, **old.backends}
        names = {each.name for each in spec.backends}
        account.leaving = {name: each for name, each in known.items() if name not in names and each.is_held}
        backends = self._backends(spec, known)
        return old if is_same else Pool(spec, account, backends, old, self._zone, rings)

    def _account(self, spec: PoolSpec, old: Pool | None) -> Account:
        row, sketch_row = self._rows[("pool", spec.name)], self._rows[("sketch", spec.name)]
        if old is None:
            account = Account(self._cells, self._peers, row, sketch_row)
        else:
            account = old.account
            account.row, account.sketch_row = row, sketch_row
        homes_row = self._rows.get(("homes", spec.name))
        if spec.on_move != "pin" or homes_row is None:
            account.homes = None
        elif account.homes is None or account.homes.row != homes_row:
            account.homes = Homes(self._cells, self._peers, homes_row)
        return account

    def _is_same(self, spec: PoolSpec, old: Pool, rings: Rings) -> bool:
        """Whether the pool before it can stand for this one. Ask before its backends take anything over."""
        if self._previous is None or spec.name not in self._previous.pools:
            return False
        if old.spec != spec or old.row != self._rows[("pool", spec.name)] or old.rings != rings:
            return False
        for each in spec.backends:
            known = old.backends[each.name]
            if (known.row, known.weight) != self._row_and_weight(spec.name, each):
                return False
        return True

    def _backends(self, spec: PoolSpec, known: Mapping[str, Backend]) -> dict[str, Backend]:
        """By name; those that are known go on under their new specifications."""
        backends: dict[str, Backend] = {}
        for each in spec.backends:
            row, weight = self._row_and_weight(spec.name, each)
            backend = known.get(each.name)
            if backend is None:
                backend = Backend(each, row, weight)
            else:
                backend.take_over(each, row, weight)
            backends[each.name] = backend
        return backends

    def _row_and_weight(self, pool: str, backend: BackendSpec) -> tuple[int, float]:
        row = self._rows[("backend", pool, backend.name)]
        return row, self._weights.get((pool, backend.name), backend.weight)

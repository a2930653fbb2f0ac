"""What the data plane reads: one immutable value per generation, put in place by one assignment.

State that must outlive a configuration (what is in flight, idle connections, health) lives in `Backend`, which is
carried over by pool, name and address; a backend of the same name at a new address is a new machine on the old tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from xxhash import xxh3_64_hexdigest

from lbproxy.core.balance import Backend, Pool
from lbproxy.core.ledger import RowKey
from lbproxy.core.spec import Config, HeaderPolicy, ListenerSpec, Route

_MEMO_LIMIT = 4096


@final
class Router:
    """Which pool a request goes to: an exact host before a wildcard before any, then the longest path.

    A path "/api" takes "/api", "/api/..." and "/api?..." but not "/apix"; one that ends in "/" takes all below it.
    A wildcard "*.example.com" takes any host below example.com; among wildcards the longest wins.
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
        """The pool for a host (lower case, no port) and a target in origin-form; None when no route fits."""
        paths = self._memo.get(host)
        if paths is None:
            paths = self._learn(host)
        for prefix, pool in paths:
            if target.startswith(prefix) and (
                len(target) == len(prefix) or prefix.endswith(b"/") or target[len(prefix)] in b"/?"
            ):
                return pool
        return None

    def _learn(self, host: bytes) -> tuple[tuple[bytes, Pool], ...]:
        name = host.decode("latin-1")
        fitting = [(self._closeness(route.host, name), len(route.path), route) for route in self._routes]
        fitting = sorted((entry for entry in fitting if entry[0] >= 0), key=lambda entry: entry[:2], reverse=True)
        paths = tuple([(route.path.encode(), self._pools[route.pool]) for _, _, route in fitting])
        if len(self._memo) >= _MEMO_LIMIT:
            self._memo.clear()
        self._memo[host] = paths
        return paths

    @staticmethod
    def _closeness(pattern: str, host: str) -> int:
        """How closely a route's host fits: -1 not at all, 0 any host, more for a longer wildcard, most if equal."""
        if not pattern:
            return 0
        if pattern.startswith("*."):
            return len(pattern) if host.endswith(pattern[1:].lower()) and len(host) >= len(pattern) else -1
        return 1000 if host == pattern.lower() else -1


@final
@dataclass(frozen=True, slots=True)
class Snapshot:
    """One generation. `row` is where the worker's own cells start, `listener_rows` where each listener's do."""

    generation: int
    fingerprint: str
    pools: Mapping[str, Pool]
    router: Router
    listeners: Mapping[str, ListenerSpec]
    listener_rows: Mapping[str, int]
    headers: HeaderPolicy
    row: int


def routing_fingerprint(config: Config, pools: Mapping[str, Pool]) -> str:
    """A hash of what decides routing: equal fingerprints route equally."""
    parts = [f"{route.host}\0{route.path}\0{route.pool}\1" for route in config.routes]
    parts += [f"{name}\0{pool.ring.fingerprint}\0{pool.spec.sticky!r}\1" for name, pool in sorted(pools.items())]
    return xxh3_64_hexdigest("".join(parts).encode())


def build_snapshot(
    config: Config, generation: int, rows: Mapping[RowKey, int], previous: Snapshot | None = None
) -> Snapshot:
    """The snapshot of a configuration. `rows` says where each row of the slab starts; what `previous` knew of backends
    that stay is carried over, and the tokens it had computed are used again."""
    pools: dict[str, Pool] = {}
    for spec in config.pools:
        old = previous.pools.get(spec.name) if previous is not None else None
        backends: dict[str, Backend] = {}
        for backend_spec in spec.backends:
            row = rows[("backend", spec.name, backend_spec.name)]
            known = old.backends.get(backend_spec.name) if old is not None else None
            if known is not None and known.address == backend_spec.address:
                known.take_over(backend_spec, row)
                backends[backend_spec.name] = known
            else:
                backends[backend_spec.name] = Backend(backend_spec, row)
        pools[spec.name] = Pool(spec, rows[("pool", spec.name)], backends, old.ring if old is not None else None)
    return Snapshot(
        generation=generation,
        fingerprint=routing_fingerprint(config, pools),
        pools=pools,
        router=Router(config.routes, pools),
        listeners={listener.name: listener for listener in config.listeners},
        listener_rows={listener.name: rows[("listener", listener.name)] for listener in config.listeners},
        headers=config.headers,
        row=rows[("worker",)],
    )

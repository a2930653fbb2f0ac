"""Who serves: the runtime side of a pool and of its backends, and the walk along a key's preference list.

The ring never changes while it is read; whether a backend may be asked now is a question put to each member of the
walk. A `Backend` outlives the snapshots that name it, so what is in flight is known across reloads; a `Pool` belongs
to one snapshot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator
from typing import Final, final

from lbproxy.core.affinity import KeyFinder, key_finder
from lbproxy.core.hashing import hash_key
from lbproxy.core.ledger import FAILOVER, NO_KEY, OWNER
from lbproxy.core.ring import Ring, build_ring
from lbproxy.core.spec import BackendSpec, PoolSpec, UpstreamConnections


@final
class Backend:
    """The account of one backend in one worker. `row` is where its cells start.

    `idle` holds its idle connections, the one used last at the right end; only the data plane looks into it. `keep`
    says how many of them and for how long, None when the backend is in no pool any more.
    `served` is the virtual time of the balance for requests without a key: requests served over weight.
    """

    __slots__ = (
        "address",
        "connections",
        "eligible",
        "idle",
        "in_flight",
        "keep",
        "name",
        "row",
        "served",
        "spec",
        "weight",
    )

    def __init__(self, spec: BackendSpec, row: int) -> None:
        self.name: Final = spec.name
        self.address: Final = spec.address
        self.spec = spec
        self.weight = spec.weight
        self.row = row
        self.eligible = True
        self.in_flight = 0
        self.connections = 0
        self.served = 0.0
        self.idle: deque[object] = deque()
        self.keep: UpstreamConnections | None = None

    def take_over(self, spec: BackendSpec, row: int) -> None:
        """Go on under a new specification of the same name and address."""
        self.spec = spec
        self.weight = spec.weight
        self.row = row


@final
class Pool:
    """What the data plane reads of a pool. `owners` stands beside `ring.tokens`, with one more at the end to wrap."""

    __slots__ = ("backends", "find_key", "name", "owners", "ring", "row", "spec", "tokens")

    def __init__(self, spec: PoolSpec, row: int, backends: dict[str, Backend], reuse: Ring | None = None) -> None:
        self.name: Final = spec.name
        self.spec: Final = spec
        self.row: Final = row
        self.backends: Final = backends
        for backend in backends.values():
            backend.keep = spec.connections
        members = [(backend.name, backend.weight) for backend in backends.values()]
        self.ring: Final = build_ring(members, spec.vnodes, spec.hash_version, reuse=reuse)
        by_member = [backends[name] for name in self.ring.names]
        self.tokens: Final = self.ring.tokens
        self.owners: Final = [by_member[member] for member in self.ring.owners]
        self.find_key: Final[KeyFinder] = key_finder(spec.sticky)

    def pick(self, key: bytes) -> tuple[Backend | None, int]:
        """The backend for a key and how it was decided; None when no backend is eligible."""
        if not self.owners:
            return None, FAILOVER
        backend = self.owners[bisect_left(self.tokens, hash_key(key))]
        if backend.eligible:
            return backend, OWNER
        return self.successor(key, ()), FAILOVER

    def owner(self, key: bytes) -> Backend | None:
        """The backend that owns a key, whether it may be asked or not; None on an empty ring."""
        return self.owners[bisect_left(self.tokens, hash_key(key))] if self.owners else None

    def preference(self, key: bytes) -> Iterator[Backend]:
        """The key's preference list: its owner, then the next distinct backends clockwise."""
        backends = self.backends
        names = self.ring.names
        for member in self.ring.walk(hash_key(key)):
            yield backends[names[member]]

    def successor(self, key: bytes, tried: Collection[Backend]) -> Backend | None:
        """The first eligible backend of the preference list that has not been tried; None when there is none."""
        for backend in self.preference(key):
            if backend.eligible and backend not in tried:
                return backend
        return None

    def least_loaded(self, tried: Collection[Backend] = ()) -> tuple[Backend | None, int]:
        """The backend for a request without a key: the fewest in flight by weight, then the fewest served by weight,
        so that an idle pool is used in proportion too."""
        best: Backend | None = None
        best_load = best_served = 0.0
        for backend in self.backends.values():
            weight = backend.weight
            if not backend.eligible or not weight or backend in tried:
                continue
            load = backend.in_flight / weight
            if best is None or load < best_load or (load == best_load and backend.served < best_served):
                best, best_load, best_served = backend, load, backend.served
        if best is not None:
            best.served += 1.0 / best.weight
        return best, NO_KEY

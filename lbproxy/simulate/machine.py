"""The workers of one machine as the data plane has them: a pool, an account and a slab each, peers of one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, final

from lbproxy.core.account import OUT, Account, Backend
from lbproxy.core.balance import Pool
from lbproxy.core.hashing import NO_HASH
from lbproxy.core.ledger import FAILOVER, PINNED, SPILL_FULL, RowKey, kind_of, row_width
from lbproxy.core.spec import PoolSpec, Queue

# The data plane's own intervals (`dataplane/listener.py`, `dataplane/deadlines.py`).
TICK_S: Final = 0.1

# Instead of a backend.
FULL: Final = -1  # every eligible backend is at its limit: wait
NOBODY: Final = -2  # no backend is eligible, or the key's pin is down


class Router(Protocol):
    """What the engine drives. Backends are indexes into `names`; `shares` are their fair parts by weight."""

    names: Sequence[str]
    shares: Sequence[float]
    queue: Queue

    def owner(self, h: int) -> int:
        """The backend that owns a key's hash."""
        ...

    def admit(self, worker: int, h: int) -> bool:
        """A request for key hash `h` (`NO_HASH`: none) has come. False: its key already holds all that it may."""
        ...

    def seat(self, worker: int, key: bytes, h: int) -> tuple[int, int]:
        """Take a seat: the backend and the decision (`ledger.DECISIONS`), or FULL or NOBODY and no decision (-1)."""
        ...

    def leave(self, worker: int, backend: int, h: int) -> None:
        """Give a seat back."""
        ...

    def tick(self, worker: int, now: float) -> None:
        """Every TICK_S."""
        ...


@final
class Machine:
    """Workers that route with the core. Every backend starts out serving."""

    def __init__(self, spec: PoolSpec, workers: int = 1, zone: str = "") -> None:
        rows, width = _layout(spec)
        slabs = [[0] * width for _ in range(workers)]
        self.pools: Final = [
            _pool(spec, slab, [other for other in slabs if other is not slab], rows, zone) for slab in slabs
        ]
        self.names: Sequence[str] = [backend.name for backend in spec.backends]
        whole = sum(backend.weight for backend in spec.backends)
        self.shares: Sequence[float] = [backend.weight / whole for backend in spec.backends]
        self.queue: Queue = spec.queue
        self._index: Final = {name: index for index, name in enumerate(self.names)}
        self._backends: Final = [[pool.backends[name] for name in self.names] for pool in self.pools]

    def owner(self, h: int) -> int:
        owner = self.pools[0].owner(h)
        assert owner is not None
        return self._index[owner.name]

    def admit(self, worker: int, h: int) -> bool:
        account = self.pools[worker].account
        if h == NO_HASH:
            return True
        account.seen(h)
        limit = self.pools[worker].key_limit
        return limit is None or account.held_by_key(h) < limit

    def seat(self, worker: int, key: bytes, h: int) -> tuple[int, int]:
        pool = self.pools[worker]
        backend, decision = self._choose(pool, key, h)
        if backend is None:
            return FULL if decision == SPILL_FULL else NOBODY, -1
        pool.account.acquire(backend, h)
        pool.account.tell()
        return self._index[backend.name], decision

    @staticmethod
    def _choose(pool: Pool, key: bytes, h: int) -> tuple[Backend | None, int]:
        if h == NO_HASH:
            backend, decision = pool.least_loaded()
            return backend, decision if backend is not None else SPILL_FULL if pool.eligible else FAILOVER
        pin = pool.pinned(key) if pool.has_guides else None
        if pin is not None:
            pinned = pool.backends.get(pin.backend)
            if pinned is not None and pinned.state != OUT and pool.account.load(pinned) < pinned.limit:
                return pinned, PINNED
            if pin.on_down == "reject":
                return None, FAILOVER
        return pool.pick(h)

    def leave(self, worker: int, backend: int, h: int) -> None:
        account = self.pools[worker].account
        account.release(self._backends[worker][backend], h)
        account.tell()

    def tick(self, worker: int, now: float) -> None:
        self.pools[worker].tick(now)

    def reach(self, h: int) -> list[int]:
        """For each worker, over how many backends it spreads the key now; 0 when it takes it for cold."""
        return [pool.account.hot.reach.get(h, 0) for pool in self.pools]


def _layout(spec: PoolSpec) -> tuple[dict[RowKey, int], int]:
    """Where each row of the slab starts, and how many cells there are."""
    keys: list[RowKey] = [("pool", spec.name), ("sketch", spec.name)]
    keys += [("backend", spec.name, backend.name) for backend in spec.backends]
    rows: dict[RowKey, int] = {}
    width = 0
    for key in keys:
        rows[key] = width
        width += row_width(kind_of(key))
    return rows, width


def _pool(spec: PoolSpec, cells: list[int], peers: list[list[int]], rows: dict[RowKey, int], zone: str) -> Pool:
    account = Account(cells, peers, rows["pool", spec.name], rows["sketch", spec.name])
    backends = {each.name: Backend(each, rows["backend", spec.name, each.name], each.weight) for each in spec.backends}
    return Pool(spec, account, backends, zone=zone)

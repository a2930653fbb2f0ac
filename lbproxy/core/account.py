"""What a worker keeps of a pool's traffic: an account of each backend, and one of the pool as a whole.

What is in flight is counted machine-wide: a worker's own count is exact, and those of the other workers are read from
their cells when the question is asked. Busy workers tell it each other once per turn of their event loops, and at once
where a backend has a limit of its own.

Both outlive the snapshots that name them, so what is in flight is known across reloads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

from lbproxy.core.bound import Smoothed, exact
from lbproxy.core.hashing import NO_HASH, hash_key
from lbproxy.core.homes import Homes
from lbproxy.core.hotkeys import HotKeys, Meter, Parts
from lbproxy.core.ledger import BACKEND_IN_FLIGHT, CODE_CLASSES, POOL_IN_FLIGHT, POOL_REQUESTS, Cells
from lbproxy.core.recency import Recency
from lbproxy.core.retry import RetryBudget
from lbproxy.core.sample import KeySample
from lbproxy.core.sketch import Table, merged, read_table, write_table
from lbproxy.core.spec import BackendSpec, PoolSpec, UpstreamConnections
from lbproxy.core.tally import BackendTally, Tally

# What the control plane says of a backend.
SERVING: Final = 0
DRAINING: Final = 1  # nothing new, but sessions that are known to be here may stay
OUT: Final = 2  # down, ejected or not yet known

# With fewer requests than this in flight there is no crowd, and nothing is put off for the sake of all.
CROWD: Final = 4

_NO_LIMIT: Final = 1 << 62


@final
class Backend:
    """The account of one backend in one worker. `row` is where its cells start, `member` its number on the ring.

    `idle` holds its idle connections, the one used last at the right end; only the data plane looks into it. `keep`
    says how many of them and for how long, None when none are kept: as the configuration has it, or because the backend
    is in no pool any more. `errors` counts failures in a row. `is_told` says that the other workers know of
    `in_flight`. `salt` goes into the marks of the sessions that live there. `served` is the virtual time of the balance
    for requests without a key: requests served over weight. Of its `in_flight`, `tunnel_seats` are what its `tunnels`
    count as. `tally` is for the data plane to gather in.
    """

    __slots__ = (
        # for its life
        "address", "name", "salt",
        # from the configuration and the control plane
        "eligible", "keep", "limit", "member", "most_connections", "row", "spec", "state", "weight",
        # the account
        "connections", "errors", "idle", "in_flight", "is_told", "served", "tally", "tunnel_seats", "tunnels",
    )  # fmt: skip

    def __init__(self, spec: BackendSpec, row: int, weight: float) -> None:
        self.name: Final = spec.name
        self.salt: Final = hash_key(spec.name.encode())
        self.address = spec.address
        self.state = SERVING
        self.eligible = False
        self.member = -1
        self.in_flight = 0
        self.is_told = True
        self.tunnels = 0
        self.tunnel_seats = 0
        self.connections = 0
        self.errors = 0
        self.served = 0.0
        self.tally: Final = BackendTally()
        self.idle: Final[list[object]] = []
        self.keep: UpstreamConnections | None = None
        self.take_over(spec, row, weight)

    @property
    def is_held(self) -> bool:
        """Whether exchanges or tunnels go on here."""
        return self.in_flight > 0 or self.tunnels > 0

    def take_over(self, spec: BackendSpec, row: int, weight: float) -> None:
        """Go on under a new specification of the same name. `weight` is the effective one."""
        self.spec = spec
        if self.address != spec.address:  # else the same object: connections are told apart by it
            self.address = spec.address
            self.errors = 0  # which another machine has met
        self.row = row
        self.weight = weight
        self.count_connections()

    def count_connections(self) -> None:
        """Let `limit` follow what is open here: an exchange has one connection and so has a tunnel, and an idle one is
        used before another is opened. With as many as there may be, nothing more can be placed here."""
        spec = self.spec
        self.limit = spec.max_in_flight if spec.max_in_flight is not None else _NO_LIMIT
        self.most_connections = spec.max_connections
        open_now = self.in_flight - self.tunnel_seats + self.tunnels
        if self.most_connections is not None and open_now >= self.most_connections:
            self.limit = 0


@final
class Account:
    """A pool's traffic in one worker: what is in flight here and in the other workers, and which keys are hot.

    It outlives snapshots. `cells` is the worker's own slab and `peers` those of the others; `row` and `sketch_row` are
    where the pool's cells and its table of hottest keys start. `level` is what the pool held machine-wide, smoothed, at
    the last tick. `sessions` is the memory of keys seen, when sessions may stay on a draining backend, `sample` a fair
    part of those keys, `homes` where users with an open tunnel are, when they are pinned. `waiting` holds the exchanges
    that wait for a seat and `tunnels` those that are upgraded; only the data plane looks into them, and it gathers in
    `tally`. `leaving` are backends that are in the pool no more and hold something still, by name.
    """

    __slots__ = (
        "_answered", "_held", "_held_elsewhere", "_smoothed", "_untold", "budget", "cells", "homes", "hot", "in_flight",
        "leaving", "level", "meter", "peers", "row", "sample", "seen", "sessions", "sketch_row", "tally", "tunnels",
        "waiting",
    )  # fmt: skip

    def __init__(self, cells: Cells, peers: Sequence[Cells], row: int, sketch_row: int) -> None:
        self.cells: Final = cells
        self.peers: Final = tuple(peers)
        self.row = row
        self.sketch_row = sketch_row
        self.in_flight = 0
        self.meter: Final = Meter()
        self.hot: Final = HotKeys()
        self.seen: Final[Callable[[int], None]] = self.meter.seen.append
        self._held: Final = self.meter.held
        self._held_elsewhere: Final[dict[int, int]] = {}
        self.sessions: Recency | None = None
        self.sample: Final = KeySample()
        self.homes: Homes | None = None
        self.leaving: dict[str, Backend] = {}
        self.waiting: Final[deque[object]] = deque()
        self.tunnels: Final[set[object]] = set()
        self._answered = self.requests()
        self.budget: Final = RetryBudget(requests=self._answered)
        self._smoothed: Final = Smoothed()
        self.level = 0
        self.tally: Final = Tally()
        self._untold: Final[list[Backend]] = []

    def load(self, backend: Backend) -> int:
        """What a backend holds machine-wide."""
        load = backend.in_flight
        for cells in self.peers:
            load += cells[backend.row + BACKEND_IN_FLIGHT]
        return load

    def total_with_one_more(self) -> int:
        """What the pool holds machine-wide and smoothed, the exchange being placed included. It is as fresh as `load`:
        a backend held against a total of a moment ago would seem full when little is going on."""
        total = self.in_flight + 1
        for cells in self.peers:
            total += cells[self.row + POOL_IN_FLIGHT]
        return self.level if self.level > total else total

    def acquire(self, backend: Backend, h: int) -> bool:
        """Take a seat at a backend for key hash `h` (`NO_HASH`: no key). Whether somebody has to `tell` of it soon, who
        has not been asked to yet."""
        backend.in_flight += 1
        self.in_flight += 1
        if h != NO_HASH:
            held = self._held
            held[h] = held.get(h, 0) + 1
        if backend.most_connections is not None:
            backend.count_connections()
        return self._moved(backend)

    def release(self, backend: Backend, h: int) -> bool:
        """Give a seat back, exactly once for each `acquire`. Whether somebody has to `tell` of it, as there."""
        backend.in_flight -= 1
        self.in_flight -= 1
        if backend.most_connections is not None:
            backend.count_connections()
        if h != NO_HASH:
            held = self._held
            seats = held[h] - 1
            if seats:
                held[h] = seats
            else:
                del held[h]
        return self._moved(backend)

    def _moved(self, backend: Backend) -> bool:
        """What a backend holds has changed: tell the others at once, or when somebody calls `tell`. A turn of the event
        loop takes and gives back many seats of few backends, and a cell that others read is dear to write."""
        if self.in_flight < CROWD or backend.limit != _NO_LIMIT:
            self.cells[backend.row + BACKEND_IN_FLIGHT] = backend.in_flight
            if self.peers:
                self.cells[self.row + POOL_IN_FLIGHT] = self.in_flight
            return False
        if not backend.is_told:
            return False
        backend.is_told = False
        self._untold.append(backend)
        return len(self._untold) == 1

    def tell(self) -> None:
        """Tell the other workers what has been put off for this."""
        cells = self.cells
        for backend in self._untold:
            backend.is_told = True
            cells[backend.row + BACKEND_IN_FLIGHT] = backend.in_flight
        self._untold.clear()
        if self.peers:
            cells[self.row + POOL_IN_FLIGHT] = self.in_flight

    def begin_tunnel(self, backend: Backend, h: int, weight: float) -> None:
        """An exchange has become a tunnel: it gives its seat back, and all the backend's tunnels together count as
        `weight` seats each, rounded down."""
        self.release(backend, h)
        self.tell()
        backend.tunnels += 1
        self.count_tunnels(backend, weight)

    def end_tunnel(self, backend: Backend, weight: float) -> None:
        """A tunnel has ended."""
        backend.tunnels -= 1
        self.count_tunnels(backend, weight)

    def count_tunnels(self, backend: Backend, weight: float) -> None:
        """Bring the seats of a backend's tunnels up to date."""
        seats = int(exact(weight) * backend.tunnels)
        by = seats - backend.tunnel_seats
        if by:
            backend.tunnel_seats = seats
            backend.in_flight += by
            self.in_flight += by
            self.cells[backend.row + BACKEND_IN_FLIGHT] = backend.in_flight
            self.cells[self.row + POOL_IN_FLIGHT] = self.in_flight
        backend.count_connections()

    def held_by_key(self, h: int) -> int:
        """What a key holds machine-wide: exact here, and as of the last tick elsewhere (hottest keys only)."""
        return self._held.get(h, 0) + self._held_elsewhere.get(h, 0)

    def tick(self, now: float, spec: PoolSpec, parts: Parts) -> None:
        """Smooth the level, note the requests, measure the keys, and judge which are hot, where `parts` says how much
        the backends of a key can carry. Called on the coarse timer."""
        elsewhere = sum([cells[self.row + POOL_IN_FLIGHT] for cells in self.peers])
        self.level = self._smoothed.update(self.in_flight + elsewhere, now)
        self.cells[self.row + POOL_IN_FLIGHT] = self.in_flight
        self.budget.advance(now, self.requests())
        self.sample.note(self.meter.seen, now)
        is_off = spec.hot_keys.mode == "off"
        if is_off and spec.hot_keys.max_in_flight is None:
            self.meter.rest()
            self._held_elsewhere.clear()
            self.hot.rest()
            return
        table = self.meter.fold(now)
        write_table(self.cells, self.sketch_row, table)
        others = self._tables_of_peers(now)
        self._held_elsewhere.clear()
        self._held_elsewhere.update({row.key: row.held for row in merged(others).rows if row.held})
        if is_off:
            self.hot.rest(merged([table, *others]))
            return
        bound = spec.bounded_load
        self.hot.judge(now, [table, *others], parts, bound.factor, bound.min_gap)

    def requests(self) -> int:
        """The running count of requests that this worker has answered."""
        first = self.row + POOL_REQUESTS
        return sum(self.cells[first : first + len(CODE_CLASSES)])

    def newly_answered(self) -> int:
        """By how much that count has grown since this was asked last; by nothing when it has begun anew."""
        before, self._answered = self._answered, self.requests()
        return max(0, self._answered - before)

    def _tables_of_peers(self, now: float) -> list[Table]:
        """What the other workers that live have published."""
        tables = [read_table(cells, self.sketch_row) for cells in self.peers]
        return [table for table in tables if table is not None and not table.is_stale(now)]

"""The JSON documents of the admin API, made from a snapshot and from cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lbproxy.control.admin.view import Document
from lbproxy.core.balance import Backend, Pool
from lbproxy.core.ledger import (
    BACKEND_ACTIVE,
    BACKEND_IDLE,
    BACKEND_IN_FLIGHT,
    BACKEND_OWNED,
    BACKEND_REQUESTS,
    CODE_CLASSES,
    DECISIONS,
    LISTENER_OPEN,
    POOL_DECISIONS,
    POOL_IN_FLIGHT,
    POOL_REQUESTS,
    POOL_UPGRADED_OPEN,
    WORKER_REQUESTS,
    RowKey,
)
from lbproxy.core.snapshot import Snapshot
from lbproxy.observe.facts import WorkerStatus
from lbproxy.observe.lines import iso_time


def pools_document(snapshot: Snapshot, rows: Mapping[RowKey, int], totals: Sequence[int]) -> Document:
    """All pools. `totals` are the cells of all workers, summed."""
    return {"pools": [_pool(pool, rows, totals) for pool in snapshot.pools.values()]}


def _pool(pool: Pool, rows: Mapping[RowKey, int], totals: Sequence[int]) -> Document:
    row = rows[("pool", pool.name)]
    ring = pool.ring
    owned = dict(zip(ring.names, ring.ownership(), strict=True))
    points = dict(zip(ring.names, ring.counts, strict=True))
    weight = sum(backend.spec.weight for backend in pool.backends.values())
    return {
        "name": pool.name,
        "requests": _by_code(totals, row + POOL_REQUESTS),
        "in_flight": totals[row + POOL_IN_FLIGHT],
        "decisions": dict(zip(DECISIONS, totals[row + POOL_DECISIONS :], strict=False)),
        "upgraded_open": totals[row + POOL_UPGRADED_OPEN],
        "ring": {"fingerprint": ring.fingerprint, "points": sum(ring.counts), "vnodes": pool.spec.vnodes},
        "backends": [
            {
                **_backend(backend, rows[("backend", pool.name, backend.name)], totals),
                "expected_share": backend.spec.weight / weight if weight else 0.0,
                "ring_share": float(owned[backend.name]),
                "points": points[backend.name],
            }
            for backend in pool.backends.values()
        ],
    }


def _backend(backend: Backend, row: int, totals: Sequence[int]) -> Document:
    return {
        "name": backend.name,
        "address": str(backend.address),
        "weight": backend.spec.weight,
        "zone": backend.spec.zone,
        "requests": _by_code(totals, row + BACKEND_REQUESTS),
        "in_flight": totals[row + BACKEND_IN_FLIGHT],
        "owned_requests": totals[row + BACKEND_OWNED],
        "connections": {"active": totals[row + BACKEND_ACTIVE], "idle": totals[row + BACKEND_IDLE]},
    }


def _by_code(totals: Sequence[int], first: int) -> Document:
    return dict(zip(CODE_CLASSES, totals[first : first + len(CODE_CLASSES)], strict=True))


def workers_document(
    statuses: Sequence[WorkerStatus], rows: Mapping[RowKey, int], lists: Sequence[Sequence[int]]
) -> Document:
    """All worker slots. `lists` are the cells of each."""
    listeners = [start for key, start in rows.items() if key[0] == "listener"]
    row = rows[("worker",)]
    return {
        "workers": [
            {
                "worker": status.slot,
                "state": status.state,
                "pid": status.pid or None,
                "generation": status.generation,
                "started_at": iso_time(int(status.since * 1000)) if status.since else None,
                "restarts": status.restarts,
                "requests": cells[row + WORKER_REQUESTS],
                "connections_open": sum(cells[start + LISTENER_OPEN] for start in listeners),
            }
            for status, cells in zip(statuses, lists, strict=True)
        ]
    }

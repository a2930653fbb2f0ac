"""The JSON documents of the admin API about pools and workers, made from a snapshot, from cells and from wellbeing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lbproxy.control.admin.view import Document
from lbproxy.control.explain import source_words
from lbproxy.control.overrides import Override
from lbproxy.control.pins import SetPin
from lbproxy.control.ring_changes import Change
from lbproxy.control.scene import Scene, current_shares, expected_shares
from lbproxy.core.account import SERVING, Backend
from lbproxy.core.balance import Pool
from lbproxy.core.ledger import (
    BACKEND_ACTIVE,
    BACKEND_IDLE,
    BACKEND_IN_FLIGHT,
    BACKEND_OWNED,
    BACKEND_SPILLS_RECEIVED,
    BACKEND_UPGRADED_OPEN,
    LISTENER_OPEN,
    POOL_IN_FLIGHT,
    POOL_UPGRADED_OPEN,
    TABLES,
    WORKER_LAG,
    WORKER_LOG_DROPPED,
    WORKER_REQUESTS,
    RowKey,
    RowKind,
)
from lbproxy.core.spec import Pin
from lbproxy.observe.facts import WorkerStatus
from lbproxy.observe.lines import iso_time


def pools_document(scene: Scene) -> Document:
    """All pools."""
    return {"pools": [pool_document(scene, pool) for pool in scene.snapshot.pools.values()]}


def pool_document(scene: Scene, pool: Pool) -> Document:
    """One pool."""
    row = scene.rows[("pool", pool.name)]
    totals = scene.totals
    serving = [backend for backend in pool.backends.values() if backend.state == SERVING]
    bound = pool.spec.bounded_load
    return {
        "name": pool.name,
        "key_sources": [source_words(source) for source in pool.spec.sticky.keys],
        "requests": _labelled(totals, "pool", row, "requests_total"),
        "in_flight": totals[row + POOL_IN_FLIGHT],
        "decisions": _labelled(totals, "pool", row, "route_decisions_total"),
        "rejected": _labelled(totals, "pool", row, "requests_rejected_total"),
        "retries": _labelled(totals, "pool", row, "retries_total"),
        "duration": _histogram(totals, "pool", row, "request_duration_seconds"),
        "upgraded_open": totals[row + POOL_UPGRADED_OPEN],
        "bounded_load": {
            "factor": bound.factor,
            "min_gap": bound.min_gap,
            "tunnel_weight": bound.tunnel_weight,
        },
        "hot_keys": {"mode": pool.spec.hot_keys.mode},
        "eligible": len(serving),
        "panic": not serving,
        "panic_mode": pool.spec.panic,
        "ring": _ring(pool, scene.rings.pools.get(pool.name, Change())),
        "backends": _backends(scene, pool),
    }


def _ring(pool: Pool, change: Change) -> Document:
    last = None
    if change.at:
        at = iso_time(int(change.at * 1000))
        last = {"at": at, "cause": change.cause, "moved_share": change.moved_share}
    return {
        "fingerprint": pool.ring.fingerprint,
        "points": sum(pool.ring.counts),
        "vnodes": pool.spec.vnodes,
        "changes": sum(change.counts.values()),
        "last_change": last,
    }


def _backends(scene: Scene, pool: Pool) -> list[Document]:
    owned, expected, current = scene.shares.of(pool), expected_shares(pool), current_shares(pool)
    points = dict(zip(pool.ring.names, pool.ring.counts, strict=True))
    return [
        {
            **_backend(scene, pool, backend),
            "expected_share": expected[backend.name],
            "current_share": current[backend.name],
            "ring_share": owned[backend.name],
            "points": points[backend.name],
        }
        for backend in pool.backends.values()
    ]


def _backend(scene: Scene, pool: Pool, backend: Backend) -> Document:
    row = scene.rows[("backend", pool.name, backend.name)]
    totals = scene.totals
    return {
        "name": backend.name,
        "address": str(backend.address),
        "zone": backend.spec.zone,
        "weight": backend.spec.weight,
        "effective_weight": backend.weight,
        **_standing(scene, pool.name, backend),
        "requests": _labelled(totals, "backend", row, "upstream_requests_total"),
        "in_flight": totals[row + BACKEND_IN_FLIGHT],
        "upgraded_open": totals[row + BACKEND_UPGRADED_OPEN],
        "slots": pool.slots(backend),
        "max_in_flight": backend.spec.max_in_flight,
        "owned_requests": totals[row + BACKEND_OWNED],
        "spills": _labelled(totals, "backend", row, "route_spills_total"),
        "spills_received": totals[row + BACKEND_SPILLS_RECEIVED],
        "errors": _labelled(totals, "backend", row, "upstream_errors_total"),
        "duration": _histogram(totals, "backend", row, "upstream_request_duration_seconds"),
        "connections": {"active": totals[row + BACKEND_ACTIVE], "idle": totals[row + BACKEND_IDLE]},
    }


def _standing(scene: Scene, pool: str, backend: Backend) -> Document:
    """What health and the operator say of a backend."""
    state = scene.being.pools[pool]
    tally = scene.being.tallies[pool, backend.name]
    facts = state.health.backends[backend.name]
    word = state.words[backend.name]
    overrides = scene.being.overrides.of(pool, backend.name)
    return {
        "state": word,
        "state_since": iso_time(int(tally.since * 1000)),
        "state_until": scene.moment({"held": facts.held_until, "ejected": facts.ejected_until}.get(word, 0.0)),
        "eligible": backend.state == SERVING,
        "empty": state.is_empty(backend.name),
        "wanted_weight": state.wanted(backend.name),
        "override": _combined(overrides),
        "overrides": [override_document(override) for override in overrides],
        "probe": {
            "result": tally.last_check,
            "why": tally.check_why,
            "at": iso_time(int(tally.checked_at * 1000)),
        }
        if tally.last_check
        else None,
        "ejections": {"count": sum(tally.ejections.values()), "spared": tally.spared},
    }


def pin_document(pin: Pin, by_operator: SetPin | None) -> Document:
    """A pin, and who has set it if the file has not."""
    return {
        "key": None if pin.is_prefix else pin.key,
        "prefix": pin.key if pin.is_prefix else None,
        "backend": pin.backend,
        "on_down": pin.on_down,
        "source": "operator" if by_operator is not None else "file",
        "by": by_operator.who if by_operator is not None else None,
        "since": iso_time(int(by_operator.since * 1000)) if by_operator is not None else None,
        "reason": by_operator.reason if by_operator is not None else None,
    }


def override_document(override: Override) -> Document:
    """One decision of an operator."""
    return {
        "pool": override.pool,
        "backend": override.backend,
        "what": override.what,
        "weight": override.weight if override.what == "weight" else None,
        "file_weight": override.beneath,
        "by": override.who,
        "since": iso_time(int(override.since * 1000)),
        "expires_at": None if override.until is None else iso_time(int(override.until * 1000)),
        "reason": override.reason,
    }


def _combined(overrides: Sequence[Override]) -> Document | None:
    """All decisions about a backend in one; who and why are those of the last."""
    if not overrides:
        return None
    last = max(overrides, key=lambda override: override.since)
    return {
        "weight": next((override.weight for override in overrides if override.what == "weight"), None),
        "state": "drain" if any(override.what == "drain" for override in overrides) else None,
        "by": last.who,
        "since": iso_time(int(last.since * 1000)),
        "expires_at": None if last.until is None else iso_time(int(last.until * 1000)),
        "reason": last.reason,
    }


# Cells


def _places(kind: RowKind) -> dict[str, list[tuple[list[str], int, tuple[int, ...]]]]:
    """Of each metric in rows of this kind: the labels' values, the offset, and the bounds of a histogram."""
    found: dict[str, list[tuple[list[str], int, tuple[int, ...]]]] = {}
    offset = 0
    for column in TABLES[kind]:
        found.setdefault(column.metric, []).append(([value for _, value in column.labels], offset, column.bounds))
        offset += column.width
    return found


_PLACES: Final = {kind: _places(kind) for kind in TABLES}


def _labelled(totals: Sequence[int], kind: RowKind, row: int, metric: str) -> Document:
    """A family's counts by the value of its label, or of two labels one within the other."""
    counts: Document = {}
    for (*outer, value), offset, _ in _PLACES[kind][metric]:
        inner = counts
        for word in outer:
            inner = inner.setdefault(word, {})
        inner[value] = totals[row + offset]
    return counts


def _histogram(totals: Sequence[int], kind: RowKind, row: int, metric: str) -> Document:
    ((_, offset, bounds),) = _PLACES[kind][metric]
    first = row + offset
    return {
        "bounds_s": [bound / 1e6 for bound in bounds],
        "counts": list(totals[first : first + len(bounds) + 1]),
        "sum_s": totals[first + len(bounds) + 1] / 1e6,
    }


# Workers


def workers_document(
    statuses: Sequence[WorkerStatus], rows: Mapping[RowKey, int], lists: Sequence[Sequence[int]]
) -> Document:
    """All worker slots. `lists` are the cells of each."""
    listeners = [start for key, start in rows.items() if key[0] == "listener"]
    row = rows[("worker",)]
    return {"workers": [_worker(each, listeners, row, cells) for each, cells in zip(statuses, lists, strict=True)]}


def _worker(status: WorkerStatus, listeners: Sequence[int], row: int, cells: Sequence[int]) -> dict[str, Any]:
    return {
        "worker": status.slot,
        "state": status.state,
        "pid": status.pid or None,
        "generation": status.generation,
        "started_at": iso_time(int(status.since * 1000)) if status.since else None,
        "restarts": status.restarts,
        "requests": cells[row + WORKER_REQUESTS],
        "connections_open": sum(cells[start + LISTENER_OPEN] for start in listeners),
        "lag_s": cells[row + WORKER_LAG] / 1e6,
        "silent_s": status.silent_s,
        "log_dropped": cells[row + WORKER_LOG_DROPPED],
    }

"""What the supervisor knows without counting: processes, reloads, configuration and rings, as metric families."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from lbproxy import __version__
from lbproxy.core.snapshot import Snapshot
from lbproxy.observe.metrics import Family, Labels

WorkerState = Literal["starting", "ready", "draining", "down"]
WORKER_STATES: Final[tuple[WorkerState, ...]] = ("starting", "ready", "draining", "down")
# Why a worker had to be replaced.
RESTART_REASONS: Final = ("killed", "crashed", "exited", "hung", "start_failed")
SILENT_AFTER_S: Final = 3
RELOAD_RESULTS: Final = ("applied", "unchanged", "refused")


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker slot. `pid` 0: no process. `since` is the wall time of its start, `generation` 0: none read yet,
    `silent_s` for how many looks, one a second, its event loop has not turned although it is ready."""

    slot: int
    state: WorkerState
    pid: int
    generation: int
    since: float
    restarts: int
    silent_s: int = 0

    @property
    def is_silent(self) -> bool:
        """Whether that is worth a word: a look or two may be an event loop that is only late."""
        return self.silent_s >= SILENT_AFTER_S


@dataclass(frozen=True, slots=True)
class ReloadStatus:
    """How reloading went: counts by `RELOAD_RESULTS`, and the last one. `at` is wall time."""

    counts: Mapping[str, int]
    is_last_good: bool
    at: float


def process_families(
    workers: Iterable[WorkerStatus], restarts: Mapping[str, int], reloads: ReloadStatus
) -> tuple[Family, ...]:
    """The families that may change at any moment."""
    states: dict[str, float] = dict.fromkeys(WORKER_STATES, 0)
    silences: dict[str, float] = {}
    for worker in workers:
        states[worker.state] += 1
        silences[str(worker.slot)] = worker.silent_s
    return (
        _by("workers", "gauge", "Worker processes by state.", "state", states),
        _by(
            "worker_restarts_total",
            "counter",
            "Workers replaced, by what ended them.",
            "reason",
            dict.fromkeys(RESTART_REASONS, 0) | dict(restarts),
        ),
        _by(
            "worker_silent_seconds",
            "gauge",
            "How long the worker's event loop has not turned; at ten it is replaced.",
            "worker",
            silences,
        ),
        _by(
            "config_reloads_total",
            "counter",
            "Reloads of the configuration, by result.",
            "result",
            dict.fromkeys(RELOAD_RESULTS, 0) | dict(reloads.counts),
        ),
        _one("config_last_reload_success", "Whether the configuration was good when last read.", reloads.is_last_good),
        _one("config_last_reload_timestamp_seconds", "When the configuration was last read.", reloads.at),
    )


def snapshot_families(snapshot: Snapshot) -> tuple[Family, ...]:
    """The families that change only with the generation."""
    version = (("version", __version__), ("python", platform.python_version()))
    infos: list[tuple[Labels, float]] = []
    weights: list[tuple[Labels, float]] = []
    shares: list[tuple[Labels, float]] = []
    points: list[tuple[Labels, float]] = []
    rings: list[tuple[Labels, float]] = []
    for pool in snapshot.pools.values():
        ring = pool.ring
        rings.append(((("pool", pool.name), ("fingerprint", ring.fingerprint)), 1))
        owned = dict(zip(ring.names, ring.ownership(), strict=True))
        counts = dict(zip(ring.names, ring.counts, strict=True))
        for backend in pool.backends.values():
            labels = (("pool", pool.name), ("backend", backend.name))
            infos.append(((*labels, ("address", str(backend.address)), ("zone", backend.spec.zone)), 1))
            weights.append((labels, backend.spec.weight))
            shares.append((labels, float(owned[backend.name])))
            points.append((labels, counts[backend.name]))
    return (
        Family("build_info", "gauge", "The program that runs.", ((version, 1),)),
        Family(
            "config_info",
            "gauge",
            "What decides routing: equal fingerprints route equally.",
            (((("fingerprint", snapshot.fingerprint),), 1),),
        ),
        _one("config_generation", "Number of the configuration in force, counted from the start.", snapshot.generation),
        Family("backend_info", "gauge", "Where a backend is.", tuple(infos)),
        Family("backend_configured_weight", "gauge", "A backend's weight in the configuration.", tuple(weights)),
        Family("ring_ownership_ratio", "gauge", "Share of the hash space that a backend owns.", tuple(shares)),
        Family("ring_points", "gauge", "Tokens of a backend on its ring.", tuple(points)),
        Family("ring_info", "gauge", "A pool's ring: equal fingerprints have equal owners.", tuple(rings)),
    )


def _one(name: str, help: str, value: float) -> Family:
    return Family(name, "gauge", help, (((), value),))


def _by(name: str, kind: Literal["counter", "gauge"], help: str, label: str, values: Mapping[str, float]) -> Family:
    return Family(name, kind, help, tuple([(((label, word),), value) for word, value in values.items()]))

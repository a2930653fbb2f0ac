"""What the supervisor adds to the metrics page: processes, reloads, configuration and rings."""

from __future__ import annotations

import pytest

from lbproxy import __version__
from lbproxy.control.config import loads
from lbproxy.core.snapshot import build_snapshot
from lbproxy.observe.facts import ReloadStatus, WorkerState, WorkerStatus, process_families, snapshot_families
from lbproxy.observe.metrics import Family
from lbproxy.observe.slabs import Layout
from lbproxy.supervisor import row_keys

CONFIG = loads(
    """
version: 1
listen: 127.0.0.1:0
pools:
  api:
    match: {path: /api}
    backends:
      - {name: b1, url: http://127.0.0.1:9001, weight: 1.5, zone: a}
      - {name: b2, url: http://127.0.0.1:9002, weight: 0}
  web:
    backends: [{name: b1, url: "http://[::1]:9003"}]
"""
)


def values(families: tuple[Family, ...], name: str) -> dict[tuple[str, ...], float]:
    """The samples of a family by their labels' values."""
    (family,) = [family for family in families if family.name == name]
    return {tuple(text for _, text in labels): value for labels, value in family.samples}


def test_processes_and_reloads() -> None:
    states: tuple[WorkerState, ...] = ("ready", "ready", "down")
    workers = [WorkerStatus(slot, state, 1, 1, 0.0, 0, 4 * slot) for slot, state in enumerate(states)]
    families = process_families(workers, {"killed": 3}, ReloadStatus({"applied": 2}, False, 12.5))
    assert values(families, "workers") == {("starting",): 0, ("ready",): 2, ("draining",): 0, ("down",): 1}
    assert values(families, "worker_restarts_total") == {
        ("killed",): 3,
        ("crashed",): 0,
        ("exited",): 0,
        ("hung",): 0,
        ("start_failed",): 0,
    }
    assert values(families, "worker_silent_seconds") == {("0",): 0, ("1",): 4, ("2",): 8}
    assert [worker.is_silent for worker in workers] == [False, True, True]
    assert values(families, "config_reloads_total") == {("applied",): 2, ("unchanged",): 0, ("refused",): 0}
    assert values(families, "config_last_reload_success") == {(): 0}
    assert values(families, "config_last_reload_timestamp_seconds") == {(): 12.5}


def test_configuration_and_rings() -> None:
    snapshot = build_snapshot(CONFIG, 7, Layout().assign(row_keys(CONFIG), 7))
    families = snapshot_families(snapshot)
    ((version, _),) = values(families, "build_info")
    assert version == __version__
    assert values(families, "config_generation") == {(): 7}
    assert values(families, "config_info") == {(snapshot.fingerprint,): 1}
    assert values(families, "backend_info") == {
        ("api", "b1", "127.0.0.1:9001", "a"): 1,
        ("api", "b2", "127.0.0.1:9002", ""): 1,
        ("web", "b1", "[::1]:9003", ""): 1,
    }
    assert values(families, "backend_configured_weight") == {("api", "b1"): 1.5, ("api", "b2"): 0, ("web", "b1"): 1}
    assert values(families, "ring_points") == {("api", "b1"): 1536, ("api", "b2"): 0, ("web", "b1"): 1024}
    shares = values(families, "ring_ownership_ratio")
    assert shares == pytest.approx({("api", "b1"): 1, ("api", "b2"): 0, ("web", "b1"): 1})
    assert values(families, "ring_info") == {(name, pool.ring.fingerprint): 1 for name, pool in snapshot.pools.items()}

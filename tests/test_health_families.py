"""What the metrics page says of health, weights, rings and hot keys, while these change."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lbproxy.control.config import loads
from lbproxy.control.health_families import health_families
from lbproxy.control.overrides import Override
from lbproxy.control.ring_changes import RingChanges
from lbproxy.control.scene import Scene, Shares
from lbproxy.control.wellbeing import Mandate, Wellbeing
from lbproxy.core.hotkeys import HotKey
from lbproxy.core.ledger import BACKEND_IN_FLIGHT
from lbproxy.core.pieces import at_once
from lbproxy.core.sketch import Row, Table
from lbproxy.core.snapshot import States, build_snapshot
from lbproxy.observe.journal import Journal
from lbproxy.observe.metrics import render_family
from lbproxy.observe.slabs import Layout
from lbproxy.supervisor import row_keys

START = 1_796_040_000.0
CONFIG = loads(
    """
version: 1
listen: 127.0.0.1:0
pools:
  api:
    bounded_load: {factor: 1.25, min_gap: 8}
    health: {rise: 1, fall: 2, hold: 0s}
    ejection: {base: 10s, max_share: 50%}
    backends:
      - {name: b1, url: http://127.0.0.1:1}
      - {name: b2, url: http://127.0.0.1:2, weight: 3, max_in_flight: 5}
"""
)


class Stood:
    """One pool that things happen to, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.layout = Layout()
        self.rows = self.layout.assign(row_keys(CONFIG), 1)
        self.totals = [0] * self.layout.end
        journal = Journal(lambda *_: None)
        self.being = Wellbeing([], self, journal, None, lambda: self.now, lambda: self.now - 1000.0 + START)
        self.being.install(self.being.prepare(CONFIG))
        self.rings = RingChanges(journal)
        self.snapshot = build_snapshot(CONFIG, 1, self.rows)
        self.pool = self.snapshot.pools["api"]
        self.tell({name: state.states for name, state in self.being.pools.items()})

    def tell(self, states: States) -> None:
        self.pool.adopt(states["api"])

    def reweigh(self, mandate: Mandate) -> None:
        before = self.pool.ring
        self.snapshot = build_snapshot(CONFIG, 2, self.rows, self.snapshot, weights=mandate.weights)
        self.pool = self.snapshot.pools["api"]
        self.pool.adopt(mandate.states["api"])
        at_once(self.rings.observe("api", before, self.pool.ring, "override", self.now - 1000.0 + START))

    def probe(self, backend: str, *results: str) -> None:
        for result in results:
            self.being.note_probe("api", backend, result)

    def told(self, name: str) -> dict[str, float]:
        """The samples of one family that are not 0, by all their labels but the pool, joined."""
        wall = self.now - 1000.0 + START
        scene = Scene(self.snapshot, self.rows, self.totals, self.being, self.rings, Shares(), self.now, wall)
        page = "".join(map(render_family, health_families(scene)))
        found = {
            " ".join(value for label, value in sample.labels.items() if label != "pool"): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == f"lbproxy_{name}"
        }
        assert found, f"no {name}"
        return {labels: value for labels, value in found.items() if value}


def test_states_and_what_led_to_them() -> None:
    stood = Stood()
    assert stood.told("backend_state") == {"b1 unknown": 1, "b2 unknown": 1}
    stood.probe("b1", "ok")
    stood.probe("b2", "ok", "timeout")
    assert stood.told("backend_state") == {"b1 up": 1, "b2 up": 1}
    assert stood.told("backend_up") == {"b1": 1, "b2": 1}
    stood.probe("b2", "status")
    assert stood.told("backend_state") == {"b1 up": 1, "b2 down": 1}
    assert stood.told("backend_up") == {"b1": 1}
    assert stood.told("health_checks_total") == {"b1 ok": 1, "b2 ok": 1, "b2 timeout": 1, "b2 status": 1}
    changes = stood.told("backend_state_changes_total")
    assert (changes["b1 up"], changes["b2 up"], changes["b2 down"]) == (1, 1, 1)
    assert (stood.told("pool_panic"), stood.told("pool_panics_total")) == ({}, {})
    stood.probe("b1", "connect", "connect")
    assert (stood.told("pool_panic"), stood.told("pool_panics_total")) == ({"": 1}, {"": 1})
    stood.probe("b1", "ok")
    assert (stood.told("pool_panic"), stood.told("pool_panics_total")) == ({}, {"": 1})


def test_ejections() -> None:
    stood = Stood()
    stood.probe("b1", "ok")
    stood.probe("b2", "ok")
    assert stood.told("ejections_active") == {}
    stood.being.note_streak("api", "b1", "reset")
    stood.being.note_streak("api", "b2", "reset")
    assert stood.told("ejections_active") == {"b1": 1}
    assert stood.told("backend_state") == {"b1 ejected": 1, "b2 up": 1}
    assert stood.told("ejections_total") == {"b1 consecutive_errors": 1}
    assert stood.told("ejections_spared_total") == {"b2": 1}
    stood.now += 10.0
    stood.being.turn()
    assert stood.told("ejections_active") == {}
    assert stood.told("ejections_total") == {"b1 consecutive_errors": 1}


def test_weights_overrides_and_the_ring_that_they_change() -> None:
    stood = Stood()
    assert stood.told("backend_effective_weight") == {"b1": 1, "b2": 3}
    assert stood.told("backend_expected_share_ratio") == {"b1": 0.25, "b2": 0.75}
    for none in ("backend_override", "ring_changes_total", "ring_last_change_moved_ratio"):
        assert stood.told(none) == {}
    assert stood.told("ring_last_change_timestamp_seconds") == {}
    stood.now += 5.0
    stood.being.decide([Override("api", "b1", "weight", 3.0, 1.0, "ann", START, None)])
    assert stood.told("backend_effective_weight") == {"b1": 3, "b2": 3}
    assert stood.told("backend_expected_share_ratio") == {"b1": 0.5, "b2": 0.5}
    assert stood.told("backend_override") == {"b1 weight": 1}
    assert stood.told("ring_changes_total") == {"override": 1}
    assert stood.told("ring_last_change_moved_ratio")[""] == pytest.approx(0.25, abs=0.03)
    assert stood.told("ring_last_change_timestamp_seconds") == {"": START + 5.0}
    stood.being.decide([Override("api", "b2", "drain", 0.0, 3.0, "ann", START, None)])
    assert stood.told("backend_override") == {"b1 weight": 1, "b2 drain": 1}
    assert stood.told("backend_state")["b2 draining"] == 1


def test_what_a_backend_holds_over_what_it_may_hold() -> None:
    stood = Stood()
    assert stood.told("backend_slots") == {"b1": 9, "b2": 5}  # one by the bound, and one by its own limit
    assert stood.told("backend_load_ratio") == {}
    stood.totals[stood.rows["backend", "api", "b2"] + BACKEND_IN_FLIGHT] = 3
    assert stood.told("backend_load_ratio") == {"b2": 0.6}


def test_the_busiest_keys_by_rank_and_how_many_are_hot() -> None:
    stood = Stood()
    assert (stood.told("hot_key_requests_ratio"), stood.told("hot_keys_active")) == ({}, {})
    hot = stood.pool.account.hot
    hot.top = Table(0, 4000, 100, tuple([Row(key, requests) for key, requests in ((7, 2000), (5, 1000))]))
    hot.hot[7] = HotKey(7, 0.5, 0.5, 2, stood.now)
    assert stood.told("hot_key_requests_ratio") == {"1": 0.5, "2": 0.25}
    assert stood.told("hot_keys_active") == {"": 1}

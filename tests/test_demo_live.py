"""The demo gives everything to see: every query of the dashboards, every rule and every part of the page, at once."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from typing import Final

import pytest

from tests.page_html import Reading
from tests.prometheus import PATIENCE_S, Prometheus
from tests.promql import panel_queries, rules
from tests.running import until
from tests.test_demo_drama import Demo
from tests.tools import require_tool

LIFE_WITHIN_S: Final = 10.0
# What Grafana makes of a scrape each second. The backend is one that lives all the time.
VALUES: Final = {"job": ".+", "instance": ".+", "pool": "demo", "backend": "b3", "__rate_interval": "4s"}
LOOK_S: Final = 0.25


class Seen:
    """The demo in its first seconds under a Prometheus: what there was no data for, and what the page had to show."""

    def __init__(self, prometheus: Prometheus, page: str) -> None:
        began = time.monotonic()
        self.missing = list(panel_queries(VALUES))
        self.records = {rule["record"] for rule in rules("recording.yml")}
        while (self.missing or self.records) and time.monotonic() - began < LIFE_WITHIN_S:
            self.missing = [asked for asked in self.missing if not prometheus.has_data(asked)]
            self.records = {record for record in self.records if not prometheus.instant(record)}
            time.sleep(LOOK_S)
        time.sleep(max(0.0, began + LIFE_WITHIN_S - time.monotonic()))
        with urllib.request.urlopen(page, timeout=PATIENCE_S) as answer:
            self.page = Reading(answer.read().decode())
        self.rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    require_tool("prometheus")
    demo = Demo()
    try:
        invitation = demo.lines_until(r"Watch it in a browser: ")[-1]
        page = invitation.split()[5]
        folder = tmp_path_factory.mktemp("prometheus")
        target = page.removeprefix("http://").rstrip("/")
        with Prometheus(folder, target, VALUES, every="1s") as prometheus:
            until(lambda: prometheus.scrapes() >= 1, PATIENCE_S)
            yield Seen(prometheus, page)
    finally:
        _, errors = demo.end()
    assert errors == ""


def test_every_panel_of_every_dashboard_has_had_data_within_ten_seconds(seen: Seen) -> None:
    assert [asked.where for asked in seen.missing] == []


def test_every_recording_rule_has_too_and_every_alert_is_well(seen: Seen) -> None:
    assert seen.records == set()
    assert len(seen.rules) == len(rules("recording.yml")) + len(rules("alerts.yml"))
    assert [(rule["name"], rule.get("lastError")) for rule in seen.rules if rule["health"] != "ok"] == []


def test_every_part_of_the_page_shows_life(seen: Seen) -> None:
    page = seen.page
    assert page.errors == []
    head, *backends = page.tables[0]
    assert head[0].startswith("Backend")
    assert [row[0].split()[0] for row in backends] == ["b1", "b2", "b3"]
    busy = [row[0].split()[0] for row in backends if re.search(r"[1-9][\d,.]*/s", " ".join(row))]
    assert {"b2", "b3"} <= set(busy), "and the third may be dead"
    assert re.search(r"[1-9][\d,]* answers in the last", page.text)
    assert re.search(r"Spilled\s*(0\.\d*[1-9]|[1-9])", page.text)
    assert re.search(r"b\d (is|has been|was)? ?(down|ejected)", page.text), "in the verdict, or among the events"
    assert re.search(r"a key of demo is hot with \d", page.text), "among the events"
    keys = re.findall(r"#[0-9a-f]{8}", page.text.partition("Busiest keys")[2].partition("Events")[0])
    assert len(keys) >= 5
    workers = page.tables[-1][1:]
    assert all(int(row[2].replace(",", "")) > 0 for row in workers), "each has served"

"""Debian's Prometheus scrapes a running lbproxy: every query returns data, and the dashboard names what is wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

import aiohttp
import pytest

from grafana.boards.distribution import SHARES
from grafana.queries import CAUSES, KEY_SKEW, PROXIES, not_serving, serving
from tests.prometheus import PATIENCE_S, Prometheus
from tests.promql import (
    annotation_queries,
    panel_queries,
    rules,
    selectors,
    variable_queries,
)
from tests.running import Backends, Proxy, backend_list, until
from tests.tools import require_tool

NAMES: Final = ("b1", "b2", "b3", "b4")
CLIENTS: Final = 8
KEYS_PER_CLIENT: Final = 400
PAUSE_S: Final = 0.02
NOTICED_WITHIN_S: Final = 15.0
# What Grafana makes of a scrape interval of 5 s: $__rate_interval is four of them.
RATE_INTERVAL_S: Final = 20
VALUES: Final = {
    "job": ".+",
    "instance": ".+",
    "pool": "api",
    "backend": "b1",
    "__rate_interval": f"{RATE_INTERVAL_S}s",
}
HOT: Final = "the busiest user"


class Scene:
    """Backends and clients in a thread of their own. While `is_hot`, one user makes half of all requests."""

    def __init__(self) -> None:
        self.is_hot = False
        self.hot_owners: set[str] = set()
        self.ports: dict[str, int] = {}
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._clients: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def play(self, url: str) -> None:
        """Begin to send requests."""
        self._loop.call_soon_threadsafe(self._begin, url)

    def crowd(self, url: str) -> None:
        """Send so many requests at once that the proxy has to open connections to backends."""
        asyncio.run_coroutine_threadsafe(self._crowd(url), self._loop).result(PATIENCE_S)

    async def _crowd(self, url: str) -> None:
        async def one(number: int) -> None:
            async with self._session.get(f"{url}slow/0.5", headers={"X-User-ID": f"one of many {number}"}) as answer:
                await answer.read()

        await asyncio.gather(*(one(number) for number in range(10 * CLIENTS)))

    def _begin(self, url: str) -> None:
        self._clients = [self._loop.create_task(self._client(url, number)) for number in range(CLIENTS)]

    async def _run(self) -> None:
        async with Backends(*NAMES) as backends, aiohttp.ClientSession() as self._session:
            self.ports = backends.ports
            self._ready.set()
            await self._stop.wait()
            for client in self._clients:
                client.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)

    async def _client(self, url: str, number: int) -> None:
        count = 0
        while True:
            count += 1
            is_hot = self.is_hot and count % 2 == 0
            user = HOT if is_hot else f"user {number} {count % KEYS_PER_CLIENT}"
            async with self._session.get(url, headers={"X-User-ID": user}) as answer:
                name = await answer.text()
            if is_hot:
                self.hot_owners.add(name)
            await asyncio.sleep(PAUSE_S)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    require_tool("prometheus")
    with Scene() as made:
        yield made


@pytest.fixture(scope="module")
def proxy(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Nothing is spread, and the bound is far away, so that a hot key is the trouble that it is."""
    pool = {
        "backends": backend_list(scene.ports),
        "bounded_load": {"factor": 1.25, "min_gap": 1000},
        "hot_keys": {"mode": "off"},
        "health": {"path": "/", "interval": "1s"},
    }
    with Proxy(tmp_path_factory.mktemp("proxy"), scene.ports, pools={"api": pool}) as made:
        scene.play(f"http://127.0.0.1:{made.port}/")
        yield made


@pytest.fixture(scope="module")
def prometheus(proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Scraped often enough that rates are there."""
    with Prometheus(tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{proxy.admin_port}", VALUES) as made:
        until(lambda: made.scrapes() >= 2, PATIENCE_S)
        yield made


def test_even_traffic_is_spread_as_configured(prometheus: Prometheus) -> None:
    assert prometheus.instant(SHARES.furthest) == []
    assert prometheus.instant(SHARES.main_cause) == []
    assert prometheus.value(f"max({SHARES.excess})") < 0.1


def test_a_hot_key_is_noticed_in_time_with_its_backend_and_its_cause(scene: Scene, prometheus: Prometheus) -> None:
    scene.is_hot = True
    until(lambda: prometheus.instant(SHARES.furthest), NOTICED_WITHIN_S)
    (owner,) = scene.hot_owners
    (furthest,) = prometheus.instant(SHARES.furthest)
    assert furthest["metric"] == {"pool": "api", "backend": owner}
    assert float(furthest["value"][1]) > 0.1
    (cause,) = prometheus.instant(SHARES.main_cause)
    assert cause["metric"] == {"pool": "api", "backend": owner, "cause": KEY_SKEW}
    assert float(cause["value"][1]) > 0


def test_the_causes_add_up(prometheus: Prometheus) -> None:
    causes = " + ".join(SHARES.cause(cause) for cause in CAUSES)
    differences = prometheus.instant(f"({causes}) - {SHARES.deviation}")
    assert {each["metric"]["backend"] for each in differences} == set(NAMES)
    assert all(abs(float(each["value"][1])) < 1e-12 for each in differences)
    recorded = prometheus.instant(
        "sum without (cause) (pool_backend:lbproxy_share_cause:ratio_rate5m)"
        " - pool_backend:lbproxy_share_deviation:ratio_rate5m"
    )
    assert len(recorded) == len(NAMES)
    assert all(abs(float(each["value"][1])) < 1e-12 for each in recorded)


@pytest.fixture(scope="module")
def changed(scene: Scene, proxy: Proxy, prometheus: Prometheus) -> Prometheus:
    """After a reload that changes a weight, and with it the ring, and a crowd."""
    proxy.config["pools"]["api"]["backends"][3]["weight"] = 0.5
    proxy.write_config()
    proxy.signal(signal.SIGHUP)
    proxy.wait_event("configuration applied")
    scene.crowd(f"http://127.0.0.1:{proxy.port}/")
    before = prometheus.scrapes()
    until(lambda: prometheus.scrapes() >= before + 2, PATIENCE_S)
    return prometheus


def test_every_panel_has_data(changed: Prometheus) -> None:
    assert [asked.where for asked in panel_queries(VALUES) if not changed.has_data(asked)] == []


def test_every_annotation_has_marks(changed: Prometheus) -> None:
    assert [asked.where for asked in annotation_queries(VALUES) if not changed.has_data(asked)] == []


def test_every_variable_has_values(changed: Prometheus) -> None:
    for where, selector, label in variable_queries(VALUES):
        assert changed.ask(f"label/{label}/values", **{"match[]": selector}), where


def test_every_rule_is_well_and_looks_at_data(changed: Prometheus) -> None:
    loaded = [rule for group in changed.ask("rules")["groups"] for rule in group["rules"]]
    assert len(loaded) == len(rules("alerts.yml")) + len(rules("recording.yml"))
    assert [(rule["name"], rule.get("lastError")) for rule in loaded if rule["health"] != "ok"] == []
    for rule in rules("recording.yml"):
        assert changed.instant(rule["record"]), rule["record"]
    for rule in rules("alerts.yml"):
        for selector in selectors(rule["expr"]):
            assert changed.instant(selector.text), (rule["alert"], selector.text)


def test_nothing_is_wrong_but_the_hot_key(changed: Prometheus) -> None:
    active = {alert["labels"]["alertname"] for alert in changed.ask("alerts")["alerts"]}
    assert active <= {"LbproxyUnevenLoad", "LbproxyHotKey"}


def test_a_worker_that_is_silent_does_not_serve_while_it_is(proxy: Proxy, changed: Prometheus) -> None:
    workers = int(changed.value(f"sum({PROXIES.series('workers')})"))

    def counted() -> tuple[float, float]:
        return changed.value(serving(PROXIES)), changed.value(not_serving(PROXIES))

    assert counted() == (workers, 0)
    pid = proxy.worker_pids()[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: counted() == (workers - 1, 1), NOTICED_WITHIN_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: counted() == (workers, 0), NOTICED_WITHIN_S)
    assert proxy.worker_pids()[0] == pid

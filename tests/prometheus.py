"""Debian's Prometheus for tests: it scrapes one lbproxy and knows the repository's rules."""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.promql import GRAFANA, RULES, Asked, filled_in
from tests.running import free_port, until
from tests.tools import require_tool

PATIENCE_S = 30.0

Series = dict[str, Any]


class Prometheus:
    """Prometheus with the repository's configuration, but for the address that it scrapes, and how often if `every`
    says so. `values` are put in the place of Grafana's variables."""

    def __init__(self, folder: Path, target: str, values: dict[str, str], every: str = "") -> None:
        self._values = values
        config = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())
        config["rule_files"] = [str(RULES / "*.yml")]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
        if every:
            config["global"] = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), every)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [
                require_tool("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=error",
            ]
        )

    def __enter__(self) -> Self:
        until(self.is_ready, PATIENCE_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, "Prometheus ended"
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, path: str, **arguments: str) -> Any:
        """The data of an answer that came without error or warning."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as error:
            document = json.load(error)
        assert document["status"] == "success", document
        assert not document.get("warnings"), document
        assert not document.get("infos"), document
        return document["data"]

    def instant(self, expr: str) -> list[Series]:
        found: list[Series] = self.ask("query", query=filled_in(expr, self._values))["result"]
        return found

    def over_time(self, expr: str, seconds: float) -> list[Series]:
        now = time.time()
        data = self.ask("query_range", query=expr, start=f"{now - seconds}", end=f"{now}", step="5")
        found: list[Series] = data["result"]
        return found

    def value(self, expr: str) -> float:
        """The one number that an expression is."""
        (series,) = self.instant(expr)
        return float(series["value"][1])

    def scrapes(self) -> int:
        """How often the proxy has been scraped."""
        found = self.instant('sum(count_over_time(up{job="lbproxy"}[10m]))')
        return int(found[0]["value"][1]) if found else 0

    def has_data(self, asked: Asked) -> bool:
        """Whether there is a number in the answer; an answer with a warning fails."""
        if asked.instant:
            values = [series["value"] for series in self.instant(asked.expr)]
        else:
            values = [value for series in self.over_time(asked.expr, 20) for value in series["values"]]
        return any(math.isfinite(float(text)) for _, text in values)

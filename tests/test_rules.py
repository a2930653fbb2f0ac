"""The rules: what Prometheus accepts, what each alert does, and that everybody finds the page about it."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import promql_parser
import pytest
import yaml

from tests.promql import GRAFANA, RULES, Json, nodes, rules, selectors
from tests.tools import require_tool

ALERTS = rules("alerts.yml")
RECORDING = rules("recording.yml")
RECORDED = {rule["record"] for rule in RECORDING}
NAMES = [alert["alert"] for alert in ALERTS]
OPERATIONS = (GRAFANA.parent / "docs" / "operations.md").read_text()

each_alert = pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
each_rule = pytest.mark.parametrize("rule", ALERTS + RECORDING, ids=NAMES + [rule["record"] for rule in RECORDING])


def promtool(*arguments: str) -> str:
    """What promtool says; fails when it is not content."""
    done = subprocess.run([require_tool("promtool"), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_accepts_the_rules() -> None:
    said = promtool("check", "rules", "--lint-fatal", str(RULES / "alerts.yml"), str(RULES / "recording.yml"))
    assert f"SUCCESS: {len(ALERTS)} rules found" in said
    assert f"SUCCESS: {len(RECORDING)} rules found" in said


def test_prometheus_accepts_its_configuration_and_finds_the_rules() -> None:
    said = promtool("check", "config", str(GRAFANA / "prometheus.yml"))
    assert "2 rule files found" in said


# Recording rules


@each_rule
def test_a_rule_is_promql_and_looks_only_at_what_there_is(rule: Json) -> None:
    for selector in selectors(rule["expr"]):
        assert selector.metric in RECORDED or selector.metric == "up" or selector.metric.startswith("lbproxy_")


@pytest.mark.parametrize("rule", RECORDING, ids=[rule["record"] for rule in RECORDING])
def test_a_recorded_name_says_level_metric_and_operation(rule: Json) -> None:
    level, metric, operation = rule["record"].split(":")
    assert level in {"pool", "pool_backend"}
    assert metric.startswith("lbproxy_")
    assert re.fullmatch(r"rate5m|ratio|ratio_rate5m|p99_rate5m", operation)
    ranges = {
        node.range.total_seconds() for node in nodes(rule["expr"]) if isinstance(node, promql_parser.MatrixSelector)
    }
    assert ranges <= {300.0}


# Alerts


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


@each_alert
def test_an_alert_says_what_is_wrong_how_bad_and_where_to_read_on(alert: Json) -> None:
    assert re.fullmatch(r"Lbproxy[A-Z][A-Za-z]+", alert["alert"])
    assert alert["labels"] == {"severity": alert["labels"]["severity"]}
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    for text in (alert["annotations"]["summary"], alert["annotations"]["description"]):
        assert text.endswith(".")
        assert "\n" not in text.strip()
    assert alert["annotations"]["runbook_url"] == f"docs/operations.md#{alert['alert'].lower()}"


@each_alert
def test_the_page_that_an_alert_leads_to_is_there(alert: Json) -> None:
    assert re.search(rf"^### {alert['alert']}$", OPERATIONS, re.MULTILINE)


def test_no_page_is_about_an_alert_that_there_is_not() -> None:
    assert set(re.findall(r"^### (Lbproxy\w+)$", OPERATIONS, re.MULTILINE)) == set(NAMES)


def test_the_command_that_makes_links_of_them_makes_links_of_all() -> None:
    [command] = re.findall(r"`sed -i '([^']*)'\srules/alerts\.yml`", OPERATIONS)
    done = subprocess.run(["sed", command, str(RULES / "alerts.yml")], capture_output=True, text=True, check=True)
    links = [
        rule["annotations"]["runbook_url"] for group in yaml.safe_load(done.stdout)["groups"] for rule in group["rules"]
    ]
    assert links == [f"https://docs.example.com/lbproxy/docs/operations.md#{name.lower()}" for name in NAMES]


# promtool's unit tests


@each_alert
def test_an_alert_fires_when_it_should_and_not_when_it_should_not(alert: Json) -> None:
    path = RULES / "tests" / f"{alert['alert']}.yml"
    cases: list[dict[str, Any]] = yaml.safe_load(path.read_text())["tests"]
    asked = [check for case in cases for check in case["alert_rule_test"]]
    assert {check["alertname"] for check in asked} == {alert["alert"]}
    assert any(check["exp_alerts"] for check in asked), "never seen firing"
    assert any(not check["exp_alerts"] for check in asked), "never seen quiet"
    promtool("test", "rules", str(path))


def test_there_is_no_test_for_an_alert_that_is_gone() -> None:
    assert {path.stem for path in (RULES / "tests").iterdir()} == set(NAMES)


@each_alert
def test_the_quiet_case_is_about_the_same_metrics(alert: Json) -> None:
    """A case without the alert's series would be quiet whatever the rule says."""
    cases = yaml.safe_load((RULES / "tests" / f"{alert['alert']}.yml").read_text())["tests"]
    needed = {selector.metric for selector in selectors(_expanded(alert["expr"]))}
    for case in cases:
        given = {series["series"].partition("{")[0] for series in case["input_series"]}
        assert needed <= given, case["name"]


def _expanded(expression: str) -> str:
    """An expression with recorded metrics replaced by what they are made from."""
    for rule in reversed(RECORDING):
        expression = expression.replace(rule["record"], f"({rule['expr']})")
    return re.sub(r"\)\{[^}]*\}", ")", expression)


# Provisioning


def test_grafana_asks_the_prometheus_that_scrapes_as_often_as_it_thinks() -> None:
    prometheus = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())
    (source,) = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    assert source["type"] == "prometheus"
    assert source["isDefault"]


def test_prometheus_watches_the_job_that_alerts_look_for() -> None:
    (job,) = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())["scrape_configs"]
    (down,) = [alert for alert in ALERTS if alert["alert"] == "LbproxyDown"]
    (selector,) = selectors(down["expr"])
    ((label, operator, pattern),) = selector.matchers
    assert (label, operator) == ("job", "=~")
    assert re.fullmatch(pattern, job["job_name"])
    assert all(target.endswith(":9901") for group in job["static_configs"] for target in group["targets"])

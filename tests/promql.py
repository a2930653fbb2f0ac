"""What the dashboards and rules ask Prometheus: for the tests of grafana/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import promql_parser
import yaml

from lbproxy.control import metrics_reference

GRAFANA: Final = Path(__file__).parent.parent / "grafana"
RULES: Final = GRAFANA / "rules"
DASHBOARDS: Final = tuple(sorted((GRAFANA / "dashboards").glob("*.json")))

Json = dict[str, Any]

# What Grafana fills in, for parsing alone.
SOME_VALUES: Final = {
    "job": ".+",
    "instance": ".+",
    "pool": "api",
    "backend": "b1",
    "__rate_interval": "1m",
}


@dataclass(frozen=True, slots=True)
class Selector:
    """One selector of an expression: its metric, and its matchers as label, operator and value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]

    @property
    def text(self) -> str:
        """As PromQL writes it."""
        return f"{self.metric}{{{','.join(f'{label}{op}{json.dumps(value)}' for label, op, value in self.matchers)}}}"


@dataclass(frozen=True, slots=True)
class Asked:
    """One query of a panel as Grafana would send it. `where` names it for a failing test."""

    where: str
    expr: str
    instant: bool


def load(path: Path) -> Json:
    made: Json = json.loads(path.read_text())
    return made


def panels(board: Json) -> Iterator[Json]:
    """The panels that show something: all but the headings of rows."""
    return (panel for panel in board["panels"] if panel["type"] != "row")


def filled_in(text: str, values: dict[str, str]) -> str:
    """A text with Grafana's variables replaced, the longest name first."""
    for name in sorted(values, key=len, reverse=True):
        text = text.replace(f"${name}", values[name])
    return text


def panel_queries(values: dict[str, str]) -> Iterator[Asked]:
    """Every query of every panel."""
    for path in DASHBOARDS:
        for panel in panels(load(path)):
            for target in panel["targets"]:
                where = f"{path.stem}: {panel['title']}: {target['refId']}"
                yield Asked(where, filled_in(target["expr"], values), target["instant"])


def annotation_queries(values: dict[str, str]) -> Iterator[Asked]:
    """The query of every annotation."""
    for path in DASHBOARDS:
        for mark in load(path)["annotations"]["list"]:
            yield Asked(f"{path.stem}: {mark['name']}", filled_in(mark["expr"], values), False)


def variable_queries(values: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Where, the selector and the label of every variable that is filled from labels."""
    for path in DASHBOARDS:
        for variable in load(path)["templating"]["list"]:
            if variable["type"] == "query":
                inside = variable["query"]["query"].removeprefix("label_values(").removesuffix(")")
                selector, _, label = filled_in(inside, values).rpartition(", ")
                yield f"{path.stem}: ${variable['name']}", selector, label


def families() -> dict[str, dict[str, tuple[str, ...]]]:
    """Every sample name that the page has, with its labels and their values, () where these are open."""
    known: dict[str, dict[str, tuple[str, ...]]] = {}
    for metric in (each for section in metrics_reference.metrics().values() for each in section):
        labels = dict(metric.labels)
        if metric.kind == "histogram":
            known |= {f"{metric.name}_{part}": labels for part in ("sum", "count")}
            known[f"{metric.name}_bucket"] = labels | {"le": ()}
        else:
            known[metric.name] = labels
    return known


def rules(name: str) -> list[Json]:
    """The rules of a file in grafana/rules."""
    groups = yaml.safe_load((RULES / name).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


_OPERATORS: Final = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def nodes(expression: str) -> list[promql_parser.Expr]:
    """All parts of an expression, the whole first. Raises ValueError when it is none."""
    found: list[promql_parser.Expr] = []

    def visit(node: promql_parser.Expr) -> bool:
        found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def selectors(expression: str) -> list[Selector]:
    """All selectors of an expression."""
    return [_selector(node) for node in nodes(expression) if isinstance(node, promql_parser.VectorSelector)]


def _selector(node: promql_parser.VectorSelector) -> Selector:
    matchers = [
        (matcher.name, _OPERATORS[str(matcher.op).removeprefix("MatchOp.")], matcher.value)
        for matcher in node.matchers.matchers
    ]
    return Selector(node.name or "", tuple(matchers))

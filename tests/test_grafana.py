"""The dashboards: up to date, well-formed, and as those who lint dashboards want them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from grafana import build, queries
from grafana.boards import behaviour
from grafana.frame import COLUMNS, Row, dashboard
from grafana.panels import stat
from grafana.queries import CAUSES, POOL, STATES, Shares
from lbproxy.core import health, ledger
from lbproxy.observe import dashboards
from lbproxy.observe.facts import SILENT_AFTER_S
from lbproxy.slot import HANGS_AFTER
from tests.promql import (
    DASHBOARDS,
    SOME_VALUES,
    Asked,
    Json,
    Selector,
    annotation_queries,
    families,
    load,
    nodes,
    panel_queries,
    panels,
    rules,
    selectors,
    variable_queries,
)

FAMILIES = families()
BOARDS = {path.stem: load(path) for path in DASHBOARDS}
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}") for name, board in BOARDS.items() for panel in panels(board)
]
each_board = pytest.mark.parametrize("board", list(BOARDS.values()), ids=list(BOARDS))
each_panel = pytest.mark.parametrize("panel", PANELS)
each_query = pytest.mark.parametrize(
    "asked",
    [pytest.param(asked, id=asked.where) for asked in (*panel_queries(SOME_VALUES), *annotation_queries(SOME_VALUES))],
)

COUNTING = {"rate", "increase", "irate", "resets", "changes"}
UNITS = {"short", "none", "percentunit", "s", "reqps", "ops", "cps", "Bps"}


def test_the_committed_files_are_what_build_makes() -> None:
    assert {path: path.read_text() for path in DASHBOARDS} == dict(build.files())


def test_build_says_what_is_out_of_date_and_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "FOLDER", tmp_path / "dashboards")
    assert build.main(["--check"]) == 1
    assert "overview.json: out of date" in capsys.readouterr().err
    assert not (tmp_path / "dashboards").exists()
    assert build.main([]) == 0
    assert build.main(["--check"]) == 0
    written = {path.name: path.read_text() for path in (tmp_path / "dashboards").iterdir()}
    assert written == {path.name: path.read_text() for path in DASHBOARDS}


def test_there_are_the_four_dashboards_with_ids_of_their_own() -> None:
    assert set(BOARDS) == {"overview", "distribution", "backend", "workers"}
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)


# Each dashboard


@each_board
def test_a_dashboard_can_be_found_and_leads_to_the_others(board: Json) -> None:
    assert board["title"].startswith("lbproxy / ")
    assert board["description"].endswith((".", "?"))
    assert board["tags"] == ["lbproxy"]
    (link,) = board["links"]
    assert (link["type"], link["tags"]) == ("dashboards", ["lbproxy"])
    assert link["includeVars"]
    assert link["keepTime"]
    assert board["editable"] is False


@each_board
def test_ids_are_unique_and_titles_too(board: Json) -> None:
    identities = [panel["id"] for panel in board["panels"]]
    assert len(identities) == len(set(identities))
    titles = Counter(panel["title"] for panel in board["panels"])
    assert {title for title, count in titles.items() if count > 1} == set()


@each_board
def test_panels_lie_in_the_grid_and_not_over_each_other(board: Json) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= COLUMNS
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    bottom = max(y for _, y in taken) + 1
    assert {y for _, y in taken} == set(range(bottom)), "a gap between rows"


@each_board
def test_every_row_is_filled_to_its_right_edge(board: Json) -> None:
    by_top: dict[int, int] = Counter()
    for panel in board["panels"]:
        by_top[panel["gridPos"]["y"]] += panel["gridPos"]["w"]
    assert set(by_top.values()) == {COLUMNS}


@each_board
def test_the_data_source_is_a_variable_and_so_are_job_and_instance(board: Json) -> None:
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    first, job, instance = (variables[name] for name in ("datasource", "job", "instance"))
    assert (first["type"], first["query"], first["label"]) == ("datasource", "prometheus", "Data source")
    for variable in (job, instance):
        assert variable["multi"]
        assert variable["includeAll"]
        assert variable["allValue"] == ".+"
    for variable in variables.values():
        assert variable["label"]
        if variable["type"] == "query":
            assert variable["datasource"]["uid"] == "${datasource}"
            assert variable["refresh"] == 2, "values are read again when the time range changes"


@each_board
def test_reloads_and_ring_changes_are_marked(board: Json) -> None:
    marks = {mark["name"]: mark for mark in board["annotations"]["list"]}
    assert set(marks) == {"Reloads", "Ring changes"}
    assert all(mark["enable"] and mark["datasource"]["uid"] == "${datasource}" for mark in marks.values())
    assert marks["Reloads"]["useValueForTime"]


@each_board
def test_no_data_source_is_named(board: Json) -> None:
    found = [value["uid"] for value in _values(board, "datasource") if isinstance(value, dict)]
    assert set(found) == {"${datasource}"}


@each_board
def test_only_variables_that_exist_are_used(board: Json) -> None:
    known = {variable["name"] for variable in board["templating"]["list"]} | {"__rate_interval"}
    expressions = [*_values(board, "expr"), *_values(board, "definition")]
    used = {name for text in expressions for name in re.findall(r"\$\{?(\w+)", text)}
    assert used <= known
    assert used >= known - {"datasource"}, "a variable that changes nothing"


@each_board
def test_links_lead_to_dashboards_that_exist_with_variables_they_have(board: Json) -> None:
    variables = {each["uid"]: {v["name"] for v in each["templating"]["list"]} for each in BOARDS.values()}
    own = variables[board["uid"]]
    several = {variable["name"] for variable in board["templating"]["list"] if variable["multi"]} - {"job", "instance"}
    for url in _values(board, "url"):
        if not url:
            continue
        uid, _, arguments = url.removeprefix("/d/").partition("?")
        given = set(re.findall(r"var-(\w+)=", arguments)) | set(re.findall(r"\$\{(\w+):queryparam\}", arguments))
        assert given <= variables[uid], url
        plain = set(re.findall(r"\$\{(\w+)(?::\w+)?\}", arguments))
        assert {name for name in plain if not name.startswith("__")} <= own, url
        assert not plain & several, f"{url}: of several values one would have to be chosen"
        assert "${__url_time_range}" in url


# Each panel


@each_panel
def test_a_panel_says_what_it_shows(panel: Json) -> None:
    assert panel["title"]
    assert len(panel["description"].split()) >= 3
    assert panel["description"][-1] in ".?"
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["targets"]


@each_panel
def test_a_panel_has_a_unit_that_grafana_knows(panel: Json) -> None:
    units = {panel["fieldConfig"]["defaults"]["unit"]}
    units |= {
        prop["value"]
        for override in panel["fieldConfig"]["overrides"]
        for prop in override["properties"]
        if prop["id"] == "unit"
    }
    assert units <= UNITS


@each_panel
def test_queries_have_letters_and_names(panel: Json) -> None:
    letters = [target["refId"] for target in panel["targets"]]
    assert letters == [chr(ord("A") + index) for index in range(len(letters))]
    for target in panel["targets"]:
        if target["format"] != "table":
            assert target["legendFormat"] != "__auto"


@each_panel
def test_thresholds_begin_without_a_value_and_rise(panel: Json) -> None:
    for found in _values(panel, "thresholds"):
        values = [step["value"] for step in found["steps"]]
        assert values[0] is None
        assert values[1:] == sorted(values[1:])


@each_panel
def test_what_is_configured_for_a_series_or_column_exists(panel: Json) -> None:
    """An override for a name that no query makes would be lost in silence."""
    names = {target["legendFormat"] for target in panel["targets"]}
    by_label = {label for name in names for label in re.findall(r"^\{\{(\w+)\}\}$", name)}
    for step in panel.get("transformations", []):
        names |= set(step["options"].get("renameByName", {}).values())
        values = {name for name in step["options"].get("renameByName", {}) if name.startswith("Value")}
        several = {f"Value #{target['refId']}" for target in panel["targets"]}
        assert values <= (several if len(several) > 1 else {"Value"})
    for override in panel["fieldConfig"]["overrides"]:
        assert override["matcher"]["id"] == "byName"
        assert override["matcher"]["options"] in names or by_label, override["matcher"]


# Each query


@each_query
def test_a_query_is_promql(asked: Asked) -> None:
    assert nodes(asked.expr)
    assert "$" not in asked.expr


@each_query
def test_a_query_looks_at_the_chosen_jobs_and_instances(asked: Asked) -> None:
    for selector in selectors(asked.expr):
        assert selector.metric.startswith("lbproxy_")
        assert {("job", "=~", ".+"), ("instance", "=~", ".+")} <= set(selector.matchers)


@each_query
def test_counters_are_counted_over_the_rate_interval_and_gauges_are_not(asked: Asked) -> None:
    ranged = [node for node in nodes(asked.expr) if isinstance(node, promql_parser.MatrixSelector)]
    assert {node.range.total_seconds() for node in ranged} <= {60.0}, "only $__rate_interval"
    in_range = [node.vector_selector.name or "" for node in ranged]
    for name in in_range:
        assert name.endswith(("_total", "_bucket", "_count", "_sum")), name
    calls = [node for node in nodes(asked.expr) if isinstance(node, promql_parser.Call)]
    assert sum(call.func.name in COUNTING for call in calls) == len(ranged)
    plain = [selector.metric for selector in selectors(asked.expr)]
    for name in in_range:
        plain.remove(name)
    assert not [name for name in plain if name.endswith(("_total", "_bucket", "_count", "_sum"))]


@each_query
def test_a_query_looks_at_series_that_there_are(asked: Asked) -> None:
    for selector in selectors(asked.expr):
        assert_exists(selector)


def test_every_metric_is_on_a_dashboard() -> None:
    asked = [each.expr for each in (*panel_queries(SOME_VALUES), *annotation_queries(SOME_VALUES))]
    asked += [selector for _, selector, _ in variable_queries(SOME_VALUES)]
    shown = {_family(selector.metric) for expression in asked for selector in selectors(expression)}
    assert {_family(metric) for metric in FAMILIES} - shown == set()


def _family(metric: str) -> str:
    """Without what a histogram's samples have behind its name."""
    return re.sub("_(bucket|sum|count)$", "", metric)


@pytest.mark.parametrize(
    "rule", [*rules("recording.yml"), *rules("alerts.yml")], ids=lambda rule: rule.get("alert") or rule["record"]
)
def test_a_rule_looks_at_series_that_there_are(rule: Json) -> None:
    for selector in selectors(rule["expr"]):
        if selector.metric != "up" and ":" not in selector.metric:
            assert_exists(selector)


def assert_exists(selector: Selector) -> None:
    """The metric is on the page, and each matcher can match and names only values that there are."""
    labels = FAMILIES[selector.metric] | {"job": (), "instance": ()}
    for label, operator, pattern in selector.matchers:
        assert label in labels, selector.text
        if closed := labels[label]:
            words = pattern.split("|") if operator in ("=~", "!~") else [pattern]
            assert set(words) <= set(closed), selector.text


@each_query
def test_what_is_grouped_by_is_a_label(asked: Asked) -> None:
    """Grouping by a label that no series has makes one group of everything, in silence."""
    made = {"cause"} if "label_replace" in asked.expr else {"generation"} if "count_values" in asked.expr else set()
    labels = {"job", "instance", *made}.union(*(FAMILIES[each.metric] for each in selectors(asked.expr)))
    for node in nodes(asked.expr):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            assert set(node.modifier.labels) <= labels


@pytest.mark.parametrize(("where", "selector", "label"), list(variable_queries(SOME_VALUES)))
def test_a_variable_asks_for_labels(where: str, selector: str, label: str) -> None:
    assert selectors(selector), where
    for each in selectors(selector):
        assert_exists(each)
        assert label in {"job", "instance", *FAMILIES[each.metric]}


# The pieces


def test_a_row_goes_on_below_when_it_is_full() -> None:
    tiles = [stat(width, str(index), "a tile", "none") for index, width in enumerate((10, 10, 10, 24))]
    made = dashboard("u", "t", "d", [], [], [Row("r", 3, tiles), Row("s", 2, tiles[:1])])
    places = [(each["title"], each["gridPos"]["x"], each["gridPos"]["y"]) for each in made["panels"]]
    assert places == [("r", 0, 0), ("0", 0, 1), ("1", 10, 1), ("2", 0, 4), ("3", 0, 7), ("s", 0, 10), ("0", 0, 11)]
    assert [each["id"] for each in made["panels"]] == [1, 2, 3, 4, 5, 6, 7]


def test_the_causes_telescope_from_expected_to_observed() -> None:
    """Each cause begins where the one before it ends, so their sum is observed minus expected whatever the numbers."""
    shares = Shares.of(POOL, POOL)
    chain = [shares.expected, shares.ring, shares.owned, shares.observed]
    for cause, less, more in zip(CAUSES, chain, chain[1:], strict=False):
        assert shares.cause(cause) == f"({more} - {less})"
    assert shares.deviation == f"({chain[-1]} - {chain[0]})"


def test_every_state_of_a_backend_has_a_word_and_a_colour() -> None:
    found = [
        panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
        for board in BOARDS.values()
        for panel in panels(board)
        if panel["type"] == "state-timeline"
    ]
    assert found
    assert set(STATES) == set(health.STATES)
    for options in found:
        assert [options[str(code)]["text"] for code in range(1, len(STATES) + 1)] == list(STATES)


def test_every_decision_and_every_reason_for_a_spill_has_a_colour() -> None:
    assert tuple(behaviour.DECISIONS) == ledger.DECISIONS
    assert tuple(behaviour.SPILLS) == FAMILIES["lbproxy_route_spills_total"]["reason"]


def test_a_worker_is_silent_and_hangs_when_lbproxy_says_so() -> None:
    assert (queries.SILENT_AFTER_S, queries.HANGS_AFTER_S) == (SILENT_AFTER_S, HANGS_AFTER)


# Shipping them


def test_export_writes_dashboards_and_rules(tmp_path: Path) -> None:
    written = dashboards.export(tmp_path / "new" / "folder")
    names = {str(path.relative_to(tmp_path / "new" / "folder")) for path in written}
    assert names == {f"{name}.json" for name in BOARDS} | {"rules/alerts.yml", "rules/recording.yml"}
    for path in DASHBOARDS:
        assert (tmp_path / "new" / "folder" / path.name).read_text() == path.read_text()
    assert dashboards.export(tmp_path / "new" / "folder") == written, "once more, over what is there"


def test_a_wheel_has_them_too(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=root,
        env=os.environ | {"LBPROXY_COMPILE": "0"},
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "installed")
    program = "from lbproxy.observe.dashboards import export; from pathlib import Path; export(Path('out'))"
    subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, 'installed'); {program}"],
        cwd=tmp_path,
        check=True,
    )
    exported = {path.relative_to(tmp_path / "out"): path.read_text() for path in (tmp_path / "out").rglob("*.*")}
    assert exported == {Path(name): text for name, text in dashboards.shipped().items()}
    assert set((tmp_path / "installed" / "lbproxy" / "grafana").iterdir()), "they came from the wheel"


def _values(document: Any, key: str) -> Iterator[Any]:
    """Everything that stands under a key, at any depth."""
    children: Iterable[Any] = ()
    if isinstance(document, dict):
        if key in document:
            yield document[key]
        children = document.values()
    elif isinstance(document, list):
        children = document
    for child in children:
        yield from _values(child, key)

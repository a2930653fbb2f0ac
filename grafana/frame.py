"""The frame of a dashboard: variables, annotations, and rows of panels laid out from left to right on 24 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from grafana.panels import DATASOURCE, Json

COLUMNS: Final = 24
SCHEMA_VERSION: Final = 39
TAG: Final = "lbproxy"

# Variables and annotations


def datasource_variable() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
    }


def label_variable(name: str, title: str, selector: str, *, several: bool) -> Json:
    """A variable with the values of the label `name` on the series of `selector`. `several`: multi-select with All."""
    expression = f"label_values({selector}, {name})"
    made: Json = {
        "name": name,
        "label": title,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": expression,
        "query": {"qryType": 1, "query": expression, "refId": f"variable-{name}"},
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if several else {},
        "hide": 0,
        "includeAll": several,
        "multi": several,
        "options": [],
        "refresh": 2,
        "regex": "",
        "sort": 1,
    }
    return made | {"allValue": ".+"} if several else made


def annotation(name: str, color: str, expr: str, title: str, text: str, *, value_is_time: bool = False) -> Json:
    """Marks on all panels where the expression is not 0. `value_is_time`: at its value, in milliseconds."""
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "expr": expr,
        "hide": False,
        "iconColor": color,
        "step": "15s",
        "textFormat": text,
        "titleFormat": title,
        "useValueForTime": value_is_time,
    }


# The whole


@dataclass(frozen=True, slots=True)
class Row:
    """A titled row of panels of the same height; those that do not fit beside the others go on below."""

    title: str
    height: int
    panels: Sequence[Json]


def dashboard(
    uid: str, title: str, description: str, variables: Sequence[Json], annotations: Sequence[Json], rows: Iterable[Row]
) -> Json:
    """A dashboard with its rows laid out."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "annotations": {"list": list(annotations)},
        "links": [
            {
                "type": "dashboards",
                "title": TAG,
                "tags": [TAG],
                "asDropdown": False,
                "icon": "external link",
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "tooltip": "",
                "url": "",
            }
        ],
        "templating": {"list": list(variables)},
        "panels": list(_laid_out(rows)),
    }


def _laid_out(rows: Iterable[Row]) -> Iterator[Json]:
    """The rows' headings and panels with ids and places."""
    identity = y = 0
    for row in rows:
        identity += 1
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        yield {"id": identity, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        y += 1
        x = 0
        for each in row.panels:
            width = each["gridPos"]["w"]
            if x + width > COLUMNS:
                x = 0
                y += row.height
            identity += 1
            yield {"id": identity, **each, "gridPos": {"h": row.height, "w": width, "x": x, "y": y}}
            x += width
        y += row.height

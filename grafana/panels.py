"""The JSON of Grafana's panels: queries, what they look like, and a function for each kind.

Functions here return plain dictionaries as Grafana reads them. A panel knows its width and what it shows; `frame` gives
it an id and a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = dict[str, Any]

DATASOURCE: Final[Json] = {"type": "prometheus", "uid": "${datasource}"}

# Colours by meaning. Named, so that Grafana takes the shade that fits a light or a dark page.
GOOD: Final = "green"
NOTICE: Final = "orange"
BAD: Final = "red"
CALM: Final = "blue"
PLAIN: Final = "text"


# Queries


def query(expr: str, legend: str = "", *, instant: bool = False, table: bool = False) -> Json:
    """One query of a panel. `legend` may name labels in {{braces}}; `table` gives rows instead of series."""
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": expr,
        "format": "table" if table else "time_series",
        "instant": instant or table,
        "legendFormat": legend or "__auto",
        "range": not (instant or table),
    }


def heat(expr: str) -> Json:
    """A query for a heatmap: buckets by `le`."""
    return query(expr, "{{le}}") | {"format": "heatmap"}


# Pieces of a panel


def thresholds(first: str, *steps: tuple[float, str]) -> Json:
    """Colours by value: `first` below the first step, then each step's colour from its value on."""
    return {
        "mode": "absolute",
        "steps": [{"color": first, "value": None}, *({"color": color, "value": value} for value, color in steps)],
    }


def words(mapping: Mapping[float, tuple[str, str]]) -> Json:
    """Values shown as a word in a colour."""
    return {
        "type": "value",
        "options": {
            f"{value:g}": {"text": text, "color": color, "index": index}
            for index, (value, (text, color)) in enumerate(mapping.items())
        },
    }


def word_for_range(low: float | None, high: float | None, text: str, color: str) -> Json:
    """Values from `low` to `high` shown as a word in a colour."""
    return {"type": "range", "options": {"from": low, "to": high, "result": {"text": text, "color": color}}}


def word_for_nothing(text: str) -> Json:
    """What is shown when there is no number."""
    return {"type": "special", "options": {"match": "null+nan", "result": {"text": text, "color": PLAIN}}}


def override(name: str, **properties: Any) -> Json:
    """Properties of the series or column of that name; `__` in a property stands for a dot."""
    made = [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": made}


def fixed(color: str) -> Json:
    return {"mode": "fixed", "fixedColor": color}


def link(title: str, url: str) -> Json:
    """A data link."""
    return {"title": title, "url": url, "targetBlank": False}


def columns(label: str, values: Sequence[str], more_labels: Sequence[str] = ()) -> list[Json]:
    """Transformations that join the tables of a panel's queries, one per value, and name their columns, in this order.

    Grafana calls a query's column "Value #" and its letter, and "Value" when it is the only one.
    """
    found = [f"Value #{letter(index)}" for index in range(len(values))] if len(values) > 1 else ["Value"]
    names = {name: name.capitalize() for name in (label, *more_labels)} | dict(zip(found, values, strict=True))
    return [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True},
                "indexByName": {name: index for index, name in enumerate(names)},
                "renameByName": names,
            },
        },
    ]


def letter(index: int) -> str:
    """The letter of a panel's query."""
    return chr(ord("A") + index)


# Panels


def panel(kind: str, width: int, title: str, description: str, unit: str, queries: Sequence[Json], **more: Any) -> Json:
    """What all panels have. `defaults` and `overrides` go into the field configuration, the rest beside it."""
    defaults: Json = {"unit": unit, "mappings": []} | more.pop("defaults", {})
    named = [{**each, "refId": letter(index)} for index, each in enumerate(queries)]
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "targets": named,
        "gridPos": {"w": width},
        "fieldConfig": {"defaults": defaults, "overrides": more.pop("overrides", [])},
        **more,
    }


def timeseries(
    width: int,
    title: str,
    description: str,
    unit: str,
    *queries: Json,
    stack: str = "none",
    bars: bool = False,
    line_at: Json | None = None,
    least: float | None = 0,
    most: float | None = None,
    links: Sequence[Json] = (),
    overrides: Sequence[Json] = (),
) -> Json:
    """Lines over time. `stack` is none, normal or percent; `line_at` thresholds are drawn as dashed lines."""
    custom: Json = {
        "drawStyle": "bars" if bars else "line",
        "fillOpacity": 60 if bars or stack != "none" else 6,
        "lineWidth": 0 if bars else 1,
        "pointSize": 4,
        "showPoints": "never" if bars else "auto",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": stack},
        "thresholdsStyle": {"mode": "off" if line_at is None else "dashed"},
    }
    defaults: Json = {"color": {"mode": "palette-classic-by-name"}, "custom": custom, "links": list(links)}
    if least is not None:
        defaults["min"] = least
    if most is not None:
        defaults["max"] = most
    if line_at is not None:
        defaults["thresholds"] = line_at
    return panel(
        "timeseries",
        width,
        title,
        description,
        unit,
        queries,
        defaults=defaults,
        overrides=list(overrides),
        options={
            "legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "bottom"}
            | {"showLegend": True, "sortBy": "Last *", "sortDesc": True},
            "tooltip": {"hideZeros": True, "mode": "multi", "sort": "desc"},
        },
    )


def stat(
    width: int,
    title: str,
    description: str,
    unit: str,
    *queries: Json,
    colors: Json | None = None,
    mappings: Sequence[Json] = (),
    fill: bool = False,
    name: bool = False,
    nothing: str = "-",
    decimals: int | None = None,
    links: Sequence[Json] = (),
) -> Json:
    """One large value now. `fill` colours the tile, else the text; `name` shows the legend beside the value."""
    defaults: Json = {
        "color": {"mode": "thresholds"},
        "links": list(links),
        "mappings": list(mappings),
        "noValue": nothing,
        "thresholds": colors or thresholds(PLAIN),
    }
    if decimals is not None:
        defaults["decimals"] = decimals
    return panel(
        "stat",
        width,
        title,
        description,
        unit,
        queries,
        defaults=defaults,
        options={
            "colorMode": "background" if fill else "value",
            "graphMode": "none",
            "justifyMode": "center",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "value_and_name" if name else "value",
            "wideLayout": False,
        },
    )


def table(
    width: int,
    title: str,
    description: str,
    label: str,
    values: Mapping[str, str],
    *,
    more_labels: Sequence[str] = (),
    overrides: Sequence[Json] = (),
    sort_by: str = "",
) -> Json:
    """A line for each value of a label, with a column for each of `values`: its title and its expression."""
    return panel(
        "table",
        width,
        title,
        description,
        "short",
        [query(expression, table=True) for expression in values.values()],
        defaults={"custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": True}},
        overrides=list(overrides),
        options={
            "cellHeight": "sm",
            "footer": {"show": False, "reducer": ["sum"], "countRows": False, "fields": ""},
            "showHeader": True,
            "sortBy": [{"displayName": sort_by, "desc": True}] if sort_by else [],
        },
        transformations=columns(label, list(values), more_labels),
    )


def bar_chart(
    width: int,
    title: str,
    description: str,
    unit: str,
    label: str,
    values: Mapping[str, str],
    *,
    stacked: bool = False,
    overrides: Sequence[Json] = (),
    links: Sequence[Json] = (),
) -> Json:
    """Bars for each value of a label, as they are now, side by side or stacked: their names and expressions."""
    return panel(
        "barchart",
        width,
        title,
        description,
        unit,
        [query(expression, table=True) for expression in values.values()],
        defaults={
            "color": {"mode": "palette-classic"},
            "custom": {"fillOpacity": 80, "lineWidth": 0, "axisBorderShow": False, "axisCenteredZero": False},
            "links": list(links),
        },
        overrides=list(overrides),
        options={
            "barRadius": 0,
            "barWidth": 0.9,
            "fullHighlight": False,
            "groupWidth": 0.7,
            "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
            "orientation": "auto",
            "showValue": "never",
            "stacking": "normal" if stacked else "none",
            "tooltip": {"mode": "multi", "sort": "none"},
            "xField": label.capitalize(),
            "xTickLabelMaxLength": 16,
            "xTickLabelRotation": -30,
        },
        transformations=columns(label, list(values)),
    )


def state_timeline(width: int, title: str, description: str, *queries: Json, mappings: Sequence[Json]) -> Json:
    """A bar per series that changes its colour with the value."""
    return panel(
        "state-timeline",
        width,
        title,
        description,
        "short",
        queries,
        defaults={
            "color": {"mode": "thresholds"},
            "custom": {"fillOpacity": 80, "lineWidth": 0, "spanNulls": False},
            "mappings": list(mappings),
            "thresholds": thresholds(PLAIN),
        },
        options={
            "alignValue": "left",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "mergeValues": True,
            "rowHeight": 0.85,
            "showValue": "auto",
            "tooltip": {"mode": "single", "sort": "none"},
        },
    )


def heatmap(width: int, title: str, description: str, unit: str, expr: str) -> Json:
    """Where the observations of a histogram fall, over time."""
    return panel(
        "heatmap",
        width,
        title,
        description,
        unit,
        [heat(expr)],
        options={
            "calculate": False,
            "cellGap": 1,
            "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "reverse": False},
            "filterValues": {"le": 1e-9},
            "legend": {"show": True},
            "rowsFrame": {"layout": "auto"},
            "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
            "yAxis": {"axisPlacement": "left", "unit": unit},
        },
    )


def bar_gauge(
    width: int, title: str, description: str, unit: str, *queries: Json, colors: Json, most: float | None = None
) -> Json:
    """A horizontal bar per series, as it is now."""
    defaults: Json = {"color": {"mode": "thresholds"}, "min": 0, "thresholds": colors}
    if most is not None:
        defaults["max"] = most
    return panel(
        "bargauge",
        width,
        title,
        description,
        unit,
        queries,
        defaults=defaults,
        options={
            "displayMode": "basic",
            "minVizHeight": 12,
            "minVizWidth": 8,
            "namePlacement": "left",
            "orientation": "horizontal",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "showUnfilled": True,
            "sizing": "auto",
            "valueMode": "color",
        },
    )

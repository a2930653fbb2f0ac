"""Charts as SVG: bars and lines with axes and a legend, for light and dark pages, and nothing to load.

A chart is data; `svg` draws it. Colours and sizes are those of the pictures in the documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10
from typing import Final, Literal
from xml.sax.saxutils import escape

# Light and dark, told apart also by those who do not see red and green as two colours; then they repeat, dashed.
_COLOURS: Final = (
    ("#0969da", "#4493f8"),
    ("#bc4c00", "#f0883e"),
    ("#1a7f37", "#3fb950"),
    ("#8250df", "#ab7df8"),
    ("#9a6700", "#d29922"),
    ("#bf3989", "#db61a2"),
)
_WIDTH: Final = 760
_HEIGHT: Final = 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 50, 60
_LEGEND_LINE: Final = 20
_TICKS: Final = 6
# About how many letters fit under the horizontal axis, on two lines.
_LETTERS: Final = 190
# About how wide a letter under the axis is, and how wide a bar must be to carry its value.
_LETTER: Final = 7.0
_WIDE: Final = 22.0


@dataclass(frozen=True, slots=True)
class Series:
    """`points` are (x, y); in a bar chart x is the number of the group. `labels` may name each point."""

    name: str
    points: tuple[tuple[float, float], ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """`groups` are the names under the bars. `is_percent`: y values are shares."""

    title: str
    description: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    kind: Literal["lines", "bars"] = "lines"
    groups: tuple[str, ...] = ()
    is_percent: bool = False
    x_from_zero: bool = True


def svg(charts: Sequence[Chart]) -> str:
    """One picture of the charts, below one another."""
    parts = []
    top = 0
    for chart in charts:
        height = _HEIGHT + _LEGEND_LINE * len(chart.series)
        parts.append(f'<g transform="translate(0 {top})">\n' + "\n".join(_Drawing(chart).parts()) + "\n</g>")
        top += height
    title = escape("; ".join(chart.title for chart in charts))
    description = escape(" ".join(chart.description for chart in charts))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}" '
            'role="img" aria-labelledby="title desc">',
            f'<title id="title">{title}</title>',
            f'<desc id="desc">{description}</desc>',
            f"<style>{_style()}</style>",
            f'<rect class="paper" x=".5" y=".5" width="{_WIDTH - 1}" height="{top - 1}" rx="10"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _style() -> str:
    light = "".join(f".f{at}{{fill:{pair[0]}}}.s{at}{{stroke:{pair[0]}}}" for at, pair in enumerate(_COLOURS))
    dark = "".join(f".f{at}{{fill:{pair[1]}}}.s{at}{{stroke:{pair[1]}}}" for at, pair in enumerate(_COLOURS))
    return (
        'text{font-family:system-ui,"Segoe UI","Helvetica Neue",Arial,sans-serif;font-size:13px;fill:#1f2328}'
        ".small{font-size:12px;fill:#59636e}.head{font-size:15px;font-weight:600}.mid{text-anchor:middle}"
        ".end{text-anchor:end}.paper{fill:#fff;stroke:#d1d9e0}.axis{stroke:#59636e}.grid{stroke:#d1d9e0}"
        ".tiny{font-size:11px;fill:#59636e}.halo{paint-order:stroke;stroke:#fff;stroke-width:4px}"
        f".line{{fill:none;stroke-width:2}}.dash{{stroke-dasharray:6 4}}{light}"
        "@media (prefers-color-scheme: dark){text{fill:#f0f6fc}.small,.tiny{fill:#9198a1}"
        ".halo{stroke:#0d1117}"
        f".paper{{fill:#0d1117;stroke:#3d444d}}.axis{{stroke:#9198a1}}.grid{{stroke:#3d444d}}{dark}}}"
    )


class _Drawing:
    """One chart with its scales."""

    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        xs = [x for series in chart.series for x, _ in series.points] or [0.0]
        ys = [y for series in chart.series for _, y in series.points] or [0.0]
        if chart.kind == "bars":
            self._x_ticks: list[float] = []
            self._x_low, self._x_high = -0.5, max(len(chart.groups), 1) - 0.5
        else:
            low = 0.0 if chart.x_from_zero else min(xs)
            self._x_ticks = ticks(low, max(xs))
            self._x_low, self._x_high = self._x_ticks[0], self._x_ticks[-1]
        self._y_ticks = ticks(0.0, max(ys))
        self._y_high = self._y_ticks[-1]

    def parts(self) -> Iterator[str]:
        chart = self._chart
        yield f'<text class="head" x="{_LEFT}" y="28">{escape(chart.title)}</text>'
        yield from self._axes()
        draw = self._bars if chart.kind == "bars" else self._line
        for at, series in enumerate(chart.series):
            yield from draw(at, series)
            yield from self._legend(at, series)

    def _x(self, x: float) -> float:
        return round(_LEFT + (x - self._x_low) / (self._x_high - self._x_low) * (_WIDTH - _LEFT - _RIGHT), 1)

    def _y(self, y: float) -> float:
        return round(_HEIGHT - _BOTTOM - y / self._y_high * (_HEIGHT - _TOP - _BOTTOM), 1)

    def _axes(self) -> Iterator[str]:
        chart = self._chart
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for tick in self._y_ticks:
            y = self._y(tick)
            yield f'<path class="grid" d="M{_LEFT} {y}H{right}"/>'
            shown = f"{tick * 100:g} %" if chart.is_percent else f"{tick:g}"
            yield f'<text class="small end" x="{_LEFT - 8}" y="{y + 4}">{shown}</text>'
        yield f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>'
        names = list(self._names_below())
        is_crowded = self._is_crowded(names)
        for at, (x, name) in enumerate(names):
            y = bottom + 18 + (13 if is_crowded and at % 2 else 0)
            yield f'<text class="small mid" x="{self._x(x)}" y="{y}">{escape(name)}</text>'
        y = bottom + (48 if is_crowded else 40)
        yield f'<text class="small mid" x="{(_LEFT + right) / 2:g}" y="{y}">{escape(chart.x_label)}</text>'
        middle = (_TOP + bottom) / 2
        yield (
            f'<text class="small mid" x="16" y="{middle:g}" transform="rotate(-90 16 {middle:g})">'
            f"{escape(chart.y_label)}</text>"
        )

    def _names_below(self) -> Iterator[tuple[float, str]]:
        """What stands under the horizontal axis, with gaps where there would be too much."""
        if self._chart.kind == "lines":
            yield from ((tick, f"{tick:g}") for tick in self._x_ticks)
            return
        groups = self._chart.groups
        letters = sum(len(name) + 2 for name in groups)
        every = max(1, ceil(letters / _LETTERS))
        yield from ((float(at), name) for at, name in enumerate(groups) if at % every == 0)

    def _is_crowded(self, names: Sequence[tuple[float, str]]) -> bool:
        """Whether neighbours would touch: then they stand on two lines in turn."""
        return any(
            self._x(right) - self._x(left) < (len(one) + len(other)) / 2 * _LETTER + 4
            for (left, one), (right, other) in pairwise(names)
        )

    def _bars(self, at: int, series: Series) -> Iterator[str]:
        count = len(self._chart.series)
        slot = self._x(1) - self._x(0)
        width = slot * 0.8 / count
        for group, y in series.points:
            left = self._x(group) - slot * 0.4 + at * width
            top = self._y(y)
            yield (
                f'<rect class="f{at % len(_COLOURS)}" x="{left:.1f}" y="{top}" width="{width * 0.92:.1f}" '
                f'height="{max(0.0, _HEIGHT - _BOTTOM - top):.1f}"/>'
            )
            if width >= _WIDE:  # a bar of nothing is only seen by its value
                shown = f"{y * 100:.3g}" if self._chart.is_percent else f"{y:.3g}"
                yield f'<text class="tiny mid halo" x="{left + width * 0.46:.1f}" y="{top - 5:.1f}">{shown}</text>'

    def _line(self, at: int, series: Series) -> Iterator[str]:
        colour = at % len(_COLOURS)
        dash = " dash" if at >= len(_COLOURS) else ""
        path = "L".join(f"{self._x(x)} {self._y(y)}" for x, y in series.points)
        yield f'<path class="line s{colour}{dash}" d="M{path}"/>'
        # Points in the same place share a label.
        labels: dict[tuple[float, float], list[str]] = {}
        for (x, y), label in zip(series.points, series.labels or [""] * len(series.points), strict=True):
            labels.setdefault((self._x(x), self._y(y)), []).append(label)
        for (left, top), names in labels.items():
            yield f'<circle class="f{colour}" cx="{left}" cy="{top}" r="3.5"/>'
            if any(names):
                side, shift = ("small halo end", -6) if left > _WIDTH * 0.8 else ("small halo", 6)
                yield f'<text class="{side}" x="{left + shift:.1f}" y="{top - 6:.1f}">{escape(", ".join(names))}</text>'

    def _legend(self, at: int, series: Series) -> Iterator[str]:
        y = _HEIGHT + at * _LEGEND_LINE
        yield f'<rect class="f{at % len(_COLOURS)}" x="{_LEFT}" y="{y - 10}" width="12" height="12" rx="2"/>'
        yield f'<text x="{_LEFT + 20}" y="{y}">{escape(series.name)}</text>'


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    span = high - low or abs(high) or 1.0
    rough = span / _TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = floor(low / step), max(ceil(high / step - 1e-9), floor(low / step) + 1)
    return [round(number * step, 12) for number in range(first, last + 1)]

"""Tables: aligned text for a terminal, Markdown for RESULTS.md, from the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures import DIRECT, CheckResult, LoadResult, Summary
from benchmarks.goals import GOALS, Results

_PEERS = ("nginx", "haproxy", "envoy")


@dataclass(frozen=True, slots=True)
class Table:
    """The first column is text, the others are figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        lines = [self.title, _aligned(self.columns, widths), *(_aligned(row, widths) for row in self.rows)]
        return "\n".join([*lines, *(f"! {note}" for note in self.notes)])

    def markdown(self) -> str:
        rule = "| --- |" + " ---: |" * (len(self.columns) - 1)
        rows = [f"| {' | '.join(row)} |" for row in (self.columns, *self.rows)]
        return "\n".join([f"### {self.title}", "", rows[0], rule, *rows[1:], *(f"\n{note}" for note in self.notes)])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
    return "  ".join([first.strip().ljust(widths[0]), *others]).rstrip()


def load_table(result: LoadResult) -> Table:
    """One row a proxy; ratios are of medians of requests per second (requests/s x) and of CPU (CPU x)."""
    summaries = result.summaries()
    peers = [peer for peer in _PEERS if peer in summaries]
    extra = [column for column in _extras(result) if column is not None]
    columns = ("proxy", "requests/s", "MB/s", "median us", "p99 us", "CPU us", "busy", "spread")
    ratios = [f"of {peer}" for peer in peers] + [f"CPU of {peer}" for peer in peers]
    rows = [
        (
            name,
            *_figures(name, summary),
            *(
                "" if name == DIRECT else _ratio(summary.requests_per_s, summaries[peer].requests_per_s)
                for peer in peers
            ),
            *(_ratio(summary.cpu_us, summaries[peer].cpu_us) for peer in peers),
            *(cells[name] for _, cells in extra),
        )
        for name, summary in summaries.items()
    ]
    heading = (*columns, *ratios, *(title for title, _ in extra))
    return Table(result.title, heading, tuple(rows), result.complaints)


def _figures(name: str, summary: Summary) -> tuple[str, ...]:
    return (
        f"{summary.requests_per_s:,.0f}",
        f"{summary.megabytes_per_s:,.1f}",
        f"{summary.median_us:,.0f}",
        f"{summary.p99_us:,.0f}",
        "" if name == DIRECT else f"{summary.cpu_us:,.1f}",
        "" if name == DIRECT else f"{summary.busy:.0%}",
        f"{summary.spread:.0%}",
    )


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if ours and theirs else ""


_Extra = tuple[str, dict[str, str]]


def _extras(result: LoadResult) -> tuple[_Extra | None, _Extra | None]:
    """Columns that only some loads have: added latency, and memory."""
    return _added_column(result), _memory_column(result)


def _added_column(result: LoadResult) -> _Extra | None:
    summaries = result.summaries()
    if DIRECT not in summaries:
        return None
    direct = summaries[DIRECT].median_us
    return "added us", {name: f"{summary.median_us - direct:,.0f}" for name, summary in summaries.items()}


def _memory_column(result: LoadResult) -> _Extra | None:
    summaries = result.summaries()
    if not any(summary.last_peak_rss_bytes for summary in summaries.values()):
        return None
    return "peak RSS MB, first and last round", {
        name: f"{summary.first_peak_rss_bytes / 2**20:.1f} {summary.last_peak_rss_bytes / 2**20:.1f}"
        for name, summary in summaries.items()
    }


_UNITS = {
    "connections": "connections",
    "pss_kb_each": "KB each (PSS)",
    "rss_kb_each": "KB each (RSS)",
    "before_mb": "MB before",
    "growth_mb": "MB of growth",
    "megabytes_per_s": "MB/s",
    "build_s": "build s",
    "lookup_ns": "lookup ns",
}


def check_table(result: CheckResult) -> Table:
    """One row a proxy, one column a figure."""
    names = tuple(next(iter(result.figures.values())))
    rows = [(proxy, *(_number(figures[name]) for name in names)) for proxy, figures in result.figures.items()]
    return Table(result.title, ("proxy", *(_UNITS[name] for name in names)), tuple(rows))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def goal_table(results: Results) -> Table | None:
    """The goals whose figures were measured; None when there are none."""
    rows = []
    for goal in GOALS:
        value = goal.find(results)
        if value is not None:
            met = "yes" if goal.is_met(value) else "NO"
            rows.append((goal.text, f"{goal.bound} {goal.wanted:g}", _number(value), met))
    return Table("Goals", ("what", "wanted", "measured", "met"), tuple(rows)) if rows else None


def failure_table(results: Results) -> Table | None:
    """Loads without figures, and why; None when there are none."""
    rows = tuple((_first_and_last(failure),) for failure in results.failures)
    return Table("FAILED", ("what",), rows) if rows else None


def _first_and_last(text: str) -> str:
    """Of a failure, what failed and the last words of the program's log."""
    lines = text.splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"


def tables(results: Results) -> list[Table]:
    """All of them; what failed first, then the goals."""
    return [
        *(table for table in (failure_table(results), goal_table(results)) if table),
        *map(load_table, results.loads.values()),
        *map(check_table, results.checks.values()),
    ]

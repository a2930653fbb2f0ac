"""What a simulation says: tables for people and JSON for machines, from the same values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lbproxy.simulate.plot import Chart

Kind = Literal["text", "count", "share", "ratio", "fine", "seconds"]
Value = str | float | int | bool | None
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Column:
    """`key` is its name in JSON. `kind`: text, a count, a share (from 0 to 1, shown in %), a ratio (two figures behind
    the point, or three if `fine`), or seconds."""

    key: str
    heading: str
    kind: Kind = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """`key` is its name in JSON; every row has a value for each column's key, None for "does not apply"."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """`settings` are what was simulated, `notes` what must be known to read it; `charts` are for `--plot`."""

    name: str
    settings: Mapping[str, Any]
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """For JSON: shares from 0 to 1, times in seconds."""
        return {
            "simulation": self.name,
            "settings": dict(self.settings),
            "tables": {
                table.key: [{column.key: row[column.key] for column in table.columns} for row in table.rows]
                for table in self.tables
            },
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """For people."""
        parts = [_text(table) for table in self.tables]
        if self.notes:
            parts.append("\n".join(self.notes))
        return "\n\n".join(parts) + "\n"


def _text(table: Table) -> str:
    cells = [[column.heading for column in table.columns]]
    cells += [[show(row[column.key], column.kind) for column in table.columns] for row in table.rows]
    widths = [max(len(line[at]) for line in cells) for at in range(len(table.columns))]
    lines = [table.title]
    lines += ["  ".join(_aligned(line, widths, table.columns)).rstrip() for line in cells]
    return "\n".join(lines)


def _aligned(line: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> list[str]:
    return [
        text.ljust(width) if column.kind == "text" else text.rjust(width)
        for text, width, column in zip(line, widths, columns, strict=True)
    ]


def show(value: Value, kind: Kind) -> str:
    """A value as the tables have it."""
    if value is None:
        return "-"
    if isinstance(value, str) or kind == "text":
        return str(value)
    if kind == "count":
        return f"{value:,.0f}"
    if kind == "share":
        return f"{value:.2%}".replace("%", " %")
    return f"{value:.3f}" if kind == "fine" else f"{value:.2f}" + (" s" if kind == "seconds" else "")

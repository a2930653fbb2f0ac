"""The demo's picture of where the load goes: a table that is redrawn in place, or a line a second."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, TextIO

BAR: Final = "#"
LONGEST_BAR: Final = 40
HEAD: Final = ("backend", "weight", "expected", "ring", "observed", "requests", "in flight", "users")


@dataclass(frozen=True, slots=True)
class Row:
    """One backend. Shares are from 0 to 1: `expected` by weight, `ring` of the hash space, `observed` of requests."""

    name: str
    weight: float
    expected: float
    ring: float
    observed: float
    requests: int
    in_flight: int
    users: int


@dataclass(frozen=True, slots=True)
class Picture:
    """What is shown at one moment."""

    rows: tuple[Row, ...]
    requests: int
    users: int
    moved: int
    failures: int


def picture(pool: dict[str, Any], homes: dict[str, str], moved: int, failures: int) -> Picture:
    """From a pool's document (`/v1/pools`), and each user's backend as the traffic has seen it."""
    backends = pool["backends"]
    counts = {backend["name"]: sum(backend["requests"].values()) for backend in backends}
    total = sum(counts.values())
    users = Counter(homes.values())
    rows = [
        Row(
            name=backend["name"],
            weight=backend["weight"],
            expected=backend["expected_share"],
            ring=backend["ring_share"],
            observed=counts[backend["name"]] / total if total else 0.0,
            requests=counts[backend["name"]],
            in_flight=backend["in_flight"],
            users=users[backend["name"]],
        )
        for backend in backends
    ]
    return Picture(tuple(rows), total, len(homes), moved, failures)


def table_lines(shown: Picture, width: int) -> list[str]:
    """A table of at most `width` columns. A bar shows the observed share, `|` stands where it was expected to end."""
    cells = [HEAD, *map(_cells, shown.rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
    lines = []
    scale = max([row.observed for row in shown.rows] + [row.expected for row in shown.rows] + [0.01])
    length = min(LONGEST_BAR, width - sum(widths) - 2 * len(widths) - 1)
    for position, row in enumerate(cells):
        text = "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(size) for cell, size in zip(row[1:], widths[1:], strict=True))]
        )
        if position and length >= 10:
            text += "  " + _bar(shown.rows[position - 1], scale, length)
        lines.append(text[:width].rstrip())
    lines.append("")
    lines.append(summary(shown)[:width])
    return lines


def summary(shown: Picture) -> str:
    """The counts in a sentence."""
    moved = f"{shown.moved:,} of them" if shown.moved else "none of them"
    failed = f", {shown.failures:,} failed" if shown.failures else ""
    return f"{shown.requests:,} requests of {shown.users:,} users{failed}; {moved} met more than one backend"


def line(shown: Picture, elapsed_s: float) -> str:
    """The same in one line, for a pipe or a file."""
    shares = ", ".join(f"{row.name} {row.observed:.1%} (expected {row.expected:.1%})" for row in shown.rows)
    return f"{elapsed_s:3.0f} s  {summary(shown)}: {shares}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.weight:g}",
        f"{row.expected:.1%}",
        f"{row.ring:.1%}",
        f"{row.observed:.1%}",
        f"{row.requests:,}",
        str(row.in_flight),
        f"{row.users:,}",
    )


def _bar(row: Row, scale: float, length: int) -> str:
    filled = round(row.observed / scale * (length - 1))
    mark = round(row.expected / scale * (length - 1))
    bar = list((BAR * filled).ljust(length))
    bar[mark] = "|"
    return "".join(bar)


class Screen:
    """Writes pictures to a stream: over the last one on a terminal, one line after the other elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._height = 0

    def show(self, shown: Picture, elapsed_s: float) -> None:
        if not self._is_terminal:
            self._write(line(shown, elapsed_s) + "\n")
            return
        size = shutil.get_terminal_size()
        lines = table_lines(shown, size.columns - 1)[: size.lines - 1]
        # Up to where the last picture began, and clear from there to the end of the screen.
        back = f"\x1b[{self._height}F\x1b[J" if self._height else ""
        self._write(back + "\n".join(lines) + "\n")
        self._height = len(lines)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

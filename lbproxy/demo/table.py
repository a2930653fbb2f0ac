"""The demo's picture of where the load goes: a table that is redrawn in place, or a line a second."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from lbproxy.control.counts import requests

BAR: Final = "#"
LONGEST_BAR: Final = 40
# Backends whose shares stand in a line.
MOST_IN_A_LINE: Final = 10
HEAD: Final = ("backend", "weight", "expected", "ring", "observed", "requests", "in flight", "users")
STATE: Final = "state"
CALM_STATES: Final = ("", "up")
# Decisions that are no news.
AT_HOME: Final = ("owner", "no_key")


@dataclass(frozen=True, slots=True)
class Row:
    """One backend. Shares are from 0 to 1: `expected` by weight, `ring` of the hash space, `observed` of requests.
    `state` "" is not shown."""

    name: str
    weight: float
    expected: float
    ring: float
    observed: float
    requests: int
    in_flight: int
    users: int
    state: str = ""


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key that is hot now: its share of the requests, and who serves it."""

    hash: str
    share: float
    backends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """What is shown at one moment. `elsewhere` counts requests that were not served by their key's owner, by why."""

    rows: tuple[Row, ...]
    requests: int
    users: int
    moved: int
    failures: int
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    hot: tuple[HotKey, ...] = ()


def picture(
    pool: dict[str, Any],
    homes: dict[str, str],
    moved: int,
    failures: int,
    keys: Sequence[dict[str, Any]] = (),
) -> Picture:
    """From a pool's document (`/v1/pools`) and its hot keys (`/v1/pools/{p}/hot-keys`), and each user's backend as the
    traffic has seen it."""
    backends = pool["backends"]
    counts = {backend["name"]: requests(backend) for backend in backends}
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
            state=backend.get("state", ""),
        )
        for backend in backends
    ]
    decisions = pool.get("decisions", {})
    elsewhere = {why: count for why, count in decisions.items() if why not in AT_HOME and count}
    hot = [HotKey(key["hash"], key["requests_share"], tuple(key["backends"])) for key in keys if key["hot"]]
    return Picture(tuple(rows), total, len(homes), moved, failures, elsewhere, tuple(hot))


def table_lines(shown: Picture, width: int, height: int = sys.maxsize) -> list[str]:
    """A table of at most `width` columns and `height` lines, which costs the rows of backends that are well, but for
    one. A bar shows the observed share, `|` stands where it was expected to end."""
    below = ["", *[text[:width] for text in (summary(shown), *_news(shown))]]
    rows: Sequence[Row] = shown.rows
    room = height - len(below) - 1
    if len(rows) > room:
        rows = sorted(rows, key=lambda row: row.state in CALM_STATES)[: max(1, room - 1)]
        if len(rows) < len(shown.rows):
            below.insert(0, f"and {len(shown.rows) - len(rows)} more"[:width])
    cells = [HEAD, *map(_cells, rows)]
    if any(row.state for row in rows):
        states = (STATE, *[row.state for row in rows])
        cells = [(*row, state) for row, state in zip(cells, states, strict=True)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    scale = max([row.observed for row in rows] + [row.expected for row in rows] + [0.01])
    length = min(LONGEST_BAR, width - sum(widths) - 2 * len(widths) - 1)
    for position, row in enumerate(cells):
        text = "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(size) for cell, size in zip(row[1:], widths[1:], strict=True))]
        )
        if position and length >= 10:
            text += "  " + _bar(rows[position - 1], scale, length)
        lines.append(text[:width].rstrip())
    return lines + below


def summary(shown: Picture) -> str:
    """The counts in a sentence."""
    moved = f"{shown.moved:,} of them" if shown.moved else "none of them"
    failed = f", {shown.failures:,} failed" if shown.failures else ""
    return f"{shown.requests:,} requests of {shown.users:,} users{failed}; {moved} met more than one backend"


def line(shown: Picture, elapsed_s: float) -> str:
    """The same in one line, for a pipe or a file."""
    told = shown.rows[:MOST_IN_A_LINE]
    shares = ", ".join(f"{row.name} {row.observed:.1%} (expected {row.expected:.1%})" for row in told)
    if len(told) < len(shown.rows):
        shares += f" and {len(shown.rows) - len(told)} more"
    states = [f"{row.name} is {row.state}" for row in shown.rows if row.state not in CALM_STATES]
    return "; ".join([f"{elapsed_s:3.0f} s  {summary(shown)}: {shares}", *states, *_news(shown)])


def _news(shown: Picture) -> list[str]:
    """What there is to say of requests that were served elsewhere, and of hot keys."""
    news = []
    if shown.elsewhere:
        news.append("served elsewhere: " + ", ".join(f"{count:,} {why}" for why, count in shown.elsewhere.items()))
    return news + [
        f"hot: key {key.hash} with {key.share:.0%} of the requests, on {', '.join(key.backends)}" for key in shown.hot
    ]


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
        lines = table_lines(shown, size.columns - 1, size.lines - 1)[: size.lines - 1]
        # Up to where the last picture began, and clear from there to the end of the screen.
        back = f"\x1b[{self._height}F\x1b[J" if self._height else ""
        self._write(back + "\n".join(lines) + "\n")
        self._height = len(lines)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

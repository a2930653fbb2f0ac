"""Numbers and names as people read them. Everything returned is plain text; `escape` makes it safe inside HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape as _escape
from typing import Final

# Between a number and its unit: narrow, and never at the end of a line.
THIN: Final = "\u202f"
MINUS: Final = "\u2212"
UNKNOWN: Final = "\u2013"
NAMED_AT_MOST: Final = 3


def escape(text: str) -> str:
    """Text as it may stand between tags or in a quoted attribute."""
    return _escape(text, quote=True)


def percent(ratio: float, decimals: int | None = None) -> str:
    """A share: with one decimal up to 10 %, and two below 1 %, where one would hide the differences."""
    value = ratio * 100
    if decimals is None:
        decimals = 0 if value >= 99.95 or value == 0 else 2 if value < 0.995 else 1
    return f"{value:.{decimals}f}{THIN}%"


def about(ratio: float) -> str:
    """A share within a sentence: nobody needs decimals there above 10 %."""
    return percent(ratio, 0 if ratio >= 0.0995 else None)


def signed(percents: int) -> str:
    """Whole percents with their sign; zero has none."""
    return f"{'+' if percents > 0 else MINUS if percents < 0 else ''}{abs(percents)}"


def times(ratio: float) -> str:
    """How many times the expected."""
    return f"{ratio:.1f}\u00d7" if ratio >= 9.95 else f"{ratio:.2f}\u00d7"


def rough_times(ratio: float) -> str:
    """The same within a sentence: "1.6 times", "twice", "half"."""
    text = f"{ratio:.1f}"
    return {"2.0": "twice", "0.5": "half"}.get(text, f"{text} times")


def rate(per_s: float) -> str:
    """Events per second, without the unit."""
    if per_s >= 99.5:
        return f"{per_s:,.0f}"
    return f"{per_s:.0f}" if per_s == 0 else f"{per_s:.1f}"


def count(number: float) -> str:
    return f"{number:,.0f}"


def weight(value: float) -> str:
    return f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """How long something took."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        ms = seconds * 1000
        return f"{ms:.0f}{THIN}ms" if ms >= 9.95 else f"{ms:.1f}{THIN}ms"
    return f"{seconds:.0f}{THIN}s" if seconds >= 9.95 else f"{seconds:.1f}{THIN}s"


def lasting(seconds: float) -> str:
    """How long something has lasted, in its largest unit."""
    seconds = max(0.0, seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f}{THIN}{unit}"
    return f"{seconds:.0f}{THIN}s"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def names(all_of_them: Sequence[str]) -> str:
    """A few names, or the first and how many more."""
    shown = list(all_of_them[:NAMED_AT_MOST])
    more = len(all_of_them) - len(shown)
    if more == 1:
        shown.append(all_of_them[-1])
    elif more:
        shown.append(f"{more} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def short_hash(text: str) -> str:
    """A key's hash, short enough for a line and long enough to tell keys apart."""
    return text.removeprefix("0x")[:8]


def rounded(parts: Sequence[float], total: int) -> list[int]:
    """Whole numbers close to `parts` that add up to `total` exactly: those cut the most are rounded up first.

    `total` is the rounded sum of the parts, so none ends up more than one away from what it was.
    """
    floors = [int(part // 1) for part in parts]
    missing = total - sum(floors)
    order = sorted(range(len(parts)), key=lambda at: (floors[at] - parts[at], at))
    for at in order[: max(0, missing)]:
        floors[at] += 1
    return floors

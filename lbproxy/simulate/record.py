"""Recorded traffic: the proxy's own JSON access log, read back.

A line is written when its exchange has ended, so the request came `duration_us` before its `time`. The key is in the
log only if `log.access.key` was on. Without it the client's address stands for the user, or, when a single client sent
everything, the request id, which makes every request a user of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TextIO

from lbproxy.simulate.traffic import NO_KEY, Arrival, Traffic

# A line of a year or more is a mistake.
LONGEST_S: Final = 366 * 86400.0
# A line has no more characters; what is longer is no line, and is not kept.
LONGEST_LINE: Final = 1 << 20


def lines_of(file: TextIO) -> Iterator[str]:
    """The lines of a file that may be no log at all; of one that is too long come its parts."""
    return iter(lambda: file.readline(LONGEST_LINE), "")


class Unusable(Exception):
    """The log cannot be simulated; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A log as traffic. `backends` are those that served, in order of name; `key_field` is what stood for the user.
    `skipped` lines could not be read, `upgraded` ones were WebSockets and the like, which are no requests."""

    traffic: Traffic
    backends: tuple[str, ...]
    seconds: float
    key_field: str
    skipped: int
    upgraded: int


@dataclass(frozen=True, slots=True)
class _Line:
    """One request. `ended_s` is in seconds since the epoch."""

    ended_s: float
    duration_s: float
    pool: str
    backend: str
    fields: Mapping[str, Any]


def read(lines: Iterable[str], pool: str | None = None, speed: float = 1.0) -> Recording:
    """The requests of one pool; `pool` may be left out when there is only one. They come `speed` times as fast as they
    came, and take as long as they took. Raises Unusable."""
    entries, skipped = _parsed(lines)
    if not entries:
        raise Unusable("there is no line of a JSON access log in it")
    entries, pool = _of_pool(entries, pool)
    upgraded = sum(bool(entry.fields.get("upgraded")) for entry in entries)
    entries = [entry for entry in entries if not entry.fields.get("upgraded")]
    if not entries:
        raise Unusable(f"there is no request of the pool {pool} in it, only upgraded connections")
    key_field = _key_field(entries)
    entries.sort(key=lambda entry: entry.ended_s - entry.duration_s)
    first = entries[0].ended_s - entries[0].duration_s
    numbers: dict[str, int] = {}
    arrivals = []
    for entry in entries:
        key = entry.fields.get(key_field)
        number = numbers.setdefault(key, len(numbers)) if isinstance(key, str) and key else NO_KEY
        arrivals.append(Arrival((entry.ended_s - entry.duration_s - first) / speed, number, entry.duration_s))
    counts = Counter(arrival.key for arrival in arrivals)
    keyed = len(arrivals) - counts[NO_KEY]
    shares = [counts[number] / keyed for number in range(len(numbers))]
    return Recording(
        traffic=Traffic([key.encode("utf-8", "surrogatepass") for key in numbers], shares, recorded=arrivals),
        backends=tuple(sorted({entry.backend for entry in entries if entry.backend})),
        seconds=max(arrival.at_s + arrival.duration_s for arrival in arrivals),
        key_field=key_field,
        skipped=skipped,
        upgraded=upgraded,
    )


def _parsed(lines: Iterable[str]) -> tuple[list[_Line], int]:
    """The lines that are requests of a pool, and how many were no lines of an access log at all."""
    entries, skipped = [], 0
    for text in lines:
        if not text.strip():
            continue
        entry = _read_line(text)
        if entry is None:
            skipped += 1
        elif entry.pool:  # else it was refused before anybody looked at whose it was
            entries.append(entry)
    return entries, skipped


def _read_line(text: str) -> _Line | None:
    """The line; None for what is no line of an access log."""
    try:
        fields = json.loads(text)
        ended_s = datetime.fromisoformat(fields["time"]).timestamp()
        duration_s, pool, backend = fields["duration_us"] / 1e6, fields["pool"], fields["backend"]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if not (isinstance(pool, str) and isinstance(backend, str) and duration_s <= LONGEST_S):
        return None
    return _Line(ended_s, max(0.0, duration_s), pool, backend, fields)


def _of_pool(entries: list[_Line], pool: str | None) -> tuple[list[_Line], str]:
    pools = sorted({entry.pool for entry in entries})
    if pool is None:
        if len(pools) > 1:
            raise Unusable(f"it has several pools, name one with --pool: {', '.join(pools)}")
        pool = pools[0]
    chosen = [entry for entry in entries if entry.pool == pool]
    if not chosen:
        raise Unusable(f"it has no requests of the pool {pool}, only of {', '.join(pools)}")
    return chosen, pool


def _key_field(entries: list[_Line]) -> str:
    if any("key" in entry.fields for entry in entries):
        return "key"
    clients = {client for entry in entries if isinstance(client := entry.fields.get("client"), str)}
    return "client" if len(clients) > 1 else "request_id"

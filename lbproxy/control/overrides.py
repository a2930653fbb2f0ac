"""Overrides: what an operator has decided at run time, kept apart from the file.

There are two of them for a backend, each on its own:

    weight      it has this weight instead of the file's; 0 drains it
    drain       it takes no new keys, whatever its weight

An override says who set it, when, why and until when. It survives reloads, worker restarts and, with a `Store`, starts
of the whole proxy. It ends when it is taken back, when its time is over, when its backend is gone from the file, and a
weight also when the file gives the backend another weight than the one that was overridden: then the file has the last
word. A drain does not end with a new address: that is how a machine is replaced under its name.

Times are wall time, because they have to mean the same after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from lbproxy.control.store import Store
from lbproxy.core.spec import Config

What = Literal["weight", "drain"]
WHATS: Final[tuple[What, ...]] = ("weight", "drain")
# Why an override ended.
TAKEN_BACK: Final = "taken back"
REPLACED: Final = "replaced by another"
EXPIRED: Final = "its time is over"
GONE: Final = "the backend is gone from the file"
FILE_CHANGED: Final = "the file gives it another weight"


@dataclass(frozen=True, slots=True)
class Override:
    """One decision. `beneath` is the file's weight when it was made, `until` None means for good."""

    pool: str
    backend: str
    what: What
    weight: float
    beneath: float
    who: str
    since: float
    until: float | None = None
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, What]:
        return self.pool, self.backend, self.what


@dataclass(frozen=True, slots=True)
class Ended:
    """An override that is no more, and why."""

    override: Override
    why: str


@final
class Overrides:
    """All overrides in force, by pool, backend and what they decide."""

    def __init__(self, overrides: Iterable[Override] = ()) -> None:
        self._all = {override.key: override for override in overrides}

    def __iter__(self) -> Iterator[Override]:
        return iter(self._all.values())

    def of(self, pool: str, backend: str) -> list[Override]:
        """Those of one backend."""
        return [self._all[key] for what in WHATS if (key := (pool, backend, what)) in self._all]

    def weight(self, pool: str, backend: str) -> float | None:
        """The weight that is decided, if one is."""
        override = self._all.get((pool, backend, "weight"))
        return override.weight if override is not None else None

    def is_drained(self, pool: str, backend: str) -> bool:
        """Whether it is decided that the backend drains, apart from its weight."""
        return (pool, backend, "drain") in self._all

    def put(self, override: Override) -> list[Ended]:
        """Let it be in force, in the place of one that decides the same."""
        before = self._all.get(override.key)
        self._all[override.key] = override
        return [Ended(before, REPLACED)] if before is not None else []

    def take_back(self, pool: str, backend: str, whats: Iterable[What] = WHATS) -> list[Ended]:
        """End those of a backend."""
        return self._end({(pool, backend, what): TAKEN_BACK for what in whats})

    def expire(self, wall: float) -> list[Ended]:
        """End those whose time is over."""
        return self._end(
            {each.key: EXPIRED for each in self._all.values() if each.until is not None and each.until <= wall}
        )

    def next_expiry(self) -> float | None:
        """When the next one expires, if any does."""
        return min((each.until for each in self._all.values() if each.until is not None), default=None)

    def under(self, config: Config) -> tuple[Overrides, list[Ended]]:
        """What is left of them under a configuration, as a copy, and what ends with it."""
        weights = {(pool.name, backend.name): backend.weight for pool in config.pools for backend in pool.backends}
        left = Overrides(self)
        reasons: dict[tuple[str, str, What], str] = {}
        for each in self:
            weight = weights.get((each.pool, each.backend))
            if weight is None:
                reasons[each.key] = GONE
            elif each.what == "weight" and weight != each.beneath:
                reasons[each.key] = FILE_CHANGED
        return left, left._end(reasons)

    def _end(self, reasons: Mapping[tuple[str, str, What], str]) -> list[Ended]:
        return [Ended(self._all.pop(key), why) for key, why in reasons.items() if key in self._all]


def override_store(path: str) -> Store[Override]:
    """Where they are kept."""
    return Store(path, "overrides", _read)


def _read(item: dict[str, Any]) -> Override:
    override = Override(**item)
    texts = (override.pool, override.backend, override.who, override.reason)
    numbers = [
        override.weight,
        override.beneath,
        override.since,
        *([override.until] if override.until is not None else []),
    ]
    if override.what not in WHATS or not all(isinstance(text, str) for text in texts):
        raise ValueError("not an override")
    if not all(isinstance(number, int | float) and math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError("not an override")
    return override

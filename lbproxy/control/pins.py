"""Pins that operators have set at run time: a directory of the few keys that must live somewhere, kept apart from the
file.

A pin of an operator goes before one of the file for the same key or prefix. It survives reloads, worker restarts and,
with a `Store`, starts of the whole proxy. It ends when it is taken back, or when its pool or backend is gone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, final

from lbproxy.control.store import Store
from lbproxy.core.spec import Config, Pin, PoolSpec

# How many an operator may set in one pool: each change is a new generation with all of them in it.
MOST_PINS: Final = 1000


@dataclass(frozen=True, slots=True)
class SetPin:
    """A pin, who set it, when (wall time) and why."""

    pool: str
    pin: Pin
    who: str
    since: float
    reason: str = ""

    @property
    def place(self) -> tuple[str, str, bool]:
        """What it is a pin of: there is one at the most."""
        return self.pool, self.pin.key, self.pin.is_prefix


@final
class Pins:
    """All that are set."""

    def __init__(self, pins: Iterable[SetPin] = ()) -> None:
        self._all = {each.place: each for each in pins}

    def __iter__(self) -> Iterator[SetPin]:
        return iter(self._all.values())

    def of(self, pool: str) -> list[SetPin]:
        """Those of one pool."""
        return [each for each in self if each.pool == pool]

    def with_one(self, pin: SetPin) -> Pins:
        """A copy with this one, in the place of any for the same keys."""
        return Pins([*self, pin])

    def without(self, place: tuple[str, str, bool]) -> Pins:
        """A copy without the one for these keys."""
        return Pins(each for each in self if each.place != place)

    def under(self, config: Config) -> tuple[Config, Pins]:
        """The configuration with these pins in it, and what is left of them under it, as a copy."""
        backends = {pool.name: {backend.name for backend in pool.backends} for pool in config.pools}
        left = Pins(each for each in self if each.pin.backend in backends.get(each.pool, ()))
        return replace(config, pools=tuple(left._into(pool) for pool in config.pools)), left

    def _into(self, pool: PoolSpec) -> PoolSpec:
        ours = self.of(pool.name)
        if not ours:
            return pool
        places = {each.place for each in ours}
        of_file = [pin for pin in pool.pins if (pool.name, pin.key, pin.is_prefix) not in places]
        return replace(pool, pins=(*of_file, *(each.pin for each in ours)))


def pin_store(path: str) -> Store[SetPin]:
    """Where they are kept."""
    return Store(path, "pins", _read)


def _read(item: dict[str, Any]) -> SetPin:
    made = SetPin(**{**item, "pin": Pin(**item["pin"])})
    pin = made.pin
    texts = (made.pool, pin.key, pin.backend, made.who, made.reason)
    if (
        not all(isinstance(text, str) for text in texts)
        or not pin.key
        or not isinstance(pin.is_prefix, bool)
        or pin.on_down not in ("failover", "reject")
        or not isinstance(made.since, int | float)
        or not math.isfinite(made.since)
    ):
        raise ValueError("not a pin")
    return made

"""Orders while large rings are built: who leaves, leaves at once, and who comes, comes with its weight."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lbproxy.channel import without_comers
from lbproxy.control.ring_changes import RingChanges
from lbproxy.control.wellbeing import Mandate
from lbproxy.core.account import DRAINING, OUT, SERVING
from lbproxy.core.pieces import Pieces
from lbproxy.core.snapshot import States
from lbproxy.ease import AT_ONCE
from lbproxy.observe.journal import Fields, Journal, Level
from lbproxy.orders import StandingOrders

Weights = dict[tuple[str, str], float]


class Workers:
    """A supervisor that writes down what it is told, and whose rings take so many pieces to build."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.config = None
        self.snapshot = SimpleNamespace(pools={})
        self.states: dict[str, Any] = {"p": {"a": SERVING, "b": OUT}}
        self.weights: Weights = {}
        self.told: list[str] = []
        self.fails = False

    def forge(self, config: object, weights: Weights) -> Pieces[None]:
        for _ in range(self.pieces):
            yield
        if self.fails:
            raise ValueError("no ring")
        self.told.append(f"built {weights['p', 'b']:g}")

    def adopt(self, states: States) -> int:
        self.states = {**self.states, **states}
        self.told.append(f"states {self.states['p']['a']}{self.states['p']['b']}")
        return 1

    def reweigh(self, weights: Weights, states: States) -> int:
        self.weights = weights
        self.states = {**self.states, **states}
        self.told.append(f"weight {weights['p', 'b']:g}, states {self.states['p']['a']}{self.states['p']['b']}")
        return 2


def mandate(weight: float, a: int, b: int) -> Mandate:
    return Mandate({"p": {"a": a, "b": b}}, {("p", "b"): weight}, {"p": "slow_start"})


def orders(workers: Workers, journal: list[str] | None = None) -> StandingOrders:
    def emit(level: Level, event: str, fields: Fields) -> None:
        if journal is not None:
            journal.append(event)

    told = Journal(emit)
    return StandingOrders(cast(Any, workers), RingChanges(told), told)


async def test_what_is_built_quickly_is_in_force_at_once() -> None:
    workers = Workers(AT_ONCE - 1)
    orders(workers).reweigh(mandate(0.5, SERVING, SERVING))
    assert workers.told == ["built 0.5", "weight 0.5, states 00"]


async def test_who_leaves_leaves_at_once_and_who_comes_waits_for_its_weight() -> None:
    workers = Workers(100)
    standing = orders(workers)
    standing.reweigh(mandate(0.1, OUT, SERVING))
    assert workers.told == ["states 22"]
    standing.tell({"p": {"a": DRAINING, "b": SERVING}})
    assert workers.told == ["states 22"]
    await standing.settled()
    assert workers.told == ["states 22", "built 0.1", "weight 0.1, states 10"]


async def test_the_newest_decision_replaces_those_before_it() -> None:
    workers = Workers(100)
    standing = orders(workers)
    for weight in (0.1, 0.2, 0.3):
        standing.reweigh(mandate(weight, SERVING, SERVING))
    await standing.settled()
    # What was being built is put in force, but nobody comes with a weight that is not its own.
    assert workers.told == ["built 0.1", "weight 0.1, states 02", "built 0.3", "weight 0.3, states 00"]


async def test_a_reload_takes_the_place_of_what_is_being_built() -> None:
    workers = Workers(100)
    standing = orders(workers)
    standing.reweigh(mandate(0.1, SERVING, SERVING))
    await asyncio.sleep(0)
    standing.replaced()
    await standing.settled()
    standing.tell({"p": {"a": SERVING, "b": SERVING}})
    assert workers.told == ["states 00"]


async def test_what_fails_is_told_and_the_next_decision_is_another_chance() -> None:
    workers, journal = Workers(100), list[str]()
    standing = orders(workers, journal)
    workers.fails = True
    standing.reweigh(mandate(0.1, SERVING, SERVING))
    await standing.settled()
    assert journal == ["weights not in force"]
    workers.fails = False
    standing.reweigh(mandate(0.2, SERVING, SERVING))
    await standing.settled()
    assert workers.told == ["built 0.2", "weight 0.2, states 00"]


@pytest.mark.parametrize(
    ("state", "known", "result"),
    [(SERVING, OUT, OUT), (OUT, SERVING, OUT), (DRAINING, SERVING, DRAINING), (DRAINING, OUT, OUT), (OUT, None, OUT)],
)
def test_without_comers(state: int, known: int | None, result: int) -> None:
    of_known = {} if known is None else {"p": {"a": known}}
    assert without_comers({"p": {"a": state}}, of_known) == {"p": {"a": result}}

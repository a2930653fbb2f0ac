"""Facts in, orders out: what is handed to the workers, when, and what is told and counted."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from lbproxy.control import wellbeing as wellbeing_module
from lbproxy.control.config import loads
from lbproxy.control.overrides import Override
from lbproxy.control.pool_state import PoolState, effective_weights
from lbproxy.control.wellbeing import Mandate, Traffic, Wellbeing
from lbproxy.core.account import DRAINING, OUT, SERVING
from lbproxy.core.snapshot import States
from lbproxy.core.spec import Config, Ejection
from lbproxy.observe.journal import Fields, Journal, Level

CONFIG = loads(
    """
version: 1
listen: 127.0.0.1:0
pools:
  api:
    match: {path: /api}
    health: {rise: 2, fall: 2, hold: 5s}
    ejection: {base: 10s, failure_rate: 50%}
    ring: {vnodes: 64}
    backends:
      - {name: b1, url: http://127.0.0.1:1}
      - {name: b2, url: http://127.0.0.1:2}
      - {name: b3, url: http://127.0.0.1:3}
  web:
    backends: [{name: w1, url: http://127.0.0.1:4}, {name: w2, url: http://127.0.0.1:5}]
"""
)


def changed(config: Config, **changes: object) -> Config:
    """The configuration with the first pool changed."""
    first, *others = config.pools
    return replace(config, pools=(replace(first, **changes), *others))  # type: ignore[arg-type]


class Clocked:
    """A wellbeing with a clock of our own; what it orders and tells is kept."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.now = 1000.0
        self.told: list[States] = []
        self.reweighed: list[Mandate] = []
        self.events: list[tuple[Level, str, Fields]] = []
        self.traffic: dict[tuple[str, str], Traffic] = {}
        self.saved = 0
        journal = Journal(lambda level, event, fields: self.events.append((level, event, fields)))
        self.being = Wellbeing([], self, journal, self.read, lambda: self.now, lambda: self.now + 1e9)
        self.being.changed = self.save
        self.reload(config)

    def tell(self, states: States) -> None:
        self.told.append(states)

    def reweigh(self, mandate: Mandate) -> None:
        self.reweighed.append(mandate)

    def read(self, pool: str, backend: str) -> Traffic:
        return self.traffic.get((pool, backend), Traffic(0, 0, 0))

    def save(self) -> None:
        self.saved += 1

    def reload(self, config: Config) -> Mandate:
        prepared = self.being.prepare(config)
        self.being.install(prepared)
        return prepared.mandate

    def probe(self, backend: str, *results: str) -> None:
        for result in results:
            self.being.note_probe("api", backend, result)

    def all_up(self) -> None:
        for backend in ("b1", "b2", "b3"):
            self.probe(backend, "ok")
        self.told.clear()
        self.events.clear()

    def decide(self, backend: str, weight: float | None, for_s: float | None = None) -> None:
        now = self.now + 1e9
        what, value = ("drain", 0.0) if weight is None else ("weight", weight)
        until = None if for_s is None else now + for_s
        self.being.decide([Override("api", backend, what, value, 1.0, "ann", now, until)])  # type: ignore[arg-type]

    def named(self, event: str) -> list[Fields]:
        return [fields for _, name, fields in self.events if name == event]


def test_why_the_last_check_failed_is_told_with_it() -> None:
    clocked = Clocked()
    clocked.being.note_probe("api", "b1", "connect", "Connection refused")
    fields = next(each for each in clocked.named("backend state") if each["state"] == "down")
    assert (fields["backend"], fields["check"], fields["why"]) == ("b1", "connect", "Connection refused")
    clocked.being.note_probe("api", "b1", "ok")
    tally = clocked.being.tallies["api", "b1"]
    assert (tally.last_check, tally.check_why) == ("ok", "")


def test_the_first_mandate_lets_traffic_flow() -> None:
    clocked = Clocked()
    mandate = clocked.being.prepare(CONFIG).mandate
    assert mandate.states == {
        "api": {"b1": SERVING, "b2": SERVING, "b3": SERVING},
        "web": {"w1": SERVING, "w2": SERVING},
    }
    assert mandate.weights == {}


def test_a_state_is_told_once_it_changes_and_only_for_its_pool() -> None:
    clocked = Clocked()
    clocked.all_up()
    clocked.probe("b1", "ok", "timeout")
    assert clocked.told == []
    clocked.probe("b1", "timeout")
    assert clocked.told == [{"api": {"b1": OUT, "b2": SERVING, "b3": SERVING}}]
    assert clocked.reweighed == []
    (fields,) = clocked.named("backend state")
    assert (fields["backend"], fields["state"], fields["was"], fields["check"]) == ("b1", "down", "up", "timeout")
    tally = clocked.being.tallies["api", "b1"]
    assert tally.checks == {"ok": 2, "timeout": 2}
    assert tally.changes == {"unknown": 1, "up": 1, "down": 1}


def test_results_for_what_is_gone_say_nothing() -> None:
    clocked = Clocked()
    clocked.being.note_probe("api", "b9", "ok")
    clocked.being.note_probe("gone", "b1", "ok")
    clocked.being.note_streak("api", "b9", "reset")
    clocked.being.note_streak("gone", "b1", "reset")
    assert not clocked.being.is_flipping("gone", "b1")
    assert clocked.told == []


def test_who_is_flipping() -> None:
    clocked = Clocked()
    assert clocked.being.is_flipping("api", "b1")
    clocked.all_up()
    assert not clocked.being.is_flipping("api", "b1")
    clocked.probe("b1", "status")
    assert clocked.being.is_flipping("api", "b1")


def test_a_workers_word_ejects_and_what_is_spared_is_counted() -> None:
    clocked = Clocked(changed(CONFIG, ejection=Ejection(base=10.0, max_share=0.4)))
    clocked.all_up()
    clocked.being.note_streak("api", "b1", "connect_refused")
    clocked.being.note_streak("api", "b1", "connect_refused")
    clocked.being.note_streak("api", "b2", "reset")
    assert clocked.told == [{"api": {"b1": OUT, "b2": SERVING, "b3": SERVING}}]
    assert clocked.being.tallies["api", "b1"].ejections == {"consecutive_errors": 1}
    assert clocked.being.tallies["api", "b2"].spared == 1
    (fields,) = clocked.named("backend ejected")
    assert (fields["backend"], fields["error"], fields["for_s"]) == ("b1", "connect_refused", 10.0)
    assert [fields["backend"] for fields in clocked.named("backend not ejected")] == ["b2"]
    clocked.now += 10.0
    clocked.being.turn()
    assert clocked.told[-1]["api"]["b1"] == SERVING


def test_loops_are_no_failures_of_the_backend_whenever_their_answers_end() -> None:
    clocked = Clocked()
    clocked.all_up()
    bad = loops = 0
    for begun, ended, others in [(0, 0, 0), (30, 0, 0), (0, 30, 0), (40, 40, 10), (0, 0, 0)]:
        bad, loops = bad + ended + others, loops + begun
        clocked.traffic["api", "b1"] = Traffic(0, bad, 3, loops)
        clocked.being.look()
        clocked.now += 1.0
    assert clocked.being.tallies["api", "b1"].ejections == {}
    clocked.traffic["api", "b1"] = Traffic(0, bad + 30, 3, loops)
    clocked.being.look()
    assert clocked.being.tallies["api", "b1"].ejections == {"failure_rate": 1}


def test_a_failure_rate_in_the_slabs_ejects() -> None:
    clocked = Clocked()
    clocked.all_up()
    clocked.traffic["api", "b1"] = Traffic(1000, 5000, 3)
    clocked.being.look()
    assert clocked.told == []
    clocked.now += 1.0
    clocked.traffic["api", "b1"] = Traffic(1010, 5008, 3)
    clocked.being.look()
    clocked.now += 1.0
    clocked.traffic["api", "b1"] = Traffic(1010, 5030, 3)
    clocked.being.look()
    assert clocked.being.tallies["api", "b1"].ejections == {"failure_rate": 1}
    assert clocked.told == [{"api": {"b1": OUT, "b2": SERVING, "b3": SERVING}}]
    # A row that begins anew is no negative traffic.
    clocked.traffic["api", "b2"] = Traffic(5, 5, 0)
    clocked.being.look()
    clocked.traffic["api", "b2"] = Traffic(0, 0, 0)
    clocked.being.look()
    assert clocked.being.tallies["api", "b2"].ejections == {}


def test_what_failed_while_no_rate_was_looked_at_ejects_nobody() -> None:
    clocked = Clocked()
    clocked.all_up()
    clocked.being.look()
    clocked.reload(changed(CONFIG, ejection=Ejection(failure_rate=None)))
    clocked.decide("b1", None, 30.0)  # what drains is looked at all the same
    clocked.being.look()
    clocked.now += 3600.0
    clocked.being.turn()
    for name in ("b1", "b2"):
        clocked.traffic["api", name] = Traffic(1000, 5000, 3)
    clocked.reload(CONFIG)
    clocked.being.look()
    assert [clocked.being.tallies["api", name].ejections for name in ("b1", "b2")] == [{}, {}]
    clocked.traffic["api", "b2"] = Traffic(1000, 5030, 3)
    clocked.being.look()
    assert clocked.being.tallies["api", "b2"].ejections == {"failure_rate": 1}


def test_overrides_take_effect_at_once_and_end_at_their_time() -> None:
    clocked = Clocked()
    clocked.all_up()
    clocked.decide("b1", 3.0, for_s=60.0)
    assert clocked.reweighed[-1].weights == {("api", "b1"): 3.0}
    assert clocked.reweighed[-1].causes == {"api": "override"}
    clocked.decide("b2", None)
    assert clocked.told[-1]["api"] == {"b1": SERVING, "b2": DRAINING, "b3": SERVING}
    assert clocked.saved == 2
    assert [fields["what"] for fields in clocked.named("override set")] == ["weight", "drain"]
    ended = clocked.being.decide(back=[("api", "b2", "drain")])
    assert [each.override.backend for each in ended] == ["b2"]
    assert clocked.told[-1]["api"] == {"b1": SERVING, "b2": SERVING, "b3": SERVING}
    assert clocked.being.decide(back=[("api", "b2", "drain")]) == []
    assert clocked.saved == 3


def test_several_decisions_are_one_change() -> None:
    clocked = Clocked()
    clocked.all_up()
    clocked.decide("b1", 3.0)
    clocked.reweighed.clear()
    now = clocked.now + 1e9
    weights = [Override("api", name, "weight", weight, 1.0, "ann", now) for name, weight in (("b2", 2.0), ("b3", 0.5))]
    clocked.being.decide(weights, [("api", "b1", "weight")])
    (mandate,) = clocked.reweighed
    assert mandate.weights == {("api", "b2"): 2.0, ("api", "b3"): 0.5}


def test_a_reload_is_prepared_without_changing_anything() -> None:
    clocked = Clocked()
    clocked.all_up()
    clocked.decide("b1", 3.0)
    events = len(clocked.events)
    other = loads(
        """
version: 1
listen: 127.0.0.1:0
pools:
  api:
    health: {rise: 2, fall: 2, hold: 5s}
    ring: {vnodes: 64}
    backends:
      - {name: b1, url: http://127.0.0.1:1, weight: 2}
      - {name: b4, url: http://127.0.0.1:3}
"""
    )
    prepared = clocked.being.prepare(other)
    assert prepared.mandate.states == {"api": {"b1": SERVING, "b4": OUT}}
    assert prepared.mandate.weights == {}
    assert prepared.mandate.causes == {"api": "reload"}
    assert len(clocked.events) == events
    assert effective_weights(clocked.being.pools) == {("api", "b1"): 3.0}
    assert set(clocked.being.pools) == {"api", "web"}
    clocked.being.install(prepared)
    assert {name: state.states for name, state in clocked.being.pools.items()} == {"api": {"b1": SERVING, "b4": OUT}}
    assert [fields["why"] for fields in clocked.named("override ended")] == ["the file gives it another weight"]
    assert set(clocked.being.tallies) == {("api", "b1"), ("api", "b4")}
    assert clocked.being.tallies["api", "b1"].checks == {"ok": 1}
    assert clocked.saved == 2


def test_panic_is_told_and_counted_once() -> None:
    clocked = Clocked()
    clocked.all_up()
    for backend in ("b1", "b2", "b3"):
        clocked.probe(backend, "connect", "connect", "connect", "connect")
    assert clocked.told[-1]["api"] == {"b1": OUT, "b2": OUT, "b3": OUT}
    assert clocked.being.panics == {"api": 1, "web": 0}
    assert [level for level, event, _ in clocked.events if event == "no backend is eligible"] == ["error"]
    clocked.probe("b2", "ok", "ok")
    assert clocked.told[-1]["api"]["b2"] == SERVING
    assert clocked.named("backends are eligible again") == [{"pool": "api", "count": 1}]


def test_what_drains_is_told_when_it_is_empty() -> None:
    clocked = Clocked()
    clocked.all_up()
    clocked.decide("b1", None)
    for second in range(4):
        clocked.now += 1.0
        clocked.traffic["api", "b1"] = Traffic(100, 0, int(second == 0))
        clocked.being.look()
    assert clocked.named("backend is empty") == [{"pool": "api", "backend": "b1"}]
    assert clocked.being.pools["api"].is_empty("b1")


@pytest.mark.parametrize("for_s", [0.05, None])
async def test_time_alone_ends_what_is_due(for_s: float | None) -> None:
    told: list[States] = []
    reweighed: list[Mandate] = []

    class Orders:
        def tell(self, states: States) -> None:
            told.append(states)

        def reweigh(self, mandate: Mandate) -> None:
            reweighed.append(mandate)

    config = changed(CONFIG, slow_start=0.2, ejection=Ejection(base=0.1))
    being = Wellbeing([], Orders(), Journal(lambda *_: None))
    being.install(being.prepare(config))
    being.start()
    for backend in ("b1", "b2", "b3"):
        being.note_probe("api", backend, "ok")
    if for_s is not None:
        being.decide([Override("api", "b1", "drain", 0.0, 1.0, "ann", time.time(), time.time() + for_s)])
    else:
        being.note_streak("api", "b1", "reset")
    assert told[-1]["api"]["b1"] != SERVING
    async with asyncio.timeout(5):
        while effective_weights(being.pools) or len(reweighed) < 9:  # noqa: ASYNC110  # time has no event
            await asyncio.sleep(0.01)
    being.stop()
    assert being.pools["api"].states["b1"] == SERVING
    steps = [mandate.weights.get(("api", "b1"), 1.0) for mandate in reweighed]
    assert (steps[0], steps[-1], steps) == (0.1, 1.0, sorted(set(steps)))
    assert reweighed[0].states["api"]["b1"] == SERVING


async def test_steps_on_a_large_ring_are_planned_between_other_work() -> None:
    clocked = Clocked()
    backends = CONFIG.pools[0].backends
    clocked.reload(changed(CONFIG, vnodes=16384, pace=1.0))
    clocked.all_up()
    clocked.being.start()
    turns = 0
    try:
        clocked.decide("b1", 3.0)
        assert effective_weights(clocked.being.pools) == {}
        async with asyncio.timeout(30):
            while not clocked.reweighed:
                turns += 1
                await asyncio.sleep(0)
    finally:
        clocked.being.stop()
    assert turns > 10
    assert 1.0 < effective_weights(clocked.being.pools)["api", backends[0].name] <= 3.0
    assert clocked.reweighed[0].causes == {"api": "pace"}


async def test_a_plan_that_fails_is_told_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked = Clocked()
    clocked.reload(changed(CONFIG, vnodes=16384, pace=1.0))
    clocked.all_up()
    monkeypatch.setattr(PoolState, "plan", lambda state, now: 1 // 0)
    clocked.being.start()
    try:
        clocked.decide("b1", 3.0)
        async with asyncio.timeout(5):
            while not clocked.named("pace not planned"):  # noqa: ASYNC110  # a line has no event
                await asyncio.sleep(0)
    finally:
        clocked.being.stop()


async def test_what_goes_wrong_as_time_passes_does_not_stop_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wellbeing_module, "LOOK_S", 0.01)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context.get("exception")))
    clocked = Clocked()
    clocked.all_up()
    monkeypatch.setattr(clocked.being, "_clock", time.monotonic)
    monkeypatch.setattr(PoolState, "advance", lambda state, now, cause: 1 // 0)
    clocked.being.pools["api"].due = 0.0
    clocked.being.start()
    try:
        async with asyncio.timeout(5):
            while len(errors) < 3:  # noqa: ASYNC110  # an error that nobody caught has no event
                await asyncio.sleep(0.001)
    finally:
        clocked.being.stop()
    assert {type(each) for each in errors} == {ZeroDivisionError}

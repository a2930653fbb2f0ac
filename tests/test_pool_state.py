"""Who may be asked and with which weight: the stories of a pool, told with a clock of our own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbproxy.control.overrides import Override, Overrides, What
from lbproxy.control.pool_state import LONGEST_PUT_OFF_S, Change, Flip, PoolState, effective_weights
from lbproxy.core.account import DRAINING, OUT, SERVING
from lbproxy.core.forge import build_ring
from lbproxy.core.moves import moved
from lbproxy.core.pieces import at_once
from lbproxy.core.ring import Ring
from lbproxy.core.spec import Address, BackendSpec, Ejection, Health, PoolSpec

PROBED = Health(kind="http", rise=2, fall=3, hold=5.0)


def spec(*names: str, **changes: object) -> PoolSpec:
    backends = tuple(BackendSpec(name, Address("127.0.0.1", 80 + index)) for index, name in enumerate(names))
    return replace(PoolSpec("api", backends, health=PROBED, vnodes=128), **changes)  # type: ignore[arg-type]


def decided(backend: str, what: What, weight: float = 0.0) -> Override:
    return Override("api", backend, what, weight, 1.0, "ann", 0.0)


class Story:
    """A pool and its clock. `up` makes checks that succeed, `down` such that fail, each often enough to count."""

    def __init__(self, pool: PoolSpec, now: float = 1000.0) -> None:
        self.now = now
        self.overrides = Overrides()
        self.state = PoolState(pool, self.overrides)
        self.changes: list[Change] = []
        self.moves: list[tuple[float, float]] = []
        self.advance("reload")

    def advance(self, cause: str = "") -> Change:
        before = self._ring()
        change = self.state.advance(self.now, cause)
        after = self._ring()
        if before.tokens and after.tokens:
            self.moves.append((self.now, moved(before, after).share))
        self.changes.append(change)
        return change

    def _ring(self) -> Ring:
        """Who gets the keys: the ring of those that serve."""
        weights = [(name, self.state.weights[name]) for name in self.state.serving]
        return build_ring(weights, self.state.spec.vnodes)

    def probe(self, ok: bool, *names: str) -> Change:
        for name in names:
            for _ in range(3):
                self.state.health.observe_probe(name, ok, self.now)
        return self.advance()

    def up(self, *names: str) -> Change:
        return self.probe(True, *names)

    def down(self, *names: str) -> Change:
        return self.probe(False, *names)

    def wait(self, seconds: float) -> None:
        """Let time pass, and do on the way what is due."""
        end = self.now + seconds
        while self.state.due is not None and self.state.due <= end:
            self.now = max(self.now, self.state.due)
            self.advance()
        self.now = end

    def under(self, pool: PoolSpec) -> Change:
        self.state = PoolState(pool, self.overrides, self.state)
        return self.advance("reload")

    def largest_minute(self) -> float:
        return max(sum(share for at, share in self.moves if 0 <= at - start < 60) for start, _ in self.moves)


def test_a_cold_start_serves_with_all_and_ends_with_those_that_are_up() -> None:
    story = Story(spec("b1", "b2", "b3", slow_start=30.0))
    assert set(story.state.states.values()) == {SERVING}
    assert set(story.state.words.values()) == {"unknown"}
    assert story.up("b1").flips == (Flip("b1", "unknown", "up"),)
    assert story.state.states == {"b1": SERVING, "b2": OUT, "b3": OUT}
    story.now += 0.5
    story.up("b2")
    story.down("b3")
    assert story.state.states == {"b1": SERVING, "b2": SERVING, "b3": OUT}
    # Those that began with the pool have no keys to win back, so there is nothing to be slow about.
    assert story.state.weights == {"b1": 1.0, "b2": 1.0, "b3": 1.0}


def test_a_new_backend_takes_no_keys_before_its_first_result() -> None:
    story = Story(spec("b1", "b2"))
    story.up("b1", "b2")
    change = story.under(spec("b1", "b2", "b3"))
    assert (change.has_states, change.cause) == (True, "reload")
    assert story.state.states["b3"] == OUT
    story.up("b3")
    assert story.state.states["b3"] == SERVING


def test_nothing_new_is_no_change() -> None:
    story = Story(spec("b1", "b2"))
    story.up("b1", "b2")
    assert story.up("b1", "b2") == Change((), False, "")
    assert story.under(spec("b1", "b2")) == Change((), False, "")


def test_slow_start_in_ten_steps_from_the_very_first_request_on() -> None:
    story = Story(spec("b1", "b2", "b3", slow_start=10.0))
    story.up("b1", "b2", "b3")
    story.down("b3")
    assert story.state.weights["b3"] == 1.0
    change = story.up("b3")
    assert (story.state.words["b3"], change.cause) == ("held", "")
    story.wait(5.0)
    assert (story.state.states["b3"], story.state.weights["b3"]) == (SERVING, 0.1)
    story.changes.clear()
    story.wait(10.5)
    assert story.state.weights == {"b1": 1.0, "b2": 1.0, "b3": 1.0}
    assert [change.cause for change in story.changes] == ["slow_start"] * 9
    assert story.state.due is None


def test_a_new_backend_starts_slowly_too() -> None:
    story = Story(spec("b1", "b2", slow_start=10.0))
    story.up("b1", "b2")
    story.under(spec("b1", "b2", "b3", slow_start=10.0))
    assert story.state.weights["b3"] == 0.1
    story.up("b3")
    assert story.state.weights["b3"] == 0.1
    story.wait(5.5)
    assert story.state.weights["b3"] == 0.6


def test_one_that_must_carry_the_pool_starts_at_once() -> None:
    story = Story(spec("b1", "b2", slow_start=10.0, pace=0.05 / 60))
    story.up("b1", "b2")
    story.down("b1", "b2")
    assert story.state.is_panicking
    story.up("b2")
    assert (story.state.states["b2"], story.state.weights["b2"]) == (SERVING, 1.0)


def test_a_paced_return_takes_its_keys_back_little_by_little() -> None:
    story = Story(spec("b1", "b2", "b3", "b4", pace=0.10 / 60))
    story.up("b1", "b2", "b3", "b4")
    story.down("b4")
    story.moves.clear()
    story.up("b4")
    story.wait(5.1)
    assert story.state.states["b4"] == SERVING
    assert story.state.weights["b4"] < 0.05
    story.wait(60.0)
    assert 0.1 < story.state.weights["b4"] < 0.6
    story.wait(200.0)
    assert story.state.weights["b4"] == 1.0
    assert sum(share for _, share in story.moves) == pytest.approx(0.25, abs=0.06)
    assert story.largest_minute() <= 0.10
    assert story.state.due is None


def test_a_paced_join_and_a_paced_weight() -> None:
    story = Story(spec("b1", "b2", pace=0.10 / 60))
    story.up("b1", "b2")
    story.under(spec("b1", "b2", "b3", pace=0.10 / 60))
    assert story.state.weights["b3"] == 0.0
    story.up("b3")
    story.wait(30.0)
    story.overrides.put(decided("b1", "weight", 0.5))
    assert story.advance("override").cause in ("override", "")
    story.wait(600.0)
    assert story.state.weights == {"b1": 0.5, "b2": 1.0, "b3": 1.0}
    assert story.largest_minute() <= 0.10
    assert {change.cause for change in story.changes} <= {"", "pace", "reload", "override"}


def large(weight: float) -> PoolSpec:
    """Twenty backends of which half have this weight, on a ring that takes a while to build."""
    pool = spec(*(f"b{number}" for number in range(20)), pace=0.05 / 60, vnodes=1024)
    return replace(
        pool, backends=tuple([replace(each, weight=weight) for each in pool.backends[:10]]) + pool.backends[10:]
    )


def test_on_a_large_ring_a_step_waits_for_its_plan() -> None:
    story = Story(large(1.0))
    story.up(*story.state.states)
    story.state.is_patient = True
    for _ in range(2):
        pool = large(0.5 if story.state.spec.backends[0].weight == 1.0 else 2.0)
        story.state = PoolState(pool, story.overrides, story.state)
        story.state.is_patient = True
        story.now += 10.0
        assert story.advance("reload").cause == ""
        story.now += 1.0
        before = dict(story.state.weights)
        assert (story.advance().cause, story.state.weights) == ("", before)
        assert story.state.needs_plan(story.now)
        at_once(story.state.plan(story.now))
        assert not story.state.needs_plan(story.now)
        assert story.advance().cause == "pace"
        assert story.state.weights["b1"] != before["b1"]
        assert story.state.needs_plan(story.now)  # for the step after it
    assert story.largest_minute() <= 0.05 + 1e-9


def test_a_step_whose_plan_is_never_ready_is_taken_all_the_same() -> None:
    story = Story(large(1.0))
    story.up(*story.state.states)
    story.state.is_patient = True
    story.now += 10.0
    weights = []
    for number in range(40):
        # What is wanted changes every second, and each time before the plan is made.
        story.overrides.put(decided("b1", "weight", 2.0 + number / 10))
        story.advance("override")
        weights.append(story.state.weights["b1"])
        story.now += 1.0
    assert weights[int(LONGEST_PUT_OFF_S) - 1] == 1.0
    assert 1.0 < weights[int(LONGEST_PUT_OFF_S)] < weights[-1]


def test_failures_are_never_paced() -> None:
    story = Story(spec("b1", "b2", "b3", pace=0.01 / 3600))
    story.up("b1", "b2", "b3")
    story.down("b1")
    assert story.state.states == {"b1": OUT, "b2": SERVING, "b3": SERVING}
    assert story.moves[-1][1] > 0.2


def test_the_paced_one_serves_all_when_the_others_fail() -> None:
    story = Story(spec("b1", "b2", pace=0.01 / 3600))
    story.up("b1", "b2")
    story.down("b2")
    story.up("b2")
    story.wait(6.0)
    assert story.state.weights["b2"] == 0.0
    story.down("b1")
    assert story.state.states == {"b1": OUT, "b2": SERVING}
    assert story.state.weights["b2"] == 1.0


def test_a_drain_and_a_weight_of_nothing_come_to_the_same() -> None:
    story = Story(spec("b1", "b2", "b3"))
    story.up("b1", "b2", "b3")
    story.overrides.put(decided("b1", "drain"))
    story.overrides.put(decided("b2", "weight", 0.0))
    change = story.advance("override")
    assert story.state.states == {"b1": DRAINING, "b2": DRAINING, "b3": SERVING}
    assert (change.cause, story.state.weights) == ("override", {"b1": 1.0, "b2": 0.0, "b3": 1.0})
    story.down("b1")
    assert story.state.states["b1"] == OUT
    story.overrides.take_back("api", "b2")
    story.advance("override")
    assert (story.state.states["b2"], story.state.weights["b2"]) == (SERVING, 1.0)


def test_a_drained_backend_is_empty_when_its_last_request_has_ended() -> None:
    story = Story(spec("b1", "b2"))
    story.up("b1", "b2")
    observe = story.state.observe_traffic
    assert not observe("b1", 5, 0, story.now)
    story.overrides.put(decided("b1", "drain"))
    story.advance("override")
    assert not observe("b1", 5, 1, story.now)
    assert not observe("b1", 5, 1, story.now + 10)
    assert not observe("b1", 6, 0, story.now + 11)
    assert not observe("b1", 6, 0, story.now + 11.5)
    assert observe("b1", 6, 0, story.now + 12)
    assert not observe("b1", 6, 0, story.now + 13)
    assert story.state.is_empty("b1")
    story.overrides.take_back("api", "b1")
    story.advance("override")
    assert not story.state.is_empty("b1")


def test_with_session_drain_weight_nothing_keeps_its_tokens_until_the_last_session_is_over() -> None:
    story = Story(spec("b1", "b2", session_drain=60.0))
    story.up("b1", "b2")
    story.overrides.put(decided("b1", "weight", 0.0))
    assert story.advance("override").cause == ""
    assert (story.state.states["b1"], story.state.weights["b1"]) == (DRAINING, 1.0)
    story.state.observe_traffic("b1", 9, 0, story.now)
    assert not story.state.observe_traffic("b1", 9, 0, story.now + 60)
    assert story.state.observe_traffic("b1", 9, 0, story.now + 61)
    assert story.advance().cause == "drain"
    assert (story.state.states["b1"], story.state.weights["b1"]) == (DRAINING, 0.0)


def test_a_drain_that_is_taken_back_before_it_is_empty_sends_nobody_away() -> None:
    story = Story(spec("b1", "b2", "b3", session_drain=60.0, slow_start=10.0, pace=0.05 / 60))
    story.up("b1", "b2", "b3")
    story.overrides.put(decided("b1", "drain"))
    story.advance("override")
    story.state.observe_traffic("b1", 9, 1, story.now)
    story.overrides.take_back("api", "b1")
    story.advance("override")
    assert (story.state.states["b1"], story.state.weights["b1"]) == (SERVING, 1.0)
    # One that is empty comes back like any other.
    story.overrides.put(decided("b1", "drain"))
    story.advance("override")
    for second in (0, 61):
        story.state.observe_traffic("b1", 9, 0, story.now + second)
    story.overrides.take_back("api", "b1")
    story.advance("override")
    assert story.state.weights["b1"] < 0.1


def test_an_ejected_backend_is_out_and_comes_back() -> None:
    story = Story(spec("b1", "b2", "b3", ejection=Ejection(base=10.0)))
    story.up("b1", "b2", "b3")
    assert story.state.health.observe_streak("b1", story.now)
    assert story.advance().flips == (Flip("b1", "up", "ejected"),)
    assert story.state.states["b1"] == OUT
    story.wait(10.0)
    assert story.changes[-1].flips == (Flip("b1", "ejected", "up"),)
    assert story.state.states["b1"] == SERVING


def test_a_reload_forgets_nothing_but_what_is_gone() -> None:
    story = Story(spec("b1", "b2", "b3"))
    story.up("b1", "b2", "b3")
    story.down("b1")
    story.overrides.put(decided("b2", "drain"))
    story.advance()
    before = dict(story.state.states)
    story.under(spec("b1", "b2", "b3", slow_start=5.0, health=replace(PROBED, interval=9.0)))
    assert story.state.states == before
    story.under(spec("b2", "b3"))
    assert story.state.states == {"b2": DRAINING, "b3": SERVING}


def test_a_new_address_is_a_new_machine_on_the_old_tokens() -> None:
    story = Story(spec("b1", "b2"))
    story.up("b1", "b2")
    moved_on = spec("b1", "b2")
    backends = (replace(moved_on.backends[0], address=Address("127.0.0.1", 8000)), moved_on.backends[1])
    change = story.under(replace(moved_on, backends=backends))
    assert change.flips == (Flip("b1", "up", "unknown"),)
    assert story.state.states == {"b1": OUT, "b2": SERVING}
    assert story.state.weights == {"b1": 1.0, "b2": 1.0}


def test_effective_weights_are_those_that_are_not_the_files() -> None:
    story = Story(spec("b1", "b2"))
    story.overrides.put(decided("b2", "weight", 2.5))
    story.advance("override")
    assert effective_weights({"api": story.state}) == {("api", "b2"): 2.5}


def test_what_would_be_takes_nothing_from_the_pace_of_what_is() -> None:
    story = Story(spec("a", "b", "c", pace=0.05 / 60))
    story.up("a", "b", "c")
    story.overrides.put(decided("a", "weight", 3.0))
    story.advance("override")
    story.wait(5.0)
    weight = story.state.weights["a"]
    for _ in range(20):
        story.now += 1.0
        PoolState(story.state.spec, story.overrides, story.state).advance(story.now, "reload")
        story.advance()
    assert story.state.weights["a"] > weight

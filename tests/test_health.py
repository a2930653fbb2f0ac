"""Rise and fall, flaps, ejection and slow start: single stories, and a machine that tells them at random."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lbproxy.core.health import RAMP_STEPS, STATES, PoolHealth, ramp
from lbproxy.core.spec import Ejection, Health

PROBES = Health(kind="http", rise=2, fall=3, hold=5.0, longest_hold=60.0, forgive=100.0)


def pool_of(count: int, probes: Health = PROBES, ejection: Ejection | None = None, up: bool = True) -> PoolHealth:
    """Backends b0, b1, ... of which all are up, or unknown."""
    pool = PoolHealth(probes, ejection or Ejection())
    pool.keep([f"b{i}" for i in range(count)])
    if up and probes.kind != "none":
        for name in pool.backends:
            pool.observe_probe(name, True, 0.0)
    pool.advance(0.0)
    return pool


def probe(pool: PoolHealth, results: str, now: float = 1.0, name: str = "b0", every: float = 0.1) -> list[bool]:
    """Feed results such as "++-", and return for each whether it flipped the backend."""
    flips = []
    for result in results:
        flips.append(pool.observe_probe(name, result == "+", now))
        pool.advance(now)
        now += every
    return flips


class TestProbes:
    def test_the_first_result_decides(self) -> None:
        for result, state in (("+", "up"), ("-", "down")):
            pool = pool_of(2, up=False)
            assert pool.backends["b0"].state(0.0) == "unknown"
            assert probe(pool, result) == [True]
            assert pool.backends["b0"].state(1.0) == state

    def test_fall_needs_so_many_in_a_row(self) -> None:
        assert probe(pool_of(2), "--+--+---") == [False] * 8 + [True]

    def test_rise_needs_so_many_in_a_row(self) -> None:
        pool = pool_of(2)
        probe(pool, "---")
        assert probe(pool, "+-+-++", 2.0) == [False] * 5 + [True]

    def test_the_good_keep_no_account_of_old_failures(self) -> None:
        pool = pool_of(2)
        assert not any(probe(pool, "--+" * 50))
        assert pool.backends["b0"].streak == 0

    def test_a_new_backend_takes_no_keys_while_others_are_up(self) -> None:
        pool = pool_of(2)
        pool.keep(["b0", "b1", "new"])
        assert pool.serving(1.0) == {"b0", "b1"}
        probe(pool, "+", name="new")
        assert pool.serving(1.0) == {"b0", "b1", "new"}

    def test_at_a_cold_start_traffic_flows(self) -> None:
        pool = pool_of(3, up=False)
        assert pool.serving(0.0) == {"b0", "b1", "b2"}
        probe(pool, "-")
        assert pool.serving(1.0) == {"b1", "b2"}
        probe(pool, "+", name="b1")
        assert pool.serving(1.0) == {"b1"}

    def test_without_probes_a_backend_is_up(self) -> None:
        assert pool_of(2, Health(kind="none")).serving(0.0) == {"b0", "b1"}

    def test_state_outlives_the_configuration(self) -> None:
        pool = pool_of(3)
        probe(pool, "---")
        pool.keep(["b0", "b2", "b9"])
        states = {name: backend.state(2.0) for name, backend in pool.backends.items()}
        assert states == {"b0": "down", "b2": "up", "b9": "unknown"}


class TestFlaps:
    def test_ten_flaps_send_a_session_out_once_and_home_once(self) -> None:
        pool = pool_of(5)
        moves, now, was = [], 1.0, True
        for _ in range(10):
            for results in ("---", "++++++++++"):
                for result in results:
                    pool.observe_probe("b0", result == "+", now)
                    pool.advance(now)
                    if (is_in := "b0" in pool.serving(now)) != was:
                        moves.append((round(now, 1), is_in))
                        was = is_in
                    now += 0.2
        while len(moves) < 2:
            pool.observe_probe("b0", True, now)
            pool.advance(now)
            if "b0" in pool.serving(now):
                moves.append((round(now, 1), True))
            now += 0.2
        assert [is_in for _, is_in in moves] == [False, True]
        assert pool.backends["b0"].penalty == 1

    def test_a_slow_flap_is_held_longer_each_time(self) -> None:
        pool = pool_of(5)
        now, held = 1.0, []
        for _ in range(6):
            probe(pool, "---", now)
            probe(pool, "++", now + 1)
            held.append(round(pool.backends["b0"].held_until - (now + 1.1), 6))
            now = pool.backends["b0"].held_until + 1
            assert "b0" in pool.serving(now)
        assert held == [5, 10, 20, 40, 60, 60]

    def test_one_failure_on_trial_starts_the_trial_anew(self) -> None:
        pool = pool_of(5)
        probe(pool, "---++", 1.0)
        probe(pool, "+++-+", 5.0)
        assert pool.backends["b0"].state(10.2) == "held"
        assert pool.backends["b0"].held_until == pytest.approx(5.3 + 5)
        assert pool.backends["b0"].state(10.4) == "up"

    def test_a_penalty_is_forgiven(self) -> None:
        pool = pool_of(5)
        probe(pool, "---++", 1.0)
        up_at = pool.backends["b0"].held_until
        pool.advance(up_at + 99)
        assert pool.backends["b0"].penalty == 1
        pool.advance(up_at + 101)
        assert pool.backends["b0"].penalty == 0

    def test_a_penalty_is_not_forgiven_for_time_on_trial(self) -> None:
        pool = pool_of(5)
        probe(pool, "---++", 1.0)
        for second in range(2, 120, 4):  # each failure starts the trial anew, and it never serves
            probe(pool, "-+", float(second))
            assert pool.backends["b0"].state(second + 0.2) == "held"
        assert pool.backends["b0"].penalty == 1
        up_at = pool.backends["b0"].held_until
        pool.advance(up_at + 99)
        assert pool.backends["b0"].penalty == 1
        pool.advance(up_at + 101)
        assert pool.backends["b0"].penalty == 0

    def test_nobody_is_held_while_too_few_can_serve(self) -> None:
        pool = pool_of(4)
        for name in pool.backends:
            probe(pool, "---", name=name)
        assert pool.serving(2.0) == set()
        for count, name in enumerate(["b0", "b1", "b2", "b3"], start=1):
            probe(pool, "++", 2.0, name)
            assert len(pool.serving(2.5)) == min(count, 2)
        assert pool.advance(2.5) == pytest.approx(7.1)
        assert pool.serving(7.2) == {"b0", "b1", "b2", "b3"}


class TestEjection:
    POLICY = Ejection(consecutive_errors=3, base=10, max=60, max_share=0.5)

    RATE = Ejection(consecutive_errors=0, failure_rate=0.5, min_requests=20)

    def results(self, pool: PoolHealth, results: list[bool], now: float) -> list[bool]:
        return [pool.observe_counts("b0", int(ok), int(not ok), now) for ok in results]

    def test_for_so_long_after_a_streak(self) -> None:
        pool = pool_of(4, ejection=self.POLICY)
        assert pool.observe_streak("b0", 1.0)
        assert pool.backends["b0"].state(10.9) == "ejected"
        assert pool.advance(1.0) == 11.0
        assert pool.serving(11.0) == {"b0", "b1", "b2", "b3"}

    def test_longer_each_time_up_to_a_maximum(self) -> None:
        pool = pool_of(4, ejection=self.POLICY)
        now, spans = 1.0, []
        for _ in range(5):
            pool.observe_streak("b0", now)
            spans.append(pool.backends["b0"].ejected_until - now)
            now = pool.backends["b0"].ejected_until
        assert spans == [10, 20, 40, 60, 60]

    def test_good_service_is_remembered_too(self) -> None:
        pool = pool_of(4, ejection=self.POLICY)
        pool.observe_streak("b0", 0.0)
        pool.observe_streak("b0", 10.0)
        pool.advance(30.0 + 19)
        assert pool.backends["b0"].ejections == 2
        pool.advance(30.0 + 20)
        assert pool.backends["b0"].ejections == 1
        pool.observe_streak("b0", 30.0 + 40)
        assert pool.backends["b0"].ejected_until == 30 + 40 + 10

    def test_late_results_of_the_ejected_say_nothing(self) -> None:
        pool = pool_of(4, ejection=self.RATE)
        assert pool.observe_streak("b0", 1.0)
        assert not pool.observe_streak("b0", 5.0)
        assert not pool.observe_counts("b0", 0, 100, 5.0)
        assert not pool.observe_counts("b0", 0, 19, 11.0)
        assert pool.observe_counts("b0", 0, 1, 11.0)

    def test_at_most_a_share_of_the_pool(self) -> None:
        pool = pool_of(5, ejection=self.POLICY)
        for name in ("b0", "b1", "b2", "b3"):
            pool.observe_streak(name, 1.0)
        assert pool.serving(1.0) == {"b2", "b3", "b4"}
        assert pool.spared == 2
        pool.observe_streak("b2", 1.0)
        assert pool.spared == 3

    def test_the_share_itself_may_be_reached(self) -> None:
        pool = pool_of(4, ejection=self.POLICY)
        assert [pool.observe_streak(name, 1.0) for name in ("b0", "b1", "b2")] == [True, True, False]

    @pytest.mark.parametrize(("share", "count"), [(0.29, 100), (0.57, 100), (0.07, 100), (0.5, 4)])
    def test_the_share_is_the_decimal_that_was_written(self, share: float, count: int) -> None:
        """0.29 * 100 is 28.999999999999996 in floats."""
        pool = pool_of(count, ejection=replace(self.POLICY, max_share=share))
        ejected = [pool.observe_streak(f"b{number}", 1.0) for number in range(count)]
        assert sum(ejected) == round(share * count)

    def test_the_end_that_comes_first_is_announced(self) -> None:
        pool = pool_of(5, ejection=self.POLICY)
        pool.observe_streak("b0", 1.0)
        pool.observe_streak("b1", 4.0)
        assert [pool.advance(at) for at in (4.0, 11.0, 14.0)] == [11.0, 14.0, None]

    def test_the_last_one_that_serves_is_never_ejected(self) -> None:
        pool = pool_of(4, ejection=self.POLICY)
        for name in ("b1", "b2", "b3"):
            probe(pool, "---", name=name)
        assert not any(pool.observe_streak("b0", 2.0) for _ in range(3))
        assert (pool.serving(2.0), pool.spared) == ({"b0"}, 3)
        probe(pool, "++", 3.0, "b1")
        assert pool.observe_streak("b0", pool.backends["b1"].held_until + 1)

    def test_the_only_backend_is_never_ejected(self) -> None:
        pool = pool_of(1, ejection=self.POLICY)
        assert not pool.observe_streak("b0", 1.0)
        assert pool.serving(1.0) == {"b0"}

    def test_a_rate_of_failures_in_the_last_seconds(self) -> None:
        pool = pool_of(4, ejection=self.RATE)
        results = [True, False] * 9 + [False, False, False]
        assert self.results(pool, results, 101.0) == [False] * 19 + [True, False]

    def test_just_that_rate_is_not_above_it(self) -> None:
        pool = pool_of(4, ejection=self.RATE)
        assert not any(self.results(pool, [True, False] * 30, 101.0))

    @pytest.mark.parametrize("percent", [29, 57, 7])
    def test_just_that_rate_is_not_above_it_whatever_floats_make_of_it(self, percent: int) -> None:
        pool = pool_of(4, ejection=replace(self.RATE, failure_rate=percent / 100))
        assert not pool.observe_counts("b0", 100 - percent, percent, 101.0)
        assert pool.observe_counts("b0", 0, 1, 101.0)

    def test_successes_of_the_half_window_before_count(self) -> None:
        pool = pool_of(4, ejection=self.RATE)
        assert not pool.observe_counts("b0", 30, 0, 101.0)
        assert self.results(pool, [False] * 31, 106.0) == [False] * 30 + [True]

    def test_failures_of_long_ago_are_out_of_the_window(self) -> None:
        pool = pool_of(4, ejection=self.RATE)
        assert not pool.observe_counts("b0", 0, 19, 101.0)
        assert not any(self.results(pool, [False] * 19, 116.0))
        assert pool.observe_counts("b0", 0, 1, 121.0)

    def test_a_workers_streak_ejects_at_once_within_the_share(self) -> None:
        pool = pool_of(4, ejection=self.POLICY)
        assert pool.observe_streak("b0", 1.0)
        assert not pool.observe_streak("b0", 2.0)
        assert pool.observe_streak("b1", 2.0)
        assert not pool.observe_streak("b2", 2.0)
        assert (pool.serving(2.0), pool.spared) == ({"b2", "b3"}, 1)
        assert pool.observe_streak("b0", 11.0)
        assert pool.backends["b0"].ejection_s == 20

    def test_counted_results_eject_by_their_rate_alone(self) -> None:
        pool = pool_of(4, ejection=Ejection(consecutive_errors=3, failure_rate=0.5, min_requests=20))
        assert not pool.observe_counts("b0", 5, 14, 101.0)
        assert not pool.observe_counts("b0", 0, 0, 101.5)
        assert not pool.observe_counts("b0", 10, 0, 102.0)
        assert pool.observe_counts("b0", 0, 2, 103.0)
        assert not pool.observe_counts("b0", 0, 100, 104.0)
        quiet = pool_of(4, ejection=Ejection(consecutive_errors=3))
        assert not quiet.observe_counts("b0", 0, 1000, 101.0)


class TestDrain:
    def test_a_fact_of_its_own(self) -> None:
        pool = pool_of(3)
        assert pool.observe_drain("b0", True)
        assert not pool.observe_drain("b0", True)
        probe(pool, "---++")
        assert pool.backends["b0"].state(2.0) == "draining"
        assert pool.serving(2.0) == {"b1", "b2"}
        assert pool.observe_drain("b0", False)
        assert pool.backends["b0"].state(2.0) == "held"

    def test_the_draining_serve_nobody_even_alone(self) -> None:
        pool = pool_of(1)
        pool.observe_drain("b0", True)
        assert pool.serving(1.0) == set()


class TestSlowStart:
    def test_in_steps_from_a_tenth_to_all(self) -> None:
        shares = [ramp(elapsed, 10.0) for elapsed in (0, 0.9, 1, 5, 9.9, 10, 11)]
        assert shares == [0.1, 0.1, 0.2, 0.6, 1.0, 1.0, 1.0]

    @given(st.floats(0, 100), st.floats(0, 100), st.floats(0.001, 50))
    def test_it_only_grows(self, one: float, other: float, slow_start_s: float) -> None:
        sooner, later = sorted((one, other))
        assert 1 / RAMP_STEPS <= ramp(sooner, slow_start_s) <= ramp(later, slow_start_s) <= 1

    def test_off(self) -> None:
        assert ramp(0.0, 0.0) == 1.0

    def test_those_that_come_back_beside_others_start_slowly(self) -> None:
        pool = pool_of(3, ejection=Ejection(consecutive_errors=1, base=10))
        assert pool.share("b0", 0.0, 30.0) == 1.0
        pool.observe_streak("b0", 1.0)
        pool.advance(1.0)
        pool.advance(11.0)
        assert [pool.share("b0", at, 30.0) for at in (11.0, 26.0, 41.0)] == [0.1, 0.6, 1.0]
        assert pool.share("b1", 11.0, 30.0) == 1.0

    def test_those_that_must_carry_the_pool_start_at_once(self) -> None:
        pool = pool_of(2, up=False)
        for name in ("b0", "b1"):
            probe(pool, "-", 4.0, name)
        probe(pool, "++", 5.0)
        probe(pool, "++", 6.0, "b1")
        assert pool.share("b0", 5.1, 30.0) == 1.0
        assert pool.share("b1", 6.1, 30.0) == 0.1

    def test_those_that_begin_with_the_pool_start_at_once_whenever_their_first_result_comes(self) -> None:
        pool = pool_of(3, up=False)
        probe(pool, "+", 5.0)
        probe(pool, "+", 6.0, "b1")
        probe(pool, "-++", 6.0, "b2")
        pool.keep(["b0", "b1", "b2", "late"])
        probe(pool, "+", 7.0, "late")
        assert [pool.share(name, 7.0, 30.0) for name in pool.backends] == [1.0, 1.0, 0.1, 0.1]


class TestUnderAnotherConfiguration:
    def test_what_is_known_of_those_that_stay_stays_known(self) -> None:
        pool = pool_of(4, ejection=Ejection(consecutive_errors=1, base=10))
        probe(pool, "---")
        pool.observe_streak("b1", 1.0)
        pool.observe_drain("b2", True)
        heir = pool.under(PROBES, Ejection(), ["b0", "b1", "b2", "b9"])
        assert {name: each.state(2.0) for name, each in heir.backends.items()} == {
            "b0": "down",
            "b1": "ejected",
            "b2": "draining",
            "b9": "unknown",
        }
        assert heir.share("b9", 2.0, 30.0) == 1.0

    def test_it_is_a_copy(self) -> None:
        pool = pool_of(2)
        heir = pool.under(PROBES, Ejection(), ["b0"])
        probe(heir, "---")
        assert heir.backends["b0"].state(2.0) == "down"
        assert pool.backends["b0"].state(2.0) == "up"
        assert set(pool.backends) == {"b0", "b1"}

    def test_a_new_machine_under_an_old_name_is_unknown(self) -> None:
        pool = pool_of(3)
        heir = pool.under(PROBES, Ejection(), list(pool.backends), renewed=["b1"])
        assert heir.backends["b1"].state(1.0) == "unknown"
        assert heir.serving(1.0) == {"b0", "b2"}
        probe(heir, "+", 5.0, "b1")
        assert heir.share("b1", 5.0, 30.0) == 0.1

    def test_a_shorter_hold_is_shorter_at_once_and_a_longer_one_from_the_next_fall_on(self) -> None:
        pool = pool_of(4)
        probe(pool, "---++", 1.0)
        (held,) = [each for each in pool.backends.values() if each.state(2.0) == "held"]
        until = held.held_until

        def under(hold: float, longest: float = 60.0) -> float:
            probes = replace(PROBES, hold=hold, longest_hold=longest)
            return pool.under(probes, Ejection(), list(pool.backends)).backends["b0"].held_until

        assert [under(5.0), under(20.0), under(2.0), under(5.0, longest=4.0)] == [until, until, until - 3, until - 1]
        heir = pool.under(replace(PROBES, hold=20.0), Ejection(), list(pool.backends))
        probe(heir, "---++", 30.0)
        assert heir.backends["b0"].held_until == pytest.approx(30.4 + 40)

    def test_a_shorter_forgiveness_counts_the_service_that_there_was(self) -> None:
        pool = pool_of(4)
        probe(pool, "---++", 1.0)
        pool.advance(30.0)
        assert pool.backends["b0"].penalty == 1
        heir = pool.under(replace(PROBES, forgive=10.0), Ejection(), list(pool.backends))
        heir.advance(30.0)
        assert heir.backends["b0"].penalty == 0

    def test_a_shorter_ejection_is_shorter_at_once_and_a_longer_one_from_the_next_on(self) -> None:
        policy = Ejection(base=10, max=60)
        pool = pool_of(4, ejection=policy)
        pool.observe_streak("b0", 0.0)
        pool.observe_streak("b0", 10.0)  # for 20 s
        names = list(pool.backends)

        def until(pool: PoolHealth) -> float:
            return pool.backends["b0"].ejected_until

        changed = [
            pool.under(PROBES, changed_policy, names)
            for changed_policy in (policy, replace(policy, base=30), replace(policy, base=4), replace(policy, max=15))
        ]
        assert list(map(until, changed)) == [30.0, 30.0, 18.0, 25.0]
        again = [each.under(PROBES, each.ejection, names) for each in changed]
        assert list(map(until, again)) == [30.0, 30.0, 18.0, 25.0]
        longer, shorter = changed[1], changed[2]
        longer.observe_streak("b0", 30.0)
        assert until(longer) == 30.0 + 60.0
        shorter.observe_streak("b0", 18.0)
        assert until(shorter) == 18.0 + 16.0

    def test_how_long_it_was_is_not_forgotten_by_a_reload_of_something_else(self) -> None:
        pool = pool_of(4, ejection=Ejection(base=10, max=60))
        for start in (0.0, 10.0, 30.0):
            pool.observe_streak("b0", start)
        pool.advance(70.0 + 40.0)
        assert pool.backends["b0"].ejections == 2
        heir = pool.under(PROBES, pool.ejection, list(pool.backends))
        heir.advance(110.0 + 39.0)
        assert heir.backends["b0"].ejections == 2

    def test_without_ejection_nobody_stays_ejected(self) -> None:
        pool = pool_of(4)
        pool.observe_streak("b0", 1.0)
        names = list(pool.backends)
        by_rate = Ejection(consecutive_errors=0, failure_rate=0.5)
        assert pool.under(PROBES, by_rate, names).backends["b0"].state(2.0) == "ejected"
        assert pool.under(PROBES, Ejection(consecutive_errors=0), names).backends["b0"].state(2.0) == "up"

    def test_without_probes_nobody_stays_down(self) -> None:
        pool = pool_of(3)
        probe(pool, "---")
        heir = pool.under(Health(kind="none"), Ejection(), ["b0", "b1", "b2"])
        assert heir.serving(2.0) == {"b0", "b1", "b2"}
        again = heir.under(PROBES, Ejection(), ["b0", "b1", "b2"])
        assert again.serving(2.0) == {"b0", "b1", "b2"}


class Pool(RuleBasedStateMachine):
    """Random probes, results, drains and waiting, held against the plainest account of the same facts."""

    names = ("b0", "b1", "b2", "b3")

    @initialize(rise=st.integers(1, 4), fall=st.integers(1, 4))
    def start(self, rise: int, fall: int) -> None:
        self.rise, self.fall = rise, fall
        ejection = Ejection(base=8, max=64, max_share=0.5, failure_rate=0.5, min_requests=20)
        self.pool = pool_of(4, replace(PROBES, rise=rise, fall=fall), ejection, up=False)
        self.now = 1.0
        self.history: dict[str, list[bool]] = {name: [] for name in self.names}
        self.healthy: dict[str, bool | None] = dict.fromkeys(self.names)

    @rule(name=st.sampled_from(names), ok=st.booleans(), times=st.integers(1, 4))
    def probes(self, name: str, ok: bool, times: int) -> None:
        for _ in range(times):
            history = self.history[name]
            history.append(ok)
            before = self.healthy[name]
            needed = 1 if before is None else self.rise if ok else self.fall
            flips = ok is not before and len(history) >= needed and history[-needed:] == [ok] * needed
            assert self.pool.observe_probe(name, ok, self.now) == flips
            if flips:
                self.healthy[name] = ok
                history.clear()
            self.pool.advance(self.now)

    def is_out(self, name: str) -> bool:
        return self.pool.backends[name].ejected_until > self.now

    @rule(name=st.sampled_from(names))
    def streak(self, name: str) -> None:
        was_out, out, spared = self.is_out(name), sum(map(self.is_out, self.names)), self.pool.spared
        ejected = self.pool.observe_streak(name, self.now)
        assert not (ejected and (was_out or out >= 2))
        assert was_out or ejected != (self.pool.spared == spared + 1)

    @rule(name=st.sampled_from(names), good=st.integers(0, 30), bad=st.integers(0, 30))
    def results(self, name: str, good: int, bad: int) -> None:
        was_out, out = self.is_out(name), sum(map(self.is_out, self.names))
        before = self.pool.backends[name].counts
        ejected = self.pool.observe_counts(name, good, bad, self.now)
        assert not (ejected and (was_out or out >= 2 or not bad))
        assert not was_out or self.pool.backends[name].counts == before

    @rule(name=st.sampled_from(names), draining=st.booleans())
    def drains(self, name: str, draining: bool) -> None:
        self.pool.observe_drain(name, draining)
        self.pool.advance(self.now)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 20.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        promised = self.pool.advance(self.now)
        serving = self.pool.serving(self.now)
        if promised is None or promised > self.now + seconds:
            assert self.pool.serving(self.now + seconds) == serving
        self.now += seconds
        self.pool.advance(self.now)

    @invariant()
    def the_facts_are_consistent(self) -> None:
        now, backends = self.now, self.pool.backends
        for name, backend in backends.items():
            assert backend.healthy is self.healthy[name]
            assert not (backend.is_eligible(now) and backend.is_standby(now))
            assert backend.is_eligible(now) == (backend.state(now) == "up")
            assert backend.is_standby(now) == (backend.state(now) in ("unknown", "held"))
            assert backend.state(now) in STATES
            assert backend.held_until - now <= PROBES.longest_hold
            assert backend.ejected_until - now <= 64
        assert sum(backend.ejected_until > now for backend in backends.values()) <= 2
        states = {name: backend.state(now) for name, backend in backends.items()}
        up = {name for name, state in states.items() if state == "up"}
        assert self.pool.serving(now) == (up or {n for n, state in states.items() if state in ("unknown", "held")})


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=80, stateful_step_count=40)

"""Every phase, method, body and count, and the budget over time."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core.ledger import POOL_COLUMNS, POOL_RETRIES_REFUSED
from lbproxy.core.retry import (
    ALLOWED,
    ANSWERED,
    BEGUN,
    IDEMPOTENT,
    IMPOSSIBLE,
    NO_ATTEMPTS,
    NO_BUDGET,
    NO_BUFFER,
    NOT_IDEMPOTENT,
    REFUSALS,
    SENT,
    UNSENT,
    WINDOW_S,
    RetryBudget,
    RetryPolicy,
)
from lbproxy.core.spec import Retry

POLICY = RetryPolicy(Retry(attempts=3, statuses=(502, 503), methods=("PURGE",)))
METHODS = (b"GET", b"PUT", b"POST", b"PURGE", b"get")
REPEATABLE = (b"GET", b"PUT", b"PURGE")


class TestVerdict:
    def test_the_whole_table(self) -> None:
        for phase, method, attempts, is_kept, status in product(
            (UNSENT, SENT, ANSWERED, BEGUN), METHODS, (1, 2, 3, 4), (True, False), (0, 200, 500, 503)
        ):
            verdict = POLICY.verdict(phase, method, attempts, is_kept, status)
            if phase == BEGUN or (phase == ANSWERED and status != 503):
                assert verdict == IMPOSSIBLE
            elif phase != UNSENT and method not in REPEATABLE:
                assert verdict == NOT_IDEMPOTENT
            elif phase != UNSENT and not is_kept:
                assert verdict == NO_BUFFER
            elif attempts >= 3:
                assert verdict == NO_ATTEMPTS
            else:
                assert verdict == ALLOWED

    def test_what_was_never_sent_may_always_go_elsewhere(self) -> None:
        assert POLICY.verdict(UNSENT, b"POST", 2, is_kept=False) == ALLOWED

    def test_idempotent_as_rfc_9110_says(self) -> None:
        assert {b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"} == IDEMPOTENT
        for method in (b"POST", b"PATCH", b"CONNECT"):
            assert RetryPolicy(Retry()).verdict(SENT, method, 1, is_kept=True) == NOT_IDEMPOTENT

    def test_without_configured_statuses_an_answer_is_final(self) -> None:
        assert RetryPolicy(Retry()).verdict(ANSWERED, b"GET", 1, is_kept=True, status=503) == IMPOSSIBLE

    def test_only_what_may_have_given_a_backend_work_is_charged(self) -> None:
        assert [RetryPolicy.is_charged(phase) for phase in (UNSENT, SENT, ANSWERED)] == [False, True, True]

    def test_refusals_are_counted_under_the_names_the_ledger_has(self) -> None:
        columns = POOL_COLUMNS[POOL_RETRIES_REFUSED : POOL_RETRIES_REFUSED + len(REFUSALS)]
        assert tuple(column.labels for column in columns) == tuple((("reason", word),) for word in REFUSALS)
        assert [REFUSALS[each] for each in (NO_ATTEMPTS, NO_BUDGET, NO_BUFFER, NOT_IDEMPOTENT)] == list(REFUSALS)


class TestBudget:
    def test_a_quiet_pool_lives_on_the_floor(self) -> None:
        budget = RetryBudget(share=0.2, floor=3)
        assert [budget.spend(1.0, 0, 0) for _ in range(5)] == [True] * 3 + [False] * 2

    def test_a_share_of_what_came_in_lately_and_of_what_is_in_flight(self) -> None:
        budget = RetryBudget(share=0.2, floor=10, requests=1000)
        budget.advance(0.0, 1000)
        assert budget.left(5.0, 1500, 100) == 10 + 120
        assert budget.left(5.0, 1500, 0) == 10 + 100

    def test_the_share_is_the_decimal_that_was_written(self) -> None:
        """0.29 * 100 is 28.999999999999996 in floats."""
        assert [RetryBudget(share=0.29).left(5.0, count, 0) for count in (99, 100)] == [28, 29]

    def test_what_came_before_it_was_first_asked_counts(self) -> None:
        assert RetryBudget(share=0.2, floor=10, requests=300).left(5.0, 800, 0) == 10 + 100

    def test_a_count_that_has_begun_anew_takes_nothing_away(self) -> None:
        """A pool that comes back to a configuration may have other cells than before."""
        assert RetryBudget(share=0.5, floor=1, requests=1000).left(0.0, 0, 20) == 11

    def test_it_comes_back_with_time(self) -> None:
        budget = RetryBudget(share=0.0, floor=2)
        assert [budget.spend(at, 0, 0) for at in (0.0, 1.0, 2.0)] == [True, True, False]
        budget.advance(2.0 + WINDOW_S, 0)
        assert budget.left(3.0 + WINDOW_S, 0, 0) == 2

    def test_it_remembers_no_more_than_a_sample_a_second(self) -> None:
        budget = RetryBudget(share=0.2, floor=10)
        for tenth in range(400):
            budget.spend(tenth / 10, tenth, 0)
        assert len(budget._samples) <= 12

    def test_old_traffic_is_forgotten(self) -> None:
        budget = RetryBudget(share=0.5, floor=0)
        for second in range(40):
            budget.advance(float(second), min(second, 10) * 100)
        assert budget.left(40.0, 1000, 0) == 0

    def test_a_tenth_of_a_pool_dies_at_once(self) -> None:
        """Two hundred slow requests in flight, none of them new: those of one backend in five may all be repeated."""
        budget = RetryBudget(share=0.2, floor=10)
        budget.advance(0.0, 200)
        for second in range(1, 60):
            budget.advance(float(second), 200)
        assert sum(budget.spend(60.0, 200, 200) for _ in range(200)) == 50

    @given(
        st.floats(0, 1),
        st.integers(0, 20),
        st.lists(st.tuples(st.floats(0, 3), st.integers(0, 50), st.integers(0, 30)), max_size=40),
    )
    def test_never_more_than_the_share_of_the_window(
        self, share: float, floor: int, steps: list[tuple[float, int, int]]
    ) -> None:
        budget = RetryBudget(share, floor)
        now, requests = 0.0, 0
        came: list[tuple[float, int]] = []
        spent: list[float] = []
        budget.advance(now, requests)
        for elapsed, arrivals, wanted in steps:
            now += elapsed
            requests += arrivals
            came.append((now, arrivals))
            budget.advance(now, requests)
            spent.extend([now for _ in range(wanted) if budget.spend(now, requests, in_flight=0)])
            # The window reaches back to a sample that is at least its length old, and no further than one sample more.
            longest = WINDOW_S + 3 + WINDOW_S / 10
            live = sum(count for at, count in came if now - at <= longest)
            assert sum(now - at < WINDOW_S for at in spent) <= floor + share * live


@pytest.mark.parametrize("phase", [SENT, ANSWERED])
def test_a_body_that_was_not_kept_cannot_be_sent_again(phase: int) -> None:
    assert POLICY.verdict(phase, b"PUT", 1, is_kept=False, status=503) == NO_BUFFER

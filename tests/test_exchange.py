"""The tables of the exchange: every pair of states is decided, and decided consistently."""

from __future__ import annotations

from itertools import product

import pytest

from lbproxy.core import exchange as ex

PAIRS = list(product(range(len(ex.DOWNSTREAM_STATES)), range(len(ex.UPSTREAM_STATES))))
RUNNING = (ex.CONNECTING, ex.SENDING, ex.RESPONDING)


@pytest.mark.parametrize("table", [ex.WHEN_ATTEMPT_FAILS, ex.WHEN_CLIENT_LEAVES])
def test_every_pair_is_decided(table: ex.Table) -> None:
    assert len(table) == len(ex.DOWNSTREAM_STATES)
    for row in table:
        assert len(row) == len(ex.UPSTREAM_STATES)
        assert all(ex.IMPOSSIBLE <= action <= ex.ABANDON for action in row)


@pytest.mark.parametrize(("down", "up"), PAIRS)
def test_what_follows_from_a_failed_attempt(down: int, up: int) -> None:
    action = ex.WHEN_ATTEMPT_FAILS[down][up]
    has_request = down in (ex.BODY, ex.DONE)
    assert (action == ex.NEXT) == (has_request and up == ex.CONNECTING), "only what was never sent goes on freely"
    assert (action == ex.REPEAT) == (has_request and up == ex.SENDING), "what was sent is repeated only if it may be"
    assert (action == ex.CUT) == (has_request and up == ex.RESPONDING), "an answer that has begun is never repeated"
    if down == ex.GONE:
        assert action == ex.IGNORE, "the client going away is never the backend's fault"
    if action == ex.IMPOSSIBLE:
        assert up == ex.NONE or not has_request, "an attempt runs only for a request"


@pytest.mark.parametrize(("down", "up"), PAIRS)
def test_what_follows_from_a_client_that_leaves(down: int, up: int) -> None:
    action = ex.WHEN_CLIENT_LEAVES[down][up]
    if up in RUNNING:
        expected = ex.IGNORE if down == ex.GONE else ex.ABANDON if down in (ex.BODY, ex.DONE) else ex.IMPOSSIBLE
        assert action == expected, "a running attempt is dropped, whatever its phase"
    if down in (ex.IDLE, ex.HEAD):
        assert action in (ex.QUIT, ex.IMPOSSIBLE), "there is no request to account for"
    assert action not in (ex.NEXT, ex.REPEAT, ex.CUT), "nobody is left to answer"

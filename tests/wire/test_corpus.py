"""The raw-byte corpus against a whole lbproxy: supervisor, one worker, one backend, nothing in between."""

from __future__ import annotations

import asyncio

import pytest

from tests.wire.case import Case
from tests.wire.corpus import CASES
from tests.wire.play import Played, Result
from tests.wire.run import describe, run

# What lbproxy does otherwise, and why.
KNOWN = {
    "chunk-extension-no-name-refused": "the parser takes an extension without a name; none is ever passed on",
    "coding-empty-member-first-understood": "two readings are possible where Transfer-Encoding is not just chunked",
    "coding-empty-member-last-understood": "two readings are possible where Transfer-Encoding is not just chunked",
    "coding-empty-members-understood": "two readings are possible where Transfer-Encoding is not just chunked",
}


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Played:
    """All selected cases, run at once: the tests only read what came of them."""
    chosen = {item.name for item in request.session.items}
    return asyncio.run(run("lbproxy", [case for case in CASES if f"test_case[{case.id}]" in chosen]))


@pytest.fixture(scope="module")
def results(played: Played) -> dict[str, Result]:
    return {result.case.id: result for result in played.results}


def _parameter(case: Case) -> object:
    marks = [pytest.mark.xfail(reason=KNOWN[case.id], strict=True)] if case.id in KNOWN else []
    return pytest.param(case, id=case.id, marks=marks)


@pytest.mark.parametrize("case", [_parameter(case) for case in CASES])
def test_case(case: Case, results: dict[str, Result]) -> None:
    assert results[case.id].has_passed, "\n" + describe(results[case.id])


def test_the_requests_of_others_come_through_unharmed(played: Played) -> None:
    harmed = [result for result in played.bystander if not result.has_passed]
    assert not harmed, "\n" + describe(harmed[0])


def test_nothing_reaches_the_backend_that_belongs_to_nobody(played: Played) -> None:
    assert not [stray.show() for stray in played.strays]

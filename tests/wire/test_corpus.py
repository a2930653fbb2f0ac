"""The raw-byte corpus against a whole lbproxy: supervisor, one worker, one backend, nothing in between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tests.wire.case import Case
from tests.wire.corpus import CASES
from tests.wire.play import Result
from tests.wire.run import describe, run


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Mapping[str, Result]:
    """All selected cases, run at once: the tests only read what came of them."""
    chosen = {item.name for item in request.session.items}
    cases = [case for case in CASES if f"test_case[{case.id}]" in chosen]
    played, backend = asyncio.run(run("lbproxy", cases))
    assert not backend.strays(), [stray.show() for stray in backend.strays()]
    return {result.case.id: result for result in played}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case, results: Mapping[str, Result]) -> None:
    result = results[case.id]
    assert result.has_passed, "\n" + describe(result)

"""The connections are protocols in all but name, so that they can be compiled; nothing but this makes sure of it."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from lbproxy.dataplane.downstream import Downstream
from lbproxy.dataplane.upstream import Upstream

METHODS = [name for name, _ in inspect.getmembers(asyncio.Protocol, inspect.isfunction)]


@pytest.mark.parametrize("kind", [Downstream, Upstream])
def test_a_connection_has_every_method_that_the_loop_calls(kind: type[Downstream] | type[Upstream]) -> None:
    assert len(METHODS) == 6
    for name in METHODS:
        assert name in vars(kind), name

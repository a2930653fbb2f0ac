"""The event loops that tests run on: uvloop's, which the proxy has, and asyncio's own.

The two pause, close, and tell of a write error in other moments.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
import uvloop

Scene = Callable[..., Coroutine[Any, Any, None]]

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def on_uvloop(scene: Scene) -> Callable[..., None]:
    """Run a test on the loop that the proxy runs on."""

    @functools.wraps(scene)
    def test(*args: object, **kwargs: object) -> None:
        uvloop.run(scene(*args, **kwargs))

    return test


def on_both_loops(scene: Scene) -> Callable[..., None]:
    """Run a test on either loop."""

    @pytest.mark.parametrize("loop", LOOPS)
    @functools.wraps(scene)
    def test(*args: Any, loop: str, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(scene(*args, **kwargs))

    signature = inspect.signature(scene)
    loop = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    test.__dict__["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), loop])
    return cast(Callable[..., None], test)

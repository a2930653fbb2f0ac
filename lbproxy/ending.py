"""Running an event loop as what a process is there for, to an end that nothing holds up."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Coroutine
from typing import Any, Final

import uvloop

# Seconds that the loop may take to close when all work is done.
CLOSE_S: Final = 1.0


def run_to_end(main: Coroutine[Any, Any, int]) -> int:
    """Run `main`, and return the exit code that it returns.

    A loop waits for its threads before it closes, and one that looks up a name ends only when the resolver answers or
    gives up, which takes half a minute. Once `main` has returned there is nobody left to know the answer: a process
    that has not closed its loop within `CLOSE_S` ends without.
    """
    leaving: threading.Timer | None = None

    async def limited() -> int:
        nonlocal leaving
        code = await main
        leaving = threading.Timer(CLOSE_S, _leave, (code,))
        leaving.daemon = True
        leaving.start()
        return code

    try:
        return uvloop.run(limited())
    finally:
        if leaving is not None:
            leaving.cancel()


def _leave(code: int) -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # whether or not anybody reads
        os._exit(code)

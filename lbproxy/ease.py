"""Long work on an event loop that must not stand still (`core.pieces`)."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar

from lbproxy.core.pieces import Pieces

T = TypeVar("T")

# So many pieces may be done without a turn of the event loop.
AT_ONCE: Final = 4


async def at_ease(work: Pieces[T]) -> T:
    """Do all of it and return the result, with a turn of the event loop after every piece."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def begin(work: Generator[None, None, None]) -> bool:
    """Do the first pieces now; returns whether that was all. The rest is for `at_ease`."""
    for _ in range(AT_ONCE):
        try:
            next(work)
        except StopIteration:
            return True
    return False

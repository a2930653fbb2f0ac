"""Work that is long, cut into pieces, for whoever has something else to do meanwhile.

Long work is written as a generator that yields between pieces of a few milliseconds and returns its result. Who can
wait runs it with `at_once`; an event loop runs it with `ease.at_ease` and serves its traffic between the pieces.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Pieces = Generator[None, None, T]


def at_once(work: Pieces[T]) -> T:
    """Do all of it and return the result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result

"""What all viewers are shown: named pieces of HTML, each with the number of the look that last changed it.

A viewer says up to which number it has seen everything and gets what is newer. The pieces are made once for all
viewers, however many there are. When the frame itself changes (another pool, another backend), there are other pieces,
and viewers get the whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final


@final
class Board:
    """`number` grows with every look; `frame_number` is the one that last changed the frame."""

    def __init__(self) -> None:
        self.number = 0
        self.frame_number = 0
        self._frame: object = None
        self._pieces: dict[str, tuple[int, str]] = {}

    def show(self, frame: object, pieces: Iterable[tuple[str, str]]) -> None:
        """Take a new look: `frame` is anything that is equal while the same pieces are there in the same places."""
        self.number += 1
        known = self._pieces
        if frame != self._frame:
            self._frame = frame
            self.frame_number = self.number
            known = {}
        self._pieces = {
            name: known[name] if name in known and known[name][1] == html else (self.number, html)
            for name, html in pieces
        }

    def piece(self, name: str) -> str:
        return self._pieces[name][1]

    def since(self, number: int) -> dict[str, str] | None:
        """The pieces that are newer than what a viewer has seen; None when it needs the whole."""
        if not self.frame_number <= number <= self.number:
            return None
        return {name: html for name, (changed, html) in self._pieces.items() if changed > number}

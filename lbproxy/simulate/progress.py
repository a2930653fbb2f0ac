"""How far a long run has come, for whoever watches: one line on a terminal, nothing anywhere else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TextIO, final

# Begins the next part of the work and says whom to tell how far that has come, from 0 to 1.
Begin = Callable[[], Callable[[float], None]]

_WIDTH: Final = 30
_USUAL_COLUMNS: Final = 80
_QUIET_S: Final = 0.5
_PAUSE_S: Final = 0.1


@final
class Progress:
    """A bar over `parts` equal parts. It appears when a run takes longer than half a second and is gone at its end."""

    def __init__(self, sink: TextIO, parts: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink: Final = sink
        self._parts: Final = parts
        self._clock: Final = clock
        self._is_wanted: Final = sink.isatty()
        self._began: Final = clock()
        self._shown_at = 0.0
        self._done = 0

    def step(self) -> None:
        """Another part is done."""
        self._done += 1
        self.tell(0.0)

    def tell(self, part: float) -> None:
        """So much of the present part is done, from 0 to 1."""
        now = self._clock()
        if not self._is_wanted or now - self._began < _QUIET_S or now - self._shown_at < _PAUSE_S:
            return
        self._shown_at = now
        share = min(1.0, (self._done + part) / self._parts)
        bar = ("#" * round(share * _WIDTH)).ljust(_WIDTH, ".")
        left = (now - self._began) * (1 / share - 1) if share else 0.0
        # In the last column a terminal begins another line, which nobody would take away.
        line = f"[{bar}] {share:4.0%}, about {left:.0f} s to go "[: self._columns() - 1]
        self._sink.write(f"\r{line}\x1b[K")
        self._sink.flush()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._sink.fileno()).columns or _USUAL_COLUMNS
        except (OSError, ValueError):
            return _USUAL_COLUMNS

    def end(self) -> None:
        """Take the bar away."""
        if self._shown_at:
            self._sink.write("\r\x1b[K")
            self._sink.flush()
            self._shown_at = 0.0

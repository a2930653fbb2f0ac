"""Was the machine ours alone? What others took of the cores while a round ran, stolen time included."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.process import Process

LOUD = 0.1
"""A share of the cores from which on a round says little about anything but who else was running."""

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# Fields of a cpu line of /proc/stat that are neither idle nor counted twice: user nice system irq softirq steal.
_BUSY_FIELDS = (1, 2, 3, 6, 7, 8)


class Watch:
    """Compares how busy the cores were with what the known processes, this one and its ended children used."""

    def __init__(self, cores: Iterable[int], known: Iterable[Process]) -> None:
        self._cores = frozenset(cores)
        self._known = tuple(known)
        self._start = time.monotonic()
        self._busy = self._busy_s()
        self._ours = self._ours_s()

    def foreign_share(self) -> float:
        """The others' share of the cores since the start, 0 to 1; to be asked when no child of ours runs any more."""
        elapsed = (time.monotonic() - self._start) * len(self._cores)
        foreign = (self._busy_s() - self._busy) - (self._ours_s() - self._ours)
        return max(0.0, foreign / elapsed)

    def _busy_s(self) -> float:
        lines = (line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu"))
        wanted = {f"cpu{core}" for core in self._cores}
        return sum(int(fields[at]) for fields in lines if fields[0] in wanted for at in _BUSY_FIELDS) * _TICK_S

    def _ours_s(self) -> float:
        usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        return own + sum(process.usage().cpu_s for process in self._known)

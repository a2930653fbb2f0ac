"""A started program with all its children: pinned, measured through /proc, and stopped without a trace.

CPU time comes from /proc/PID/task/TID/schedstat, which counts nanoseconds of every thread; /proc/PID/stat knows the
same sum in ticks of 10 ms and is asked only for the split between user and system.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU used so far by a set of processes: exact in `cpu_s`, to a tick in its two parts."""

    pids: frozenset[int]
    cpu_s: float
    user_s: float
    system_s: float


class Process:
    """One program and everything it started."""

    def __init__(
        self, command: Sequence[str], cores: Iterable[int], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        """Start `command` on `cores`; its stdout and stderr go to the file `log`."""
        pinned = ("taskset", "--cpu-list", ",".join(map(str, sorted(cores))), *command)
        self.log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                pinned,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=log.parent,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def log_tail(self, lines: int = 20) -> str:
        """The last lines the program wrote, for an error message."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def tree(self) -> tuple[int, ...]:
        """The process ids of the program and its descendants, parents first."""
        children: dict[int, list[int]] = {}
        for pid, parent in _parents():
            children.setdefault(parent, []).append(pid)
        found = [self.pid]
        for pid in found:
            found.extend(sorted(children.get(pid, ())))
        return tuple(found)

    def usage(self) -> Usage:
        pids = self.tree()
        ticks = [_stat_fields(pid) for pid in pids]
        return Usage(
            pids=frozenset(pids),
            cpu_s=sum(map(_cpu_ns, pids)) / 1e9,
            user_s=sum(int(fields[11]) for fields in ticks) * _TICK_S,
            system_s=sum(int(fields[12]) for fields in ticks) * _TICK_S,
        )

    def busiest(self) -> int:
        """The process of the tree that has used most CPU: the worker."""
        return max(self.tree(), key=_cpu_ns)

    def rss_bytes(self) -> int:
        """Resident memory of the tree; pages shared between its processes are counted in each."""
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.tree()) * _PAGE_BYTES

    def pss_bytes(self) -> int:
        """Resident memory of the tree, each shared page divided among those that share it. Slower than RSS."""
        return sum(map(_pss_bytes, self.tree()))

    def stop(self) -> None:
        """SIGTERM to the program; SIGKILL to it after a bounded wait, and to any descendant that outlives it."""
        if self.has_ended():
            return
        born = {pid: _born(pid) for pid in self.tree()[1:]}
        self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        for pid, when in born.items():
            if when and _born(pid) == when:
                os.kill(pid, signal.SIGKILL)


def _born(pid: int) -> str:
    """When the process started: with its id, its identity. "" when there is none."""
    try:
        return _stat_fields(pid)[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _parents() -> Iterable[tuple[int, int]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                yield int(entry), int(_stat_fields(int(entry))[1])
            except (FileNotFoundError, ProcessLookupError):
                continue


def _stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from the third field (state) on: the second, the name, may hold spaces and parentheses."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_ns(pid: int) -> int:
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0

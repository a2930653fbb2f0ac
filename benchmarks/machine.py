"""What the machine gives: cores to pin to, descriptors, free ports, binaries, and how to describe it in a result."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Below the usual ephemeral range, so that no port picked here is some client's source port.
_FIRST_PORT = 18000
_LAST_PORT = 30000


@dataclass(frozen=True, slots=True)
class Placement:
    """The cores of the proxy, and those of wrk and the backends."""

    proxy: frozenset[int]
    load: frozenset[int]


def placement(workers: int) -> Placement:
    """One worker: a core each for the load and the proxy. More: as many cores, shared by both.

    Raises:
        SystemExit: fewer cores are usable than the comparison needs.
    """
    usable = sorted(_USABLE)
    needed = max(2, workers)
    if len(usable) < needed:
        raise SystemExit(f"benchmarks: {needed} usable cores are needed, this machine has {len(usable)}")
    if workers == 1:
        return Placement(proxy=frozenset(usable[1:2]), load=frozenset(usable[:1]))
    shared = frozenset(usable[:needed])
    return Placement(proxy=shared, load=shared)


# Read once, before this process is pinned itself.
_USABLE = os.sched_getaffinity(0)


def raise_descriptor_limit() -> int:
    """Lift this process's (and so its children's) soft limit of open files to the hard one; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _port_walk() -> Iterator[int]:
    for port in range(_FIRST_PORT, _LAST_PORT):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
    raise SystemExit(f"benchmarks: no free port between {_FIRST_PORT} and {_LAST_PORT}")


_ports = _port_walk()


def free_port() -> int:
    """A TCP port nobody listens on, never the same one twice."""
    return next(_ports)


def find_binary(name: str) -> str | None:
    """The program's path, from PATH or from beside the running Python (a venv's `bin`)."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(name) or shutil.which(name, path=beside)


def describe() -> str:
    """One line: processor, cores, memory, kernel, Python."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (
        f"{_processor()}, {len(_USABLE)} cores, {pages / 2**30:.0f} GiB, "
        f"{platform.system()} {platform.release()} {platform.machine()}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"

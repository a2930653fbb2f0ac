"""The backends and the proxies in front of them, started together, checked, and stopped together."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.backends import Backends
from benchmarks.loads import Load
from benchmarks.machine import Placement, free_port, placement, raise_descriptor_limit
from benchmarks.process import Process
from benchmarks.proxies import Backend, BenchmarkError, Proxy, Setting
from benchmarks.proxies.base import await_answer

_OUTPUT_LIMIT_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Started:
    """A running proxy."""

    proxy: Proxy
    setting: Setting
    process: Process

    @property
    def name(self) -> str:
        return self.proxy.name

    def shorten_log(self) -> None:
        """Empty the access log, and stdout where that holds it, so that long runs do not fill the disk."""
        for log, limit in ((self.setting.folder / "access.log", 0), (self.process.log, _OUTPUT_LIMIT_BYTES)):
            if log.exists() and log.stat().st_size > limit:
                os.truncate(log, 0)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything that runs for the loads of one number of workers."""

    folder: Path
    workers: int
    cores: Placement
    backends: Backends
    started: tuple[Started, ...]

    def carrying(self, load: Load) -> tuple[Started, ...]:
        """Those that this load is for."""
        return tuple(each for each in self.started if not each.proxy.loads or load.name in each.proxy.loads)

    def processes(self) -> list[Process]:
        """All that was started."""
        return [self.backends.process, *(started.process for started in self.started)]


@contextmanager
def fleet(proxies: Iterable[Proxy], workers: int, log: bool = False) -> Iterator[Fleet]:
    """Start the backends and every proxy with so many workers; this process moves to the load's cores.

    `log` gives the proxies other than lbproxy an access log too.
    """
    cores = placement(workers)
    os.sched_setaffinity(0, cores.load)
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="lbproxy-bench-", ignore_cleanup_errors=True))
        )
        backends = Backends(folder / "backends", cores.load, len(cores.load))
        stack.callback(backends.stop)
        started = tuple(
            stack.enter_context(running(proxy, folder, cores, workers, backends.members, log)) for proxy in proxies
        )
        yield Fleet(folder, workers, cores, backends, started)


@contextmanager
def running(
    proxy: Proxy, folder: Path, cores: Placement, workers: int, backends: tuple[Backend, ...], log: bool
) -> Iterator[Started]:
    """One proxy, from its first answer on until the block ends.

    Raises:
        BenchmarkError: it did not start.
    """
    own = folder / proxy.name
    own.mkdir(parents=True)
    setting = Setting(
        folder=own,
        port=free_port(),
        admin_port=free_port(),
        workers=workers,
        backends=backends,
        log=log,
        connections=raise_descriptor_limit() * 3 // 4,
    )
    command = proxy.command(setting)
    try:
        process = Process(command, cores.proxy, own / "output.log", proxy.environment(setting))
    except OSError as error:
        raise BenchmarkError(f"{proxy.name} did not start: {error}") from error
    try:
        await_answer(process, proxy.name, setting.port)
        yield Started(proxy, setting, process)
    finally:
        process.stop()
        shutil.rmtree(own, ignore_errors=True)

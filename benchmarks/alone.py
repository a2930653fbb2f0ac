"""lbproxy's data plane alone in one process: no supervisor, no probes, no admin. Run as a program, for profilers.

What it does per request is what a worker does: same snapshot, same slab, same access log.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import signal
import sys
from pathlib import Path

import uvloop

from lbproxy.control.config import load
from lbproxy.core.snapshot import build_snapshot
from lbproxy.core.spec import Config
from lbproxy.dataplane.listener import DataPlane
from lbproxy.observe.access_log import AccessLog
from lbproxy.observe.slabs import Layout, Slabs
from lbproxy.sockets import listen
from lbproxy.supervisor import row_keys


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--cprofile", type=Path, metavar="FILE", help="profile from start to end into this file")
    options = parser.parse_args()
    profiler = cProfile.Profile() if options.cprofile else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if profiler:
            profiler.enable()
        runner.run(_serve(load(options.config)))
    if profiler:
        profiler.disable()
        profiler.dump_stats(options.cprofile)


async def _serve(config: Config) -> None:
    loop = asyncio.get_running_loop()
    rows = Layout().assign(row_keys(config), 1)
    cells = Slabs.create(1).cells[0]
    snapshot = build_snapshot(config, 1, rows, cells=cells)
    log = AccessLog(config.log.access, cells, rows[("worker",)], lambda trouble: print(trouble, file=sys.stderr))
    log.start(loop)
    plane = DataPlane(loop, snapshot, cells, log.note)
    await plane.start({listener.name: listen(listener.bind).sockets[0] for listener in config.listeners})
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()
    await plane.drain(1.0)
    log.close()


if __name__ == "__main__":
    main()

"""lbproxy under load, for looking inside: `python -m benchmarks.profile`.

--seconds 10                                          CPU per request, user and system, and the worker's pid
--attach "py-spy record -p {pid} -d {seconds} -o spy.svg"    run this meanwhile, on the worker
--attach "perf record -g -p {pid} -o perf.data sleep {seconds}"
--cprofile out.prof                                   the data plane alone under cProfile; prints the top of it
--alone                                               the data plane alone, without supervisor, probes and admin
"""

from __future__ import annotations

import argparse
import pstats
import shlex
import subprocess
import sys
from pathlib import Path

from benchmarks import loads, proxies
from benchmarks.fleet import Fleet, Started, fleet
from benchmarks.loads import Load
from benchmarks.machine import raise_descriptor_limit
from benchmarks.proxies.lbproxy import DataPlaneAlone, LBProxy
from benchmarks.rounds import measure
from benchmarks.selfcheck import check_load, check_sticky

_WARM_UP_S = 1
_TOP = 30


def main() -> int:
    """Exit code: 0, or 1 when a figure could not be taken."""
    options = _parser().parse_args()
    if options.cprofile or options.alone:
        proxy: proxies.Proxy = DataPlaneAlone(options.cprofile)
    else:
        proxy = LBProxy()
    chosen, _ = loads.select([options.load])
    raise_descriptor_limit()
    try:
        with fleet([proxy], 1) as running:
            check_sticky(running.started[0])
            check_load(running.started[0], chosen[0])
            _look(chosen[0], running, running.started[0], options)
    except proxies.BenchmarkError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    if options.cprofile:
        pstats.Stats(str(options.cprofile)).sort_stats("tottime").print_stats(_TOP)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    keyed = [load.name for load in loads.LOADS]
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--load", default="small", choices=keyed)
    parser.add_argument("--attach", metavar="COMMAND", help="with {pid} of the worker and {seconds}")
    parser.add_argument("--cprofile", type=Path, metavar="FILE")
    parser.add_argument("--alone", action="store_true")
    return parser


def _look(load: Load, running: Fleet, started: Started, options: argparse.Namespace) -> None:
    measure(load, running, started, _WARM_UP_S)
    pid = started.process.busiest()
    print(f"worker {pid}, port {started.setting.port}, for {options.seconds} s", flush=True)
    watcher = None
    if options.attach:
        watcher = subprocess.Popen(shlex.split(options.attach.format(pid=pid, seconds=options.seconds)))
    before = started.process.usage()
    taken = measure(load, running, started, options.seconds)
    after = started.process.usage()
    if watcher:
        watcher.wait(options.seconds + 60)
    user, system = after.user_s - before.user_s, after.system_s - before.system_s
    print(
        f"{taken.requests_per_s:,.0f} requests/s, {taken.cpu_us:.2f} us of CPU a request "
        f"({user / (user + system):.0%} user), core {taken.busy:.0%} busy, "
        f"median {taken.median_us:,.0f} us, p99 {taken.p99_us:,.0f} us"
    )


if __name__ == "__main__":
    sys.exit(main())

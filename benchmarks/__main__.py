"""`python -m benchmarks`: all loads, all proxies found, tables on stdout."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks import loads, proxies, results_file
from benchmarks.figures import CheckResult, LoadResult
from benchmarks.goals import Results
from benchmarks.machine import describe
from benchmarks.proxies.lbproxy import LBProxy
from benchmarks.report import tables
from benchmarks.session import Plan, run


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 when every figure was taken, 1 when something failed, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    plan = _plan(options)
    try:
        results = run(plan)
    except proxies.BenchmarkError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    print("\n\n".join(table.text() for table in tables(results)))
    if options.json:
        _write_json(options.json, plan, results)
    if options.write:
        command = ["python", "-m", "benchmarks", *(sys.argv[1:] if arguments is None else arguments)]
        results_file.write(plan, results, command)
        print(f"written: {results_file.PATH}", file=sys.stderr)
    return 1 if results.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--starts", type=int, default=1, help="how often all programs are started anew (default: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each load after each start (default: 5)")
    parser.add_argument("--seconds", type=int, default=5, help="length of one measurement (default: 5)")
    parser.add_argument("--only", type=_names, help="proxies, such as nginx,haproxy,lbproxy (default: all installed)")
    parser.add_argument("--loads", type=_names, help=f"of {', '.join(_known_loads())} (default: all)")
    parser.add_argument("--workers", type=int, default=1, help="workers of each proxy where the load does not say")
    parser.add_argument("--all-log", action="store_true", help="nginx and the others write an access log too")
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="also run the lbproxy of this checkout beside")
    parser.add_argument("--idle-connections", type=int, default=10_000, metavar="N")
    parser.add_argument("--full", action="store_true", help="the slow upload with 2 GB (default: 256 MB)")
    parser.add_argument("--json", metavar="FILE", help="all figures of all rounds, as JSON; - is stdout")
    parser.add_argument("--write", action="store_true", help=f"write {results_file.PATH.name} beside this program")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _known_loads() -> list[str]:
    return [load.name for load in loads.LOADS] + list(loads.CHECKS)


def _plan(options: argparse.Namespace) -> Plan:
    chosen, checks = loads.select(options.loads)
    compared = proxies.select(options.only)
    if options.baseline:
        compared.append(LBProxy("baseline", options.baseline))
    return Plan(
        proxies=compared,
        loads=chosen,
        checks=checks,
        rounds=options.rounds,
        starts=options.starts,
        seconds=options.seconds,
        workers=options.workers,
        log=options.all_log,
        idle_connections=options.idle_connections,
        upload_bytes=2 * 2**30 if options.full else 256 * 2**20,
        upload_rate=100e6 if options.full else 50e6,
    )


def _write_json(target: str, plan: Plan, results: Results) -> None:
    everything: tuple[LoadResult | CheckResult, ...] = (*results.loads.values(), *results.checks.values())
    text = json.dumps(
        {
            "machine": describe(),
            "versions": {proxy.name: proxy.version() for proxy in plan.proxies},
            "results": [asdict(result) for result in everything],
            "failures": results.failures,
        },
        indent=2,
    )
    if target == "-":
        print(text)
    else:
        Path(target).write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())

"""One whole run: which loads, with which proxies, in which fleets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from benchmarks.figures import CheckResult, LoadResult
from benchmarks.fleet import fleet
from benchmarks.goals import Results
from benchmarks.loads import Load
from benchmarks.machine import find_binary, raise_descriptor_limit
from benchmarks.memory import run_idle, run_slow_upload
from benchmarks.proxies import BenchmarkError, Proxy
from benchmarks.ring import run_ring
from benchmarks.rounds import run_load, say
from benchmarks.selfcheck import check_load, check_sticky


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: so many `rounds` of a load in each of so many `starts` of all programs. `upload_rate` is in
    bytes per second."""

    proxies: Sequence[Proxy]
    loads: Sequence[Load]
    checks: Sequence[str] = ()
    rounds: int = 5
    seconds: int = 5
    starts: int = 1
    workers: int = 1
    log: bool = False
    idle_connections: int = 10_000
    upload_bytes: int = 256 * 2**20
    upload_rate: float = 50e6

    def workers_of(self, load: Load) -> int:
        return load.workers or self.workers


@dataclass(slots=True)
class _Taken:
    loads: dict[str, LoadResult] = field(default_factory=dict)
    checks: dict[str, CheckResult] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, result: LoadResult) -> None:
        before = self.loads.get(result.load)
        self.loads[result.load] = before.joined(result) if before else result

    def fail(self, error: BenchmarkError) -> None:
        self.failures.append(str(error))
        say(f"FAILED {error}")


def run(plan: Plan) -> Results:
    """Take all the figures. A load or check that fails is among the failures, has no figures, and the others go on.

    Raises:
        BenchmarkError: a proxy did not start, or is not sticky.
        SystemExit: a tool is missing.
    """
    if plan.loads and find_binary("wrk") is None:
        raise SystemExit("benchmarks: wrk makes the load and is not installed")
    raise_descriptor_limit()
    taken = _Taken()
    for workers, group in groupby(sorted(plan.loads, key=plan.workers_of), key=plan.workers_of):
        _run_loads(plan, workers, list(group), taken)
    for name in plan.checks:
        try:
            taken.checks[name] = _run_check(plan, name)
        except BenchmarkError as error:
            taken.fail(error)
    in_order = {load.name: taken.loads[load.name] for load in plan.loads if load.name in taken.loads}
    return Results(in_order, taken.checks, tuple(taken.failures))


def _run_loads(plan: Plan, workers: int, loads: list[Load], taken: _Taken) -> None:
    for start in range(plan.starts):
        with fleet(plan.proxies, workers, plan.log) as running:
            for started in running.started:
                check_sticky(started)
            say(f"{workers} worker(s): {', '.join(started.name for started in running.started)}: all sticky")
            for load in list(loads):
                try:
                    for started in running.carrying(load):
                        check_load(started, load)
                    taken.add(run_load(load, running, plan.rounds, plan.seconds, start))
                except BenchmarkError as error:
                    taken.fail(error)
                    taken.loads.pop(load.name, None)
                    loads.remove(load)


def _run_check(plan: Plan, name: str) -> CheckResult:
    if name == "ring":
        return run_ring()
    compared = [proxy for proxy in plan.proxies if not proxy.loads]
    with fleet((), 1) as running:
        if name == "idle":
            return run_idle(compared, running, plan.idle_connections)
        return run_slow_upload(compared, running, plan.upload_bytes, plan.upload_rate)

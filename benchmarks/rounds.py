"""Interleaved rounds: in each, every proxy carries the load once, in an order that turns from round to round."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from benchmarks import wrk
from benchmarks.figures import DIRECT, LoadResult, Round
from benchmarks.fleet import Fleet, Started
from benchmarks.loads import Load
from benchmarks.proxies import BenchmarkError
from benchmarks.quiet import LOUD, Watch

_WARM_UP_S = 1
_SETTLE_S = 0.2


def run_load(load: Load, running: Fleet, rounds: int, seconds: int, start: int = 0) -> LoadResult:
    """Warm every proxy up, then measure, memory in two rounds at least. `start` is how often all of them were started
    before.

    Raises:
        BenchmarkError: a round failed; the load has no result then.
    """
    compared = running.carrying(load)
    if load.watch_memory:
        rounds = max(2, rounds)  # one tells of no growth
    for started in compared:
        measure(load, running, started, _WARM_UP_S)
    taken: dict[str, list[Round]] = {DIRECT: []} if load.direct else {}
    taken |= {started.name: [] for started in compared}
    for number in range(rounds):
        turn = (start * rounds + number) % len(compared)
        if load.direct:
            taken[DIRECT].append(measure(load, running, None, seconds))
        for started in (*compared[turn:], *compared[:turn]):
            taken[started.name].append(measure(load, running, started, seconds))
        say(f"{load.name} {number + 1}/{rounds}: " + _rates(taken))
    complaints = [complaint for started in compared for complaint in started.proxy.complaints(started.setting)]
    loudest = max(each.foreign for every in taken.values() for each in every)
    if loudest > LOUD:
        complaints.append(
            f"other programs took up to {loudest:.0%} of the cores in a round: do not rely on these figures"
        )
    rounds_taken = {name: tuple(replace(each, start=start) for each in every) for name, every in taken.items()}
    return LoadResult(load.name, load.title, rounds_taken, tuple(complaints))


def measure(load: Load, running: Fleet, started: Started | None, seconds: int) -> Round:
    """One run of wrk against a proxy, or (None) against a backend.

    Raises:
        BenchmarkError: whatever makes the figures worthless.
    """
    try:
        if started is None:
            return _figures(
                wrk.run(load, running.backends.members[0].port, seconds, running.cores.load, running.folder)
            )
        return _measure_proxy(load, running, started, seconds)
    except (BenchmarkError, OSError) as error:
        name = started.name if started else DIRECT
        tail = started.process.log_tail() if started else ""
        raise BenchmarkError(f"{load.name}: {name}: {error}\n{tail}".rstrip()) from error


def say(line: str) -> None:
    """Progress, on stderr: stdout is for the result."""
    print(line, file=sys.stderr, flush=True)


def _rates(taken: dict[str, list[Round]]) -> str:
    return "  ".join(f"{name} {rounds[-1].requests_per_s:,.0f}/s" for name, rounds in taken.items())


def _measure_proxy(load: Load, running: Fleet, started: Started, seconds: int) -> Round:
    started.shorten_log()
    peaks = [0]
    sample = (lambda: peaks.append(started.process.rss_bytes())) if load.watch_memory else None
    served = running.backends.served()
    watch = Watch(running.cores.proxy | running.cores.load, running.processes())
    before = started.process.usage()
    result = wrk.run(load, started.setting.port, seconds, running.cores.load, running.folder, sample)
    after = started.process.usage()
    foreign = watch.foreign_share()
    time.sleep(_SETTLE_S)
    if after.pids != before.pids:
        raise BenchmarkError(f"its processes changed from {sorted(before.pids)} to {sorted(after.pids)}")
    _compare_served(load, result.requests, running.backends.served() - served - 1)
    cpu_s = after.cpu_s - before.cpu_s
    return replace(
        _figures(result),
        cpu_us=cpu_s * 1e6 / result.requests,
        busy=cpu_s / result.duration_s / len(running.cores.proxy),
        peak_rss_bytes=max(peaks),
        foreign=foreign,
    )


def _compare_served(load: Load, requests: int, served: int) -> None:
    """What wrk counted must have reached a backend: nothing answered from elsewhere, nothing sent twice.

    Requests cut off when wrk stops, and the proxies' probes, account for small differences.
    """
    slack = load.connections + requests * 0.01 + 100
    if not requests <= served <= requests + slack:
        raise BenchmarkError(f"wrk counted {requests} requests, the backends served {served}")


def _figures(result: wrk.WrkResult) -> Round:
    """What wrk alone can tell."""
    return Round(
        requests_per_s=result.requests / result.duration_s,
        megabytes_per_s=result.received_bytes / result.duration_s / 1e6,
        median_us=result.median_us,
        p99_us=result.p99_us,
    )

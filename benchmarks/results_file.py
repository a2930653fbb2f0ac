"""RESULTS.md: the tables with what is needed to read them, and to take them again."""

from __future__ import annotations

import importlib.metadata
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.goals import Results
from benchmarks.machine import describe
from benchmarks.report import tables
from benchmarks.session import Plan

PATH = Path(__file__).with_name("RESULTS.md")

_LIBRARIES = ("uvloop", "httptools", "aiohttp", "xxhash")

_PAGE = """\
# lbproxy side by side

Written by `{command}` on {date}.

**Machine.** {machine}.

**Versions.** {versions}.

## Method

- {placement}
- {rounds} rounds of {seconds} s a load after a warm-up, interleaved: each round measures every proxy once, in an order
  that turns. Figures are medians of the rounds; `spread` is (largest - smallest) / median of the requests per second.
- wrk sends requests of many users in turn. Any error, any status above 399, or a number of requests other than the
  backends counted makes the load fail. Before it, each proxy showed that it is sticky, and answered with the right
  length.
- CPU is the time of all the proxy's processes and threads (`/proc/PID/task/TID/schedstat`), supervisors included, per
  request; `busy` is its share of the proxy's cores. Where `busy` is well below 100 % the load's core was the limit, and
  the CPU columns say more than the requests per second.
- Absolute figures belong to this machine; ratios within one table are what carries over.

What is switched on:

{features}

{logs}

{tables}
"""


def page(plan: Plan, results: Results, command: Iterable[str]) -> str:
    """The whole text of RESULTS.md."""
    return _PAGE.format(
        command=shlex.join(command),
        date=datetime.now(UTC).date().isoformat(),
        machine=describe(),
        versions=", ".join([*(f"{proxy.name} {proxy.version()}" for proxy in plan.proxies), *_libraries()]),
        placement=_placement(plan),
        rounds=plan.rounds,
        seconds=plan.seconds,
        features="\n".join(f"- {proxy.name}: {proxy.features}." for proxy in plan.proxies),
        logs=_logs(plan),
        tables="\n\n".join(table.markdown() for table in tables(results)),
    )


def _placement(plan: Plan) -> str:
    if plan.workers == 1:
        return (
            "Each proxy with one worker (thread, processor) pinned to one core; wrk and four nginx backends pinned to "
            "another. Keep-alive to the backends."
        )
    return f"Each proxy with {plan.workers} workers on {plan.workers} cores, which wrk and four nginx backends share."


def _logs(plan: Plan) -> str:
    if plan.log:
        return "All of them write an access log to a file."
    return "Only lbproxy writes an access log; the others run without one, which is their fastest."


def _libraries() -> list[str]:
    return [f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES]

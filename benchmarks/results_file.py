"""RESULTS.md: the tables with what is needed to read them, and to take them again.

`python -m benchmarks --write` writes the first part, up to and with the section "Method". Every other section is of
somebody else and stays: of another benchmark, which writes it by the same `--write`, or notes by hand.
"""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.goals import Results
from benchmarks.machine import describe, find_binary
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
  that turns. {starts}Figures are medians of all rounds; `spread` is (largest - smallest) / median of the
  requests per second.
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
{build}

{tables}
"""
_OWN: Final = "Method"


def write(plan: Plan, results: Results, command: Iterable[str], path: Path = PATH) -> None:
    """Put the tables into RESULTS.md; the sections of others stay behind them."""
    before = path.read_text() if path.exists() else ""
    others = [text for title, text in sections(before).items() if title not in ("", _OWN)]
    path.write_text("\n".join([page(plan, results, command), *others]))


def write_section(title: str, body: str, path: Path = PATH) -> None:
    """Put a section of another benchmark into RESULTS.md, in the place of what it said before."""
    known = sections(path.read_text())
    known[title] = f"## {title}\n\n{body.strip()}\n"
    path.write_text("\n".join(known.values()))


def sections(text: str) -> dict[str, str]:
    """The sections of a page by title, each with its heading; what is before the first one is ""."""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return {
        part.partition("\n")[0].removeprefix("## ") if at else "": part.strip() + "\n" for at, part in enumerate(parts)
    }


def page(plan: Plan, results: Results, command: Iterable[str]) -> str:
    """What this program knows: the head of RESULTS.md, and the section with the tables."""
    return _PAGE.format(
        command=shlex.join(command),
        date=datetime.now(UTC).date().isoformat(),
        machine=describe(),
        versions=", ".join([*(f"{proxy.name} {proxy.version()}" for proxy in plan.proxies), *_libraries()]),
        placement=_placement(plan),
        rounds=plan.rounds,
        starts=_starts(plan),
        seconds=plan.seconds,
        features="\n".join(f"- {proxy.name}: {proxy.features}." for proxy in plan.proxies),
        logs=_logs(plan),
        build=_build(),
        tables="\n\n".join(table.markdown() for table in tables(results)),
    )


def _starts(plan: Plan) -> str:
    if plan.starts == 1:
        return ""
    return (
        f"All this {plan.starts} times with all programs started anew, for one and the same differs by up to a third\n"
        "  from one start to the next. "
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


def _build() -> str:
    """How the data plane of the lbproxy that was measured is built, as it says itself."""
    asked = [find_binary("lbproxy") or "lbproxy", "version"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True)
    if "dataplane compiled" in said.stdout:
        return "lbproxy's data plane was compiled, as an installation is where there are a C compiler and Python.h."
    return "lbproxy's data plane was interpreted, as it is in a checkout and where there is no C compiler."


def _libraries() -> list[str]:
    return [f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES]

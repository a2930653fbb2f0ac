"""A hot key over real sockets: `python -m benchmarks.hotkey`.

Ten backends that take 200 ms a request, a real `lbproxy run` with two workers, and clients in a closed loop who ask for
2,000 users and, in each phase, one hot user more with a larger part of the traffic. It prints which requests were
served off their owner (the ring's word) by the backends' own records: of the hot user's neighbours, who have the same
owner, and of all others; what the backends held at most over the mean; the cold users' 99th percentile; and how long it
took until the hot user was found, and forgotten.

Two settings: 200 clients with everything at its default, and 1,000 clients with the hard bound (`min_gap: 0`). A run
takes about two minutes. Only loopback is used.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks import results_file
from benchmarks.hotkey_load import Phase, World, hot_users
from benchmarks.machine import describe, find_binary, free_port, raise_descriptor_limit
from benchmarks.process import Process
from benchmarks.proxies import BenchmarkError
from benchmarks.proxies.base import await_answer
from lbproxy.core.hashing import hash_key

BACKENDS: Final = 10
USERS: Final = 2000
SHARES: Final = (0.0, 0.1, 0.2, 0.4)
# What the neighbours and the others may lose, by the hot user's share.
AT_MOST: Final = {0.0: 0.01, 0.1: 0.01, 0.2: 0.01, 0.4: 0.02}
FOUND_WITHIN_S: Final = 2.0
FORGOTTEN_WITHIN_S: Final = 10.0
PEAK_AT_MOST: Final = 1.30
P99_AT_MOST: Final = 1.2
# After a change of the traffic, how long until it counts.
SETTLE_S: Final = 3.0
_POLL_S: Final = 0.05

_CONFIG: Final = """\
version: 1
listen: 127.0.0.1:{port}
workers: {workers}
pools:
  bench:
{options}    backends:
{backends}
admin: {{listen: "127.0.0.1:{admin_port}"}}
log: {{level: warning, access: {{path: {folder}/access.log, format: json}}}}
"""


TITLE: Final = "A hot key over real sockets"
_SECTION: Final = """\
`python -m benchmarks.hotkey` on {date}: {backends} equal backends of 200 ms, {workers} workers, {users:,} cold keys,
factor 1.25, closed loop, {seconds:g} s a point, on {machine} (load average at the end: {loads}).
*Neighbours away* are cold requests of the hot key's owner that left it, *others away* other cold requests off their
owner; `busiest` and `peak` are the most that a backend held, on average and at any time, over the mean, and `held` is
that peak as a number; `of cold` is the p99 of cold keys over that without a hot key. HAProxy 2.6 and Envoy 1.40 at 200
in flight: neighbours 36 and 32 % at a hot share of 10 %, 55 and 56 % at 20 %, 74 and 70 % at 40 %; others 4 to 6 %
without any hot key.

{table}
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """How many clients, and what the configuration says beyond the defaults."""

    clients: int
    options: str = ""

    @property
    def is_hard(self) -> bool:
        return "min_gap: 0" in self.options


SETTINGS: Final = (Setting(200), Setting(1000, "bounded_load: {min_gap: 0}"))


@dataclass(frozen=True, slots=True)
class Point:
    """One phase's figures. `found_s` and `forgotten_s` are None without a hot user, or when it did not come to it.

    `busiest` and `peak` are over the mean of what the backends held. That is less than what the clients have asked for,
    by what is on its way; on a busy machine by a good deal. So the bound is judged by `peak_held`, the most that one
    backend held, against the clients' number.
    """

    clients: int
    min_gap: str
    hot: float
    neighbours_away: float | None
    others_away: float
    hot_away: float | None
    in_flight: float
    busiest: float
    peak: float
    peak_held: int
    p99_ms: float
    p99_ratio: float
    found_s: float | None
    forgotten_s: float | None
    requests: int
    errors: int

    def complaints(self) -> list[str]:
        """What is not as it must be."""
        found = []
        limit = AT_MOST[self.hot]
        if (self.neighbours_away or 0) > limit or self.others_away > limit:
            found.append(f"more than {limit:.0%} off their owner")
        if self.hot and (self.found_s is None or self.found_s > FOUND_WITHIN_S):
            found.append(f"not found within {FOUND_WITHIN_S:g} s")
        if self.hot and (self.forgotten_s is None or self.forgotten_s > FORGOTTEN_WITHIN_S):
            found.append(f"not forgotten within {FORGOTTEN_WITHIN_S:g} s")
        if self.min_gap == "0" and self.peak_held > PEAK_AT_MOST * self.clients / BACKENDS:
            found.append(f"a backend held {self.peak_held}, more than {PEAK_AT_MOST:g} times its part")
        if self.p99_ratio > P99_AT_MOST:
            found.append(f"p99 above {P99_AT_MOST:g} of that without a hot user")
        if self.errors:
            found.append(f"{self.errors} errors")
        return found


class _Watch:
    """Asks the admin API again and again which keys are hot."""

    def __init__(self, admin_port: int) -> None:
        self._url = f"http://127.0.0.1:{admin_port}/v1/pools/bench/hot-keys"
        self.seen: dict[str, list[tuple[float, bool]]] = {}
        self._task = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        known: set[str] = set()
        while True:
            hot = await loop.run_in_executor(None, self._hot)
            now = time.monotonic()
            for key in hot ^ known:
                self.seen.setdefault(key, []).append((now, key in hot))
            known = hot
            await asyncio.sleep(_POLL_S)

    def _hot(self) -> set[str]:
        with urllib.request.urlopen(self._url, timeout=5) as answer:
            document: dict[str, Any] = json.load(answer)
        return {row["hash"] for row in document["keys"] if row["hot"]}

    def first(self, user: bytes, is_hot: bool, after: float) -> float | None:
        """How long after that moment the user began, or ceased, to be hot."""
        changes = self.seen.get(f"0x{hash_key(user):016x}", [])
        times = [at - after for at, became_hot in changes if became_hot == is_hot and at >= after]
        return (times[0] if is_hot else times[-1]) if times else None

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


async def run(setting: Setting, workers: int, seconds: float, seed: int, say: Callable[[str], None]) -> list[Point]:
    """Start everything for one setting, go through the phases, and stop it."""
    world = World(BACKENDS, USERS, seed)
    with ExitStack() as stack:
        stack.callback(world.close)
        await world.start()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lbproxy-hotkey-")))
        port, admin_port = free_port(), free_port()
        config = folder / "lbproxy.yaml"
        config.write_text(_config(setting, world, folder, port, admin_port, workers))
        command = (find_binary("lbproxy") or "lbproxy", "run", "-c", str(config))
        proxy = Process(command, os.sched_getaffinity(0), folder / "output.log")
        stack.callback(proxy.stop)
        await asyncio.get_running_loop().run_in_executor(None, await_answer, proxy, "lbproxy", port, "/")
        watch = _Watch(admin_port)
        try:
            await world.connect(port, setting.clients)
            phases = await _phases(world, seconds, say)
            await asyncio.sleep(FORGOTTEN_WITHIN_S + 1)
        finally:
            await watch.end()
        if proxy.has_ended():
            raise BenchmarkError(f"lbproxy ended:\n{proxy.log_tail()}")
    return [_point(setting, phase, phases[0][1], watch, began, ended) for began, phase, ended in phases]


async def _phases(world: World, seconds: float, say: Callable[[str], None]) -> list[tuple[float, Phase, float]]:
    """One phase for each share, and when it began and ended."""
    users = hot_users(world, len(SHARES))
    phases = []
    for share, user in zip(SHARES, users, strict=True):
        phase = Phase(user if share else b"", share)
        world.begin(phase)
        began = time.monotonic()
        await asyncio.sleep(SETTLE_S)
        world.count()
        await asyncio.sleep(seconds)
        world.end()
        phases.append((began, phase, time.monotonic()))
        say(f"hot share {share:.0%}: done")
    world.begin(Phase())
    return phases


def _config(setting: Setting, world: World, folder: Path, port: int, admin_port: int, workers: int) -> str:
    return _CONFIG.format(
        port=port,
        admin_port=admin_port,
        workers=workers,
        folder=folder,
        options=f"    {setting.options}\n" if setting.options else "",
        backends="\n".join(
            f"      - {{name: {name}, url: 'http://127.0.0.1:{at}'}}"
            for name, at in zip(world.names, world.ports, strict=True)
        ),
    )


def _point(setting: Setting, phase: Phase, cold: Phase, watch: _Watch, began: float, ended: float) -> Point:
    hot = phase.share > 0
    return Point(
        clients=setting.clients,
        min_gap="0" if setting.is_hard else "auto",
        hot=phase.share,
        neighbours_away=phase.neighbours.share if hot else None,
        others_away=phase.others.share,
        hot_away=phase.hot_count.share if hot else None,
        in_flight=phase.in_flight,
        busiest=phase.busiest_over_mean,
        peak=phase.peak_over_mean,
        peak_held=max(phase.peak),
        p99_ms=phase.p99_s() * 1e3,
        p99_ratio=phase.p99_s() / cold.p99_s() if cold.p99_s() else 0.0,
        found_s=watch.first(phase.hot, True, began) if hot else None,
        forgotten_s=watch.first(phase.hot, False, ended) if hot else None,
        requests=phase.hot_count.requests + phase.neighbours.requests + phase.others.requests,
        errors=phase.errors,
    )


def table(points: Sequence[Point]) -> str:
    """The figures in Markdown."""
    lines = [
        "| in flight | min_gap | hot share | neighbours away | others away | hot user away | busiest | peak | held "
        "| p99, ms | of cold | found | forgotten |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for point in points:
        cells = [
            f"{point.in_flight:.0f}",
            point.min_gap,
            f"{point.hot:.0%}",
            _share(point.neighbours_away),
            _share(point.others_away),
            _share(point.hot_away),
            f"{point.busiest:.2f}",
            f"{point.peak:.2f}",
            str(point.peak_held),
            f"{point.p99_ms:.0f}",
            f"{point.p99_ratio:.2f}",
            _seconds(point.found_s),
            _seconds(point.forgotten_s),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def section(points: Sequence[Point], workers: int, seconds: float) -> str:
    """What RESULTS.md says of the figures."""
    return _SECTION.format(
        date=datetime.now(UTC).date().isoformat(),
        backends=BACKENDS,
        workers=workers,
        users=USERS,
        seconds=seconds,
        machine=describe(),
        loads=", ".join(f"{each:.1f}" for each in os.getloadavg()),
        table=table(points),
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.2f} %"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def main() -> int:
    """Run both settings and print the table; 1 when a figure is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hotkey", description="A hot key over real sockets.")
    parser.add_argument("--clients", type=int, choices=[setting.clients for setting in SETTINGS], help="one setting")
    parser.add_argument("--workers", type=int, default=2, help="of the proxy (default 2)")
    parser.add_argument("--seconds", type=float, default=10.0, help="counted in each phase (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="other users, other draws")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help=f"put the table into {results_file.PATH.name}")
    options = parser.parse_args()
    raise_descriptor_limit()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    points: list[Point] = []
    for setting in SETTINGS:
        if options.clients in (None, setting.clients):
            say(f"{setting.clients} clients")
            points += uvloop.run(run(setting, options.workers, options.seconds, options.seed, say))
    if options.json:
        rows = [{name: getattr(point, name) for name in Point.__slots__} for point in points]
        print(json.dumps({"machine": describe(), "workers": options.workers, "points": rows}, indent=2))
    else:
        print(f"{describe()}; {options.workers} workers\n\n{table(points)}")
    if options.write:
        results_file.write_section(TITLE, section(points, options.workers, options.seconds))
        say(f"written: {results_file.PATH}")
    complaints = [
        f"{point.clients} clients, hot share {point.hot:.0%}: {complaint}"
        for point in points
        for complaint in point.complaints()
    ]
    for complaint in complaints:
        say(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

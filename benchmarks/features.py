"""What each capability costs a request: `python -m benchmarks.features`.

The same lbproxy under several configurations, one of which is the default and each other one lacks something, in the
same interleaved rounds with small keyed GETs. In every round each configuration is compared with the default of that
round, and the middle of these differences is the cost. A negative cost is noise, and shows how large that is; so does
the range from the smallest to the largest difference. Under 90 s.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any, Final

import yaml

from benchmarks import loads, proxies, results_file
from benchmarks.figures import Round
from benchmarks.proxies.base import Setting
from benchmarks.proxies.lbproxy import LBProxy, render
from benchmarks.report import Table
from benchmarks.session import Plan, run
from lbproxy.dataplane import settling

TITLE: Final = "What each capability costs"
DEFAULT: Final = "default"
_UNCOUNTED: Final = Path(__file__).with_name("uncounted")


@dataclass(frozen=True, slots=True)
class Variant:
    """A configuration: what it changes in the pool and at the top level, section by section."""

    name: str
    pool: Mapping[str, Mapping[str, Any]]
    top: Mapping[str, Mapping[str, Any]]


VARIANTS: Final = (
    Variant(DEFAULT, {}, {}),
    Variant("hot keys off", {"hot_keys": {"mode": "off"}}, {}),
    Variant("bounded load off", {"bounded_load": {"factor": None}}, {}),
    Variant(
        "health, ejection, retry off",
        {"health": {"kind": "none"}, "ejection": {"consecutive_errors": 0}, "retry": {"attempts": 1, "buffer": 0}},
        {},
    ),
    Variant("access log off", {}, {"log": {"access": {"path": ""}}}),
)
UNCOUNTED: Final = Variant("metrics counting off", {}, {})
SCRAPED: Final = Variant("scraped every second", {}, {})


class Changed(LBProxy):
    """lbproxy under the configuration of a variant."""

    def __init__(self, variant: Variant, env: Mapping[str, str] | None = None) -> None:
        super().__init__(variant.name.replace(" ", "-").replace(",", ""), env=env)
        self.variant = variant

    def command(self, setting: Setting) -> Sequence[str]:
        config = setting.folder / "lbproxy.yaml"
        config.write_text(yaml.safe_dump(changed(yaml.safe_load(render(setting)), self.variant)))
        return (self.binary() or "lbproxy", "run", "-c", str(config))

    def complaints(self, setting: Setting) -> list[str]:
        return [] if "log" in self.variant.top else super().complaints(setting)


class Scraped(Changed):
    """The default, whose metrics somebody reads every second: what that does to others is seen in their p99."""

    def command(self, setting: Setting) -> Sequence[str]:
        Thread(target=_scrape, args=(setting.admin_port,), daemon=True).start()
        return super().command(setting)


def _scrape(port: int) -> None:
    """Read the metrics page every second, from when it is there until the program ends."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/metrics")
            connection.getresponse().read()
        except OSError:
            pass  # not there yet, or not any more
        finally:
            connection.close()
        time.sleep(1.0)


def changed(config: dict[str, Any], variant: Variant) -> dict[str, Any]:
    """The configuration with what the variant changes; a changed section is replaced."""
    (pool,) = config["pools"].values()
    pool.update({name: dict(section) for name, section in variant.pool.items()})
    config.update({name: dict(section) for name, section in variant.top.items()})
    return config


def compared(seen: Mapping[str, str]) -> list[Changed]:
    """The proxies to measure; without the one that does not count when lbproxy is compiled and cannot be changed."""
    found: list[Changed] = [Changed(variant) for variant in VARIANTS]
    found.append(Scraped(SCRAPED))
    if str(settling.__file__).endswith(".py"):
        path = [str(_UNCOUNTED), *filter(None, [seen.get("PYTHONPATH")])]
        found.append(Changed(UNCOUNTED, {"PYTHONPATH": ":".join(path)}))
    return found


def table(rounds: Mapping[str, Sequence[Round]], names: Mapping[str, str], complaints: tuple[str, ...]) -> Table:
    """One row a configuration. `rounds` by proxy, of which `names` are the variants."""
    (base,) = [rounds[proxy] for proxy, name in names.items() if name == DEFAULT]
    rows = tuple(_row(name, rounds[proxy], base) for proxy, name in names.items())
    columns = (
        "configuration",
        "requests/s",
        "CPU us",
        "cost us",
        "from",
        "to",
        "cost % of CPU",
        "cost % of requests/s",
        "p99 us",
    )
    return Table("What it costs a small keyed GET, 64 keep-alive connections", columns, rows, complaints)


def section(found: Table, rounds: int, seconds: int) -> str:
    """What RESULTS.md says of the figures."""
    return (
        f"`python -m benchmarks.features` on {datetime.now(UTC).date().isoformat()}: the same lbproxy with and without "
        f"what is named, {rounds} rounds\nof {seconds} s, interleaved, one worker on one core. `cost` is the middle of "
        "the differences to the default within a round;\n`from` and `to` are the smallest and the largest, and a "
        f"negative one shows how much is noise.\n\n{found.markdown()}\n"
    )


def _row(name: str, rounds: Sequence[Round], base: Sequence[Round]) -> tuple[str, ...]:
    figures = (
        f"{median(each.requests_per_s for each in rounds):,.0f}",
        f"{median(each.cpu_us for each in rounds):.1f}",
    )
    p99 = f"{median(each.p99_us for each in rounds):,.0f}"
    if rounds is base:
        return (name, *figures, *("",) * 5, p99)
    pairs = list(zip(base, rounds, strict=True))
    costs = [ours.cpu_us - without.cpu_us for ours, without in pairs]
    of_cpu = median((ours.cpu_us - without.cpu_us) / ours.cpu_us for ours, without in pairs)
    of_rate = median(1 - ours.requests_per_s / without.requests_per_s for ours, without in pairs)
    shares = (f"{of_cpu * 100:.1f}", f"{of_rate * 100:.1f}")
    return (name, *figures, f"{median(costs):.2f}", f"{min(costs):.2f}", f"{max(costs):.2f}", *shares, p99)


def main() -> int:
    """Measure and print; 1 when something failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=__doc__)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", default="small", help="another load, such as browser or close")
    parser.add_argument("--write", action="store_true", help=f"put the table into {results_file.PATH.name}")
    options = parser.parse_args()
    chosen, _ = loads.select([options.load])
    variants = compared(os.environ)
    try:
        results = run(Plan(variants, chosen, (), options.rounds, options.seconds))
    except proxies.BenchmarkError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    for result in results.loads.values():
        names = {each.name: each.variant.name for each in variants}
        found = table(result.rounds, names, result.complaints)
        print(found.text())
        if options.write:
            results_file.write_section(TITLE, section(found, options.rounds, options.seconds))
    if all(each.variant is not UNCOUNTED for each in variants):
        print("! lbproxy is compiled here: what counting costs can only be measured when it is not")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())

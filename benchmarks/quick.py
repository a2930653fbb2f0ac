"""`python -m benchmarks.quick`: small keyed GETs, lbproxy against nginx and HAProxy, in under 40 s."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import loads, proxies
from benchmarks.proxies.lbproxy import LBProxy
from benchmarks.report import tables
from benchmarks.session import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quick", description=__doc__)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="nginx,haproxy,lbproxy")
    parser.add_argument("--load", default="small", help="another load, such as browser or close")
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="also run the lbproxy of this checkout beside")
    options = parser.parse_args()
    chosen, checks = loads.select([options.load])
    compared = proxies.select(options.only.split(","))
    if options.baseline:
        compared.append(LBProxy("baseline", options.baseline))
    try:
        results = run(Plan(compared, chosen, checks, options.rounds, options.seconds))
    except proxies.BenchmarkError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    print("\n\n".join(table.text() for table in tables(results)))
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""The command line of `lbproxy simulate`: what may be said, and the values it stands for.

Only what argparse needs is imported here, because the program's whole command line is built for every command.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, Final

PRESETS: Final = {
    "seeds": "what moves from 4 backends to 5, by algorithm; and shares of 20/80 that become 55/45",
    "vnodes": "how even the shares are, by tokens per backend",
    "jump": "linear probing against random jump (arXiv 1908.08762)",
    "hot": "what a hot key does to everybody else, with and without spreading it",
    "gap": "requests turned away for nothing against the peak, by min_gap",
}

_DESCRIPTION: Final = """\
Run the core that routes on imagined or recorded traffic: shares, what a change moves, spill, peaks. Nothing is sent.
Without a preset the options describe pool, traffic and change; with one they may narrow it.
"""

_EXAMPLES: Final = """\
presets:
{presets}

examples:
  lbproxy simulate --hot 20% --workers 4            one key with a fifth of the traffic
  lbproxy simulate -c lbproxy.yaml --add b4=2       a real pool, and what one more backend would move
  lbproxy simulate --from-log access.log --speed 2  yesterday's traffic, twice as fast
  lbproxy simulate --algorithms all --zipf 0.9      the other algorithms beside it
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser everything that `lbproxy simulate` takes. What was not said is None."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES.format(presets="\n".join(f"  {name:<8}{text}" for name, text in PRESETS.items()))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("preset", nargs="?", choices=PRESETS, metavar="PRESET", help=", ".join(PRESETS))

    pool = parser.add_argument_group("the pool")
    pool.add_argument("-c", "--config", metavar="FILE", help="take the pool from a configuration")
    pool.add_argument("--pool", metavar="P", help="which of its pools, if there are several; with a log, which to read")
    pool.add_argument("--backends", type=_backends, metavar="N", help="how many, or a=1,b=2 by weight (default 10)")
    pool.add_argument("--vnodes", type=whole(1, 100_000), metavar="N", help="tokens per weight 1 (default 1024)")
    pool.add_argument("--factor", type=_factor, metavar="F", help="the bound's factor, or off (default 1.25)")
    pool.add_argument("--min-gap", type=_gap, metavar="N", help="seats above the share always allowed (default auto)")
    pool.add_argument("--hot-keys", choices=("spread", "spill", "off"), help="what is done about them (default spread)")

    traffic = parser.add_argument_group("the traffic")
    traffic.add_argument("--keys", type=whole(1, 10_000_000), metavar="N", help="how many users (default 2000)")
    traffic.add_argument("--zipf", type=_number(0, 10), metavar="S", help="the k-th asks like k to the -S (default 0)")
    traffic.add_argument(
        "--hot", type=_share, metavar="SHARE", help="one more user's part of the traffic, such as 20%%"
    )
    traffic.add_argument("--hot-from", type=_duration, metavar="T", help="when that begins (default at once)")
    traffic.add_argument("--hot-until", type=_duration, metavar="T", help="when that ends (default never)")
    traffic.add_argument("--clients", type=whole(1, 1_000_000), metavar="N", help="in a closed loop (default 200)")
    traffic.add_argument("--rate", type=_number(0.001, 1e7), metavar="R", help="instead: requests a second, no loop")
    traffic.add_argument("--service", type=_service, metavar="T", help="how long an answer takes (default 200ms)")
    traffic.add_argument("--spread", type=_share, metavar="SHARE", help="give or take this part of it (default 10%%)")
    traffic.add_argument("--from-log", metavar="FILE", help="instead of all these: a JSON access log, - for stdin")
    traffic.add_argument("--speed", type=_number(0.001, 1000), metavar="X", help="how many times as fast as it came")

    run = parser.add_argument_group("the run")
    run.add_argument("--seconds", type=_number(0.1, 1e6), metavar="N", help="of simulated time (default 20)")
    run.add_argument("--warm-up", type=_number(0, 1e6), metavar="N", help="seconds of it that do not count (default 3)")
    run.add_argument("--workers", type=whole(1, 64), metavar="N", help="processes of the proxy (default 1)")
    run.add_argument("--seed", type=whole(0, 10**9), metavar="N", help="other chances, other users (default 1)")
    run.add_argument("--trials", type=whole(1, 10_000), metavar="N", help="in presets: how often, with other users")
    run.add_argument("--algorithms", type=_names, metavar="LIST", help="all, or some: " + ", ".join(_ALGORITHMS))

    change = parser.add_argument_group("a change, and what it moves")
    change.add_argument("--add", type=_member(1.0), action="append", metavar="B[=W]", help="a backend more")
    change.add_argument("--remove", action="append", metavar="B", help="a backend less")
    change.add_argument("--weight", type=_member(None), action="append", metavar="B=W", help="another weight")

    output = parser.add_argument_group("the output")
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--plot", type=_picture, metavar="FILE", help="draw a chart as SVG")


# As scenes.ALGORITHMS has them; a test holds the two together.
_ALGORITHMS: Final = (
    "lbproxy", "bounded", "random-jump", "ring", "one-point", "rendezvous", "maglev", "jump", "partitions", "mod",
)  # fmt: skip
_MOST_DIGITS: Final = 18
# Time must go on when clients ask again as soon as they are answered, and what is much less is nothing to the clock.
_LEAST_SERVICE_S: Final = 1e-6
_UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def whole(least: int, most: int) -> Callable[[str], int]:
    """What reads a whole number within these bounds."""

    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} to {most}")

    return read


def _number(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = _float(text)
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not a number from {least:g} to {most:g}")
        return value

    return read


def _float(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d*)?|\.\d+", text, flags=re.ASCII) else None


def _share(text: str) -> float:
    value = _float(text.removesuffix("%").rstrip())
    if value is not None and text.endswith("%"):
        value /= 100
    if value is None or value >= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share such as 20% or 0.2")
    return value


def _duration(text: str) -> float:
    found = re.fullmatch(r"([\d.]+)(ms|s|m|h)", text, flags=re.ASCII)
    value = _float(found[1]) if found else None
    if found is None or value is None:
        raise argparse.ArgumentTypeError(f"{text} is not a duration such as 200ms or 5s")
    return value * _UNITS[found[2]]


def _service(text: str) -> float:
    value = _duration(text)
    if value < _LEAST_SERVICE_S:
        raise argparse.ArgumentTypeError(f"{text} is too short: an answer takes 0.001ms at the least")
    return value


def _factor(text: str) -> float | str:
    if text == "off":
        return text
    value = _float(text)
    if value is None or value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 up, nor off")
    return value


def _gap(text: str) -> int | str:
    if text == "auto":
        return text
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number, nor auto")
    return int(text[:9])


def _member(default: float | None) -> Callable[[str], tuple[str, float]]:
    def read(text: str) -> tuple[str, float]:
        name, equals, weight = text.partition("=")
        value = _float(weight) if equals else default
        if not name or value is None:
            raise argparse.ArgumentTypeError(f"{text} is not a backend with its weight, such as b2=1.5")
        return name, value

    return read


def _backends(text: str) -> tuple[tuple[str, float], ...]:
    if text.isascii() and text.isdigit():
        count = whole(1, 10_000)(text)
        return tuple((f"b{number}", 1.0) for number in range(1, count + 1))
    members = tuple(_member(1.0)(part.strip()) for part in text.split(","))
    if len(dict(members)) < len(members):
        raise argparse.ArgumentTypeError("a backend is named twice")
    if not any(weight for _, weight in members):
        raise argparse.ArgumentTypeError("no backend has a weight")
    return members


def _names(text: str) -> tuple[str, ...]:
    if text == "all":
        return _ALGORITHMS
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in _ALGORITHMS:
            raise argparse.ArgumentTypeError(f"there is no algorithm {name}; there are {', '.join(_ALGORITHMS)}")
    return names


def _picture(text: str) -> str:
    if not text.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{text} does not end in .svg, the one format that can be drawn")
    return text


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was really said, by option."""
    kept = {name: value for name, value in vars(arguments).items() if value is not None and value is not False}
    kept.pop("command", None)
    return kept

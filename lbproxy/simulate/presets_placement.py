"""Presets about placement alone, without load: seeds, vnodes and jump. Each reproduces known figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final

from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import hash_key
from lbproxy.simulate.bins import mean_filling
from lbproxy.simulate.changes import moved_keys
from lbproxy.simulate.placements import placements
from lbproxy.simulate.plot import Chart, Series
from lbproxy.simulate.progress import Begin
from lbproxy.simulate.report import Column, Report, Row, Table, Value

# seeds

FROM: Final = 4
TO: Final = 5
SEEDS_KEYS: Final = 100_000
SEEDS_VNODES: Final = 150
# The two servers of the worked example, on a circle of 1,000.
_ONE_POINT: Final = {"X": [100], "Y": [900]}
_THREE_POINTS: Final = {"X": [150, 450, 750], "Y": [300, 600, 900]}


def seeds(progress: Begin, keys: int = SEEDS_KEYS, vnodes: int = SEEDS_VNODES) -> Report:
    """From four servers to five, and two servers with one point and with three."""
    hashes = [hash_key(b"key%d" % number) for number in range(keys)]
    before = [(f"server{number}", 1.0) for number in range(FROM)]
    after = [(f"server{number}", 1.0) for number in range(TO)]
    rows: list[Row] = []
    for name, place in placements(vnodes).items():
        progress()
        first = place(before)
        found = moved_keys(first, first.changed(after), (before, after), hashes, [1.0] * keys)
        rows.append({"algorithm": name, "moved": found.keys, "needless": found.needless})
    rows.sort(key=lambda row: (-float(row["moved"] or 0), str(row["algorithm"])))
    moves = Table(
        "moves",
        f"From {FROM} backends to {TO}: which part of {keys:,} keys moves (ring: {vnodes} tokens each)",
        (
            Column("algorithm", "algorithm"),
            Column("moved", "moved", "fine"),
            Column("needless", "needlessly", "fine"),
        ),
        tuple(rows),
    )
    shares = Table(
        "shares",
        "Two equal backends on a circle of 1,000 positions",
        (Column("points", "points each", "count"), Column("x", "X owns", "share"), Column("y", "Y owns", "share")),
        tuple(_shares_of_two(points) for points in (_ONE_POINT, _THREE_POINTS)),
    )
    chart = Chart(
        title=f"Keys that move from {FROM} backends to {TO}",
        description="One bar per algorithm; the least possible is a fifth.",
        x_label="algorithm",
        y_label="keys moved",
        series=(Series("moved", tuple((float(at), float(row["moved"] or 0)) for at, row in enumerate(rows))),),
        kind="bars",
        groups=tuple(str(row["algorithm"]) for row in rows),
        is_percent=True,
    )
    return Report("seeds", {"keys": keys, "vnodes": vnodes}, (moves, shares), (chart,))


def _shares_of_two(points: Mapping[str, Sequence[int]]) -> Row:
    count = len(points["X"])
    ring = build_ring([("X", 1), ("Y", 1)], count, position=lambda name, index: points[name][index], size=1000)
    x, y = ring.ownership()
    return {"points": count, "x": x, "y": y}


# vnodes

VNODES: Final = (1, 3, 100, 150, 200, 1000)
SIZES: Final = (4, 10, 100)
RINGS: Final = 100


def vnodes(progress: Begin, trials: int = RINGS, seed: int = 1) -> Report:
    """The largest share over the mean share, in the middle of many rings."""
    rows: list[Row] = []
    for count in VNODES:
        row: dict[str, Value] = {"vnodes": count}
        for size in SIZES:
            tell = progress()
            peaks = []
            for trial in range(trials):
                members = [(f"pool{seed}-{trial}-{number}", 1.0) for number in range(size)]
                peaks.append(max(build_ring(members, count).ownership()) * size)
                tell((trial + 1) / trials)
            row[f"backends_{size}"] = median(peaks)
        rows.append(row)
    table = Table(
        "imbalance",
        f"Largest share over mean share, by tokens per backend (median of {trials} rings)",
        (
            Column("vnodes", "tokens", "count"),
            *(Column(f"backends_{size}", f"{size} backends", "ratio") for size in SIZES),
        ),
        tuple(rows),
    )
    chart = Chart(
        title="How even a ring is",
        description="Bars for each number of tokens per backend and each number of backends; 1 is perfectly even.",
        x_label="tokens per backend",
        y_label="largest share over mean share",
        series=tuple(
            Series(
                f"{size} backends",
                tuple((float(at), float(row[f"backends_{size}"] or 0)) for at, row in enumerate(rows)),
            )
            for size in SIZES
        ),
        kind="bars",
        groups=tuple(str(count) for count in VNODES),
    )
    return Report("vnodes", {"trials": trials, "seed": seed}, (table,), (chart,))


# jump

BINS: Final = 1000
BALLS: Final = 10_000
# Epsilon, and points per bin on the ring (None: jump at random).
FILLINGS: Final = ((0.1, 1), (0.1, None), (0.3, 1), (0.3, None), (1.0, 1), (1.0, None), (0.25, 100), (0.25, None))
FILLING_TRIALS: Final = 10


def jump(progress: Begin, trials: int = FILLING_TRIALS, seed: int = 1, bins: int = BINS, balls: int = BALLS) -> Report:
    """Linear probing against random jump, with the four quantities of arXiv 1908.08762."""
    rows: list[Row] = []
    for epsilon, points in FILLINGS:
        tell = progress()
        done = [0]

        def step(tell: Callable[[float], None] = tell, done: list[int] = done) -> None:
            done[0] += 1
            tell(done[0] / trials)

        found = mean_filling(bins, balls, epsilon, points, trials, seed, step)
        rows.append(
            {
                "epsilon": epsilon,
                "method": "random jump" if points is None else "clockwise",
                "points": points,
                "full": found.full,
                "variance": found.variance,
                "probes": found.probes,
                "until_full": found.until_full,
            }
        )
    table = Table(
        "fillings",
        f"{balls:,} balls into {bins:,} bins of (1 + epsilon) times the mean (mean of {trials} trials)",
        (
            Column("epsilon", "epsilon", "ratio"),
            Column("method", "when full"),
            Column("points", "points", "count"),
            Column("full", "full bins", "share"),
            Column("variance", "variance", "ratio"),
            Column("probes", "probes", "ratio"),
            Column("until_full", "balls until one is full", "count"),
        ),
        tuple(rows),
    )
    walking = [row for row in rows if row["points"] is not None]
    jumping = [row for row in rows if row["points"] is None]
    chart = Chart(
        title="Full bins in the end",
        description="Walking clockwise against jumping, with one point per bin, and at last with a hundred.",
        x_label="epsilon, and points per bin of those that walk",
        y_label="full bins",
        series=(_full(walking, "clockwise to the next bin"), _full(jumping, "random jump")),
        kind="bars",
        groups=tuple(f"{row['epsilon']}, {row['points']} {_plural(row['points'])}" for row in walking),
        is_percent=True,
    )
    return Report("jump", {"bins": bins, "balls": balls, "trials": trials, "seed": seed}, (table,), (chart,))


def _full(rows: Sequence[Row], name: str) -> Series:
    """The full bins of these rows, one bar each."""
    return Series(name, tuple((float(at), float(row["full"] or 0)) for at, row in enumerate(rows)))


def _plural(points: object) -> str:
    return "point" if points == 1 else "points"

"""Presets about load: a hot key and those beside it, and what a gap costs and saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final, Literal

from lbproxy.core.spec import PoolSpec
from lbproxy.simulate.plot import Chart, Series
from lbproxy.simulate.progress import Begin
from lbproxy.simulate.report import Column, Report, Row, Table, Value
from lbproxy.simulate.scenes import LBPROXY, Result, Scene, run
from lbproxy.simulate.traffic import Habits, Load, imagined

Mode = Literal["spread", "spill", "off"]

HOT_SHARES: Final = (0.0, 0.1, 0.2, 0.4)
HOT_IN_FLIGHT: Final = (200, 1000)
HOT_GAPS: Final[tuple[int | None, ...]] = (None, 0)
MODES: Final[tuple[Mode, ...]] = ("spread", "spill", "off")
GAPS: Final[tuple[int | None, ...]] = (0, 2, 4, 8, 12, None)
GAP_IN_FLIGHT: Final = (80, 200, 400, 1000)


@dataclass(frozen=True, slots=True)
class Trial:
    """The scene of the presets about load: whose pool, how much of what, and how often with other users."""

    pool: PoolSpec
    load: Load
    keys: int = 2000
    trials: int = 1

    def scenes(self, clients: int, min_gap: int | None, hot: float, mode: Mode) -> Iterator[Scene]:
        """The scenes of one point."""
        pool = replace(
            self.pool,
            bounded_load=replace(self.pool.bounded_load, min_gap=min_gap),
            hot_keys=replace(self.pool.hot_keys, mode=mode),
        )
        for trial in range(self.trials):
            seed = self.load.seed + trial
            traffic = imagined(Habits(self.keys, hot=hot), seed)
            load = replace(self.load, clients=clients, rate=None, seed=seed)
            yield Scene(pool, traffic, load)


def hot(
    trial: Trial,
    progress: Begin,
    in_flight: Sequence[int] = HOT_IN_FLIGHT,
    modes: Sequence[Mode] = MODES,
    gaps: Sequence[int | None] = HOT_GAPS,
) -> Report:
    """One hot key beside many cold ones: who leaves whom."""
    rows: list[Row] = []
    for clients in in_flight:
        for min_gap in gaps:
            for mode in modes:
                for share in HOT_SHARES:
                    results = _run(trial.scenes(clients, min_gap, share, mode), progress)
                    rows.append(
                        {"in_flight": clients, "min_gap": _gap(min_gap), "mode": mode, "hot": share, **_mean(results)}
                    )
    table = Table(
        "hot",
        "A hot key, what is done about it, and what becomes of the other users",
        (
            Column("in_flight", "in flight", "count"),
            Column("min_gap", "min_gap"),
            Column("mode", "hot_keys"),
            Column("hot", "hot share", "share"),
            Column("neighbours_away", "neighbours away", "share"),
            Column("others_away", "others away", "share"),
            Column("disturbed", "users disturbed", "share"),
            Column("busiest", "busiest", "ratio"),
            Column("peak", "peak", "ratio"),
            Column("reach", "spread over", "count"),
            Column("found_s", "found in", "seconds"),
        ),
        tuple(rows),
    )
    charts = tuple(_hot_chart(rows, clients, modes, _gap(gaps[0])) for clients in in_flight)
    notes = (
        "neighbours: cold users with the hot key's owner; away: served by another backend than their owner;\n"
        "disturbed: cold users that were away at least once; busiest, peak: the largest load on average and at\n"
        "any time, over the mean. min_gap 0 is the hard bound, auto the default.",
    )
    return Report("hot", _settings(trial), (table,), charts, notes)


def _hot_chart(rows: Sequence[Row], clients: int, modes: Sequence[Mode], min_gap: str) -> Chart:
    def away(mode: Mode) -> Iterator[tuple[float, float]]:
        chosen = [row for row in rows if (row["in_flight"], row["min_gap"], row["mode"]) == (clients, min_gap, mode)]
        for at, row in enumerate(chosen):
            yield float(at), float(row["neighbours_away"] or 0.0)

    return Chart(
        title=f"Requests of the hot key's neighbours that left their backend, {clients} in flight",
        description=f"Bars for each share of the hot key and each mode, with min_gap {min_gap}.",
        x_label="part of the traffic that is the hot key's",
        y_label="neighbours' requests away",
        series=tuple(Series(f"hot_keys: {mode}", tuple(away(mode))) for mode in modes),
        kind="bars",
        groups=tuple(f"{share:.0%}" for share in HOT_SHARES),
        is_percent=True,
    )


def gap(trial: Trial, progress: Begin, in_flight: Sequence[int] = GAP_IN_FLIGHT) -> Report:
    """No hot key at all: how many requests are turned away for nothing, and the peak that it would cost not to."""
    rows: list[Row] = []
    for clients in in_flight:
        for min_gap in GAPS:
            results = _run(trial.scenes(clients, min_gap, 0.0, trial.pool.hot_keys.mode), progress)
            rows.append({"in_flight": clients, "min_gap": _gap(min_gap), **_mean(results)})
    table = Table(
        "gap",
        f"Useless spill against the peak, factor {trial.pool.bounded_load.factor:g}, no hot key",
        (
            Column("in_flight", "in flight", "count"),
            Column("min_gap", "min_gap"),
            Column("others_away", "requests away", "share"),
            Column("disturbed", "users disturbed", "share"),
            Column("busiest", "busiest", "ratio"),
            Column("peak", "peak", "ratio"),
        ),
        tuple(rows),
    )
    chart = Chart(
        title="Requests turned away for nothing, against the peak that it would cost not to",
        description="One line for each number of requests in flight; its points are values of min_gap.",
        x_label="peak over mean of what a backend holds",
        y_label="requests away from their owner",
        series=tuple(
            Series(
                f"{clients} in flight",
                tuple(
                    (float(row["peak"] or 0), float(row["others_away"] or 0))
                    for row in rows
                    if row["in_flight"] == clients
                ),
                tuple(str(row["min_gap"]) for row in rows if row["in_flight"] == clients),
            )
            for clients in in_flight
        ),
        is_percent=True,
        x_from_zero=False,
    )
    return Report("gap", _settings(trial), (table,), (chart,))


def _run(scenes: Iterator[Scene], progress: Begin) -> list[Result]:
    return [run(scene, LBPROXY, progress()) for scene in scenes]


def _gap(min_gap: int | None) -> str:
    return "auto" if min_gap is None else str(min_gap)


def _mean(results: Sequence[Result]) -> Row:
    """The means of several trials; of the peaks the highest."""
    outcomes = [result.outcome for result in results]

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    return {
        "neighbours_away": mean([outcome.neighbours.share for outcome in outcomes]),
        "others_away": mean([outcome.others.share for outcome in outcomes]),
        "disturbed": mean([outcome.disturbed / max(1, outcome.cold_keys) for outcome in outcomes]),
        "busiest": mean([outcome.busiest for outcome in outcomes]),
        "peak": max(outcome.peak for outcome in outcomes),
        "reach": max(result.reach for result in results) or None,
        "found_s": mean([result.found_s for result in results]),
    }


def _settings(trial: Trial) -> dict[str, Value]:
    return {
        "backends": len(trial.pool.backends),
        "factor": trial.pool.bounded_load.factor,
        "keys": trial.keys,
        "service_s": trial.load.service_s,
        "seconds": trial.load.seconds,
        "warm_up_s": trial.load.warm_up_s,
        "workers": trial.load.workers,
        "seed": trial.load.seed,
        "trials": trial.trials,
    }

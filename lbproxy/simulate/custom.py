"""`lbproxy simulate` without a preset: one scene, with one or several algorithms, and what a change would move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lbproxy.core.forge import build_ring
from lbproxy.core.moves import moved
from lbproxy.simulate.changes import Change, Moved, moved_keys
from lbproxy.simulate.plot import Chart, Series
from lbproxy.simulate.progress import Begin
from lbproxy.simulate.report import Column, Report, Row, Table, Value
from lbproxy.simulate.scenes import LBPROXY, Result, Scene, placement, run

_OUTCOME: Final = (
    Column("algorithm", "algorithm"),
    Column("requests", "requests", "count"),
    Column("owner", "at owner", "share"),
    Column("spill_hot", "spill:hot", "share"),
    Column("spill_full", "spill:full", "share"),
    Column("pinned", "pinned", "share"),
    Column("no_key", "no key", "share"),
    Column("refused", "refused", "share"),
    Column("neighbours_away", "neighbours away", "share"),
    Column("others_away", "others away", "share"),
    Column("disturbed", "users disturbed", "share"),
    Column("imbalance", "imbalance", "ratio"),
    Column("busiest", "busiest", "ratio"),
    Column("peak", "peak", "ratio"),
    Column("reach", "spread over", "count"),
    Column("found_s", "found in", "seconds"),
    Column("forgotten_s", "forgotten in", "seconds"),
)
# Columns that are left out when nothing is in them.
_RARE: Final = frozenset(
    {
        "spill_hot", "spill_full", "pinned", "no_key", "refused", "neighbours_away", "reach", "found_s", "forgotten_s",
    }
)  # fmt: skip
_BACKENDS: Final = (
    Column("backend", "backend"),
    Column("expected", "by weight", "share"),
    Column("owned", "of keys", "share"),
    Column("served", "served", "share"),
    Column("spilled", "spilled", "count"),
    Column("received", "received", "count"),
    Column("mean", "mean load", "ratio"),
    Column("peak", "peak load", "ratio"),
)
_MOVES: Final = (
    Column("algorithm", "algorithm"),
    Column("keys", "keys moved", "share"),
    Column("needless", "needlessly", "share"),
    Column("requests", "requests moved", "share"),
    Column("entries", "table", "count"),
)
_FLOWS: Final = (Column("backend", "backend"), Column("lost", "loses", "share"), Column("won", "wins", "share"))

_LEGEND: Final = (
    "neighbours: users with the same owner as a hot key; away: served by another backend than their owner; disturbed:\n"
    "cold users that were away at least once. imbalance: the largest part served over its part by weight; busiest and\n"
    "peak: what a backend held on average and at most, over its fair part of what was in flight."
)


def simulate(
    scene: Scene,
    algorithms: Sequence[str],
    change: Change,
    settings: Mapping[str, Any],
    notes: Sequence[str],
    progress: Begin,
) -> Report:
    """Run the scene with each algorithm, and move its keys."""
    results = {algorithm: run(scene, algorithm, progress()) for algorithm in algorithms}
    tables = [_outcomes(results, scene), *_backends(results)]
    if change:
        tables += _moves(scene, algorithms, change)
    return Report("custom", settings, tuple(tables), tuple(_charts(results)), (_LEGEND, *notes))


def _outcomes(results: Mapping[str, Result], scene: Scene) -> Table:
    rows: list[Row] = [{"algorithm": name, **result_row(result)} for name, result in results.items()]
    columns = tuple(column for column in _OUTCOME if column.key not in _RARE or any(row[column.key] for row in rows))
    in_flight = next(iter(results.values())).outcome.in_flight
    return Table("outcome", f"What became of the requests, {in_flight:.1f} in flight on average", columns, tuple(rows))


def result_row(result: Result) -> dict[str, Value]:
    """The values that describe a run, by the keys of its columns."""
    outcome = result.outcome
    decisions, requests = outcome.decisions, outcome.requests
    refused = sum(outcome.refused.values())
    asked = requests + refused

    def part(decision: str) -> float:
        return decisions.get(decision, 0) / requests if requests else 0.0

    return {
        "requests": asked,
        "owner": part("owner"),
        "spill_hot": part("spill:hot"),
        "spill_full": part("spill:full"),
        "pinned": part("pinned"),
        "no_key": part("no_key"),
        "refused": refused / asked if asked else 0.0,
        "neighbours_away": outcome.neighbours.share,
        "others_away": outcome.others.share,
        "disturbed": outcome.disturbed / outcome.cold_keys if outcome.cold_keys else None,
        "imbalance": outcome.imbalance,
        "busiest": outcome.busiest,
        "peak": outcome.peak,
        "reach": result.reach or None,
        "found_s": result.found_s,
        "forgotten_s": result.forgotten_s,
    }


def _backends(results: Mapping[str, Result]) -> Iterator[Table]:
    for name, result in results.items():
        if len(results) == 1 or name == LBPROXY:
            rows: tuple[Row, ...] = tuple(
                {
                    "backend": each.name, "expected": each.expected, "owned": each.owned, "served": each.served,
                    "spilled": each.spilled, "received": each.received, "mean": each.mean, "peak": each.peak,
                }
                for each in result.outcome.backends
            )  # fmt: skip
            yield Table("backends", f"Where they went with {name}", _BACKENDS, rows)


def _moves(scene: Scene, algorithms: Sequence[str], change: Change) -> Iterator[Table]:
    members = scene.members
    after = change.apply(members)
    rows: list[Row] = []
    flows: Moved | None = None
    for algorithm in algorithms:
        before = placement(algorithm, members, scene.pool.vnodes)
        found = moved_keys(before, before.changed(after), (members, after), scene.traffic.hashes, scene.traffic.shares)
        flows = flows or found
        rows.append(
            {
                "algorithm": algorithm, "keys": found.keys, "needless": found.needless, "requests": found.requests,
                "entries": before.entries,
            }
        )  # fmt: skip
    vnodes = scene.pool.vnodes
    exactly = moved(build_ring(members, vnodes), build_ring(after, vnodes)).share
    yield Table(
        "moves", f"What it moves: {change} (of all keys there could be, {exactly:.2%} on our ring)", _MOVES, tuple(rows)
    )
    assert flows is not None
    names = list(dict.fromkeys(name for name, _ in [*members, *after]))
    yield Table(
        "flows",
        f"Whose keys move with {algorithms[0]}",
        _FLOWS,
        tuple({"backend": each, "lost": flows.lost.get(each, 0.0), "won": flows.won.get(each, 0.0)} for each in names),
    )


def _charts(results: Mapping[str, Result]) -> Iterator[Chart]:
    """What the backends held, of one algorithm by backend, of several by algorithm."""
    outcomes = {name: result.outcome for name, result in results.items()}
    if len(outcomes) > 1:
        groups = tuple(outcomes)
        pairs = [(outcome.busiest, outcome.peak) for outcome in outcomes.values()]
    else:
        (outcome,) = outcomes.values()
        groups = tuple(each.name for each in outcome.backends)
        pairs = [(each.mean, each.peak) for each in outcome.backends]
    yield Chart(
        title="What backends held, over their fair part" if len(outcomes) == 1 else "What the busiest backend held",
        description="Bars for what was held on average and at most; 1 is the fair part by weight.",
        x_label="backend" if len(outcomes) == 1 else "algorithm",
        y_label="over the fair part by weight",
        series=(
            Series("on average", tuple((float(at), mean) for at, (mean, _) in enumerate(pairs))),
            Series("at most", tuple((float(at), peak) for at, (_, peak) in enumerate(pairs))),
        ),
        kind="bars",
        groups=groups,
    )

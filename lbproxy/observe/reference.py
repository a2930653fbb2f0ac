"""What docs/metrics.md is made from: the families of the ledger's tables, and those that the supervisor adds.

`control.metrics_reference` adds those of health and writes the page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from typing import Final

from lbproxy.core.ledger import DURATION_BOUNDS, TABLES, RowKey, RowKind
from lbproxy.core.snapshot import Snapshot, build_snapshot
from lbproxy.core.spec import Address, BackendSpec, Config, ListenerSpec, PoolSpec
from lbproxy.observe.facts import RELOAD_RESULTS, ReloadStatus, WorkerStatus, process_families, snapshot_families
from lbproxy.observe.metrics import MOST_BACKENDS, OTHER, PREFIX, ROW_LABELS, Family, number, shown_name

# Labels whose values are names out of the configuration or texts, not words of a closed list.
OPEN_LABELS: Final = frozenset(
    ("pool", "backend", "listener", "worker", "address", "zone", "fingerprint", "version", "python")
)

_INTRODUCTION: Final = f"""\
# Metrics

<!-- Written by `python -m lbproxy.control.metrics_reference` from lbproxy/core/ledger.py, lbproxy/observe/facts.py and
lbproxy/control/health_families.py. -->

`GET /metrics` on the admin address gives all of them in the Prometheus text format, summed over the workers. Counters
live in shared memory that outlives a worker, so they stay exact and never fall back when one is killed; they start
anew with the supervisor. A label set that is known beforehand is there from the start, with 0. Label values are the
names of the configuration and words of the lists below: never an address but in `backend_info`, never a user's key.
When a listener, a pool or a backend leaves the configuration, its series leave the page. The first {MOST_BACKENDS}
backends of a configuration are told apart; those beyond are added up, pool by pool, as `backend="{OTHER}"`.

[operations.md](operations.md#reading-the-metrics) has queries to start with.
"""

_TITLES: Final[dict[str, tuple[str, str]]] = {
    "listener": ("Listeners", "Connections from clients, by the address they come in on."),
    "pool": ("Pools", "Requests as clients see them, and how they were routed."),
    "backend": ("Backends", "The same traffic as each backend sees it."),
    "worker": ("Workers", "What belongs to a worker, or to no pool yet."),
    "process": ("Processes and reloads", "What the supervisor knows of its workers and of the configuration file."),
    "snapshot": ("Configuration and rings", "What follows from the configuration in force; it changes with a reload."),
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. `labels` are names with their closed list of values, which is empty when it is an open one."""

    name: str
    kind: str
    help: str
    labels: tuple[tuple[str, tuple[str, ...]], ...]


def metrics() -> dict[str, list[Metric]]:
    """All families, in the sections of the page."""
    kinds: tuple[RowKind, ...] = ("listener", "pool", "backend", "worker")
    sections: dict[str, list[Metric]] = {kind: list(_counted(kind)) for kind in kinds}
    reloads = ReloadStatus(dict.fromkeys(RELOAD_RESULTS, 0), True, 0.0)
    return {
        **sections,
        "process": known(process_families((WorkerStatus(0, "ready", 1, 1, 0.0, 0),), {}, reloads)),
        "snapshot": known(snapshot_families(_example())),
    }


def markdown(sections: Mapping[str, list[Metric]], titles: Mapping[str, tuple[str, str]]) -> str:
    """The reference: a table for each section. `titles` are the title of each that is not known here, and what it is
    about."""
    parts = [_INTRODUCTION]
    for section, found in sections.items():
        title, about = titles[section] if section in titles else _TITLES[section]
        rows = "\n".join(map(_row, found))
        parts.append(f"## {title}\n\n{about}\n\n| metric | type | labels | |\n|---|---|---|---|\n{rows}\n")
    bounds = ", ".join(number(bound / 1e6) for bound in DURATION_BOUNDS)
    parts.append(f"## Buckets\n\nEvery histogram has the upper bounds {bounds} and +Inf, in seconds.\n")
    return "\n".join(parts)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{name}`" + (f" ({', '.join(values)})" if values else "") for name, values in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |".replace("|  |", "| |")


def _counted(kind: RowKind) -> Iterator[Metric]:
    """The families that the slabs count in rows of this kind."""
    for metric, group in groupby(TABLES[kind], attrgetter("metric")):
        columns = list(group)
        own = ("worker",) if metric.startswith("worker_") else ROW_LABELS[kind]
        values: dict[str, list[str]] = {label: [] for label in own}
        for label, value in chain.from_iterable(column.labels for column in columns):
            values.setdefault(label, []).append(value)
        labels = tuple([(label, tuple(dict.fromkeys(words))) for label, words in values.items()])
        yield Metric(shown_name(metric), columns[0].kind, columns[0].help, labels)


def known(families: Iterable[Family]) -> list[Metric]:
    """The families that the supervisor makes; the values of their closed labels are read off the samples."""
    found = []
    for family in families:
        values: dict[str, list[str]] = {}
        for labels, _ in family.samples:
            for label, value in labels:
                values.setdefault(label, []).append(value)
        closed = [
            (label, () if label in OPEN_LABELS else tuple(dict.fromkeys(words))) for label, words in values.items()
        ]
        found.append(Metric(PREFIX + family.name, family.kind, family.help, tuple(closed)))
    return found


def example_config() -> Config:
    """A configuration with one of everything."""
    backend = BackendSpec("b1", Address("127.0.0.1", 1))
    return Config(
        listeners=(ListenerSpec("127.0.0.1:0", Address("127.0.0.1", 0)),),
        pools=(PoolSpec("api", (backend,), vnodes=1),),
        routes=(),
    )


def _example() -> Snapshot:
    """Its snapshot, for the families that are made from one."""
    rows: defaultdict[RowKey, int] = defaultdict(int)  # nothing is counted into them
    return build_snapshot(example_config(), 1, rows)

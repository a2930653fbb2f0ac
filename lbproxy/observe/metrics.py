"""Metrics: what the slabs say, as text in the Prometheus exposition format 0.0.4.

The families that are counted in slabs follow from the tables of `core.ledger`: adding a column there is enough to see
it here. Everything that does not change between two scrapes (names, labels, escaping, order) is put together once per
layout, in `Page`; a scrape adds the slabs up and writes numbers behind ready-made prefixes. Cells hold microseconds
where the page speaks of seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isinf, isnan
from typing import Final, Literal

from lbproxy.core.ledger import TABLES, Column, Kind, RowKey, kind_of, row_width
from lbproxy.observe.slabs import Slabs, sums

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "lbproxy_"
_MICRO: Final = "_microseconds"

# So many backends are told apart. Those beyond, in the order of the configuration, are added up by pool under a name
# that no backend can have.
MOST_BACKENDS: Final = 1000
OTHER: Final = "_other"
# What makes no sense of several backends together.
_NO_SUM: Final = ("backend_info", "backend_load_ratio")

Labels = tuple[tuple[str, str], ...]

# What a row's key says after its first word, as labels. A worker's row is told apart by its slab.
ROW_LABELS: Final[dict[str, tuple[str, ...]]] = {
    "worker": (),
    "listener": ("listener",),
    "pool": ("pool",),
    "backend": ("pool", "backend"),
}


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one metric that the supervisor knows by itself. `name` is without the prefix."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: tuple[tuple[Labels, float], ...]


def shown_name(metric: str) -> str:
    """What a column's metric is called on the page, where microseconds are seconds."""
    return PREFIX + (metric.removesuffix(_MICRO) + "_seconds" if metric.endswith(_MICRO) else metric)


def render_family(family: Family, texts: dict[Labels, str] | None = None) -> str:
    """HELP, TYPE and the samples of a family. `texts` are labels put together before, and take what is not among them
    yet."""
    known = {} if texts is None else texts
    name = PREFIX + family.name
    lines = []
    for labels, value in family.samples:
        text = known.get(labels)
        if text is None:
            text = known[labels] = _label_text(labels)
        lines.append(f"{name}{text} {number(value)}\n")
    return _head(name, family.kind, family.help) + "".join(lines)


def number(value: float) -> str:
    """A sample value or a bucket's bound as text: integers plain, floats in the shortest form that reads back."""
    if isinstance(value, int) or value.is_integer():
        return str(int(value))
    if isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if isnan(value) else repr(value)


def escape_label(value: str) -> str:
    """A label value between its quotes."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def escape_help(text: str) -> str:
    """The text of a HELP line, where quotes stand for themselves."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _label_text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{escape_label(value)}"' for name, value in labels]) + "}"


def _head(name: str, kind: Kind, help: str) -> str:
    return f"# HELP {name} {escape_help(help)}\n# TYPE {name} {kind}\n"


# The sums over all slabs and each slab's own cells go in, the lines of one family come out.
_Writer = Callable[[list[int], list[list[int]]], str]


class Page:
    """All slab families for one layout, ready to be filled in.

    `rows` are the rows to show, in the order of the page; `slots` the number of worker slots. Families that begin with
    `worker_` have one sample per slot, all others the sum over the slots.
    """

    def __init__(
        self,
        rows: Mapping[RowKey, int],
        slots: int,
        constant: Iterable[Family] = (),
        previous: Page | None = None,
        most: int = MOST_BACKENDS,
    ) -> None:
        """`constant` are families that stay as they are as long as this page does. What `previous` has for the same
        layout is used again. `most` backends are told apart."""
        self._layout: Final = (dict(rows), slots, most)
        beyond = dict.fromkeys([key for key in rows if key[0] == "backend"][most:])
        self._beyond: Final = frozenset([(("pool", key[1]), ("backend", key[2])) for key in beyond])
        self._constant = "".join([render_family(self._folded(family)) for family in constant])
        known = previous._form if previous is not None and previous._layout == self._layout else None
        self._form: Final[_Form] = known or _Form(rows, slots, beyond)

    def render(self, slabs: Slabs, families: Iterable[Family] = ()) -> str:
        """The whole page: the slab families as they stand now, then `families`, then the constant ones."""
        form = self._form
        lists = slabs.lists(form.end)
        totals = sums(lists)
        for starts in form.others:
            totals.extend(map(sum, zip(*[totals[start : start + _BACKEND_WIDTH] for start in starts], strict=True)))
        parts = [write(totals, lists) for write in form.writers]
        parts.extend([render_family(self._folded(family), form.texts) for family in families])
        parts.append(self._constant)
        return "".join(parts)

    def _folded(self, family: Family) -> Family:
        """The same with those beyond the cap added up."""
        if not self._beyond:
            return family
        values: dict[Labels, float] = {}
        for labels, value in family.samples:
            if labels[:2] not in self._beyond:
                values[labels] = value
            elif family.name not in _NO_SUM:
                other = (labels[0], ("backend", OTHER), *labels[2:])
                values[other] = values.get(other, 0) + value
        return Family(family.name, family.kind, family.help, tuple(values.items()))


class _Form:
    """All of the page that follows from the layout alone: what writes each family, and label texts as they are met.

    `others` are the rows of the backends `beyond` the cap, pool by pool. Their sums stand behind all cells, which are
    `end`, in a row for each pool.
    """

    def __init__(self, rows: Mapping[RowKey, int], slots: int, beyond: Collection[RowKey]) -> None:
        self.end: Final = max((start + _width(key) for key, start in rows.items() if TABLES[kind_of(key)]), default=0)
        self.texts: Final[dict[Labels, str]] = {}
        others: dict[RowKey, list[int]] = {}
        for key in beyond:
            others.setdefault((key[0], key[1], OTHER), []).append(rows[key])
        self.others: Final = list(others.values())
        behind = {key: self.end + number * _width(key) for number, key in enumerate(others)}
        apart = {key: start for key, start in rows.items() if key not in beyond}
        builders: dict[str, _FamilyBuilder] = {}
        for key, start in (apart | behind).items():
            position = start
            for column in TABLES[kind_of(key)]:
                builder = builders.get(column.metric)
                if builder is None:
                    builder = builders[column.metric] = _FamilyBuilder(column, slots)
                builder.add(column, key, position)
                position += column.width
        self.writers: Final = [builder.writer() for builder in builders.values()]


def _width(key: RowKey) -> int:
    return row_width(kind_of(key))


_BACKEND_WIDTH: Final = row_width("backend")


class _FamilyBuilder:
    """Collects the samples of one family from all rows that have it."""

    def __init__(self, column: Column, slots: int) -> None:
        self._column = column
        self._in_seconds = column.metric.endswith(_MICRO)
        self._name = shown_name(column.metric)
        self._slots = slots if column.metric.startswith("worker_") else 0
        self._samples: list[tuple[str, int]] = []
        self._histograms: list[_Histogram] = []

    def add(self, column: Column, key: RowKey, position: int) -> None:
        labels: Labels = (*zip(ROW_LABELS[key[0]], key[1:], strict=True), *column.labels)
        if column.kind == "histogram":
            self._histograms.append(_Histogram(self._name, labels, column.bounds, position))
        elif self._slots:
            for slot in range(self._slots):
                text = _label_text((("worker", str(slot)), *labels))
                self._samples.append((f"{self._name}{text} ", position))
        else:
            self._samples.append((f"{self._name}{_label_text(labels)} ", position))

    def writer(self) -> _Writer:
        head = _head(self._name, self._column.kind, self._column.help)
        if self._histograms:
            return _histogram_writer(head, self._histograms)
        if self._slots:
            return _per_slot_writer(head, self._samples, self._slots, self._in_seconds)
        return _sum_writer(head, self._samples)


class _Histogram:
    """One histogram's prefixes. Its cells: one per bound, one for what is beyond, one for the sum in microseconds."""

    __slots__ = ("buckets", "count", "first", "sum")

    def __init__(self, name: str, labels: Labels, bounds: Sequence[int], first: int) -> None:
        limits = [number(bound / 1e6) for bound in bounds] + ["+Inf"]
        self.buckets = [f"{name}_bucket{_label_text((*labels, ('le', limit)))} " for limit in limits]
        self.sum = f"{name}_sum{_label_text(labels)} "
        self.count = f"{name}_count{_label_text(labels)} "
        self.first = first

    def lines(self, totals: list[int]) -> str:
        """The buckets, cumulative as the format wants them, then sum and count."""
        beyond = self.first + len(self.buckets)
        counts = list(accumulate(totals[self.first : beyond]))
        text = "\n".join([prefix + str(count) for prefix, count in zip(self.buckets, counts, strict=True)])
        return f"{text}\n{self.sum}{number(totals[beyond] / 1e6)}\n{self.count}{counts[-1]}\n"


def _sum_writer(head: str, samples: list[tuple[str, int]]) -> _Writer:
    def write(totals: list[int], lists: list[list[int]]) -> str:
        return head + "".join([f"{prefix}{totals[position]}\n" for prefix, position in samples])

    return write


def _per_slot_writer(head: str, samples: list[tuple[str, int]], slots: int, in_seconds: bool) -> _Writer:
    def write(totals: list[int], lists: list[list[int]]) -> str:
        values = [lists[index % slots][position] for index, (_, position) in enumerate(samples)]
        texts = [number(value / 1e6) for value in values] if in_seconds else [str(value) for value in values]
        return head + "".join([f"{prefix}{text}\n" for (prefix, _), text in zip(samples, texts, strict=True)])

    return write


def _histogram_writer(head: str, histograms: list[_Histogram]) -> _Writer:
    def write(totals: list[int], lists: list[list[int]]) -> str:
        return head + "".join([histogram.lines(totals) for histogram in histograms])

    return write

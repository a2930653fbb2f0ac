"""The sketch against exact counts, and the table that other processes read while it is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import overload

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core.sketch import ROWS, TABLE_CELLS, Row, Sketch, Table, merged, read_table, write_table

batches = st.lists(st.dictionaries(st.integers(0, 12), st.integers(1, 50).map(float), max_size=10), max_size=12)
amounts = st.integers(0, 2**50)
rows = st.builds(Row, st.integers(0, 2**64 - 1), amounts, amounts, amounts)
row_lists = st.lists(rows, max_size=8, unique_by=lambda row: row.key).map(tuple)
tables = st.builds(Table, amounts, amounts, amounts, row_lists)


def error_of(sketch: Sketch) -> float:
    """By how much a key's weight may at most exceed what is kept of it, as the proof has it."""
    return max(0.0, sketch.total - sum(sketch.kept.values())) / (sketch.capacity + 1)


class TestSketch:
    @given(batches, st.integers(1, 6), st.lists(st.booleans(), min_size=12, max_size=12))
    def test_never_above_the_truth_and_below_it_by_its_error_at_most(
        self, batches: list[dict[int, float]], capacity: int, fades: list[bool]
    ) -> None:
        sketch = Sketch(capacity)
        truth: dict[int, float] = {}
        for batch, fade in zip(batches, fades, strict=False):
            if fade:
                sketch.fade(0.5)
                truth = {key: weight / 2 for key, weight in truth.items()}
            sketch.add(batch, unkept=3.0)
            truth[-1] = truth.get(-1, 0.0) + 3.0
            for key, weight in batch.items():
                truth[key] = truth.get(key, 0.0) + weight
            assert len(sketch.kept) <= capacity
            assert sketch.total == pytest.approx(sum(truth.values()))
            for key, weight in truth.items():
                if key >= 0:
                    kept = sketch.kept.get(key, 0.0)
                    assert kept - 1e-6 <= weight <= kept + error_of(sketch) + 1e-6

    def test_a_key_of_one_in_a_hundred_among_a_hundred_thousand_others(self) -> None:
        sketch = Sketch(256)
        for batch in range(100):
            seen = Counter({1000 + batch * 990 + i: 1 for i in range(990)})
            seen[7] = 10
            sketch.add(seen)
        assert max(sketch.kept, key=lambda key: sketch.kept[key]) == 7
        assert 1000 - error_of(sketch) <= sketch.kept[7] <= 1000
        assert error_of(sketch) < 0.004 * sketch.total

    def test_a_key_that_is_alone_is_counted_exactly(self) -> None:
        sketch = Sketch(4)
        sketch.add({1: 5.0, 2: 1.0})
        assert (sketch.kept, sketch.total, error_of(sketch)) == ({1: 5.0, 2: 1.0}, 6.0, 0.0)


class TestTable:
    @given(tables, st.integers(0, 9))
    def test_reads_as_it_was_written(self, table: Table, at: int) -> None:
        cells = [0] * (at + TABLE_CELLS + 3)
        write_table(cells, at, table)
        assert read_table(cells, at) == table
        assert cells[:at] == [0] * at
        assert cells[at + TABLE_CELLS :] == [0] * 3
        assert all(-(2**63) <= cell < 2**63 for cell in cells)

    def test_nothing_was_written_yet(self) -> None:
        assert read_table([0] * TABLE_CELLS, 0) is None

    def test_more_rows_than_there_is_room_for(self) -> None:
        cells = [0] * TABLE_CELLS
        write_table(cells, 0, Table(rows=tuple(Row(key) for key in range(ROWS + 5))))
        read = read_table(cells, 0)
        assert read is not None
        assert [row.key for row in read.rows] == list(range(ROWS))

    @given(tables, tables, st.integers(0, 60), st.integers(0, 4))
    def test_a_reader_never_sees_half_a_table(self, old: Table, new: Table, start: int, pace: int) -> None:
        cells = [0] * TABLE_CELLS
        write_table(cells, 0, old)
        assert read_table(Racing(cells, new, start, pace), 0) in (None, old, new)

    @given(tables, tables, st.data())
    def test_a_writer_that_dies_leaves_nothing_that_can_be_read(
        self, old: Table, new: Table, data: st.DataObject
    ) -> None:
        cells = [0] * TABLE_CELLS
        write_table(cells, 0, old)
        writes = steps(cells, new)
        for cell, value in writes[: data.draw(st.integers(1, len(writes) - 1))]:
            cells[cell] = value
        assert read_table(cells, 0) is None
        write_table(cells, 0, new)
        assert read_table(cells, 0) == new

    def test_merged_is_the_sum_the_most_work_first(self) -> None:
        one = Table(5, 100, 1000, (Row(1, 60, 500, 2), Row(2, 30, 400, 1)))
        other = Table(7, 10, 500, (Row(3, 9, 300, 0), Row(2, 1, 200, 4)))
        assert merged([one, other]) == Table(7, 110, 1500, (Row(2, 31, 600, 5), Row(1, 60, 500, 2), Row(3, 9, 300, 0)))
        assert merged([]) == Table()


def steps(cells: Sequence[int], table: Table) -> list[tuple[int, int]]:
    """Every single store that writing the table does, in order."""
    writes: list[tuple[int, int]] = []

    class Recording(list[int]):
        def __setitem__(self, index: object, value: object) -> None:
            assert isinstance(index, int)
            assert isinstance(value, int)
            writes.append((index, value))
            super().__setitem__(index, value)

    write_table(Recording(cells), 0, table)
    return writes


class Racing(Sequence[int]):
    """Cells that somebody writes a new table into while they are read: after `start` loads, `pace` stores per load."""

    def __init__(self, cells: list[int], table: Table, start: int, pace: int) -> None:
        self._cells = cells
        self._pending: Iterator[tuple[int, int]] = iter(steps(cells, table))
        self._start = start
        self._pace = pace

    def __len__(self) -> int:
        return len(self._cells)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        self._start -= 1
        if self._start < 0:
            for cell, value in islice(self._pending, self._pace):
                self._cells[cell] = value
        return self._cells[index]

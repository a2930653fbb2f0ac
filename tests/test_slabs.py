"""Rows keep their place, freed rows start from zero, and what a worker counted outlives the worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core import ledger
from lbproxy.core.ledger import RowKey, kind_of
from lbproxy.observe.slabs import GAUGES, REST_S, WIDTHS, Layout, LayoutFull, Slabs, sums

WORKER: RowKey = ("worker",)
POOL: RowKey = ("pool", "api")


def backend(name: str) -> RowKey:
    return ("backend", "api", name)


@pytest.fixture
def slabs() -> Iterator[Slabs]:
    made = Slabs.create(3, capacity=4096)
    yield made
    made.close()


def retired(layout: Layout) -> set[RowKey]:
    """Rows that are in no newer generation and not yet free."""
    return layout.every_row().keys() - layout.rows.keys()


def always(key: RowKey, start: int) -> bool:
    return True


def test_rows_do_not_overlap_and_stay_where_they_are() -> None:
    layout = Layout()
    before = layout.assign([WORKER, POOL, backend("a"), backend("b")], 1)
    after = layout.assign([WORKER, POOL, backend("b"), backend("c")], 2)
    assert after[backend("b")] == before[backend("b")]
    assert after[backend("c")] not in before.values()
    assert retired(layout) == {backend("a")}
    spans = sorted((start, start + WIDTHS[kind_of(key)]) for key, start in layout.every_row().items())
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_the_caller_owns_what_assign_returns() -> None:
    layout = Layout()
    rows = layout.assign([WORKER], 1)
    rows.clear()
    assert WORKER in layout.rows


def test_a_removed_row_is_freed_only_when_all_have_moved_on_and_it_has_rested() -> None:
    layout = Layout()
    layout.assign([WORKER, backend("a")], 1)
    start = layout.rows[backend("a")]
    layout.assign([WORKER], 2)
    assert layout.release(1, 0.0, always) == []
    assert layout.release(2, 10.0, always) == []
    assert layout.release(2, 10.0 + REST_S - 1, always) == []
    assert layout.release(2, 10.0 + REST_S, always) == [(start, WIDTHS["backend"])]
    assert layout.release(2, 1000.0, always) == []
    assert layout.assign([WORKER, backend("z")], 3)[backend("z")] == start


def test_resting_begins_anew_when_a_gauge_moves() -> None:
    layout = Layout()
    layout.assign([backend("a")], 1)
    layout.assign([], 2)
    assert layout.release(2, 0.0, always) == []
    assert layout.release(2, REST_S, lambda key, start: False) == []
    assert layout.release(2, 2 * REST_S, always) == []
    assert layout.release(2, 3 * REST_S, always) != []


def test_a_pools_row_outlasts_those_of_its_backends() -> None:
    layout = Layout()
    layout.assign([POOL, ("sketch", "api"), ("pool", "web"), backend("a")], 1)
    layout.assign([], 2)
    held = {backend("a")}

    def is_quiet(key: RowKey, start: int) -> bool:
        return key not in held

    for step in range(3):
        layout.release(2, step * REST_S, is_quiet)
    assert retired(layout) == {POOL, ("sketch", "api"), backend("a")}
    held.clear()
    for step in range(3, 7):
        layout.release(2, step * REST_S, is_quiet)
    assert not retired(layout)


def test_a_name_that_comes_back_in_time_gets_its_old_row() -> None:
    layout = Layout()
    start = layout.assign([backend("a")], 1)[backend("a")]
    layout.assign([], 2)
    assert layout.assign([backend("b"), backend("a")], 3)[backend("a")] == start
    assert not retired(layout)


def test_a_full_slab_refuses_and_changes_nothing() -> None:
    layout = Layout(capacity=2 * WIDTHS["backend"])
    layout.assign([backend("a"), backend("b")], 1)
    rows = dict(layout.rows)
    with pytest.raises(LayoutFull):
        layout.assign([backend("a"), backend("c")], 2)
    assert layout.rows == rows
    assert not retired(layout)


def test_a_slab_fills_up_from_both_ends() -> None:
    layout = Layout(capacity=WIDTHS["worker"] + WIDTHS["sketch"])
    layout.assign([WORKER, ("sketch", "api")], 1)
    assert layout.end == layout.floor
    with pytest.raises(LayoutFull, match="more cells are needed and 0 are left"):
        layout.assign([WORKER, ("sketch", "api"), POOL], 2)


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=30))
def test_whatever_the_history_no_two_rows_share_a_cell(steps: list[tuple[list[str], bool]]) -> None:
    layout = Layout()
    for generation, (names, released) in enumerate(steps):
        layout.assign([WORKER, *map(backend, names), *(("sketch", name) for name in names)], generation)
        if released:
            layout.release(generation, 1000.0 * generation, always)
        taken: set[int] = set()
        for key, start in layout.every_row().items():
            cells = set(range(start, start + WIDTHS[kind_of(key)]))
            assert not cells & taken
            taken |= cells
        assert all(cell < layout.end or cell >= layout.floor for cell in taken)


def test_sums_are_over_all_slabs(slabs: Slabs) -> None:
    for slot, cells in enumerate(slabs.cells):
        cells[7] = 10**slot
        cells[8] = 2**62 // 2 if slot == 0 else 1
    assert sums(slabs.lists(9)) == [0] * 7 + [111, 2**61 + 2]
    assert slabs.lists(8)[2][7] == 100


def test_zero_gauges_forgets_one_workers_gauges_and_no_count(slabs: Slabs) -> None:
    layout = Layout(capacity=4096)
    rows = layout.assign([WORKER, POOL, ("listener", "l"), backend("a"), ("sketch", "api")], 1)
    for cells in slabs.cells:
        for index in range(layout.end):
            cells[index] = 5
    sketch, width = rows[("sketch", "api")], WIDTHS["sketch"]
    for cells in slabs.cells:
        for index in range(sketch, sketch + width):
            cells[index] = 5
    slabs.zero_gauges(1, layout.every_row())
    gauges = {start + offset for key, start in rows.items() for offset in GAUGES[kind_of(key)]}
    assert rows[POOL] + ledger.POOL_IN_FLIGHT in gauges
    assert rows[backend("a")] + ledger.BACKEND_IDLE in gauges
    assert slabs.lists(layout.end)[1] == [0 if index in gauges else 5 for index in range(layout.end)]
    assert slabs.lists(layout.end)[0] == slabs.lists(layout.end)[2] == [5] * layout.end
    assert [sum(cells[sketch : sketch + width]) for cells in slabs.cells] == [5 * width, 0, 5 * width]


def test_what_is_no_metric_lies_apart_from_what_a_scrape_reads(slabs: Slabs) -> None:
    layout = Layout(capacity=4096)
    rows = layout.assign([("sketch", "api"), WORKER], 1)
    assert (rows[WORKER], layout.end) == (0, WIDTHS["worker"])
    assert rows[("sketch", "api")] == layout.floor == 4096 - WIDTHS["sketch"]
    slabs.cells[1][4095] = 7
    assert sums(slabs.lists(layout.end)) == [0] * layout.end


def test_quiet_means_that_nothing_is_held_in_any_slab(slabs: Slabs) -> None:
    assert slabs.is_quiet(backend("a"), 100)
    slabs.cells[2][100 + ledger.BACKEND_REQUESTS] = 4
    # As of the last tick, and there are no ticks for a backend that is gone.
    slabs.cells[2][100 + ledger.BACKEND_IDLE] = 1
    assert slabs.is_quiet(backend("a"), 100)
    slabs.cells[2][100 + ledger.BACKEND_IN_FLIGHT] = 1
    assert not slabs.is_quiet(backend("a"), 100)
    slabs.zero(100, WIDTHS["backend"])
    assert slabs.is_quiet(backend("a"), 100)
    assert sums(slabs.lists(200)) == [0] * 200


COUNT_FOREVER = """
import sys
from lbproxy.observe.slabs import Slabs
cells = Slabs([int(sys.argv[1])]).cells[0]
while True:
    cells[3] += 1
    print(cells[3], flush=True)
"""


def test_what_a_killed_process_counted_stays_and_its_successor_goes_on(slabs: Slabs) -> None:
    last = 0
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", COUNT_FOREVER, str(slabs.fds[1])], stdout=subprocess.PIPE, pass_fds=[slabs.fds[1]]
        )
        assert process.stdout is not None
        seen = [int(process.stdout.readline()) for _ in range(50)]
        process.send_signal(signal.SIGKILL)
        seen += [int(line) for line in process.stdout.read().split(b"\n") if line]
        process.wait()
        process.stdout.close()
        assert seen[0] == last + 1
        # The kill came between the addition and the line about it, or did not.
        assert slabs.cells[1][3] - seen[-1] in (0, 1)
        last = slabs.cells[1][3]
    assert slabs.cells[0][3] == slabs.cells[2][3] == 0


def test_a_slab_cannot_be_resized_under_its_readers(slabs: Slabs) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(slabs.fds[0], 0)

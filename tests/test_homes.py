"""Entries of tunnels: found by every worker while they live, gone when the last has ended."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lbproxy.core.homes import Homes
from lbproxy.core.ledger import HOMES_SLOTS

ROW = 7
# Different users in the same few cells.
KEYS = (0, (1 << 63) + 1, (1 << 64) - 1, 12345 << 20, (54321 << 20) + 1)


class Workers(RuleBasedStateMachine):
    """Two workers that open and close tunnels of a few keys with nasty hashes, against a plain count."""

    def __init__(self) -> None:
        super().__init__()
        slabs = [[0] * (ROW + HOMES_SLOTS) for _ in range(2)]
        self.slabs = slabs
        self.homes = [Homes(slabs[0], [slabs[1]], ROW), Homes(slabs[1], [slabs[0]], ROW)]
        self.open: list[Counter[tuple[int, int]]] = [Counter(), Counter()]

    keys = st.sampled_from(KEYS)

    @rule(worker=st.integers(0, 1), key=keys)
    def enter(self, worker: int, key: int) -> None:
        self.homes[worker].enter(key, 100 + key % 7)
        self.open[worker][key, 100 + key % 7] += 1

    @rule(worker=st.integers(0, 1), key=keys)
    def leave(self, worker: int, key: int) -> None:
        if self.open[worker][key, 100 + key % 7]:
            self.open[worker][key, 100 + key % 7] -= 1
            self.homes[worker].leave(key, 100 + key % 7)

    @invariant()
    def both_find_what_is_open(self) -> None:
        for key in (*KEYS, 99 << 30):
            is_open = any(counts[key, 100 + key % 7] for counts in self.open)
            for homes in self.homes:
                assert homes.find(key) == (100 + key % 7 if is_open else -1)

    def teardown(self) -> None:
        for worker in range(2):
            for (key, row), count in self.open[worker].items():
                for _ in range(count):
                    self.homes[worker].leave(key, row)
        assert not any(map(any, self.slabs))


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_full_neighbourhood_leaves_the_tunnel_unpinned() -> None:
    cells = [0] * HOMES_SLOTS
    homes = Homes(cells, [], 0)
    for number in range(6):
        homes.enter((number << 30) + 3, 50)
    assert [homes.find((number << 30) + 3) for number in range(6)] == [50] * 4 + [-1] * 2
    for number in range(6):
        homes.leave((number << 30) + 3, 50)
    assert not any(cells)


def test_a_tunnel_for_which_there_was_no_room_takes_no_entry_of_another_with_it() -> None:
    cells = [0] * HOMES_SLOTS
    homes = Homes(cells, [], 0)
    keys = [(number << 30) + 3 for number in range(5)]
    for key in keys:
        homes.enter(key, 50)
    homes.leave(keys[0], 50)
    homes.enter(keys[4], 50)  # which has room now
    homes.leave(keys[4], 50)
    assert homes.find(keys[4]) == 50
    homes.leave(keys[4], 50)
    assert homes.find(keys[4]) == -1
    for key in keys[1:4]:
        homes.leave(key, 50)
    assert not any(cells)

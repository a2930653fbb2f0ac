"""The worked examples that consistent hashing is usually explained with, number by number.

They put servers and keys at given positions of a small circle, so the ring is built through an injected position
function; everything else is the code that routes.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import islice
from typing import ClassVar

import pytest

from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import hash_key
from lbproxy.core.moves import moved
from lbproxy.core.ring import Ring

KEYS = {"kim": 14, "eve": 28, "leo": 47, "max": 66, "ned": 78, "zoe": 93}
THREE = {"A": [5], "B": [35], "C": [60]}
FOUR = {**THREE, "D": [85]}

# Three points each, the first as before; the example gives only the sums, which these positions have.
TWELVE = {"A": [5, 73, 96], "B": [35, 17, 92], "C": [60, 8, 52], "D": [85, 27, 54]}


def ring_at(positions: dict[str, list[int]], size: int = 100) -> Ring:
    vnodes = len(next(iter(positions.values())))
    return build_ring(
        [(name, 1) for name in positions],
        vnodes=vnodes,
        position=lambda name, index: positions[name][index],
        size=size,
    )


def without(positions: dict[str, list[int]], name: str) -> dict[str, list[int]]:
    return {other: points for other, points in positions.items() if other != name}


def owners(ring: Ring, keys: dict[str, int]) -> dict[str, str]:
    return {key: ring.names[ring.owner(position)] for key, position in keys.items()}


def owned(ring: Ring) -> dict[str, int]:
    return dict(zip(ring.names, ring.spans(), strict=True))


class TestModN:
    def test_the_table_of_six_keys(self) -> None:
        table = {key: (position % 3, position % 4) for key, position in KEYS.items()}
        assert table == {"kim": (2, 2), "eve": (1, 0), "leo": (2, 3), "max": (0, 2), "ned": (0, 2), "zoe": (0, 1)}
        assert [key for key, (before, after) in table.items() if before == after] == ["kim"]

    def test_three_of_every_twelve_hash_values_stay(self) -> None:
        assert sum(h % 3 == h % 4 for h in range(12)) == 3

    def test_twelve_goes_from_server_zero_to_two(self) -> None:
        assert (12 % 4, 12 % 5) == (0, 2)

    @pytest.mark.parametrize(("servers", "share"), [(3, Fraction(3, 4)), (4, Fraction(4, 5)), (10, Fraction(10, 11))])
    def test_one_more_server_moves_n_of_n_plus_one(self, servers: int, share: Fraction) -> None:
        period = servers * (servers + 1)
        assert Fraction(sum(h % servers != h % (servers + 1) for h in range(period)), period) == share

    def test_the_flood_behind_a_cache(self) -> None:
        hits = 20_000 * 90 // 100
        assert 20_000 - hits == 2_000
        assert 2_000 + hits * 3 // 4 == 15_500
        assert 15_500 // 5_000 == 3

    def test_eighty_percent_against_twenty(self) -> None:
        hashes = [hash_key(b"key%d" % i) for i in range(100_000)]
        before = build_ring([(f"server{i}", 1) for i in range(4)], vnodes=150)
        after = build_ring([(f"server{i}", 1) for i in range(5)], vnodes=150)
        by_mod = sum(h % 4 != h % 5 for h in hashes) / len(hashes)
        by_ring = sum(before.names[before.owner(h)] != after.names[after.owner(h)] for h in hashes) / len(hashes)
        assert by_mod == pytest.approx(0.80, abs=0.005)
        assert by_ring == pytest.approx(0.20, abs=0.02)


class TestTheRingOfAHundred:
    def test_who_owns_what(self) -> None:
        ring = ring_at(THREE)
        slices = {name: [h for h in range(100) if ring.names[ring.owner(h)] == name] for name in "ABC"}
        assert slices["B"] == list(range(6, 36))
        assert slices["C"] == list(range(36, 61))
        assert slices["A"] == [*range(6), *range(61, 100)]
        assert owners(ring, KEYS) == {"kim": "B", "eve": "B", "leo": "C", "max": "A", "ned": "A", "zoe": "A"}

    def test_ned_walks_past_the_nearer_server(self) -> None:
        ring = ring_at(THREE)
        assert abs(KEYS["ned"] - 60) < abs(KEYS["ned"] - 105)
        assert ring.names[ring.owner(KEYS["ned"])] == "A"

    def test_a_new_server_takes_its_slice_from_one_neighbour(self) -> None:
        before, after = ring_at(THREE), ring_at(FOUR)
        assert moved(before, after).flows == {("A", "D"): 25}
        changed = {key for key in KEYS if owners(before, KEYS)[key] != owners(after, KEYS)[key]}
        assert changed == {"max", "ned"}
        assert owners(after, KEYS)["max"] == owners(after, KEYS)["ned"] == "D"

    def test_a_crash_hands_the_slice_to_the_next(self) -> None:
        before, after = ring_at(FOUR), ring_at(without(FOUR, "B"))
        assert moved(before, after).flows == {("B", "C"): 30}
        assert owners(after, KEYS) == {**owners(before, KEYS), "kim": "C", "eve": "C"}

    def test_uneven_slices(self) -> None:
        assert owned(ring_at(FOUR)) == {"A": 20, "B": 30, "C": 25, "D": 25}
        crashed = ring_at(without(FOUR, "B"))
        assert owned(crashed) == {"A": 20, "C": 55, "D": 25}
        assert [h for h in range(100) if crashed.names[crashed.owner(h)] == "C"] == list(range(6, 61))
        assert Counter(owners(crashed, KEYS).values()) == {"C": 3, "D": 2, "A": 1}
        assert owners(crashed, KEYS)["zoe"] == "A"

    def test_three_points_each(self) -> None:
        assert owned(ring_at(TWELVE)) == {"A": 26, "B": 24, "C": 26, "D": 24}

    def test_three_points_each_and_a_crash(self) -> None:
        before, after = ring_at(TWELVE), ring_at(without(TWELVE, "B"))
        assert owned(after) == {"A": 33, "C": 34, "D": 33}
        assert {taker for _, taker in moved(before, after).flows} == {"A", "C", "D"}

    def test_three_copies(self) -> None:
        ring = ring_at(FOUR)
        assert [ring.names[member] for member in islice(ring.walk(KEYS["eve"]), 3)] == ["B", "C", "D"]
        without_b = ring_at(without(FOUR, "B"))
        assert without_b.names[without_b.owner(KEYS["eve"])] == "C"


class TestTheRingOfAThousand:
    FOUR: ClassVar = {"A": [100], "B": [350], "C": [600], "D": [850]}
    KEYS: ClassVar = {"K1": 50, "K2": 200, "K3": 500, "K4": 780}

    def test_who_owns_what(self) -> None:
        assert owners(ring_at(self.FOUR, 1000), self.KEYS) == {"K1": "A", "K2": "B", "K3": "C", "K4": "D"}

    def test_a_new_node_on_the_very_position_of_a_key(self) -> None:
        before = owners(ring_at(self.FOUR, 1000), self.KEYS)
        after = owners(ring_at({**self.FOUR, "E": [500]}, 1000), self.KEYS)
        assert after == {**before, "K3": "E"}

    def test_two_nodes_of_twenty_and_eighty_percent(self) -> None:
        ring = ring_at({"X": [100], "Y": [900]}, 1000)
        assert owned(ring) == {"X": 200, "Y": 800}
        assert ring.ownership() == [0.2, 0.8]

    def test_three_vnodes_make_it_fifty_five_to_forty_five(self) -> None:
        ring = ring_at({"X": [150, 450, 750], "Y": [300, 600, 900]}, 1000)
        arcs = [
            (ring.names[member], (point - previous) % 1000)
            for previous, point, member in zip(
                [ring.tokens[-1], *ring.tokens], ring.tokens, ring.owners[:-1], strict=False
            )
        ]
        assert arcs == [("X", 250), ("Y", 150), ("X", 150), ("Y", 150), ("X", 150), ("Y", 150)]
        assert owned(ring) == {"X": 550, "Y": 450}

    def test_a_weight_of_two_has_twice_the_points(self) -> None:
        ring = build_ring([("small", 1), ("big", 2)], vnodes=1000)
        share = dict(zip(ring.names, ring.ownership(), strict=True))
        assert ring.counts == (2000, 1000)
        assert share["big"] / share["small"] == pytest.approx(2, rel=0.1)

    def test_three_replicas_on_eight_tokens(self) -> None:
        ring = ring_at({"A": [100, 500], "B": [200, 600], "C": [300, 700], "D": [400, 800]}, 1000)
        order = [ring.names[member] for member in ring.owners[:-1]]
        assert order == ["A", "B", "C", "D", "A", "B", "C", "D"]
        assert [ring.names[member] for member in islice(ring.walk(150), 3)] == ["B", "C", "D"]

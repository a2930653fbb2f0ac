"""The ring's promises, each against the plainest reading of the rule."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lbproxy.core.forge import build_ring, ring_in_pieces
from lbproxy.core.hashing import HASH_VERSIONS, SPACE, hash_key, token, tokens
from lbproxy.core.moves import moved
from lbproxy.core.ring import Ring, vnode_count

GOLDEN = Path(__file__).parent / "golden" / "ring_v1.json"
SMALL = 97

names = st.text(min_size=1, max_size=8)
weights = st.one_of(st.just(0.0), st.floats(0.01, 4), st.integers(1, 30).map(float))
pools = st.dictionaries(names, weights, max_size=7)
hashes = st.integers(0, SPACE - 1)


def crowded(name: str, index: int) -> int:
    """Positions on a circle so small that tokens collide all the time."""
    return token(name, index) % SMALL


def crowded_ring(pool: Mapping[str, float]) -> Ring:
    return build_ring(pool.items(), vnodes=6, position=crowded, size=SMALL)


def owner_name(ring: Ring, h: int) -> str:
    return ring.names[ring.owner(h)] if ring.tokens else ""


def walk_names(ring: Ring, h: int) -> list[str]:
    return [ring.names[member] for member in ring.walk(h)]


def plain_walk(ring: Ring, h: int) -> list[int]:
    """The walk as it is defined: read every point clockwise, keep what is new."""
    start = bisect_left(ring.tokens, h)
    points = ring.owners[:-1]
    return list(dict.fromkeys(points[start:] + points[:start]))


class TestHash:
    @pytest.mark.parametrize(
        ("key", "position"), [(b"", 0x2D06800538D394C2), (b"a", 0xE6C632B61E964E1F), (b"abc", 0x78AF5F94892F3950)]
    )
    def test_a_key_is_hashed_with_xxh3(self, key: bytes, position: int) -> None:
        assert hash_key(key) == position

    def test_the_encoding_of_a_token(self) -> None:
        assert token("b1", 0x0102) == hash_key(b"b1\x02\x01\x00\x00")
        assert token("ü", 0) == hash_key(b"\xc3\xbc\x00\x00\x00\x00")

    def test_names_and_indexes_that_look_alike_differ(self) -> None:
        alike = [("1", 11), ("11", 1), ("111", 0), ("1", 111), ("b", 1), ("b1", 0)]
        assert len({token(name, index) for name, index in alike}) == len(alike)

    @given(names, st.integers(0, 300))
    def test_in_bulk_as_one_by_one(self, name: str, count: int) -> None:
        assert tokens(name, count) == [token(name, index) for index in range(count)]

    def test_an_unknown_version_is_refused(self) -> None:
        for call in (partial(token, "b", 0), partial(tokens, "b", 1)):
            with pytest.raises(ValueError, match="unknown hash version 2"):
                call(version=2)


class TestVnodeCount:
    @pytest.mark.parametrize(
        ("weight", "count"), [(0, 0), (1, 1024), (2, 2048), (0.5, 512), (0.1, 102), (0.0001, 1), (1e-300, 1)]
    )
    def test_per_weight(self, weight: float, count: int) -> None:
        assert vnode_count(weight, 1024) == count

    @given(st.floats(0, 1000), st.floats(0, 1000))
    def test_more_weight_never_has_fewer(self, one: float, other: float) -> None:
        assert vnode_count(min(one, other), 1024) <= vnode_count(max(one, other), 1024)

    @pytest.mark.parametrize("weight", [-1, -0.1, float("inf"), float("nan")])
    def test_what_is_no_weight(self, weight: float) -> None:
        with pytest.raises(ValueError, match="a weight is a number from 0 up"):
            build_ring([("a", weight)])


class TestASetAndNothingElse:
    @given(pools, st.randoms(use_true_random=False))
    def test_order_makes_no_difference(self, pool: dict[str, float], random: Any) -> None:
        shuffled = list(pool.items())
        random.shuffle(shuffled)
        for one, other in [
            (build_ring(pool.items(), vnodes=8), build_ring(shuffled, vnodes=8)),
            (crowded_ring(pool), crowded_ring(dict(shuffled))),
        ]:
            assert (one.names, one.tokens, one.owners) == (other.names, other.tokens, other.owners)
            assert one.fingerprint == other.fingerprint

    @given(pools, pools)
    def test_history_makes_no_difference(self, earlier: dict[str, float], pool: dict[str, float]) -> None:
        fresh = build_ring(pool.items(), vnodes=8)
        reused = build_ring(pool.items(), vnodes=8, reuse=build_ring(earlier.items(), vnodes=8))
        assert (fresh.tokens, fresh.owners, fresh.counts) == (reused.tokens, reused.owners, reused.counts)
        assert fresh.fingerprint == reused.fingerprint

    @given(st.dictionaries(names, st.floats(0.5, 3), min_size=5, max_size=12), st.data())
    def test_what_is_mended_is_what_is_built(self, earlier: dict[str, float], data: st.DataObject) -> None:
        """A change that is small against the whole, which takes a shorter way."""
        pool = dict(earlier)
        kind = data.draw(st.sampled_from(["joins", "leaves", "changes"]))
        name = "new, or not" if kind == "joins" else data.draw(st.sampled_from(sorted(earlier)))
        if kind == "leaves":
            del pool[name]
        else:
            pool[name] = data.draw(st.floats(0.01, 3))
        before = build_ring(earlier.items(), vnodes=64)
        fresh, mended = build_ring(pool.items(), vnodes=64), build_ring(pool.items(), vnodes=64, reuse=before)
        for part in ("names", "weights", "counts", "tokens", "owners", "shift", "starts", "fingerprint"):
            assert getattr(fresh, part) == getattr(mended, part), part
        assert fresh.spans() == mended.spans()
        for h in (0, SPACE // 3, SPACE - 1):
            assert walk_names(fresh, h) == walk_names(mended, h)

    @given(st.lists(st.sampled_from("abcdefgh"), min_size=4, unique=True), st.data())
    def test_mending_where_tokens_collide(self, members: list[str], data: st.DataObject) -> None:
        """On a circle so small that some tokens collide and some do not."""
        kept = data.draw(st.lists(st.sampled_from(members), unique=True))
        build = partial(build_ring, vnodes=4, position=lambda name, index: token(name, index) % 997, size=997)
        before = build([(name, 1) for name in members])
        fresh, mended = build([(name, 1) for name in kept]), build([(name, 1) for name in kept], reuse=before)
        assert (fresh.tokens, fresh.owners, fresh.starts) == (mended.tokens, mended.owners, mended.starts)

    def test_a_ring_that_stays_as_it_is_is_the_same_ring(self) -> None:
        before = build_ring([("a", 1), ("b", 2)])
        assert build_ring([("b", 2), ("a", 1)], reuse=before) is before
        assert build_ring([("b", 2), ("a", 1)], vnodes=512, reuse=before) is not before

    def test_a_backend_with_very_many_tokens(self) -> None:
        ring = build_ring([("a", 9.5), ("b", 0.5)], vnodes=1024)
        positions = {point: name for name, count in (("a", 9728), ("b", 512)) for point in tokens(name, count)}
        assert list(ring.tokens) == sorted(positions)
        assert [ring.names[member] for member in ring.owners[:-1]] == [positions[point] for point in sorted(positions)]

    def test_a_large_ring_is_built_in_pieces(self) -> None:
        work, pieces = ring_in_pieces([(f"b{number}", 1) for number in range(100)]), 0
        with pytest.raises(StopIteration) as end:
            while True:
                next(work)
                pieces += 1
        assert pieces > 2 * 100 * 1024 // 4096
        assert end.value.value.tokens == build_ring([(f"b{number}", 1) for number in range(100)]).tokens

    def test_tokens_of_another_circle_are_not_reused(self) -> None:
        pool = {"a": 1.0, "b": 1.0}
        assert build_ring(pool.items(), vnodes=6, reuse=crowded_ring(pool)).tokens[-1] > SMALL

    def test_the_fingerprint_tells_what_decides_routing_apart(self) -> None:
        rings = [
            build_ring([("a", 1), ("b", 1)]),
            build_ring([("a", 1), ("b", 2)]),
            build_ring([("a", 1), ("b", 1.5)]),
            build_ring([("a", 1), ("b", 0)]),
            build_ring([("a", 1), ("c", 1)]),
            build_ring([("ab", 1)]),
            build_ring([("a", 1)]),
            build_ring([]),
            build_ring([("a", 1), ("b", 1)], vnodes=1023),
        ]
        assert len({ring.fingerprint for ring in rings}) == len(rings)
        assert build_ring([("a", 1), ("b", 1)]).fingerprint == build_ring([("b", 1.0), ("a", 1.0)]).fingerprint

    def test_a_weight_of_minus_zero_is_zero(self) -> None:
        assert build_ring([("a", -0.0)]).fingerprint == build_ring([("a", 0)]).fingerprint

    def test_a_thousand_and_twenty_four_tokens_unless_told_otherwise(self) -> None:
        assert build_ring([("a", 1), ("b", 0.5)]).counts == (1024, 512)

    @pytest.mark.parametrize(
        ("members", "complaint"),
        [([("a", 1), ("a", 1)], "'a' comes twice"), ([("a", 1), ("b", 1), ("a", 2)], "twice"), ([("", 1)], "no name")],
    )
    def test_names_are_identities(self, members: list[tuple[str, float]], complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint):
            build_ring(members)

    @pytest.mark.parametrize("position", [-1, SMALL])
    def test_a_token_must_lie_on_the_circle(self, position: int) -> None:
        with pytest.raises(ValueError, match="lies outside 0 to 96"):
            build_ring([("a", 1)], position=lambda name, index: position, size=SMALL)


class TestOwner:
    def test_the_first_token_at_or_after(self) -> None:
        ring = build_ring([("a", 1), ("b", 1)], vnodes=1, position=lambda name, _: {"a": 10, "b": 20}[name], size=30)
        assert [owner_name(ring, h) for h in (0, 10, 11, 20, 21, 29)] == ["a", "a", "b", "b", "a", "a"]

    def test_the_smaller_name_has_a_shared_point_and_the_next_inherits_it(self) -> None:
        spots = {"a": 10, "b": 10, "c": 10, "d": 20}
        rings = [
            build_ring([(name, 1) for name in pool], vnodes=1, position=lambda name, _: spots[name], size=30)
            for pool in ("dcba", "bcd", "dc")
        ]
        assert [owner_name(ring, 5) for ring in rings] == ["a", "b", "c"]
        assert [list(ring.tokens) for ring in rings] == [[10, 20]] * 3
        assert moved(rings[0], rings[1]).flows == {("a", "b"): 20}

    @given(hashes)
    def test_an_empty_ring_has_no_owner(self, h: int) -> None:
        for ring in (build_ring([]), build_ring([("a", 0)])):
            assert (ring.tokens, ring.owners, list(ring.walk(h)), sum(ring.spans())) == (array("Q"), [], [], 0)
            with pytest.raises(IndexError):
                ring.owner(h)

    @given(pools, hashes)
    def test_the_list_of_owners_needs_no_wrap_test(self, pool: dict[str, float], h: int) -> None:
        ring = build_ring(pool.items(), vnodes=8)
        assume(ring.tokens)
        points = sorted((token(name, i), name) for name, w in pool.items() for i in range(vnode_count(w, 8)))
        expected = next((name for point, name in points if point >= h), points[0][1])
        assert ring.names[ring.owners[bisect_left(ring.tokens, h)]] == expected
        assert ring.names[ring.owner(h)] == expected

    @given(pools, st.integers(1, 300), st.data())
    def test_buckets_find_what_a_bisection_of_the_whole_finds(
        self, pool: dict[str, float], size: int, data: st.DataObject
    ) -> None:
        ring = build_ring(pool.items(), vnodes=6, position=lambda name, index: token(name, index) % size, size=size)
        real = build_ring(pool.items(), vnodes=40)
        assert [ring.locate(h) for h in range(size)] == [bisect_left(ring.tokens, h) for h in range(size)]
        for h in (0, SPACE - 1, *real.tokens, data.draw(hashes)):
            assert real.locate(h) == bisect_left(real.tokens, h)


class TestWalk:
    @given(pools, st.integers(0, SMALL - 1))
    def test_everyone_with_a_token_once_the_nearest_first(self, pool: dict[str, float], h: int) -> None:
        ring = crowded_ring(pool)
        assert list(ring.walk(h)) == plain_walk(ring, h)

    @given(st.dictionaries(names, st.sampled_from([0, 1, 1, 400]), max_size=6), hashes)
    @settings(max_examples=50)
    def test_a_backend_far_away_among_thousands_of_tokens(self, pool: dict[str, int], h: int) -> None:
        ring = build_ring(pool.items(), vnodes=1)
        assert list(ring.walk(h)) == plain_walk(ring, h)

    @given(pools, hashes, st.data())
    def test_a_second_choice_survives_the_leaving_of_others(
        self, pool: dict[str, float], h: int, data: st.DataObject
    ) -> None:
        before = build_ring(pool.items(), vnodes=16)
        assume(before.tokens)
        leaver = data.draw(st.sampled_from(sorted(pool)))
        after = build_ring([(name, weight) for name, weight in pool.items() if name != leaver], vnodes=16)
        assert walk_names(after, h) == [name for name in walk_names(before, h) if name != leaver]


class TestShares:
    @given(pools)
    def test_spans_are_what_a_count_of_all_positions_gives(self, pool: dict[str, float]) -> None:
        ring = crowded_ring(pool)
        counted = Counter(owner_name(ring, h) for h in range(SMALL))
        assert [counted.get(name, 0) if ring.tokens else 0 for name in ring.names] == ring.spans()

    @given(pools)
    def test_they_sum_to_the_whole_circle_exactly(self, pool: dict[str, float]) -> None:
        ring = build_ring(pool.items(), vnodes=8)
        assert sum(ring.spans()) == (SPACE if ring.tokens else 0)
        assert sum(ring.ownership()) == pytest.approx(1 if ring.tokens else 0)

    @pytest.mark.parametrize(("vnodes", "low", "high"), [(160, 0.070, 0.085), (1024, 0.026, 0.034)])
    def test_the_spread_falls_with_the_root_of_the_tokens(self, vnodes: int, low: float, high: float) -> None:
        shares = [
            share
            for pool in range(20)
            for share in build_ring([(f"pool{pool}-b{i}", 1) for i in range(10)], vnodes).ownership()
        ]
        assert low < pstdev(shares) / fmean(shares) < high

    def test_a_million_keys_fall_as_the_circle_is_cut(self) -> None:
        ring = build_ring([(f"b{i}", 1 + i % 3) for i in range(12)])
        keys = map(b"user-%d".__mod__, range(1_000_000))
        counted = Counter(map(ring.owners.__getitem__, map(partial(bisect_left, ring.tokens), map(hash_key, keys))))
        for member, share in enumerate(ring.ownership()):
            chance = (share * (1 - share) / 1_000_000) ** 0.5
            assert abs(counted[member] / 1_000_000 - share) < 5 * chance

    def test_a_share_follows_its_weight(self) -> None:
        pool = {"a": 0.5, "b": 1.0, "c": 2.5}
        ring = build_ring(pool.items(), vnodes=4096)
        for name, share in zip(ring.names, ring.ownership(), strict=True):
            assert share == pytest.approx(pool[name] / 4, rel=0.1)


def changed_pool(data: st.DataObject, pool: dict[str, float]) -> dict[str, float]:
    """The pool after one backend joined, left or got another weight, or several did at once."""
    after = dict(pool)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.one_of(names, st.sampled_from(sorted(after)))) if after else data.draw(names)
        weight = data.draw(st.none() | weights)
        if weight is None:
            after.pop(name, None)
        else:
            after[name] = weight
    return after


class TestNoNeedlessMove:
    @given(pools, st.data())
    @settings(max_examples=200)
    def test_position_by_position_with_collisions_everywhere(self, pool: dict[str, float], data: st.DataObject) -> None:
        after_pool = changed_pool(data, pool)
        before, after = crowded_ring(pool), crowded_ring(after_pool)
        flows: Counter[tuple[str, str]] = Counter()
        for h in range(SMALL):
            source, target = owner_name(before, h), owner_name(after, h)
            if source == target:
                continue
            flows[source, target] += 1
            less = vnode_count(after_pool.get(source, 0), 6) < vnode_count(pool.get(source, 0), 6)
            more = vnode_count(after_pool.get(target, 0), 6) > vnode_count(pool.get(target, 0), 6)
            assert less or more or "" in (source, target)
        moves = moved(before, after)
        assert moves.flows == dict(flows)
        assert (moves.needless, moves.share) == (0, sum(flows.values()) / SMALL)

    @given(st.dictionaries(names, st.integers(20, 40), min_size=3, max_size=7), st.data())
    @settings(max_examples=200)
    def test_a_small_change_position_by_position(self, pool: dict[str, int], data: st.DataObject) -> None:
        """So small a change that only the arcs at its points are looked at; tokens collide here too."""
        name = data.draw(st.sampled_from(sorted(pool)))
        after_pool = {**pool, name: pool[name] + data.draw(st.integers(-3, 3))}
        build = partial(build_ring, vnodes=1, position=lambda name, index: token(name, index) % 499, size=499)
        before, after = build(pool.items()), build(after_pool.items())
        flows = Counter((owner_name(before, h), owner_name(after, h)) for h in range(499))
        assert moved(before, after).flows == {pair: count for pair, count in flows.items() if pair[0] != pair[1]}

    @given(st.dictionaries(names, weights, min_size=1, max_size=7), st.data())
    def test_on_the_real_circle_nobody_else_is_touched(self, pool: dict[str, float], data: st.DataObject) -> None:
        name = data.draw(st.one_of(names, st.sampled_from(sorted(pool))))
        after_pool = {**pool, name: data.draw(weights)}
        before, after = build_ring(pool.items(), vnodes=32), build_ring(after_pool.items(), vnodes=32)
        moves = moved(before, after)
        assert moves.needless == 0
        assert all(name in flow for flow in moves.flows)
        given_and_taken = dict.fromkeys({*pool, name, ""}, 0)
        for (source, target), positions in moves.flows.items():
            given_and_taken[source] -= positions
            given_and_taken[target] += positions
        spans_before, spans_after = (dict(zip(ring.names, ring.spans(), strict=True)) for ring in (before, after))
        for member in after_pool:
            assert given_and_taken[member] == spans_after[member] - spans_before.get(member, 0)

    def test_a_needless_move_would_be_seen(self) -> None:
        shifted = build_ring([("a", 1), ("b", 1)], vnodes=1, position=lambda name, _: {"a": 30, "b": 5}[name], size=50)
        before = build_ring([("a", 1), ("b", 1)], vnodes=1, position=lambda name, _: {"a": 20, "b": 5}[name], size=50)
        moves = moved(before, shifted)
        assert (moves.flows, moves.needless, moves.share) == ({("b", "a"): 10}, 10, 0.2)

    def test_circles_of_different_size_are_not_compared(self) -> None:
        with pytest.raises(ValueError, match="cannot be compared"):
            moved(crowded_ring({"a": 1}), build_ring([("a", 1)]))


GOLDEN_POOLS: dict[str, tuple[int, dict[str, float]]] = {
    "ten equal": (1024, {f"b{i}": 1.0 for i in range(10)}),
    "addresses and fractions": (160, {"10.0.0.1:8080": 0.5, "10.0.0.2:8080": 1.0, "[2001:db8::1]:80": 2.25}),
    "beyond ASCII, one drained, one tiny": (64, {"größer": 1.0, "東京": 2.0, "🦊": 0.01, "drained": 0.0}),
    "alone": (1, {"only": 1.0}),
}
GOLDEN_KEYS = [*(b"user-%d" % i for i in range(40)), b"", b"\x00", b"\xff" * 300, "Zoë".encode(), "鍵".encode(), b"a b"]


def golden() -> dict[str, Any]:
    """What the file must hold: of each pool, its fingerprint and for each key (in hex) its preference list."""
    pools_ = {}
    for title, (vnodes, pool) in GOLDEN_POOLS.items():
        ring = build_ring(pool.items(), vnodes)
        pools_[title] = {
            "vnodes": vnodes,
            "members": pool,
            "fingerprint": ring.fingerprint,
            "ownership": [round(share, 12) for share in ring.ownership()],
            "preference": {key.hex(): " ".join(walk_names(ring, hash_key(key))[:3]) for key in GOLDEN_KEYS},
        }
    return {"hash_version": 1, "hashes": {key.hex(): hash_key(key) for key in GOLDEN_KEYS}, "pools": pools_}


def test_golden_vectors() -> None:
    """Placement is a promise across releases and machines: if this fails, a new hash version is needed."""
    assert golden() == json.loads(GOLDEN.read_text("utf-8"))
    assert HASH_VERSIONS == (1,)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden(), indent=1, ensure_ascii=False) + "\n", "utf-8")

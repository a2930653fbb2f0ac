"""The parts of the simulator: placements, changes, the engine at its limits, the progress bar, the axes."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import random
import struct
import termios
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import hash_key
from lbproxy.core.spec import Address, BackendSpec, BoundedLoad, HotKeys, Pin, PoolSpec, Queue
from lbproxy.simulate import engine
from lbproxy.simulate.changes import Change, moved_keys
from lbproxy.simulate.engine import Engine
from lbproxy.simulate.placements import (
    MAGLEV_SIZE,
    PARTITIONS,
    Maglev,
    Members,
    Partitions,
    Rendezvous,
    jump_bucket,
    placements,
)
from lbproxy.simulate.plot import Chart, Series, svg, ticks
from lbproxy.simulate.progress import Progress
from lbproxy.simulate.scenes import ALGORITHMS, Scene, run
from lbproxy.simulate.traffic import Arrival, Habits, Load, Traffic, imagined

HASHES = [hash_key(b"key%d" % number) for number in range(4000)]
FIVE: Members = [(f"s{number}", 1.0) for number in range(5)]
WEIGHTED: Members = [("a", 1.0), ("b", 2.0), ("c", 0.5), ("none", 0.0)]


def owned(members: Members, name: str) -> Counter[str]:
    placement = placements(256)[name](members)
    return Counter(placement.owner(h) for h in HASHES)


class TestPlacements:
    @pytest.mark.parametrize("name", ["mod", "ring", "rendezvous", "jump", "maglev", "partitions"])
    def test_weights_count(self, name: str) -> None:
        shares = owned(WEIGHTED, name)
        assert set(shares) == {"a", "b", "c"}
        for backend, weight in WEIGHTED[:3]:
            assert shares[backend] / len(HASHES) == pytest.approx(weight / 3.5, rel=0.15)

    @pytest.mark.parametrize("name", ["ring", "one-point", "rendezvous", "partitions"])
    @given(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=2, max_size=6), st.data())
    @settings(max_examples=15, deadline=None)
    def test_no_key_moves_needlessly(self, name: str, weights: list[float], data: st.DataObject) -> None:
        members = [(f"b{number}", weight) for number, weight in enumerate(weights)]
        change = data.draw(
            st.sampled_from([Change(add=(("new", 1.0),)), Change(remove=("b0",)), Change(weights=(("b1", 4.0),))])
        )
        after = change.apply(members)
        before = placements(64)[name](members)
        shares = [1.0] * 500
        found = moved_keys(before, before.changed(after), (members, after), HASHES[:500], shares)
        assert found.needless == (0 if name != "partitions" or not change.weights else found.needless)
        assert found.keys == found.requests == pytest.approx(sum(found.lost.values()))

    def test_the_ring_is_the_cores(self) -> None:
        placement = placements(100)["ring"](FIVE)
        ring = build_ring(FIVE, 100)
        assert [placement.owner(h) for h in HASHES] == [ring.names[ring.owner(h)] for h in HASHES]

    @given(st.integers(0, 2**64 - 1), st.integers(1, 500))
    def test_jump_only_ever_moves_to_the_new_bucket(self, h: int, buckets: int) -> None:
        before, after = jump_bucket(h, buckets), jump_bucket(h, buckets + 1)
        assert 0 <= before < buckets
        assert after in (before, buckets)

    def test_jump_as_published(self) -> None:
        """The values that the reference implementation of the paper is usually tested with."""
        assert [jump_bucket(key, buckets) for key, buckets in ((1, 1), (42, 57), (0xDEAD10CC, 1), (256, 1024))] == [
            0,
            43,
            0,
            520,
        ]

    def test_maglev_gives_everybody_as_many_entries(self) -> None:
        placement = Maglev(FIVE)
        counts = Counter(placement.owner(entry) for entry in range(MAGLEV_SIZE))
        assert max(counts.values()) - min(counts.values()) <= 1

    def test_partitions_move_no_more_than_they_must(self) -> None:
        before = Partitions(FIVE)
        after = before.changed([*FIVE, ("s5", 1.0)])
        moved = [number for number in range(PARTITIONS) if before.owner(number) != after.owner(number)]
        assert len(moved) == PARTITIONS // 6
        assert {after.owner(number) for number in moved} == {"s5"}
        back = after.changed(FIVE)
        gone = {number for number in range(PARTITIONS) if after.owner(number) == "s5"}
        assert {number for number in range(PARTITIONS) if back.owner(number) != after.owner(number)} == gone

    def test_a_single_backend_has_everything(self) -> None:
        for name, place in placements(16).items():
            assert place([("only", 0.7)]).owner(HASHES[0]) == "only", name

    def test_rendezvous_prefers_nobody(self) -> None:
        shares = Counter(Rendezvous(FIVE).owner(h) for h in HASHES)
        assert max(shares.values()) / len(HASHES) == pytest.approx(0.2, abs=0.03)


class TestChange:
    def test_in_words(self) -> None:
        change = Change((("d", 2.0), ("e", 1.0)), ("a",), (("b", 0.5),))
        assert str(change) == "d added with weight 2, e added, a removed, b at weight 0.5"
        assert change
        assert not Change()

    def test_all_at_once(self) -> None:
        change = Change((("d", 2.0),), ("a",), (("b", 0.5),))
        assert change.apply([("a", 1.0), ("b", 1.0), ("c", 1.0)]) == [("b", 0.5), ("c", 1.0), ("d", 2.0)]


def scene(load: Load, backends: int = 3, habits: Habits | None = None, **changes: Any) -> Scene:
    limit = changes.pop("limit", None)
    members = tuple(BackendSpec(f"b{n}", Address("127.0.0.1", 0), max_in_flight=limit) for n in range(1, backends + 1))
    pool = PoolSpec("api", members, vnodes=64, **changes)
    return Scene(pool, imagined(habits or Habits(keys=300), load.seed), load)


class TestEngine:
    def test_a_closed_loop_keeps_its_clients_busy(self) -> None:
        outcome = run(scene(Load(clients=60, seconds=8, workers=2))).outcome
        assert outcome.in_flight == pytest.approx(60)
        assert outcome.requests == pytest.approx(60 * 5 / 0.2, rel=0.02)

    def test_an_open_loop_has_its_rate(self) -> None:
        outcome = run(scene(Load(rate=400, service_s=0.1, seconds=20))).outcome
        assert outcome.requests == pytest.approx(400 * 17, rel=0.05)
        assert outcome.in_flight == pytest.approx(40, rel=0.1)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_every_request_is_somewhere(self, algorithm: str) -> None:
        outcome = run(scene(Load(clients=30, seconds=5)), algorithm).outcome
        assert sum(each.served for each in outcome.backends) == pytest.approx(1)
        assert sum(each.owned for each in outcome.backends) == pytest.approx(1)
        assert sum(outcome.decisions.values()) == outcome.requests
        assert sum(each.spilled for each in outcome.backends) == sum(each.received for each in outcome.backends)
        parts = (outcome.hot, outcome.neighbours, outcome.others)
        assert sum(part.requests for part in parts) == outcome.requests
        assert sum(part.away for part in parts) == sum(each.spilled for each in outcome.backends)

    def test_full_backends_make_requests_wait_and_the_queue_is_bounded(self) -> None:
        load = Load(clients=50, seconds=10)
        outcome = run(scene(load, limit=10, queue=Queue(size=10, timeout=0.5))).outcome
        assert outcome.in_flight == pytest.approx(30, rel=0.02)
        assert max(each.peak for each in outcome.backends) <= 1.05
        assert outcome.refused["queue_full"] > 100
        patient = run(scene(load, limit=10, queue=Queue(size=100, timeout=5.0))).outcome
        assert patient.refused == {}
        assert patient.requests > outcome.requests * 0.95

    def test_who_waits_too_long_is_refused(self) -> None:
        load = Load(clients=12, service_s=2.0, seconds=20, warm_up_s=0)
        outcome = run(scene(load, limit=2, queue=Queue(size=100, timeout=0.3))).outcome
        assert set(outcome.refused) == {"queue_timeout"}

    def test_one_users_limit(self) -> None:
        load = Load(clients=100, seconds=8)
        habits = Habits(keys=300, hot=0.5)
        outcome = run(scene(load, habits=habits, hot_keys=HotKeys("spread", max_in_flight=5))).outcome
        assert outcome.refused["key_limit"] > 500
        # Five seats of a fifth of a second.
        assert outcome.hot.requests / 5.0 < 5 / 0.2 * 1.6

    def test_pins_are_followed(self) -> None:
        pins = (Pin("user-1-", "b2", is_prefix=True),)
        outcome = run(scene(Load(clients=30, seconds=4), pins=pins, bounded_load=BoundedLoad(None))).outcome
        assert set(outcome.decisions) == {"pinned"}
        assert [each.served for each in outcome.backends] == [0, 1, 0]

    def test_workers_see_what_the_others_hold(self) -> None:
        hard = BoundedLoad(1.25, 0)
        for workers in (1, 2, 4):
            outcome = run(scene(Load(clients=300, seconds=6, workers=workers), bounded_load=hard)).outcome
            assert outcome.peak <= 1.26

    def test_recorded_requests_take_as_long_as_they_took(self) -> None:
        arrivals = [Arrival(number / 10, number % 7, 0.35) for number in range(100)]
        traffic = Traffic([b"%d" % number for number in range(7)], [1 / 7] * 7, recorded=arrivals)
        original = scene(Load(clients=0, seconds=10, warm_up_s=1))
        outcome = run(replace(original, traffic=traffic)).outcome
        assert outcome.requests == 90
        assert outcome.in_flight == pytest.approx(3.5, rel=0.03)


class TestQuietTime:
    """Spells of traffic with a hot key, between which nothing happens for longer and longer."""

    KEYS = 50
    BEGINS = (0.0, 130.0, 290.0, 900.0)

    def scene(self, seed: int, workers: int, **changes: Any) -> Scene:
        chance = random.Random(seed)
        arrivals = []
        for begins in self.BEGINS:
            for number in range(800):
                key = 0 if chance.random() < 0.5 else chance.randrange(self.KEYS)
                arrivals.append(Arrival(begins + number / 50, key, chance.random()))
        arrivals.append(Arrival(400.0, 1, 250.0))  # one that takes its time, and is not quiet
        arrivals.sort(key=lambda arrival: arrival.at_s)
        keys = [b"%d" % number for number in range(self.KEYS)]
        traffic = Traffic(keys, [1 / self.KEYS] * self.KEYS, recorded=arrivals)
        load = Load(clients=0, seconds=1300, warm_up_s=1, workers=workers, seed=seed)
        return replace(scene(load, **changes), traffic=traffic)

    @pytest.mark.parametrize("changes", [{}, {"limit": 3, "queue": Queue(size=10, timeout=0.5)}])
    @pytest.mark.parametrize(("algorithm", "workers"), [("lbproxy", 1), ("lbproxy", 2), ("random-jump", 2)])
    def test_it_is_left_out_and_nothing_comes_out_otherwise(
        self, monkeypatch: pytest.MonkeyPatch, algorithm: str, workers: int, changes: dict[str, Any]
    ) -> None:
        ticked: list[float] = []
        tick = Engine._tick

        def note(engine: Engine, now: float, worker: int) -> None:
            ticked.append(now)
            tick(engine, now, worker)

        monkeypatch.setattr(Engine, "_tick", note)
        original = self.scene(workers, workers, **changes)
        short = run(original, algorithm)
        those, ticked[:] = set(ticked), []
        monkeypatch.setattr(engine, "SETTLED_S", float("inf"))
        assert run(original, algorithm) == short
        assert short.outcome.requests + sum(short.outcome.refused.values()) > 3100
        assert "spill:hot" in short.outcome.decisions or algorithm == "random-jump"
        assert those < set(ticked), "a tick comes when it would have come"
        assert len(those) < len(ticked) * 0.75
        assert len(ticked) == pytest.approx(13_000 * workers, abs=10)

    def test_how_far_it_has_come_is_told_to_the_end(self) -> None:
        told: list[float] = []
        run(self.scene(1, 1), report=told.append)
        assert told == sorted(told)
        assert told[-1] > 0.99


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestProgress:
    def bar(self, sink: io.StringIO, parts: int = 2) -> tuple[Progress, list[float]]:
        now = [0.0]
        return Progress(sink, parts, lambda: now[0]), now

    def test_it_appears_when_it_takes_long_and_goes_in_the_end(self) -> None:
        sink = Terminal()
        bar, now = self.bar(sink)
        bar.tell(0.2)
        assert sink.getvalue() == ""
        now[0] = 10.0
        bar.tell(0.5)
        assert sink.getvalue() == "\r[########......................]  25%, about 30 s to go \x1b[K"
        now[0] = 20.0
        bar.step()
        assert " 50%, about 20 s to go" in sink.getvalue()
        bar.end()
        assert sink.getvalue().endswith("\r\x1b[K")

    @pytest.mark.parametrize(
        ("columns", "shown"),
        [(20, "[########.........."), (1, ""), (0, "[########......................]  25%, about 30 s to go ")],
    )
    def test_it_keeps_to_one_line_of_a_narrow_terminal(self, columns: int, shown: str) -> None:
        terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with open(end, "w") as sink:
            now = [0.0]
            bar = Progress(sink, 2, lambda: now[0])
            now[0] = 10.0
            bar.tell(0.5)
            found = os.read(terminal, 1000).decode()
        os.close(terminal)
        assert found == f"\r{shown}\x1b[K"

    def test_nowhere_but_on_a_terminal(self) -> None:
        sink = io.StringIO()
        bar, now = self.bar(sink)
        now[0] = 100.0
        bar.tell(0.5)
        bar.step()
        bar.end()
        assert sink.getvalue() == ""


thousandths = st.integers(0, 10**6).map(lambda number: number / 1000)


class TestTicks:
    @pytest.mark.parametrize(
        ("low", "high", "expected"),
        [
            (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
            (0, 0.0743, [0, 0.02, 0.04, 0.06, 0.08]),
            (1.21, 2.4, [1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4]),
            (0, 0, [0, 0.2]),
        ],
    )
    def test_round_numbers(self, low: float, high: float, expected: list[float]) -> None:
        assert ticks(low, high) == pytest.approx(expected)

    @given(thousandths, thousandths)
    def test_they_cover_it_all_and_are_few(self, one: float, other: float) -> None:
        low, high = sorted((one, other))
        found = ticks(low, high)
        assert found[0] <= low + 1e-6 * high
        assert found[-1] >= high - 1e-6 * high
        assert 2 <= len(found) <= 10


class TestUnequalBackends:
    """What little room a light backend has is taken by a key that a heavy one would not notice."""

    @staticmethod
    def scene(mode: Literal["spread", "off"]) -> Scene:
        members = [BackendSpec("light", Address("127.0.0.1", 0), 0.4)]
        members += [BackendSpec(f"b{number}", Address("127.0.0.1", 0), 1.0) for number in range(1, 10)]
        pool = PoolSpec("api", tuple(members), vnodes=256, hot_keys=HotKeys(mode))
        ring = build_ring([(each.name, each.weight) for each in members], 256)
        seed = next(s for s in range(1, 500) if ring.names[ring.owner(hash_key(b"hot-%d" % s))] == "light")
        load = Load(clients=1000, seconds=7, warm_up_s=2, seed=seed)
        return Scene(pool, imagined(Habits(2000, hot=0.04), seed), load)

    def test_its_neighbours_stay_too(self) -> None:
        spread, plain = run(self.scene("spread")), run(self.scene("off"))
        assert spread.reach >= 2
        assert spread.outcome.neighbours.share is not None
        assert spread.outcome.neighbours.share <= 0.01
        assert spread.outcome.others.share is not None
        assert spread.outcome.others.share <= 0.01
        assert plain.outcome.neighbours.share is not None
        assert plain.outcome.neighbours.share > 0.2


def texts(chart: Chart) -> list[tuple[float, float, str]]:
    """Where what is written in a chart."""
    root = ElementTree.fromstring(svg([chart]))
    return [
        (float(each.get("x", "0")), float(each.get("y", "0")), each.text or "")
        for each in root.iter("{http://www.w3.org/2000/svg}text")
    ]


def bars(names: list[str], values: list[float]) -> Chart:
    points = tuple((float(at), value) for at, value in enumerate(values))
    return Chart("t", "d", "x", "y", (Series("s", points),), "bars", tuple(names), is_percent=True)


def test_names_that_would_touch_stand_on_two_lines() -> None:
    for count, lines in ((4, 1), (9, 2)):
        names = [f"algorithm-{at}" for at in range(count)]
        places = [(x, y) for x, y, text in texts(bars(names, [0.5] * count)) if text in names]
        assert len(places) == count
        assert len({y for _, y in places}) == lines
        for (left, y), (right, other) in pairwise(sorted(places)):
            assert y != other or right - left > 80


def test_a_bar_says_how_high_it_is_even_when_it_is_nothing() -> None:
    written = [text for _, _, text in texts(bars(["a", "b", "c"], [0.0, 0.0123, 0.7564]))]
    assert [text for text in written if text in ("0", "1.23", "75.6")] == ["0", "1.23", "75.6"]

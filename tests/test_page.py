"""What the page says and counts: words, windows, causes, verdicts, drawings, and pieces for viewers."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.control.admin.page import frame, picture, table, words
from lbproxy.control.admin.page.board import Board
from lbproxy.control.admin.page.judge import Verdict, judge, judge_instance
from lbproxy.control.admin.page.shares import Share, hot_keys, shares
from lbproxy.control.admin.page.sight import PoolSight
from lbproxy.control.admin.page.source import REQUESTS, look
from lbproxy.control.admin.page.window import APART_S, LEAST_S, LONG_S, SHORT_S, Flow, Past, quantile
from lbproxy.core.forge import build_ring
from tests.page_world import PoolModel, World, equal_pool

# Words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (words.percent(0), "0 %"),
        (words.percent(0.0004), "0.04 %"),
        (words.percent(0.00994), "0.99 %"),
        (words.percent(0.01), "1.0 %"),
        (words.percent(0.2034), "20.3 %"),
        (words.percent(0.9999), "100 %"),
        (words.about(0.214), "21 %"),
        (words.about(0.062), "6.2 %"),
        (words.signed(-7), "\u22127"),
        (words.signed(0), "0"),
        (words.times(1.624), "1.62\u00d7"),
        (words.times(12.34), "12.3\u00d7"),
        (words.rough_times(1.62), "1.6 times"),
        (words.rough_times(2.04), "twice"),
        (words.rough_times(0.47), "half"),
        (words.rate(0), "0"),
        (words.rate(47.31), "47.3"),
        (words.rate(12345.6), "12,346"),
        (words.duration(None), "\u2013"),
        (words.duration(0.00042), "0.4 ms"),
        (words.duration(0.04), "40 ms"),
        (words.duration(0.9996), "1.0 s"),
        (words.lasting(59), "59 s"),
        (words.lasting(185), "3 min"),
        (words.lasting(7200), "2 h"),
        (words.lasting(-3), "0 s"),
        (words.names(["b1"]), "b1"),
        (words.names(["b1", "b2"]), "b1 and b2"),
        (words.names(["b1", "b2", "b3", "b4"]), "b1, b2, b3 and b4"),
        (words.names(["b1", "b2", "b3", "b4", "b5"]), "b1, b2, b3 and 2 more"),
        (words.plural(1, "backend"), "1 backend"),
        (words.plural(1200, "answer"), "1,200 answers"),
        (words.short_hash("0x0123456789abcdef"), "01234567"),
        (words.escape("<b1 & 'b2\">"), "&lt;b1 &amp; &#x27;b2&quot;&gt;"),
    ],
)
def test_words(text: str, expected: str) -> None:
    assert text.replace("\u202f", " ") == expected


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6))
def test_rounded_parts_add_up_and_stay_close(parts: list[float]) -> None:
    total = round(math.fsum(parts))
    whole = words.rounded(parts, total)
    assert sum(whole) == total
    assert all(abs(number - part) <= 1.01 for number, part in zip(whole, parts, strict=True))


# The window


def watched(world: World) -> Past:
    past = Past()
    past.add(look(world.pools(), world.now, world.wall_now))
    return past


def see(past: Past, world: World) -> None:
    past.add(look(world.pools(), world.now, world.wall_now))


def test_a_span_holds_what_passed_within_it() -> None:
    world = World(equal_pool(3))
    world.pass_time(1, 500)
    past = watched(world)
    for _ in range(40):
        world.pass_time(1, 100)
        see(past, world)
    span = past.span("api")
    assert (span.seconds, span.served, span.pool.requests) == (SHORT_S, 3000, 3000)
    assert sum(flow.owned for flow in span.backends.values()) == 3000
    assert span.pool.per_s == 100
    assert past.brisk("api").requests == 500
    assert [round(rate) for _, rate in past.rates("api")] == [100] * len(past.rates("api"))


def test_looks_that_are_far_apart_still_give_a_rate() -> None:
    world = World(equal_pool(2))
    past = watched(world)
    assert past.brisk("api").per_s == 0
    for wait in (5.3, 5.3, 5.3):
        world.pass_time(wait, 530)
        see(past, world)
    assert past.brisk("api").per_s == pytest.approx(100)


def test_little_traffic_makes_the_window_long() -> None:
    world = World(equal_pool(3))
    past = watched(world)
    for _ in range(200):
        world.pass_time(2, 2)
        see(past, world)
    span = past.span("api")
    assert LONG_S - APART_S <= span.seconds <= LONG_S
    assert span.served == span.seconds


def test_nothing_from_before_a_change_is_judged() -> None:
    world = World(equal_pool(3))
    past = watched(world)
    for _ in range(40):
        world.pass_time(1, 200)
        see(past, world)
    assert past.span("api").is_settled

    def change_weight() -> None:
        world.models["api"].set_weight("b1", 3)

    def go_down() -> None:
        world.set_state("api", "b2", "down")

    for change in (change_weight, go_down):
        change()
        for seconds in range(10):
            see(past, world)
            span = past.span("api")
            assert (span.is_settled, span.seconds) == (False, LEAST_S), seconds
            said = judge(past.last.pools["api"].now, span, [])
            assert not any("its share" in sentence for sentence in said.sentences)
            world.pass_time(1, 200)
        for seconds in range(10, 15):
            see(past, world)
            span = past.span("api")
            assert (span.is_settled, span.seconds, span.served) == (True, seconds, seconds * 200)
            world.pass_time(1, 200)


def test_where_something_changes_all_the_time_there_is_still_something_to_see() -> None:
    world = World(equal_pool(3))
    past = watched(world)
    for second in range(60):
        world.set_state("api", "b1", "down" if second % 2 else "up")
        world.pass_time(1, 100)
        see(past, world)
    span = past.span("api")
    assert (span.seconds, span.served, span.is_settled) == (LEAST_S, 1000, False)


def test_a_backend_that_comes_counts_from_then_on() -> None:
    world = World(equal_pool(2))
    past = watched(world)
    world.pass_time(1, 50)
    see(past, world)
    more = equal_pool(3)
    more.backends["b3"].requests["2xx"] = 1_000_000
    world.models["api"] = more
    world.pass_time(1, 10)
    see(past, world)
    assert past.span("api").backends["b3"].requests == 0
    world.pass_time(1, 50)
    see(past, world)
    span = past.span("api")
    assert 0 < span.backends["b3"].requests < 50, "since it came"
    assert span.backends["b3"].seconds == 1


def test_counts_that_run_backwards_count_nothing() -> None:
    world = World(equal_pool(2))
    world.pass_time(1, 100)
    past = watched(world)
    world.models["api"] = equal_pool(2)
    world.pass_time(1)
    see(past, world)
    assert past.span("api").served == 0


@given(st.lists(st.floats(0.01, 30), min_size=1, max_size=300))
def test_the_past_stays_small_and_reaches_back(steps: list[float]) -> None:
    world = World(equal_pool(1, users=1))
    past = watched(world)
    for step in steps:
        world.pass_time(step)
        see(past, world)
    times = [sample.at for sample in past._samples]
    now = times[-1]
    assert times == sorted(times)
    assert now - times[0] <= LONG_S + APART_S + 30
    old = [at for at in times if now - at > SHORT_S]
    assert all(later - earlier >= APART_S for earlier, later in list(pairwise(old))[::2]) or len(old) < 70
    assert len(times) < SHORT_S / 0.5 + 2 * LONG_S / APART_S + 10


def test_states_are_remembered_for_a_while() -> None:
    world = World(equal_pool(2))
    past = watched(world)
    began = world.wall_now
    for wait, state in ((10, "down"), (20, "held"), (30, "up")):
        world.pass_time(wait)
        world.set_state("api", "b1", state)
        see(past, world)
    assert list(past.states("api", "b1")) == [
        (began - 3600, "up"),
        (began + 10, "down"),
        (began + 30, "held"),
        (began + 60, "up"),
    ]
    world.pass_time(601)
    see(past, world)
    assert list(past.states("api", "b1")) == [(began + 60, "up")]
    assert past.states("api", "b9") == []


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_its_rank(counts: list[int], q: float) -> None:
    bounds = (1.0, 2.0, 4.0)
    found = quantile(q, bounds, counts)
    if not sum(counts):
        assert found is None
        return
    rank = max(1, math.ceil(q * sum(counts) - 1e-9))
    values = [bound for bound, number in zip((*bounds, math.inf), counts, strict=True) for _ in range(number)]
    above = values[rank - 1]
    assert found is not None
    below = {1.0: 0.0, 2.0: 1.0, 4.0: 2.0, math.inf: 4.0}[above]
    assert below - 1e-9 <= found <= min(above, 4.0) + 1e-9


# Shares and causes


def verdict_of(world: World, pool: str = "api", seconds: int = 30, requests: int = 300) -> Verdict:
    past = watched(world)
    for _ in range(seconds):
        world.pass_time(1, requests)
        see(past, world)
    now = past.last.pools[pool].now
    return judge(now, past.span(pool), hot_keys(world.hot_keys(pool)))


NUMBERS = st.integers(0, 10_000)
COUNTS = st.lists(st.tuples(NUMBERS, NUMBERS, st.floats(0, 10)), min_size=1, max_size=6)


@given(COUNTS)
def test_the_three_causes_add_up_to_the_difference(counts: list[tuple[int, int, float]]) -> None:
    model = PoolModel("api", {f"b{at}": weight for at, (_, _, weight) in enumerate(counts)}, users=1, vnodes=8)
    world = World(model)
    past = watched(world)
    for (requests, owned, _), backend in zip(counts, model.backends.values(), strict=True):
        backend.requests["2xx"] += requests
        backend.owned += owned
    world.now += 1
    see(past, world)
    found = shares(past.last.pools["api"].now, past.span("api"))
    for share in found.values():
        difference = share.observed - share.expected
        assert share.ring_error + share.key_skew + share.spill == pytest.approx(difference, abs=1e-12)
    if sum(requests for requests, _, _ in counts):
        assert sum(share.observed for share in found.values()) == pytest.approx(1)
    if sum(weight for _, _, weight in counts):
        assert sum(share.expected for share in found.values()) == pytest.approx(1)


def test_a_share_without_weight_has_no_ratio() -> None:
    assert Share(0.0, 0.0, 0.0, 0.1).ratio is None
    assert Share(0.2, 0.2, 0.2, 0.3).ratio == pytest.approx(1.5)


# Verdicts


def test_all_is_well() -> None:
    assert verdict_of(World(equal_pool(5))) == Verdict(
        "good", ("All 5 backends serve.", "Load is spread as configured.")
    )


def test_a_heavier_backend_is_no_news() -> None:
    assert verdict_of(World(equal_pool(5, b3=2.0))).level == "good"


def test_one_backend_and_two() -> None:
    assert verdict_of(World(equal_pool(1))).sentences == ("The backend serves.",)
    assert verdict_of(World(equal_pool(2))).sentences[0] == "Both backends serve."


def test_silence_and_too_little_to_judge() -> None:
    assert verdict_of(World(equal_pool(3)), requests=0).sentences == (
        "All 3 backends serve.",
        "No requests in the last 30\u202fs.",
    )
    said = verdict_of(World(equal_pool(3)), requests=2).sentences
    assert said[1] == "Too few requests to judge how they are spread (60 answers)."


def test_a_hot_key_that_stays_on_its_owner_is_named_as_the_cause() -> None:
    pool = equal_pool(5)
    pool.hot = ("user-hot", 0.25, 1)
    owner = pool.preference("user-hot")[0].name
    said = verdict_of(World(pool))
    assert said.level == "notice"
    assert re.fullmatch(
        rf"{owner} gets (\d\.\d times|twice) its share: one hot key \(25\u202f% of all requests\)\.", said.sentences[0]
    )
    assert said.sentences[-1] == "All 5 backends serve."


def test_a_hot_key_that_is_spread_is_told_and_no_trouble() -> None:
    pool = equal_pool(5)
    pool.hot = ("user-hot", 0.3, 3)
    said = verdict_of(World(pool))
    assert said == Verdict(
        "good", ("All 5 backends serve.", "A hot key with 29\u202f% of the work is spread over 3 backends.")
    )


def test_busy_users_without_a_hot_one() -> None:
    pool = equal_pool(4)
    pool.keys = [key for key in pool.keys if pool.preference(key)[0].name != "b1"] + [
        key for key in pool.keys if pool.preference(key)[0].name == "b1"
    ] * 3
    pool.popularity = [float(at + 1) for at in range(len(pool.keys))]
    said = verdict_of(World(pool))
    assert said.level == "notice"
    assert said.sentences[0].endswith("its share: its users ask more than those of the others.")


def test_a_ring_with_too_few_points_is_blamed() -> None:
    for name in "abcdefgh":
        pool = PoolModel(name, dict.fromkeys(("b1", "b2", "b3", "b4"), 1.0), vnodes=2)
        owned = dict(zip(pool.ring.names, pool.ring.ownership(), strict=True))
        if max(owned.values()) > 0.4:
            break
    said = verdict_of(World(pool), name)
    assert "more vnodes would even it out" in said.sentences[0]


def test_a_backend_that_is_down_and_who_stands_in() -> None:
    world = World(equal_pool(5))
    world.set_state("api", "b3", "down")
    said = verdict_of(world)
    assert said.level == "notice"
    assert said.sentences[0] == "b3 is down."
    assert re.fullmatch(
        r"The next backends on the ring serve [12]\d\u202f% of the requests in their place\.", said.sentences[1]
    )
    assert len(said.sentences) == 2, "what the others get more is explained by it"


def test_many_and_all_that_are_down() -> None:
    world = World(equal_pool(8))
    for name in ("b1", "b2", "b3", "b4", "b5"):
        world.set_state("api", name, "down")
    said = verdict_of(world)
    assert said.sentences[0] == "5 of 8 backends are down: b1, b2, b3 and 2 more."
    for name in ("b6", "b7", "b8"):
        world.set_state("api", name, "down")
    said = verdict_of(world)
    assert said.level == "bad"
    assert said.sentences[:2] == ("No backend can serve.", "100\u202f% of the answers are errors (5xx).")
    assert "All 8 backends are down." in said.sentences


def test_that_all_are_asked_for_want_of_better_ones_is_said() -> None:
    world = World(equal_pool(2))
    model = world.models["api"]
    model.panic_mode = "serve_all"
    for name in model.backends:
        world.set_state("api", name, "down")
    said = verdict_of(world)
    assert said.level == "bad"
    assert said.sentences[0] == "No backend is eligible, so all are asked as if they were (panic: serve_all)."


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("ejected", "b1 is ejected."),
        ("held", "b1 is held back after a fall."),
        ("unknown", "b1 is unchecked."),
        ("draining", "b1 is draining."),
    ],
)
def test_other_states(state: str, words: str) -> None:
    world = World(equal_pool(3))
    world.set_state("api", "b1", state)
    assert verdict_of(world).sentences[0] == words


@pytest.mark.parametrize("state", ["draining", "down"])
def test_of_a_backend_that_takes_no_keys_nothing_is_expected(state: str) -> None:
    world = World(equal_pool(3))
    world.set_state("api", "b1", state)
    past = watched(world)
    for _ in range(30):
        world.pass_time(1, 300)
        see(past, world)
    now, span = past.last.pools["api"].now, past.span("api")
    brisk = next(iter(span.backends.values()))
    seen = dict(table.rows(PoolSight(0, now, span, brisk, (), (), Verdict("good", ()), {}, world.wall_now)))
    said = [re.sub(r"\s", "", re.sub("<[^>]+>", "", row)) for row in seen.values()]
    assert ["0%of0%" in row for row in said] == [True, False, False]
    assert ["of33.3%" in row for row in said] == [False, True, True]


def test_errors_and_where_they_come_from() -> None:
    pool = equal_pool(5)
    pool.failing = "b2"
    said = verdict_of(World(pool))
    assert said.level == "bad"
    assert re.fullmatch(r"\d+\S*\u202f% of the answers are errors \(5xx\), most of them from b2\.", said.sentences[0])
    assert said.sentences[1] == "All 5 backends serve."


@pytest.mark.parametrize(
    ("requests", "failed", "errors", "share"),
    [(0, 0, 0, 0.0), (200, 0, 0, 0.0), (200, 10, 0, 0.05), (200, 10, 6, 0.08), (0, 0, 5, 1.0), (3, 3, 5, 1.0)],
)
def test_trouble_is_a_share_of_what_was_asked(requests: int, failed: int, errors: int, share: float) -> None:
    assert Flow(1.0, requests, failed, errors).trouble == pytest.approx(share)


def test_requests_that_are_turned_away() -> None:
    world = World(equal_pool(3))
    past = watched(world)
    for _ in range(10):
        world.pass_time(1, 300)
        world.models["api"].rejected += 9
        see(past, world)
    said = judge(past.last.pools["api"].now, past.span("api"), [])
    assert said.sentences[0] == "3.0\u202f% of the requests are turned away."


@pytest.mark.parametrize(
    ("requests", "wrong", "is_told"), [(2000, 9, False), (100, 9, False), (2000, 20, False), (900, 10, True)]
)
@pytest.mark.parametrize("kind", ["failed", "errors"])
def test_a_few_errors_are_no_news_and_neither_is_a_small_share(
    kind: str, requests: int, wrong: int, is_told: bool
) -> None:
    world = World(equal_pool(3))
    past = watched(world)
    for _ in range(10):
        world.pass_time(1, 300)
        see(past, world)
    span = past.span("api")
    failed, errors = (wrong, 0) if kind == "failed" else (0, wrong)
    flow = replace(span.pool, requests=requests, failed=failed, errors=errors)
    said = judge(past.last.pools["api"].now, replace(span, pool=flow), [])
    assert (re.search("errors|turned away", " ".join(said.sentences)) is not None) is is_told


def test_a_pool_without_backends() -> None:
    world = World(PoolModel("api", {}))
    past = watched(world)
    said = judge(past.last.pools["api"].now, past.span("api"), [])
    assert (said.level, said.sentences[0]) == ("bad", "The pool has no backends.")


def test_a_backend_without_weight_that_has_traffic() -> None:
    world = World(equal_pool(3, b1=0.0))
    past = watched(world)
    for _ in range(30):
        world.pass_time(1, 100)
        backend = world.models["api"].backends["b1"]
        backend.requests["2xx"] += 30
        backend.received += 30
        world.models["api"].backends["b2"].spills["pinned"] += 30
        see(past, world)
    said = judge(past.last.pools["api"].now, past.span("api"), [])
    assert said.sentences[0] == "b1 has no weight but traffic: pins send it other backends' keys."


@pytest.mark.parametrize(
    ("states", "draining", "level", "said"),
    [
        (["ready", "ready"], False, "good", ()),
        (["ready", "down"], False, "notice", ("1 of 2 workers is not ready.",)),
        (["starting", "down", "ready"], False, "notice", ("2 of 3 workers are not ready.",)),
        (["down", "down"], False, "bad", ("No worker serves.",)),
        (["draining"], True, "notice", ("This proxy is draining: it accepts nothing new.",)),
    ],
)
def test_the_proxy_itself(states: list[str], draining: bool, level: str, said: tuple[str, ...]) -> None:
    world = World()
    world.worker_states, world.draining = states, draining
    assert judge_instance(world.info(), world.workers()) == Verdict(level, said)  # type: ignore[arg-type]


def test_a_worker_that_is_silent_is_told_before_it_is_replaced() -> None:
    world = World()
    world.silences, world.silent = {0: 5, 1: 6}, [1]  # which of them is worth a word is not for the page to decide
    assert judge_instance(world.info(), world.workers()) == Verdict("notice", ("Worker 1 has been silent for 6 s.",))
    table = dict(frame.blocks(world.info(), world.workers(), (), ()))["workers"]
    assert ("silent 6 s" in table, "silent 5 s" in table) == (True, False)


def test_what_a_restart_would_lose() -> None:
    world = World()
    world.not_saved = ["cannot write admin.sock.pins: No space left on device"]
    assert judge_instance(world.info(), world.workers()).sentences == (
        "What has been decided would not outlive a restart: cannot write admin.sock.pins: No space left on device.",
    )


def test_a_refused_reload() -> None:
    world = World()
    world.reload_result = {"result": "refused", "at": "", "problem": "pools.api: no backends"}
    said = judge_instance(world.info(), world.workers())
    assert said.level == "notice"
    assert said.sentences == (
        "The last reload was refused, and what was before it is in force: pools.api: no backends.",
    )


# Drawings


@pytest.mark.parametrize("number", [1, 2, 5, 10, 11, 200])
def test_the_ring_is_drawn_as_it_is(number: int) -> None:
    names = [f"b{at}" for at in range(1, number + 1)]
    ring = build_ring([(name, 1.0) for name in names], 64)
    places = picture.owners(ring)
    assert len(places) == picture.PLACES
    for name, owned in zip(ring.names, ring.ownership(), strict=True):
        shown = places.count(ring.names.index(name)) / picture.PLACES
        assert shown == pytest.approx(owned, abs=4 * math.sqrt(owned / picture.PLACES) + 0.002)
    drawn = picture.ring_circle(names, ring, places)
    dashes = [array("I", map(int, found.split())) for found in re.findall(r'stroke-dasharray="([\d ]+)"', drawn)]
    assert all(sum(each) == picture.PLACES and len(each) % 2 == 0 for each in dashes)
    assert sum(sum(each[::2]) for each in dashes) == picture.PLACES, "every place is drawn once"
    assert len(dashes) == (number if number <= picture.MOST_TRACKS else picture.TONES)
    circles = re.findall(r'<circle class="(\w+)[^"]*".*? r="([\d.]+)"', drawn)
    for radius in {radius for _, radius in circles}:
        kinds = [kind for kind, each in circles if each == radius]
        assert kinds == ["bed", *["track"] * (len(kinds) - 1)], "nothing is covered"


def test_an_empty_ring_has_a_bed_and_no_arcs() -> None:
    ring = build_ring([("b1", 0.0)])
    assert picture.owners(ring) == []
    assert "dasharray" not in picture.ring_circle(["b1"], ring, [])


def test_owners_are_told_in_two_letters_each() -> None:
    code = picture.encoded([0, 63, 64, 4095])
    assert code == "AAA_BA__"


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        ({"ring": 0.1, "keys": 0.2, "spill": -0.1}, {"ring": (50, 10), "keys": (60, 20), "spill": (40, 10)}),
        ({"ring": -0.1, "keys": -0.4, "spill": 0.0}, {"ring": (40, 10), "keys": (0, 40), "spill": (50, 0)}),
    ],
)
def test_causes_are_stacked_from_the_middle(
    causes: Mapping[str, float], expected: Mapping[str, tuple[float, float]]
) -> None:
    drawn = picture.causes_bar(list(causes.items()), 0.5)
    found = {
        name: (float(x), float(width))
        for name, x, width in re.findall(r'<rect class="(\w+)" x="([\d.]+)%" width="([\d.]+)%"', drawn)
    }
    assert found == expected


def test_a_timeline_shows_the_last_minutes_only() -> None:
    drawn = picture.timeline([(0, "up"), (900, "down"), (950, "up")], 1000, 200)
    rects = re.findall(r'<rect class="s-(\w+)" x="([\d.]+)%" width="([\d.]+)%"', drawn)
    assert rects == [("up", "0.0", "50.0"), ("down", "50.0", "25.0"), ("up", "75.0", "25.0")]


# Pieces


PIECES = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3).map(str), min_size=1)


@given(st.lists(st.tuples(PIECES, st.booleans()), min_size=1, max_size=12))
def test_a_viewer_who_takes_what_is_newer_sees_what_is_there(looks: list[tuple[dict[str, str], bool]]) -> None:
    board = Board()
    viewer: dict[str, str] = {}
    seen = -1
    for pieces, is_listening in looks:
        board.show(tuple(sorted(pieces)), pieces.items())
        if not is_listening:
            continue
        newer = board.since(seen)
        viewer = dict(pieces) if newer is None else viewer | newer
        seen = board.number
        assert viewer == pieces
        assert board.since(seen) == {}
    assert board.since(board.number + 1) is None


def test_hot_keys_are_read() -> None:
    pool = equal_pool(3)
    pool.hot = ("user-hot", 0.3, 2)
    first, *others = hot_keys(pool.hot_keys())
    assert (first.is_hot, first.text, len(first.backends)) == (True, "", 2)
    assert not any(key.is_hot for key in others)
    assert hot_keys({"keys": []}) == []


def test_a_key_that_nobody_asks_for_any_more_is_no_busy_one() -> None:
    """When traffic ends its keys are remembered for a while, each with no part of nothing."""
    document = equal_pool(3).hot_keys()
    first, second, *_ = document["keys"]
    for key in document["keys"][1:]:
        key |= {"requests_share": 0.0, "work_share": 0.0}
    assert [key.hash for key in hot_keys(document)] == [first["hash"]]
    second["work_share"] = 0.01
    assert [key.hash for key in hot_keys(document)] == [first["hash"], second["hash"]]


def test_counts_come_in_the_order_that_the_window_reads() -> None:
    world = World(equal_pool(2))
    world.pass_time(1, 70)
    sample = look(world.pools(), 0.0, 0.0)
    assert sample.pools["api"].counts[""][REQUESTS] == 70
    lengths: set[Any] = {len(counts) for counts in sample.pools["api"].counts.values()}
    assert len(lengths) == 1

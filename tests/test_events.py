"""Events are numbered, bounded, told to subscribers, and read as sentences; rings' changes are measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lbproxy.control.config import loads
from lbproxy.control.events import MEMORY, EventJournal, Events, sentence
from lbproxy.control.hot_watch import HotWatch
from lbproxy.control.pool_state import CAUSES
from lbproxy.control.ring_changes import RingChanges, serving_ring
from lbproxy.core.forge import build_ring
from lbproxy.core.hotkeys import HotKey
from lbproxy.core.moves import moved
from lbproxy.core.pieces import at_once
from lbproxy.core.snapshot import build_snapshot
from lbproxy.core.spec import PoolSpec
from lbproxy.observe.journal import BURST, Fields, Journal, Level
from lbproxy.observe.slabs import Layout
from lbproxy.supervisor import row_keys

SOURCES = "".join(path.read_text() for path in sorted((Path(__file__).parent.parent / "lbproxy").rglob("*.py")))


def test_events_are_numbered_and_only_so_many_are_kept() -> None:
    events = Events(lambda: 1_796_040_000.25)
    for number in range(MEMORY + 100):
        events.add("info", "backend state", {"pool": "api", "backend": f"b{number}", "state": "up", "was": "down"})
    kept = events.after(0)
    assert (len(kept), kept[0]["id"], kept[-1]["id"]) == (MEMORY, 101, MEMORY + 100)
    assert [event["id"] for event in events.after(MEMORY + 98)] == [MEMORY + 99, MEMORY + 100]
    newest = kept[-1]
    assert (newest["kind"], newest["level"], newest["time"]) == ("state", "info", "2026-11-30T12:00:00.250Z")
    assert (newest["pool"], newest["backend"], newest["state"]) == ("api", f"b{MEMORY + 99}", "up")


def test_fields_do_not_stand_for_what_an_event_says_itself() -> None:
    # A worker's events come with whatever fields it sends.
    events = Events(lambda: 1_796_040_000.25)
    own: Fields = {"id": "x", "time": 0, "kind": "state", "level": "debug", "event": "serving", "text": "all is well"}
    events.add("error", "worker failed", {**own, "pool": 5, "backend": None})
    (kept,) = events.after(0)
    assert (kept["id"], kept["time"], kept["kind"]) == (1, "2026-11-30T12:00:00.250Z", "worker")
    assert (kept["level"], kept["event"], kept["pool"], kept["backend"]) == ("error", "worker failed", "5", "")
    assert kept["text"].startswith("worker failed: ")


@pytest.mark.parametrize("event", sorted(set(re.findall(r'"(worker [a-z ]+|pin [a-z ]+)",', SOURCES))))
def test_what_is_told_of_workers_and_pins_can_be_told_from_the_rest(event: str) -> None:
    events = Events()
    events.add("info", event, {})
    (kept,) = events.after(0)
    assert kept["kind"] == event.split()[0]


def test_subscribers_are_told_until_they_leave() -> None:
    events, told = Events(), []
    one = events.subscribe(lambda: told.append("one"))
    events.subscribe(lambda: told.append("other"))
    events.add("info", "worker ready", {"worker": 1})
    one()
    one()
    events.add("info", "worker ready", {"worker": 1})
    assert told == ["one", "other", "other"]


def test_a_journal_holds_lines_back_but_no_events() -> None:
    lines: list[str] = []
    events = Events()
    journal = EventJournal(lambda level, event, fields: lines.append(event), events)
    for number in range(BURST + 30):
        journal.warning("backend state", backend=f"b{number}", state="down")
    journal.debug("of no interest")
    journal.debug("ring changed", pool="api", cause="pace", moved_share=0.01)
    assert lines.count("backend state") < BURST + 30
    assert len(events.after(0)) == BURST + 31


@pytest.mark.parametrize(
    ("event", "fields", "text"),
    [
        ("backend state", {"backend": "b3", "state": "down", "check": "timeout"}, "b3 is down (last check: timeout)"),
        (
            "backend state",
            {"backend": "b3", "state": "down", "check": "status", "why": "404"},
            "b3 is down (last check: status, 404)",
        ),
        (
            "backend state",
            {"backend": "b3", "state": "held", "for_s": 5.0},
            "b3 is up again and must prove itself for 5 s",
        ),
        (
            "backend ejected",
            {"backend": "b1", "for_s": 10.0, "reason": "consecutive_errors", "error": "reset"},
            "b1 is ejected for 10 s: consecutive_errors (reset)",
        ),
        (
            "override set",
            {"backend": "b1", "what": "weight", "weight": 0.5, "who": "ann", "for_s": 600.0, "reason": "try"},
            "b1 has weight 0.5 by decision of ann for 600 s: try",
        ),
        (
            "override set",
            {"backend": "b1", "what": "weight", "weight": "much", "who": "a worker"},
            "b1 has weight much by decision of a worker",
        ),
        (
            "override set",
            {"backend": "b1", "what": "drain", "weight": None, "who": "ann"},
            "b1 drains by decision of ann",
        ),
        (
            "ring changed",
            {"pool": "api", "cause": "reload", "moved_share": 0.0912},
            "9.12 % of the keys of api have moved (reload)",
        ),
        (
            "hot key",
            {"pool": "api", "is_hot": True, "work_share": 0.31, "reach": 3},
            "a key of api is hot with 31.0 % of the work, and is spread over 3",
        ),
        ("hot key", {"pool": "api", "is_hot": False}, "a key of api is no longer hot"),
        ("configuration refused", {"problem": "a.yaml:1:2: what"}, "a configuration was refused: a.yaml:1:2: what"),
        ("serving", {"workers": 2, "nothing": None}, "serving: workers 2"),
        ("logs reopened", {}, "logs reopened"),
    ],
)
def test_sentences(event: str, fields: Fields, text: str) -> None:
    assert sentence(event, fields) == text


def test_ring_changes_are_measured_by_cause() -> None:
    told: list[tuple[Level, Fields]] = []
    changes = RingChanges(Journal(lambda level, event, fields: told.append((level, fields))))
    changes.keep(["api", "web"])
    before, after = (build_ring([("a", 1), ("b", 1), ("c", weight)], 64) for weight in (1, 2))
    at_once(changes.observe("api", before, after, "override", 5.0))
    at_once(changes.observe("api", after, before, "pace", 6.0))
    api = changes.pools["api"]
    assert {cause: count for cause, count in api.counts.items() if count} == {"override": 1, "pace": 1}
    assert (api.cause, api.at, api.moved_share) == ("pace", 6.0, moved(before, after).share)
    assert changes.pools["web"].counts == dict.fromkeys(CAUSES, 0)
    assert [level for level, _ in told] == ["info", "debug"]
    changes.keep(["web"])
    assert set(changes.pools) == {"web"}


def test_the_ring_of_those_that_serve() -> None:
    spec = PoolSpec("api", (), vnodes=64)
    whole = build_ring([("a", 1), ("b", 2), ("c", 1)], 64)
    assert serving_ring(whole, {"a", "b", "c"}, spec) is whole
    assert serving_ring(whole, {"a", "c"}, spec).fingerprint == build_ring([("a", 1), ("c", 1)], 64).fingerprint
    assert len(serving_ring(whole, set(), spec).tokens) == 0


def test_a_key_that_becomes_hot_is_told_once_and_once_when_it_is_over() -> None:
    config = loads("{listen: '127.0.0.1:0', pools: {api: {backends: [{url: 'http://127.0.0.1:1'}]}}}")
    pools = build_snapshot(config, 1, Layout().assign(row_keys(config), 1)).pools
    told: list[Fields] = []
    watch = HotWatch(Journal(lambda level, event, fields: told.append(fields)))
    watch.look(pools)
    pools["api"].account.hot.hot[7] = HotKey(7, 0.2, 0.31234, 3, 1.0)
    watch.look(pools)
    watch.look(pools)
    del pools["api"].account.hot.hot[7]
    watch.look(pools)
    watch.look({})
    assert [(fields["hash"], fields["is_hot"], fields.get("reach")) for fields in told] == [
        ("0x0000000000000007", True, 3),
        ("0x0000000000000007", False, None),
    ]
    assert told[0]["work_share"] == 0.3123

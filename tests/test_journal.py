"""Events are one line each, for people or machines, and telling them never waits."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.observe.journal import (
    BURST,
    LINE_MAX,
    Fields,
    Journal,
    Level,
    LoggingBridge,
    Stderr,
    describe,
    json_line,
    text_line,
)

NOON_NS = 1_796_040_000_123_456_789


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def read(fd: int) -> str:
    try:
        return os.read(fd, 1 << 20).decode()
    except BlockingIOError:
        return ""


def test_text_is_for_people(pipe: tuple[int, int]) -> None:
    journal = Journal(Stderr(fd=pipe[1], wall_ns=lambda: NOON_NS))
    journal.info("worker ready", worker=0, pid=4711)
    journal.error("configuration refused", problem="a.yaml:1:2: no\nsuch thing", empty="", quoted='x="1"', flag=True)
    assert read(pipe[0]) == (
        "2026-11-30T12:00:00.123Z info worker ready worker=0 pid=4711\n"
        '2026-11-30T12:00:00.123Z error configuration refused problem="a.yaml:1:2: no\\nsuch thing" empty="" '
        'quoted="x=\\"1\\"" flag=true\n'
    )


def test_json_is_for_machines(pipe: tuple[int, int]) -> None:
    Journal(Stderr("info", "json", pipe[1], lambda: NOON_NS)).warning("worker ended", worker=1, end="signal SIGKILL")
    assert json.loads(read(pipe[0])) == {
        "time": "2026-11-30T12:00:00.123Z",
        "level": "warning",
        "event": "worker ended",
        "worker": 1,
        "end": "signal SIGKILL",
    }


def test_the_level_is_the_least_that_is_said_and_can_be_changed(pipe: tuple[int, int]) -> None:
    stderr = Stderr("warning", "text", pipe[1])
    journal = Journal(stderr)
    journal.debug("one")
    journal.info("two")
    journal.warning("three")
    assert read(pipe[0]).split()[1:] == ["warning", "three"]
    stderr.configure("debug", "json")
    journal.debug("four")
    assert json.loads(read(pipe[0]))["event"] == "four"


@given(st.text(max_size=50), st.dictionaries(st.sampled_from("abc"), st.text(max_size=50) | st.integers()))
def test_every_event_is_one_line(event: str, fields: Fields) -> None:
    line = json_line("now", "info", event, fields)
    assert line.count("\n") == 1
    assert json.loads(line) == {"time": "now", "level": "info", "event": event, **fields}
    assert len(text_line("now", "info", "event", fields).splitlines()) == 1


def test_a_line_that_stderr_cannot_take_is_dropped_and_told_of_later(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4000)
    journal = Journal(Stderr(fd=writer))
    for _ in range(3):
        journal.info("lost")
    assert read(reader) == "x" * 4000
    journal.info("seen")
    assert read(reader).endswith(" info seen lines_dropped_before=3\n")
    journal.info("again")
    assert "dropped" not in read(reader)


def test_a_line_is_never_longer_than_a_pipe_takes_in_one_piece(pipe: tuple[int, int]) -> None:
    Journal(Stderr(fd=pipe[1])).info("much", text="é" * 10_000)
    line = read(pipe[0])
    assert LINE_MAX // 2 < len(line.encode()) <= LINE_MAX
    assert line.endswith("é...\n")


@pytest.mark.parametrize("much", ["x" * 10_000, "\x00" * 10_000, "\N{PILE OF POO}" * 3000])
def test_a_line_that_is_cut_is_json_all_the_same(pipe: tuple[int, int], much: str) -> None:
    Journal(Stderr(format="json", fd=pipe[1])).info("much", text=much, other="short", number=5, more=much)
    line = read(pipe[0])
    told = json.loads(line)
    assert (told["other"], told["number"]) == ("short", 5)
    assert all(much.startswith(told[name].removesuffix("...")) and told[name] != "..." for name in ("text", "more"))
    assert LINE_MAX // 2 < len(line) <= LINE_MAX


def test_a_line_whose_names_are_too_long_is_cut_too(pipe: tuple[int, int]) -> None:
    Journal(Stderr(fd=pipe[1])).tell("info", "much", {"x" * 10_000: 5, "text": "short"})
    assert len(read(pipe[0])) == LINE_MAX


class Told:
    """An emit that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[Level, str, Fields]] = []

    def __call__(self, level: Level, event: str, fields: Fields) -> None:
        self.events.append((level, event, fields))


def test_an_event_that_comes_too_often_is_held_back_and_counted() -> None:
    told = Told()
    now = 10.0
    journal = Journal(told, lambda: now)
    for _ in range(BURST + 5):
        journal.error("flood")
    journal.info("other")
    assert [event for _, event, _ in told.events] == ["flood"] * BURST + ["other"]
    now = 11.0
    journal.error("flood")
    assert told.events[BURST + 1 :] == [
        ("warning", "events held back", {"kind": "flood", "count": 5}),
        ("error", "flood", {}),
    ]


def test_libraries_speak_through_the_journal() -> None:
    told = Told()
    logger = logging.Logger("some.library")
    logger.addHandler(LoggingBridge(Journal(told)))
    logger.info("never mind")
    logger.warning("look %s", "here")
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")
    assert told.events[0] == ("warning", "library message", {"logger": "some.library", "message": "look here"})
    level, _, fields = told.events[1]
    assert (level, fields["message"]) == ("error", "failed")
    assert str(fields["error"]).startswith("ValueError: no (test_journal.py:")
    logger.warning("%d of them", "many")
    assert told.events[2][2]["message"] == "%d of them"


async def test_what_a_library_says_in_a_thread_of_its_own_is_told_in_the_loops() -> None:
    loop = asyncio.get_running_loop()
    home = threading.get_ident()
    told: asyncio.Future[tuple[int, str]] = loop.create_future()

    def emit(level: Level, event: str, fields: Fields) -> None:
        told.set_result((threading.get_ident(), str(fields["message"])))

    bridge = LoggingBridge(Journal(emit))
    logger = logging.Logger("some.library")
    logger.addHandler(bridge)
    await asyncio.to_thread(logger.warning, "from elsewhere")
    assert await asyncio.wait_for(told, 5) == (home, "from elsewhere")


def test_an_exception_is_described_with_its_places() -> None:
    def inner() -> Any:
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        inner()
    text = describe(caught.value)
    assert text.startswith("KeyError: 'x' (test_journal.py:")
    assert text.count("<") == 1
    assert describe(OSError("plain")) == "OSError: plain"

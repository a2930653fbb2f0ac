"""The journal: what the proxy says about itself, one structured line per event that matters.

    2026-11-30T12:00:00.123Z info worker ready worker=0 pid=4711
    {"time":"2026-11-30T12:00:00.123Z","level":"info","event":"worker ready","worker":0,"pid":4711}

A worker has a journal too, whose lines go to the supervisor, so that only one process writes. Writing never waits: a
line that stderr cannot take at once is dropped, and the next one says how many were. An event that comes very often is
cut down to `BURST` lines a second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import stat
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal

from lbproxy.observe.lines import iso_time

Level = Literal["debug", "info", "warning", "error"]
Value = str | int | float | bool | None
Fields = dict[str, Value]
Emit = Callable[[Level, str, Fields], None]

LEVELS: Final[dict[Level, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
BURST: Final = 20
LINE_MAX: Final = 4096  # what a pipe takes in one piece
CUT: Final = "..."
PLACES: Final = 6  # how many frames of a traceback are told


def level_of(word: str) -> Level | None:
    """The level of that name."""
    return next((level for level in LEVELS if level == word), None)


class Journal:
    """Where events are told. The methods are named by how much an operator should mind."""

    def __init__(self, emit: Emit, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._clock = clock
        self._second = -1
        self._counts: dict[str, int] = {}

    def debug(self, event: str, **fields: Value) -> None:
        self.tell("debug", event, fields)

    def info(self, event: str, **fields: Value) -> None:
        self.tell("info", event, fields)

    def warning(self, event: str, **fields: Value) -> None:
        self.tell("warning", event, fields)

    def error(self, event: str, **fields: Value) -> None:
        self.tell("error", event, fields)

    def tell(self, level: Level, event: str, fields: Fields) -> None:
        """Emit the event, unless it has been told `BURST` times within this second."""
        second = int(self._clock())
        if second != self._second:
            self._second = second
            held_back = {name: count - BURST for name, count in self._counts.items() if count > BURST}
            self._counts = {}
            for name, count in held_back.items():
                self._emit("warning", "events held back", {"kind": name, "count": count})
        count = self._counts[event] = self._counts.get(event, 0) + 1
        if count <= BURST:
            self._emit(level, event, fields)


class Stderr:
    """An `Emit` that writes lines to a descriptor, from `level` up."""

    def __init__(
        self,
        level: Level = "info",
        format: Literal["text", "json"] = "text",
        fd: int = 2,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._fd = fd
        self._wall_ns = wall_ns
        self._dropped = 0
        self._poll: select.poll | None = None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            self._poll = select.poll()
            self._poll.register(fd, select.POLLOUT)
        self.configure(level, format)

    def configure(self, level: Level, format: Literal["text", "json"]) -> None:
        self._threshold = LEVELS[level]
        self._make = text_line if format == "text" else json_line

    def __call__(self, level: Level, event: str, fields: Fields) -> None:
        if LEVELS[level] < self._threshold:
            return
        if self._dropped:
            fields = {**fields, "lines_dropped_before": self._dropped}
        self._dropped = 0 if self._write(self._fitting_line(level, event, fields)) else self._dropped + 1

    def _fitting_line(self, level: Level, event: str, fields: Fields) -> bytes:
        """The line, with its longest texts cut until it fits: what is cut off at its end would be no JSON any more."""
        when = iso_time(self._wall_ns() // 1_000_000)
        line = self._make(when, level, event, fields).encode()
        while len(line) > LINE_MAX:
            lengths = {name: len(value) for name, value in fields.items() if isinstance(value, str)}
            longest = max(lengths, key=lengths.__getitem__, default=None)
            if longest is None or lengths[longest] <= len(CUT):  # it is the names that are too long
                return line[: LINE_MAX - 1] + b"\n"
            kept = str(fields[longest]).removesuffix(CUT)
            fields = {**fields, longest: kept[: len(kept) * 3 // 4] + CUT}
            line = self._make(when, level, event, fields).encode()
        return line

    def _write(self, line: bytes) -> bool:
        if self._poll is not None and not self._can_take():
            return False
        try:
            os.write(self._fd, line)
        except OSError:
            return False
        return True

    def _can_take(self) -> bool:
        assert self._poll is not None
        return any(event & select.POLLOUT for _, event in self._poll.poll(0))


def text_line(when: str, level: Level, event: str, fields: Fields) -> str:
    """For people: the event in plain words, then `name=value`."""
    pairs = "".join([f" {name}={_text_value(value)}" for name, value in fields.items()])
    return f"{when} {level} {event}{pairs}\n"


def json_line(when: str, level: Level, event: str, fields: Fields) -> str:
    """For machines."""
    line = {"time": when, "level": level, "event": event, **fields}
    return json.dumps(line, separators=(",", ":")) + "\n"


def _text_value(value: Value) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    is_plain = text and text.isprintable() and not any(letter in text for letter in ' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=not text.isprintable())


class LoggingBridge(logging.Handler):
    """Takes what libraries say through `logging` into the journal, from warnings up.

    A journal belongs to the thread of its event loop; what a library says in a thread of its own is handed over there.
    """

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal
        self._home = threading.get_ident()
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    def emit(self, record: logging.LogRecord) -> None:
        level = level_of(record.levelname.lower()) or "error"
        try:
            message = record.getMessage()
        except Exception:  # arguments that do not fit the text; whatever the library is doing goes on
            message = str(record.msg)
        fields: Fields = {"logger": record.name, "message": message}
        if record.exc_info is not None and record.exc_info[1] is not None:
            fields["error"] = describe(record.exc_info[1])
        if self._loop is None or threading.get_ident() == self._home:
            self._journal.tell(level, "library message", fields)
            return
        try:
            self._loop.call_soon_threadsafe(self._journal.tell, level, "library message", fields)
        except RuntimeError:  # the loop has ended, and with it everyone who could hear it
            pass


def tell_loop_exception(journal: Journal, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An event loop's exception handler, but for the journal: what nobody was there to catch."""
    error = context.get("exception")
    journal.error(
        "unexpected error",
        message=str(context.get("message", "")),
        error=describe(error) if isinstance(error, BaseException) else "",
    )


def describe(error: BaseException) -> str:
    """An exception in one line, with the places it passed, the innermost first."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        places.append(f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}")
        trace = trace.tb_next
    text = f"{type(error).__name__}: {error}"
    return f"{text} ({' < '.join(places[: -PLACES - 1 : -1])})" if places else text

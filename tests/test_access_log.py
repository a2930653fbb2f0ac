"""Lines stay valid whatever a client sends, whole whoever else writes, and never hold up the traffic."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core import ledger
from lbproxy.core.exchange import Finished
from lbproxy.core.spec import AccessLogSpec
from lbproxy.observe import access_log
from lbproxy.observe.access_log import AccessLog, open_sink, pieces
from lbproxy.observe.lines import LINE_MAX, MARKED, SAFE, CombinedLines, JsonLines, json_text
from tests.exchanges import ended
from tests.tools import PACKAGE_HOME

NOON_NS = 1_796_040_000_123_456_789  # 2026-11-30 12:00:00.123 UTC


def as_finished(**changes: Any) -> Finished:
    return ended(**{"request_id": b"3f2a9c1e-000001f2", "trace_id": b"0af7651916cd43dd8448eb211c80319c", **changes})


def json_line(with_key: bool = False, **changes: Any) -> dict[str, Any]:
    line = JsonLines(with_key, lambda: NOON_NS).line(as_finished(**changes))
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    made: dict[str, Any] = json.loads(line)
    return made


def combined_line(with_key: bool = False, **changes: Any) -> str:
    return CombinedLines(with_key, lambda: NOON_NS).line(as_finished(**changes)).decode("ascii")


def test_a_json_line_says_all() -> None:
    assert json_line(fields={b"user-agent": b"curl/8", b"referer": b"https://example.com/"}) == {
        "time": "2026-11-30T12:00:00.123Z",
        "client": "192.0.2.7",
        "method": "GET",
        "host": "api.example.com",
        "target": "/things?page=2",
        "protocol": "HTTP/1.1",
        "status": 200,
        "pool": "api",
        "backend": "b1",
        "decision": "owner",
        "reason": "",
        "attempts": 1,
        "request_bytes": 10,
        "response_bytes": 2000,
        "duration_us": 1500,
        "connect_us": None,
        "first_byte_us": 900,
        "upgraded": False,
        "request_id": "3f2a9c1e-000001f2",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "user_agent": "curl/8",
        "referer": "https://example.com/",
    }


def test_what_was_refused_early_has_no_backend_and_no_decision() -> None:
    line = json_line(
        decision=-1, backend_name="", pool_name="", reason="bad_request", status=400, first_byte_us=-1, attempts=0
    )
    assert (line["decision"], line["backend"], line["reason"], line["first_byte_us"]) == ("", "", "bad_request", None)


def test_the_key_is_there_only_when_asked_for() -> None:
    assert "key" not in json_line()
    assert json_line(with_key=True)["key"] == "user-1"
    assert "key" not in json_line(with_key=True, key=None)
    assert "user-1" not in combined_line()
    assert combined_line(with_key=True).endswith(' key="user-1"\n')


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=20))
def test_json_is_valid_for_every_byte(target: bytes, agent: bytes, host: bytes, key: bytes) -> None:
    line = json_line(with_key=True, target=target, host=host, key=key, fields={b"user-agent": agent})
    expected = {"target": target, "user_agent": agent, "host": host, "key": key}
    assert {name: line[name] for name in expected} == {
        name: value.decode("utf-8", "backslashreplace") for name, value in expected.items()
    }


@given(st.text(max_size=40))
def test_names_of_pools_and_backends_are_escaped_too(name: str) -> None:
    line = json_line(pool_name=name, backend_name=name)
    assert line["pool"] == line["backend"] == name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def test_every_single_byte_on_its_own() -> None:
    for octet in range(256):
        value = bytes([octet])
        assert json_line(target=value)["target"] == value.decode("utf-8", "backslashreplace")
        assert json_text(value).isascii()


COMBINED = re.compile(
    r'(\S+) - - \[([^]]+)\] "((?:[^"\\]|\\x[0-9A-F]{2})*)" (\d+) (\d+) "((?:[^"\\]|\\x[0-9A-F]{2})*)" '
    r'"((?:[^"\\]|\\x[0-9A-F]{2})*)" "((?:[^"\\]|\\x[0-9A-F]{2})*)"((?: \w+=(?:\S+|"[^"]*"))+)\n'
)


def test_a_combined_line_says_all() -> None:
    assert combined_line(fields={b"user-agent": b"curl 8"}, connect_us=120) == (
        '192.0.2.7 - - [30/Nov/2026:12:00:00 +0000] "GET /things?page=2 HTTP/1.1" 200 2000 "-" "curl 8" '
        '"api.example.com" pool=api backend=b1 decision=owner reason=- attempts=1 request_bytes=10 duration_us=1500 '
        'connect_us=120 first_byte_us=900 request_id="3f2a9c1e-000001f2" '
        "trace_id=0af7651916cd43dd8448eb211c80319c\n"
    )


@given(st.binary(max_size=60), st.binary(max_size=60), st.text(max_size=20))
def test_a_combined_line_is_one_line_of_the_right_form(target: bytes, agent: bytes, backend: str) -> None:
    found = COMBINED.fullmatch(combined_line(target=target, fields={b"user-agent": agent}, backend_name=backend))
    assert found is not None
    shown = re.sub(r"\\x(..)", lambda code: chr(int(code[1], 16)), found[7]).encode("latin-1")
    assert shown == agent or (agent == b"" and shown == b"-")


@given(st.integers(0, 20000), st.sampled_from([b"a", b"\x00", b"\xff", "é".encode(), b'"']))
def test_no_line_is_longer_than_a_pipe_takes_in_one_piece(size: int, unit: bytes) -> None:
    changes: dict[str, Any] = {"target": unit * size, "fields": {b"user-agent": unit * size, b"referer": unit * size}}
    line = json_line(with_key=True, key=unit * size, **changes)
    assert len(json.dumps(line)) <= LINE_MAX + 100
    assert (line["target"] == (unit * size).decode("utf-8", "backslashreplace")) or line["target"].endswith("...")
    assert len(combined_line(**changes)) <= LINE_MAX


def test_safe_is_what_json_and_quotes_leave_alone() -> None:
    assert [octet for octet in range(256) if MARKED[octet] == octet] == sorted(SAFE)
    assert json.dumps(SAFE.decode()) == f'"{SAFE.decode()}"'


def test_a_line_takes_a_few_microseconds() -> None:
    make = JsonLines().line
    exchange = as_finished(fields={b"user-agent": b"Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"})
    best = 1.0
    for _ in range(20):
        before = time.perf_counter()
        for _ in range(500):
            make(exchange)
        best = min(best, (time.perf_counter() - before) / 500)
    assert best < 10e-6  # about 2 on a quiet machine; the bound leaves room for a busy one


# The sink


class Log:
    """An access log with cells of its own and what it reported."""

    def __init__(self, path: str, format: str = "json") -> None:
        self.cells = [0] * 8
        self.reports: list[str] = []
        spec = AccessLogSpec(path, "json" if format == "json" else "combined")
        self.log = AccessLog(spec, self.cells, 2, self.reports.append)
        self.note = self.log.note

    @property
    def dropped(self) -> int:
        return self.cells[2 + ledger.WORKER_LOG_DROPPED]


def until(true: Callable[[], bool], bound_s: float = 5.0) -> None:
    end = time.monotonic() + bound_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def requests(path: Path) -> list[int]:
    return [int(json.loads(line)["target"]) for line in path.read_text().splitlines()]


def test_all_lines_arrive_in_order(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = Log(str(path))
    for number in range(3000):
        log.note(as_finished(target=b"%d" % number))
    log.log.close()
    assert requests(path) == list(range(3000))
    assert log.dropped == 0
    assert path.stat().st_mode & 0o777 == 0o640


async def test_a_timer_writes_what_a_quiet_proxy_logs(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = Log(str(path))
    log.log.start(asyncio.get_running_loop())
    log.note(as_finished(target=b"1"))
    end = time.monotonic() + 5
    while not path.stat().st_size:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    assert requests(path) == [1]
    log.log.close()


def test_after_a_rotation_the_old_file_has_the_old_lines_and_a_new_one_the_new(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = Log(str(path))
    log.note(as_finished(target=b"1"))
    path.rename(tmp_path / "access.log.1")
    log.log.reopen()
    log.note(as_finished(target=b"2"))
    log.log.close()
    assert requests(tmp_path / "access.log.1") == [1]
    assert requests(path) == [2]


def test_a_reopening_that_fails_goes_on_with_the_old_file_and_is_reported_once(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = Log(str(folder / "access.log"))
    log.note(as_finished(target=b"1"))
    folder.rename(tmp_path / "moved")
    log.log.reopen()
    sink = log.log._sink
    assert sink is not None
    until(lambda: bool(sink.problem))
    log.note(as_finished(target=b"2"))
    log.log.flush()
    log.log.flush()
    log.log.close()
    assert requests(tmp_path / "moved" / "access.log") == [1, 2]
    assert log.reports == [f"cannot reopen {folder}/access.log: No such file or directory"]


def test_a_path_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Log(str(tmp_path / "missing" / "access.log"))


def test_a_new_specification_is_followed(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "a"))
    log.note(as_finished(target=b"1"))
    log.log.reconfigure(AccessLogSpec(str(tmp_path / "b"), "combined"))
    log.note(as_finished(target=b"2"))
    with pytest.raises(FileNotFoundError):
        log.log.reconfigure(AccessLogSpec(str(tmp_path / "missing" / "c")))
    log.note(as_finished(target=b"3"))
    log.log.reconfigure(AccessLogSpec(""))
    log.note(as_finished(target=b"4"))
    log.log.reconfigure(AccessLogSpec(str(tmp_path / "a")))
    log.note(as_finished(target=b"5"))
    log.log.close()
    assert sorted(requests(tmp_path / "a")) == [1, 5]
    assert [line.split()[6] for line in (tmp_path / "b").read_text().splitlines()] == ["2", "3"]


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A pipe that nobody empties, and the end to read from."""
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, reader
    os.close(reader)


def read_all(fd: int) -> bytes:
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(fd, 1 << 20)
        except BlockingIOError:
            return b"".join(parts)
        if not part:
            return b"".join(parts)
        parts.append(part)


def test_a_full_pipe_drops_lines_and_counts_them_and_blocks_nothing(
    fifo: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "BATCH_BYTES", 60_000)
    monkeypatch.setattr(access_log, "PENDING_BYTES", 200_000)
    path, reader = fifo
    log = Log(path)
    logged = 3000
    longest = 0.0
    for number in range(logged):
        before = time.perf_counter()
        log.note(as_finished(target=b"%d" % number))
        longest = max(longest, time.perf_counter() - before)
    assert longest < 0.5
    assert log.dropped > 0
    seen = b""
    sink = log.log._sink
    assert sink is not None
    end = time.monotonic() + 5
    while sink.written_lines < sink.handed_lines:
        assert time.monotonic() < end
        seen += read_all(reader)
    log.note(as_finished(target=b"%d" % logged))
    log.log.close()
    seen += read_all(reader)
    numbers = [int(json.loads(line)["target"]) for line in seen.splitlines()]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    assert numbers[-1] == logged
    assert len(numbers) + log.dropped == logged + 1


def test_closing_does_not_wait_for_a_pipe_that_stays_full(
    fifo: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "CLOSE_TIMEOUT_S", 0.1)
    path, reader = fifo
    log = Log(path)
    for _ in range(1000):
        log.note(as_finished())
    before = time.monotonic()
    log.log.close()
    assert time.monotonic() - before < 10.0  # nobody reads, so otherwise for ever
    assert len(read_all(reader).splitlines()) + log.dropped >= 1000


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_log_that_moves_away_from_a_full_pipe_holds_nobody_up(
    fifo: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    monkeypatch.setattr(access_log, "FLUSH_INTERVAL_S", 0.01)
    path, reader = fifo
    log = Log(path)
    log.log.start(asyncio.get_running_loop())
    for _ in range(1000):
        log.note(as_finished(target=b"1"))
    log.log.flush()
    sink = log.log._sink
    assert sink is not None
    monkeypatch.setattr(sink._thread, "join", lambda timeout=None: pytest.fail("somebody waited"))
    log.log.reconfigure(AccessLogSpec(str(tmp_path / "a")))
    monkeypatch.undo()
    log.note(as_finished(target=b"2"))
    assert log.dropped == 0  # the pipe may be read yet
    seen = b""
    async with asyncio.timeout(10):
        while log.log._leaving:
            seen += read_all(reader) if is_read else b""
            await asyncio.sleep(0.01)
    log.log.close()
    seen += read_all(reader)
    assert requests(tmp_path / "a") == [2]
    assert log.dropped + seen.count(b"\n") >= 1000  # more where it was read after all
    assert (log.dropped == 0) == is_read


def test_a_sink_without_a_reader_is_reported(fifo: tuple[str, int]) -> None:
    path, reader = fifo
    log = Log(path)
    spare = os.dup(reader)
    os.dup2(os.open(os.devnull, os.O_RDONLY), reader)
    os.close(spare)
    log.note(as_finished())
    log.log.flush()
    sink = log.log._sink
    assert sink is not None
    until(lambda: sink.lost_lines == 1)
    log.log.flush()
    assert log.dropped == 1
    assert log.reports == [f"cannot write to {path}: Broken pipe"]
    log.log.close()
    assert log.dropped == 1


class Disk:
    """A disk with room for so many bytes, where a file of that descriptor is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fd: int, room: int) -> None:
        self.room = room
        self._fd = fd
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: memoryview) -> int:
        if fd != self._fd:
            return self._write(fd, data)
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = self._write(fd, data[: self.room])
        self.room -= done
        return done


def filling(monkeypatch: pytest.MonkeyPatch, log: Log, room: int) -> Disk:
    sink = log.log._sink
    assert sink is not None
    return Disk(monkeypatch, sink._fd, room)


@pytest.mark.parametrize("more", [-2, 0, 1], ids=["short of a line", "at a line's end", "within the next line"])
def test_of_a_batch_that_fills_the_disk_only_what_is_not_in_the_file_counts_as_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    path = tmp_path / "access.log"
    log = Log(str(path))
    size = len(JsonLines(False).line(as_finished(target=b"0")))
    disk = filling(monkeypatch, log, 7 * size + more)
    for number in range(10):
        log.note(as_finished(target=b"%d" % number))
    log.log.flush()
    sink = log.log._sink
    assert sink is not None
    until(lambda: sink.written_lines == 10)
    disk.room = 1 << 20
    log.note(as_finished(target=b"10"))
    log.log.close()
    lines = path.read_bytes().split(b"\n")
    whole = [int(json.loads(line)["target"]) for line in lines if line.endswith(b"}")]
    kept = 6 if more < 0 else 7
    assert whole == [*range(kept), 10]
    assert log.dropped == 10 - kept
    assert b"" not in lines[:-1]


def test_a_full_disk_is_reported_again_when_it_fills_again_and_not_with_every_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(access_log, "monotonic", lambda: now)
    path = tmp_path / "access.log"
    log = Log(str(path))
    disk = filling(monkeypatch, log, 0)
    sink = log.log._sink
    assert sink is not None

    def lose_one() -> None:
        lost = sink.lost_lines
        log.note(as_finished())
        log.log.flush()
        until(lambda: sink.lost_lines == lost + 1)
        log.log.flush()

    full = f"cannot write to {path}: No space left on device"
    lose_one()
    now += access_log.REPEAT_S / 2
    lose_one()
    assert log.reports == [full]
    disk.room = 1 << 20
    log.note(as_finished())
    now += access_log.REPEAT_S
    log.log.flush()
    until(lambda: sink.written_lines == 3)
    log.log.flush()
    assert log.reports == [full]
    disk.room = 0
    lose_one()
    assert log.reports == [full, full]
    log.log.close()


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(10, 100))
def test_pieces_keep_lines_whole_and_in_order(sizes: list[int], limit: int) -> None:
    lines = [b"x" * (size - 1) + b"\n" for size in sizes]
    made = list(pieces(lines, limit))
    assert b"".join(piece for piece, _ in made) == b"".join(lines)
    assert sum(count for _, count in made) == len(lines)
    assert all(len(piece) <= max(limit, 50) and piece.count(b"\n") == count for piece, count in made)
    assert all(len(piece) <= limit or count == 1 for piece, count in made)


WRITE_MANY = """
import sys
sys.path[:0] = {places!r}
from tests.test_access_log import Log, as_finished
log = Log(sys.argv[1])
for number in range(4000):
    log.note(as_finished(target=b"%d" % number, fields={{b"user-agent": sys.argv[2].encode() * (number % 300)}}))
log.log.close()
sys.exit(log.dropped)
"""


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_lines_of_several_processes_never_mix(tmp_path: Path, kind: str) -> None:
    code = WRITE_MANY.format(places=[PACKAGE_HOME, str(Path(__file__).parents[1])])
    path = str(tmp_path / "access.log")
    out: Any = subprocess.PIPE if kind == "pipe" else None
    sink = "-" if kind == "pipe" else path
    reader, writer = os.pipe()
    processes = [
        subprocess.Popen([sys.executable, "-c", code, sink, letter], stdout=writer if out else None) for letter in "abc"
    ]
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read() if out else b""
    assert [process.wait() for process in processes] == [0, 0, 0]
    lines = [json.loads(line) for line in (text or Path(path).read_bytes()).splitlines()]
    for letter in "abc":
        own = [line for line in lines if line["user_agent"].startswith(letter)]
        assert all(set(line["user_agent"]) == {letter} for line in own)
        assert [int(line["target"]) for line in own] == [number for number in range(4000) if number % 300]


def test_a_named_pipe_that_nobody_reads_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError):
        open_sink(str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fd = open_sink(str(pipe))
    assert os.get_blocking(fd)
    os.close(fd)
    os.close(reader)

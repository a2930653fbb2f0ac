"""The demo runs with nothing set up, shows where its traffic goes, and ends when told to."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.demo import app
from lbproxy.demo.table import Picture, Row, Screen, line, picture, summary, table_lines
from lbproxy.demo.traffic import Zipf
from tests.running import PATIENCE_S, free_port

ROWS = (
    Row("b1", 1, 0.25, 0.26, 0.3, 3000, 2, 40),
    Row("b2", 2, 0.5, 0.49, 0.5, 5000, 10, 80),
    Row("backend-3", 1, 0.25, 0.25, 0.2, 2000, 0, 30),
)
SHOWN = Picture(ROWS, 10_000, 150, 0, 0)


def test_zipf_gives_each_rank_its_share() -> None:
    zipf = Zipf(100, 1.0, random.Random(7))
    counts = Counter(zipf.draw() for _ in range(20_000))
    harmonic = sum(1 / rank for rank in range(1, 101))
    for rank in (0, 1, 9):
        assert counts[rank] / 20_000 == pytest.approx(1 / (rank + 1) / harmonic, rel=0.15)
    assert max(counts) <= 99


def test_a_picture_is_made_from_the_pools_document() -> None:
    pool = {
        "backends": [
            {
                "name": name,
                "weight": 1,
                "expected_share": 0.5,
                "ring_share": 0.5,
                "requests": {"2xx": count, "5xx": 1},
                "in_flight": 3,
            }
            for name, count in (("b1", 29), ("b2", 9))
        ]
    }
    shown = picture(pool, {"ann": "b1", "bob": "b1", "eve": "b2"}, 1, 2)
    assert (shown.requests, shown.users, shown.moved, shown.failures) == (40, 3, 1, 2)
    assert [(row.observed, row.requests, row.users, row.in_flight) for row in shown.rows] == [
        (0.75, 30, 2, 3),
        (0.25, 10, 1, 3),
    ]


def test_a_table_says_expected_against_observed() -> None:
    head, first, second, third, gap, last = table_lines(SHOWN, 120)
    assert head.split()[:5] == ["backend", "weight", "expected", "ring", "observed"]
    assert first.split()[:8] == ["b1", "1", "25.0%", "26.0%", "30.0%", "3,000", "2", "40"]
    bars = [row[second.index("##") :] for row in (first, second, third)]
    assert [bar.count("#") for bar in bars] == [22, 39, 16]  # the mark stands on one place of the first bar
    assert all(bar.count("|") == 1 for bar in bars)
    assert (gap, last) == ("", "10,000 requests of 150 users; none of them met more than one backend")


@given(st.integers(1, 250))
def test_no_line_of_a_table_wraps(width: int) -> None:
    assert all(len(text) <= width for text in table_lines(SHOWN, width))


def alike(number: int) -> list[Row]:
    return [Row(f"b{at}", 1, 0.1, 0.1, 0.1, 1, 0, 1, "up") for at in range(number)]


@given(st.integers(1, 60), st.integers(1, 40))
def test_a_low_terminal_costs_rows_and_never_what_is_said_below_them(backends: int, height: int) -> None:
    shown = Picture(tuple(alike(backends)), 10, 5, 0, 0, {"failover": 3})
    full = table_lines(shown, 120)
    lines = table_lines(shown, 120, height)
    assert len(lines) <= max(height, 6)
    assert lines[-3:] == full[-3:]
    rows = [text for text in lines if text.startswith("b") and not text.startswith("backend")]
    assert [row.split()[0] for row in rows] == [row.name for row in shown.rows[: len(rows)]]
    assert (f"and {backends - len(rows)} more" in lines) == (len(rows) < backends)


def test_backends_in_trouble_are_not_among_those_left_out() -> None:
    rows = alike(30)
    rows[25] = replace(rows[25], state="down")
    shown = Picture(tuple(rows), 10, 5, 0, 0)
    assert [text.split()[0] for text in table_lines(shown, 120, 8)[1:5]] == ["b25", "b0", "b1", "b2"]
    assert [text.split()[0] for text in table_lines(shown, 120, 50)[1:5]] == ["b0", "b1", "b2", "b3"]


def test_a_line_does_not_grow_with_the_number_of_backends() -> None:
    rows = alike(30)
    rows[25] = replace(rows[25], state="down")
    text = line(Picture(tuple(rows), 10, 5, 0, 0), 1.0)
    assert text.endswith("b9 10.0% (expected 10.0%) and 20 more; b25 is down")
    assert " and " not in line(Picture(tuple(rows[:10]), 10, 5, 0, 0), 1.0)


def test_a_table_of_nothing_yet() -> None:
    idle = Picture((Row("b1", 0, 0.0, 0.0, 0.0, 0, 0, 0),), 0, 0, 0, 0)
    assert len(table_lines(idle, 100)) == 4
    assert summary(Picture((), 5, 2, 1, 3)) == "5 requests of 2 users, 3 failed; 1 of them met more than one backend"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_each_picture_covers_the_last() -> None:
    out = Terminal()
    screen = Screen(out)
    screen.show(SHOWN, 1.0)
    first = out.getvalue()
    assert "\x1b" not in first
    screen.show(SHOWN, 2.0)
    assert out.getvalue() == first + f"\x1b[{first.count(chr(10))}F\x1b[J" + first


def test_a_low_terminal_shows_the_sentence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((80, 10)))
    out = Terminal()
    Screen(out).show(Picture(tuple(alike(12)), 10, 5, 0, 0), 1.0)
    lines = out.getvalue().splitlines()
    assert len(lines) == 9
    assert lines[-3:] == ["and 7 more", "", "10 requests of 5 users; none of them met more than one backend"]


def test_what_is_said_of_each_command_stands_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(0.2, 2, free_port()) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if re.match(r"  (curl|\S*python)", line)]
    assert len(lines) >= 6
    assert len({len(re.split(r"(?<= {3})(?=\S)", line)[0]) for line in lines}) == 1


def test_elsewhere_each_picture_is_a_line() -> None:
    out = io.StringIO()
    screen = Screen(out)
    screen.show(SHOWN, 1.0)
    screen.show(SHOWN, 2.0)
    assert out.getvalue().splitlines() == [line(SHOWN, 1.0), line(SHOWN, 2.0)]
    assert "b1 30.0% (expected 25.0%)" in line(SHOWN, 1.0)


def test_taken_default_ports_are_avoided_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        taken, admin_taken = one.getsockname()[1], other.getsockname()[1]
        monkeypatch.setattr(app, "PORT", taken)
        monkeypatch.setattr(app, "ADMIN_PORT", admin_taken)
        assert app.run(0.2, 2, None) == 0
        output = capsys.readouterr().out
        assert f"Port {taken} is taken; the proxy listens on 127.0.0.1:" in output
        assert f"Port {admin_taken} is taken; the admin API listens on 127.0.0.1:" in output
        assert "2 backends behind http://127.0.0.1:" in output
        assert app.run(1.0, 2, taken) == 1
        assert capsys.readouterr().err == f"lbproxy: cannot listen on 127.0.0.1:{taken}: the address is in use\n"


def test_a_port_that_somebody_takes_just_before_we_do_is_avoided_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As another demo does that is started at the same time."""
    look = app._free
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        looks = iter([taken])  # at first it is free
        monkeypatch.setattr(app, "ADMIN_PORT", taken)
        monkeypatch.setattr(app, "_free", lambda port: next(looks, look(port)))
        assert app.run(0.2, 2, free_port()) == 0
    shown = capsys.readouterr()
    assert f"Port {taken} is taken; the admin API listens on 127.0.0.1:" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize("is_there", [True, False])
def test_it_names_a_websocket_client_that_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_there: bool
) -> None:
    if not is_there:
        monkeypatch.setattr(app, "find_spec", lambda _: None)
    assert app.run(0.2, 2, free_port()) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "a WebSocket that echoes" in line]
    assert len(lines) == is_there
    for shown in lines:
        command, _, address = shown.strip().partition(" ws://")
        assert address.partition("/ws ")[0].startswith("127.0.0.1:")
        done = subprocess.run([*shlex.split(command), "--version"], capture_output=True, text=True)
        assert (done.returncode, "websockets" in done.stdout) == (0, True)


def test_it_ends_by_itself_and_every_user_has_stayed_put() -> None:
    command = [sys.executable, "-m", "lbproxy", "demo", "--seconds", "3", "--backends", "4", "--port", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [text for text in done.stdout.splitlines() if re.match(r" +\d+ s ", text)]
    assert 1 <= len(lines) <= 3
    found = re.search(r"([\d,]+) requests of ([\d,]+) users; none of them met more than one backend", lines[-1])
    assert found is not None
    assert int(found[1].replace(",", "")) > 100
    assert re.findall(r"(b\d) [\d.]+% \(expected ([\d.]+)%\)", lines[-1]) == [
        ("b1", "20.0"),
        ("b2", "20.0"),
        ("b3", "20.0"),
        ("b4", "40.0"),
    ]


class DemoOnATerminal:
    """`lbproxy demo` with a pseudo-terminal as its output."""

    def __init__(self) -> None:
        self.port = free_port()
        self.text = ""
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lbproxy", "demo", "--port", str(self.port)],
            stdout=slave,
            stderr=slave,
            env=os.environ | {"COLUMNS": "100", "LINES": "30"},
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self.text += os.read(self._master, 65536).decode()
            except OSError:  # the other end is closed
                return

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._master)


@pytest.fixture
def demo() -> Iterator[DemoOnATerminal]:
    started = DemoOnATerminal()
    yield started
    started.end()


async def test_what_it_invites_to_works_and_ctrl_c_ends_it_at_once(demo: DemoOnATerminal) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while "\x1b[J" not in demo.text:  # noqa: ASYNC110  # a second picture has been drawn over the first
            await asyncio.sleep(0.02)
    url = f"http://127.0.0.1:{demo.port}"
    headers = {"X-User-ID": "ann"}
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(url, headers=headers, timeout=timeout) as session:
        async with session.get("/") as answer:
            hello = await answer.json()
            assert answer.headers["X-LB-Backend"] == hello["backend"]
        assert (hello["user"], hello["requests_of_user"]) == ("ann", 1)
        async with session.put("/upload/some.bin", data=b"x" * 3_000_000) as answer:
            upload = await answer.json()
        assert (upload["received_bytes"], upload["backend"]) == (3_000_000, hello["backend"])
        async with session.get("/slow?seconds=0.2") as answer:
            assert (await answer.json())["waited_s"] == 0.2
        socket = await session.ws_connect("/ws")
        await socket.send_str("hi")
        assert await socket.receive_str() == f"{hello['backend']}: hi"
        stream = await session.get("/stream")
        assert (await stream.content.readline()).startswith(b"id: 1")
        before = time.monotonic()
        demo.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(demo.process.wait, PATIENCE_S) == 0
        assert time.monotonic() - before < 10.0  # about half a second on a quiet machine
        stream.close()
    assert "met more than one backend" in demo.text
    assert "Traceback" not in demo.text

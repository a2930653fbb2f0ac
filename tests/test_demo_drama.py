"""What happens in the demo happens on time, is survived, and is shown."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import aiohttp
import pytest

from lbproxy.demo.backends import DemoBackend
from lbproxy.demo.drama import DEAD_BACKEND, HOT_USER, Act, Drama
from lbproxy.demo.table import HotKey, Picture, Row, line, picture, table_lines
from lbproxy.demo.traffic import Traffic
from tests.running import PATIENCE_S, free_port


def test_an_act_begins_ends_and_begins_again() -> None:
    act = Act(first_s=5, lasts_s=10, every_s=40)
    on = [second for second in range(100) if act.is_on(second)]
    assert on == [*range(5, 15), *range(45, 55), *range(85, 95)]


def test_the_first_five_seconds_are_calm_and_within_ten_everything_has_begun() -> None:
    for act in (HOT_USER, DEAD_BACKEND):
        assert not act.is_on(5.0)
        assert act.first_s < 9.0
        assert act.lasts_s < act.every_s / 2  # there is more peace than war


async def test_a_backend_that_died_comes_back_where_it_was() -> None:
    backend = DemoBackend("b1")
    await backend.start()
    url = f"http://127.0.0.1:{backend.port}/"
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(timeout=timeout, headers={"X-User-ID": "ann"}) as session:
        async with session.get(url) as answer:
            assert (await answer.json())["requests_of_user"] == 1
        stream = await session.get(url + "stream")
        await backend.die()
        assert not backend.is_alive
        with pytest.raises(aiohttp.ClientError):
            await stream.read()
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url)
        with socket.socket() as other, pytest.raises(OSError):  # its port stays its own
            other.bind(("127.0.0.1", backend.port))
        await backend.revive()
        async with session.get(url) as answer:
            assert (await answer.json())["requests_of_user"] == 3  # it remembers, the stream counted too
    await backend.stop()
    await backend.stop()


async def test_the_drama_brings_everything_to_where_it_is_at_that_time() -> None:
    backend = DemoBackend("b1")
    await backend.start()
    traffic = Traffic("http://127.0.0.1:9/")
    drama = Drama(traffic, backend)
    seen = []
    for elapsed in (0.0, 6.0, 9.0, 17.0, 19.0, 30.0, 46.0, 69.0, 90.0):
        await drama.play(elapsed)
        seen.append((traffic.is_hot, backend.is_alive))
    assert seen == [
        (False, True),
        (True, True),
        (True, False),
        (True, False),
        (True, True),
        (False, True),
        (True, True),
        (False, False),
        (True, True),
    ]
    await backend.stop()
    await Drama(traffic, None).play(9.0)  # with one backend nobody may die
    assert traffic.is_hot


POOL = {
    "backends": [
        {
            "name": name,
            "weight": 1,
            "expected_share": 0.5,
            "ring_share": 0.5,
            "requests": {"2xx": 10},
            "in_flight": 0,
            "state": state,
        }
        for name, state in (("b1", "up"), ("b2", "down"))
    ],
    "decisions": {"owner": 15, "spill:hot": 3, "spill:full": 0, "failover": 1_200, "retry": 0, "no_key": 2},
}
KEYS = [
    {"hash": "0x00000000000000ab", "requests_share": 0.314, "backends": ["b1", "b2"], "hot": True},
    {"hash": "0x00000000000000cd", "requests_share": 0.01, "backends": ["b1"], "hot": False},
]


def test_states_spills_and_hot_keys_have_their_place_in_the_table() -> None:
    shown = picture(POOL, {}, 0, 0, KEYS)
    assert shown.hot == (HotKey("0x00000000000000ab", 0.314, ("b1", "b2")),)
    head, first, second, gap, _, spills, hot = table_lines(shown, 120)
    assert head.split()[-1] == "state"
    assert (first.split()[8], second.split()[8], gap) == ("up", "down", "")
    assert spills == "served elsewhere: 3 spill:hot, 1,200 failover"
    assert hot == "hot: key 0x00000000000000ab with 31% of the requests, on b1, b2"
    assert all(len(text) <= 40 for text in table_lines(shown, 40))


def test_in_one_line_only_what_is_news_is_said() -> None:
    text = line(picture(POOL, {}, 0, 0, KEYS), 7)
    assert text.endswith(
        "; b2 is down; served elsewhere: 3 spill:hot, 1,200 failover"
        "; hot: key 0x00000000000000ab with 31% of the requests, on b1, b2"
    )
    calm = Picture((Row("b1", 1, 1.0, 1.0, 1.0, 5, 0, 1, "up"),), 5, 1, 0, 0)
    assert line(calm, 1).endswith(": b1 100.0% (expected 100.0%)")


class Demo:
    """`lbproxy demo` with a pipe as its output."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "lbproxy", "demo", "--port", str(free_port()), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def lines_until(self, pattern: str) -> list[str]:
        """What it says, up to the first line that has this. If it ends before, its last words are in the error."""
        said: list[str] = []
        assert self.process.stdout is not None
        for text in self.process.stdout:
            said.append(text)
            if re.search(pattern, text):
                return said
        _, errors = self.end()
        raise AssertionError((pattern, said, errors, self.process.returncode))

    def end(self) -> tuple[str, str]:
        """End it; what it still said, on stdout and on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def dramatic(calm: object) -> Iterator[Demo]:
    demo = Demo()
    yield demo
    demo.process.kill()
    demo.process.communicate()


@pytest.fixture(scope="module")
def calm() -> Iterator[tuple[Demo, list[str]]]:
    """A calm demo of eight seconds and what it has said, begun before the other so that the two run side by side. Its
    ports are its own when it invites."""
    demo = Demo("--calm", "--seconds", "8")
    try:
        yield demo, demo.lines_until(r"Watch it in a browser: ")
    finally:
        demo.process.kill()
        demo.process.communicate()


def ask(url: str, method: str = "GET", body: object = None, token: str = "") -> tuple[int, str]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_hot_user_and_a_dead_backend_are_survived_and_shown(dramatic: Demo) -> None:
    demo = dramatic
    said = demo.lines_until(r"^ +\d+ s ")
    invitation = "".join(said)
    found = re.search(r"browser: (http://127\.0\.0\.1:\d+/) +\(the token for .* there: (\S+)\)", invitation)
    assert found is not None
    page, token = found.groups()
    status, text = ask(page)
    assert status == 200
    assert "<html" in text
    change = {"weight": 1.0, "reason": "a test"}
    assert ask(f"{page}v1/pools/demo/backends/b2", "PATCH", change, "wrong")[0] == 401
    assert ask(f"{page}v1/pools/demo/backends/b2", "PATCH", change, token)[0] == 200

    calm = demo.lines_until(r"^ +5 s ")
    assert all("none of them met more than one backend" in text for text in calm)
    last = demo.lines_until(r"b\d is (down|ejected)")[-1]
    assert re.search(r"hot: key 0x[0-9a-f]{16} with \d+% of the requests, on b\d, b\d", last)
    assert "spill:hot" in last
    last = demo.lines_until(r"failover")[-1]
    assert "failed" not in last
    rest, errors = demo.end()
    assert (demo.process.returncode, errors) == (0, "")
    assert "Traceback" not in rest


def test_a_calm_demo_has_neither(calm: tuple[Demo, list[str]]) -> None:
    demo, lines = calm
    assert demo.process.stdout is not None
    said = "".join(lines) + demo.process.stdout.read()
    assert "none of them met more than one backend" in said.splitlines()[-1]
    assert "hot:" not in said
    assert "--calm" not in said

"""What a service manager hears over a real notification socket, and when."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbproxy.notify import Notifier
from tests.running import PATIENCE_S, Backends, Proxy, get, in_thread

Message = dict[str, str]


class Manager:
    """The service manager's end of a notification socket."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + place[1:] if place.startswith("@") else place)
        self._socket.settimeout(PATIENCE_S)

    def next(self, beats: bool = False) -> Message:
        """The next message, without those that only say that somebody lives unless they are asked for."""
        end = time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < end, "nothing else came"
            lines = self._socket.recv(4096).decode().split("\n")
            message = dict(line.split("=", 1) for line in lines)
            if beats or message != {"WATCHDOG": "1"}:
                return message

    def is_silent(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()


def variables(pid: int) -> set[str]:
    """The names of a process's environment variables."""
    return {line.partition("=")[0] for line in Path(f"/proc/{pid}/environ").read_text().split("\0")}


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@lbproxy-test-{os.getpid()}")
    yield made
    made.close()


async def test_the_life_of_a_proxy_as_a_service_manager_hears_it(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.place)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    async with Backends("b1") as backends:
        with Proxy(tmp_path, backends.ports) as proxy:
            ready = await asyncio.to_thread(manager.next)
            assert ready == {"READY": "1", "STATUS": f"2 workers serve 127.0.0.1:{proxy.port}, generation 1"}
            assert (await get(proxy.port))[0] == 200  # who is told that it is ready may ask at once
            for pid in proxy.worker_pids():  # the socket is not theirs to speak to
                assert variables(pid).isdisjoint({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})

            beats = [await asyncio.to_thread(manager.next, True) for _ in range(3)]
            assert beats == [{"WATCHDOG": "1"}] * 3

            proxy.config["drain"] = {"timeout": "4s"}
            proxy.write_config()
            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            proxy.signal(signal.SIGHUP)
            begins = await asyncio.to_thread(manager.next)
            after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            assert begins.pop("RELOADING") == "1"
            assert before <= int(begins.pop("MONOTONIC_USEC")) <= after
            assert begins == {}
            ends = await asyncio.to_thread(manager.next)
            assert ends == {"READY": "1", "STATUS": f"2 workers serve 127.0.0.1:{proxy.port}, generation 2"}

            proxy.file.write_text("listen: nowhere\n")
            proxy.signal(signal.SIGHUP)
            assert "RELOADING" in await asyncio.to_thread(manager.next)
            refused = await asyncio.to_thread(manager.next)
            assert refused["READY"] == "1"
            assert "generation 2; the last reload was refused: " in refused["STATUS"]

            proxy.signal(signal.SIGTERM)
            assert await asyncio.to_thread(manager.next) == {"STOPPING": "1", "STATUS": "draining"}
            assert await asyncio.to_thread(proxy.wait) == 0


async def test_nothing_that_matters_is_lost_on_a_busy_manager(tmp_path: Path, manager: Manager) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.place})
    for _ in range(1000):  # more than a socket holds, and nobody reads
        notifier._tell("WATCHDOG=1", 0.0)
    told = asyncio.get_running_loop().run_in_executor(None, notifier.ready, "all is well")
    messages = [await asyncio.to_thread(manager.next)]
    await told
    assert messages == [{"READY": "1", "STATUS": "all is well"}]


async def test_a_proxy_that_cannot_start_is_never_ready(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.place)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        proxy = Proxy(tmp_path, {"b1": 9}, listen=f"127.0.0.1:{taken.getsockname()[1]}")
        proxy.start()
        assert await asyncio.to_thread(proxy.wait) == 1
        proxy.end()
    assert manager.is_silent()


async def test_it_lives_as_well_while_it_drains(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.place)
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    async with Backends("b1") as backends:
        with Proxy(tmp_path, backends.ports, drain={"timeout": "60s"}) as proxy:
            held = asyncio.create_task(get(proxy.port, "/held"))
            while backends.seen["b1"] == 0:  # noqa: ASYNC110  # the request reaches it in a moment
                await asyncio.sleep(0.01)
            proxy.signal(signal.SIGTERM)
            await in_thread(proxy, "draining")
            assert "READY" in await asyncio.to_thread(manager.next)
            assert "STOPPING" in await asyncio.to_thread(manager.next)
            assert await asyncio.to_thread(manager.next, True) == {"WATCHDOG": "1"}
            backends.release()
            assert await held == (200, "b1")


def test_nobody_is_told_where_nobody_listens(tmp_path: Path) -> None:
    for place in ("", "relative", "vsock:2:1234", str(tmp_path / "nobody"), "/" + "x" * 200):
        environment = {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": "1000", "PATH": "/bin"}
        notifier = Notifier(environment)
        assert environment == {"PATH": "/bin"}
        notifier.ready("all is well")
        notifier.reloading()
        notifier.stopping("bye")


def test_who_wants_to_hear_nothing_is_told_nothing(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    asyncio.run(Notifier({"NOTIFY_SOCKET": manager.place}).keep_alive())
    assert manager.is_silent()
    manager.close()


def test_only_the_process_that_is_meant_is_watched(tmp_path: Path) -> None:
    place = str(tmp_path / "notify")

    def interval(**variables: str) -> float | None:
        return Notifier({"NOTIFY_SOCKET": place, **variables}).interval_s

    assert interval(WATCHDOG_USEC="3000000") == 3.0
    assert interval(WATCHDOG_USEC="3000000", WATCHDOG_PID=str(os.getpid())) == 3.0
    assert interval(WATCHDOG_USEC="3000000", WATCHDOG_PID="1") is None
    assert interval(WATCHDOG_USEC="0") is None
    assert interval(WATCHDOG_USEC="soon") is None
    assert interval() is None
    assert Notifier({"WATCHDOG_USEC": "3000000"}).interval_s is None


def test_a_status_is_one_line_and_nothing_follows_the_end(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    notifier = Notifier({"NOTIFY_SOCKET": manager.place})
    notifier.ready("two\nlines\tof\x0btext \udcff")
    assert manager.next() == {"READY": "1", "STATUS": "two lines of text ?"}
    notifier.stopping("draining")
    notifier.reloading()
    notifier.ready("a reload that was under way")
    assert manager.next() == {"STOPPING": "1", "STATUS": "draining"}
    assert manager.is_silent()
    manager.close()

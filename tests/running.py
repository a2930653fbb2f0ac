"""A real lbproxy for tests: `lbproxy run` as a process of its own, its journal read as it comes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

Event = dict[str, Any]
PATIENCE_S = 20.0


class Proxy:
    """`lbproxy run` on a configuration, with ports of the system's choice and a JSON journal.

    `changes` is laid over a small default configuration, key by key at the top level.
    """

    def __init__(self, folder: Path, backends: Mapping[str, int], **changes: Any) -> None:
        self.file = folder / "lbproxy.yaml"
        self.access_log = folder / "access.log"
        self.config: dict[str, Any] = {
            "version": 1,
            "listen": "127.0.0.1:0",
            "workers": 2,
            # No bound, no spreading: whom a request goes to is the ring's word alone.
            "pools": {
                "api": {
                    "backends": backend_list(backends),
                    "bounded_load": {"factor": None},
                    "hot_keys": {"mode": "off"},
                }
            },
            "admin": {"listen": "127.0.0.1:0"},
            "log": {"format": "json", "access": {"path": str(self.access_log)}},
            "drain": {"timeout": "5s"},
            "reload": {"watch": "0"},
        } | changes
        self.events: list[Event] = []
        self.other_output: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        self._arrived = threading.Condition()
        self._reader: threading.Thread | None = None
        self._is_silent = False  # nothing will come any more

    def __enter__(self) -> Proxy:
        self.start()
        self.port, self.admin_port = ports(self.wait_event("serving"))
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def write_config(self) -> None:
        self.file.write_text(yaml.safe_dump(self.config))

    def start(self, *program: str) -> None:
        """`program` are the words for Python, `-m lbproxy` unless told otherwise."""
        self.write_config()
        self.process = subprocess.Popen(
            [sys.executable, *(program or ("-m", "lbproxy")), "run", "-c", str(self.file)],
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_journal, daemon=True)
        self._reader.start()

    def _read_journal(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._arrived:
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    self.other_output.append(line)
                self._arrived.notify_all()
        with self._arrived:
            self._is_silent = True
            self._arrived.notify_all()

    def end(self) -> None:
        """Whatever the test did, leave no process behind."""
        process = self.process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._reader is not None:
            self._reader.join()
        if process.stderr is not None:
            process.stderr.close()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, bound_s: float = PATIENCE_S) -> int:
        """The exit code, once everything it said has been read."""
        assert self.process is not None
        assert self._reader is not None
        code = self.process.wait(bound_s)
        self._reader.join(bound_s)
        return code

    def wait_event(self, name: str, count: int = 1) -> Event:
        """The event of that name that came as number `count`."""
        with self._arrived:
            self._arrived.wait_for(lambda: len(self.named(name)) >= count or self._is_silent, PATIENCE_S)
            found = self.named(name)
            assert len(found) >= count, (name, self.events, self.other_output)
            return found[count - 1]

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]

    def admin(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def document(self, path: str) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self.admin(path))
        return made

    def worker_pids(self) -> list[int]:
        return [worker["pid"] for worker in self.document("/v1/workers")["workers"]]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name that have these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.admin("/metrics"))
            for sample in family.samples
            if sample.name == f"lbproxy_{name}" and labels.items() <= sample.labels.items()
        )


def backend_list(backends: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "url": f"http://127.0.0.1:{port}"} for name, port in backends.items()]


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ports(serving: Event) -> tuple[int, int]:
    """The ports of the first listener and of the admin API."""
    listen, admin = (int(serving[name].partition(", ")[0].rpartition(":")[2]) for name in ("listen", "admin"))
    return listen, admin


def until(true: Callable[[], object], bound_s: float = PATIENCE_S) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + bound_s
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Backends:
    """Named backends in the test's event loop. They answer with their name; `/slow/S` after so many seconds, `/held`
    when the test has called `release`."""

    def __init__(self, *names: str) -> None:
        self.ports: dict[str, int] = {}
        self.seen: dict[str, int] = dict.fromkeys(names, 0)
        self._runners: dict[str, web.AppRunner] = {}
        self._released = asyncio.Event()

    def release(self) -> None:
        """Let what is held be answered."""
        self._released.set()

    async def __aenter__(self) -> Backends:
        for name in self.seen:
            await self.start(name)
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self._runners):
            await self.stop(name)

    async def stop(self, name: str) -> None:
        """Close its port and its connections."""
        await self._runners.pop(name).cleanup()

    async def start(self, name: str) -> None:
        """Listen, on the port that it had before if there was one."""

        async def answer(request: web.Request) -> web.Response:
            self.seen[name] += 1
            if request.path.startswith("/slow/"):
                await asyncio.sleep(float(request.path.removeprefix("/slow/")))
            elif request.path == "/held":
                await self._released.wait()
            return web.Response(text=name)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.ports.get(name, 0))
        await site.start()
        self.ports[name] = runner.addresses[0][1]
        self._runners[name] = runner


async def get(port: int, path: str = "/", user: str = "ann") -> tuple[int, str]:
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers={"X-User-ID": user}) as answer,
    ):
        return answer.status, await answer.text()


async def in_thread(proxy: Proxy, name: str, count: int = 1) -> dict[str, object]:
    return await asyncio.to_thread(proxy.wait_event, name, count)


async def until_true(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.005)


class Traffic:
    """Clients that ask without pause, each on a connection of its own; what they were answered and what failed."""

    def __init__(self, port: int, clients: int) -> None:
        self.answered = 0
        self.statuses: set[int] = set()
        self.failed: dict[int, int] = {}
        self.homes: dict[str, set[str]] = {}
        self._port = port
        self._is_over = False
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(clients)]

    async def _client(self, number: int) -> None:
        user = f"user-{number}"
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connector, headers={"X-User-ID": user}) as session:
            while not self._is_over:
                try:
                    async with session.get(f"http://127.0.0.1:{self._port}/") as answer:
                        self.homes.setdefault(user, set()).add(await answer.text())
                        self.statuses.add(answer.status)
                        self.answered += 1
                except aiohttp.ClientError:
                    self.failed[number] = self.failed.get(number, 0) + 1

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def until_answered(self, more: int) -> None:
        goal = self.answered + more
        await until_true(lambda: self.answered >= goal)


async def assert_each_counted_once(proxy: Proxy, backends: Backends, traffic: Traffic) -> None:
    """What the metrics say of requests to a pool, of which this was all the traffic, whatever was killed meanwhile.

    What a turn of a worker's loop has answered is counted together, and then sent. So what a client has got whole is
    counted in full. A worker that is killed between the two has counted what nobody got: up to one request for every
    client's connection it had, and not one for each kill. Such a client may not even fail: on a connection that it had
    kept, aiohttp repeats an idempotent request without a word. But a backend has seen every one of them as often as it
    is counted. And a pool's requests are counted before its backends': a kill in between leaves the backend short.
    """
    total = await asyncio.to_thread(proxy.metric, "requests_total", pool="api")
    by_backend = await asyncio.to_thread(proxy.metric, "upstream_requests_total", pool="api")
    seen = sum(backends.seen.values())
    assert traffic.answered <= by_backend <= total <= seen, (traffic.answered, by_backend, total, seen)

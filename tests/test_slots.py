"""The rule that there always is one worker in a slot, and what a supervisor does when there cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from lbproxy import slot as slot_module
from lbproxy import supervisor as supervisor_module
from lbproxy.control.config import loads
from lbproxy.core.spec import Config
from lbproxy.observe.access_log import open_sink
from lbproxy.observe.journal import Fields, Journal, Level
from lbproxy.observe.slabs import memory_file
from lbproxy.slot import HANGS_AFTER, Slot, ending, restart_delay_s, worker_environment
from lbproxy.supervisor import CannotApply, CannotStart, Supervisor, row_keys
from tests.loops import on_uvloop
from tests.running import PATIENCE_S, is_alive, until_true

# The rules


def test_only_repeated_early_deaths_are_waited_for() -> None:
    delays = [restart_delay_s(deaths) for deaths in range(12)]
    assert delays[:5] == [0.0, 0.0, 0.1, 0.2, 0.4]
    assert delays[-1] == restart_delay_s(10**6) == 10.0


@pytest.mark.parametrize(
    ("code", "was_ready", "reason"),
    [
        (-signal.SIGKILL, True, "killed"),
        (-signal.SIGKILL, False, "killed"),
        (-signal.SIGSEGV, True, "crashed"),
        (1, True, "crashed"),
        (0, True, "exited"),
        (1, False, "start_failed"),
    ],
)
def test_why_a_worker_was_replaced(code: int, was_ready: bool, reason: str) -> None:
    assert ending(code, was_ready) == reason


def test_the_allocators_thresholds_are_set_unless_the_operator_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "123")
    environment = worker_environment()
    assert environment["MALLOC_TRIM_THRESHOLD_"] == str(256 << 20)
    assert environment["MALLOC_MMAP_THRESHOLD_"] == "123"
    assert environment["PATH"] == os.environ["PATH"]


def test_a_worker_imports_nothing_of_the_control_plane() -> None:
    code = "import sys, lbproxy.worker; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "uvloop" in loaded
    assert not {"aiohttp", "yaml", "pydantic", "prometheus_client"} & set(loaded)


# The supervisor in this process

CONFIG = loads(
    "{version: 1, listen: '127.0.0.1:0', workers: 1, admin: {listen: null}, log: {access: {path: ''}},"
    " pools: {api: {backends: [{name: b1, url: 'http://127.0.0.1:1'}]}}}"
)


class Held:
    """A supervisor and what it told."""

    def __init__(self) -> None:
        self.events: list[tuple[Level, str, Fields]] = []
        self.supervisor = Supervisor(
            CONFIG, Journal(lambda level, event, fields: self.events.append((level, event, fields)))
        )

    async def end(self) -> None:
        self.supervisor.kill()
        await self.supervisor.drain()
        self.supervisor.close()


@contextlib.asynccontextmanager
async def held() -> AsyncIterator[Held]:
    made = Held()
    try:
        yield made
    finally:
        await made.end()


def program_in(folder: Path, script: str) -> Path:
    """A program to be started in the place of a worker's Python."""
    program = folder / "python"
    program.write_text(script)
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 3\n", "#!/bin/sh\nkill -9 $$\n", None])
@on_uvloop
async def test_workers_that_cannot_start_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    program = tmp_path / "python" if script is None else program_in(tmp_path, script)
    async with held() as made:
        monkeypatch.setattr(sys, "executable", str(program))
        with pytest.raises(CannotStart, match="worker 0 does not start: ") as caught:
            await made.supervisor.start()
        ending_text = {None: "No such file", "#!/bin/sh\nexit 3\n": "exit code 3"}.get(script, "SIGKILL")
        assert ending_text in str(caught.value)
        assert sum(made.supervisor.restarts.values()) == 3


@on_uvloop
async def test_a_worker_that_never_gets_ready_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_in(tmp_path, "#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(slot_module, "START_TIMEOUT_S", 0.1)
    monkeypatch.setattr(sys, "executable", str(program))
    async with held() as made:
        with pytest.raises(CannotStart, match="not ready within"):
            await made.supervisor.start()
        assert made.supervisor.restarts == {"start_failed": 3}


@on_uvloop
async def test_a_start_that_fails_slowly_has_failed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = program_in(tmp_path, "#!/bin/sh\nsleep 0.05\nexit 3\n")
    monkeypatch.setattr(slot_module, "EARLY_S", 0.01)
    monkeypatch.setattr(sys, "executable", str(program))
    async with held() as made:
        with pytest.raises(CannotStart, match="exit code 3"):
            async with asyncio.timeout(PATIENCE_S):
                await made.supervisor.start()
        assert made.supervisor.restarts == {"start_failed": 3}


@on_uvloop
async def test_a_worker_whose_end_nobody_could_wait_for_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    program = program_in(tmp_path, f"#!/bin/sh\necho $$ >> {started}\nexec sleep 600\n")
    began: list[int] = []

    def refuse(thread: threading.Thread) -> None:
        began.append(1)
        raise RuntimeError("can't start new thread")

    async with held() as made:
        monkeypatch.setattr(sys, "executable", str(program))
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(CannotStart, match="cannot start a process: "):
            await made.supervisor.start()
        assert sum(made.supervisor.restarts.values()) == len(began) == 3
    assert not any(map(is_alive, map(int, started.read_text().split() if started.exists() else ())))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
@on_uvloop
async def test_a_worker_that_only_starts_leaves_signals_to_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    go = tmp_path / "go"
    program = program_in(
        tmp_path,
        f"#!{sys.executable}\nimport os, sys, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])\n",
    )  # a shell would let all signals in
    async with held() as made:
        monkeypatch.setattr(sys, "executable", str(program))
        starting = asyncio.create_task(made.supervisor.start())
        await until_true(lambda: any(status.pid for status in made.supervisor.statuses()))
        (worker,) = made.supervisor.statuses()
        os.kill(worker.pid, number)  # as the terminal does, the moment that the process is there
        go.touch()
        await starting
        assert [status.pid for status in made.supervisor.statuses()] == [worker.pid]
        mask, ignored = _signals(worker.pid)
        assert not mask & 1 << number - 1
        assert ignored & 1 << number - 1


def _signals(pid: int) -> tuple[int, int]:
    """Those that a process has blocked, and those that it ignores."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["SigBlk"], 16), int(lines["SigIgn"], 16)


@on_uvloop
async def test_stopping_while_a_worker_rests_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_module, "FIRST_DELAY_S", 600.0)
    monkeypatch.setattr(slot_module, "LONGEST_DELAY_S", 600.0)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    made = Held()
    starting = asyncio.create_task(made.supervisor.start())
    await until_true(lambda: sum(made.supervisor.restarts.values()) >= 2)
    async with asyncio.timeout(PATIENCE_S):
        await made.supervisor.drain()
        await starting
    made.supervisor.close()


@on_uvloop
async def test_gauges_of_a_dead_worker_are_zeroed_and_counters_stay() -> None:
    async with held() as made:
        supervisor = made.supervisor
        await supervisor.start()
        pool = supervisor.layout.rows[("pool", "api")]
        cells = supervisor.slabs.cells[0]
        for offset in range(10):
            cells[pool + offset] = 7
        os.kill(supervisor.statuses()[0].pid, signal.SIGKILL)
        await until_true(lambda: supervisor.restarts)
        assert [cells[pool + offset] for offset in range(10)] == [7, 7, 7, 7, 7, 0, 7, 0, 7, 7]
        events = [event for _, event, _ in made.events]
        assert [event for event in events if event.startswith("worker ")] == ["worker ready", "worker ended"]


@on_uvloop
async def test_a_worker_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "SWEEP_INTERVAL_S", 0.1)
    async with held() as made:
        supervisor = made.supervisor
        await supervisor.start()
        hung = supervisor.statuses()[0].pid
        os.kill(hung, signal.SIGSTOP)
        await until_true(lambda: supervisor.restarts == {"hung": 1})
        await until_true(supervisor.is_ready)
        assert supervisor.statuses()[0].pid not in (0, hung)
        told = [(level, event) for level, event, _ in made.events if event.startswith("worker ")]
        assert told == [
            ("info", "worker ready"),
            ("error", "worker hangs"),
            ("warning", "worker ended"),
            ("info", "worker ready"),
        ]


@on_uvloop
async def test_what_goes_wrong_at_one_look_does_not_end_the_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "SWEEP_INTERVAL_S", 0.01)
    looks: list[int] = []

    def fail() -> None:
        looks.append(1)
        raise ValueError

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context.get("exception")))
    async with held() as made:
        await made.supervisor.start()
        made.supervisor.on_sweep = fail
        await until_true(lambda: len(looks) >= 3)
    assert {type(each) for each in told} == {ValueError}


def test_only_a_worker_whose_loop_does_not_turn_at_all_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    slot = Slot(0, (), Journal(lambda *_: None), lambda _: (), lambda: None, lambda *_: None, lambda *_: None)
    monkeypatch.setattr(slot, "_signal", ended.append)
    for _ in range(3 * HANGS_AFTER):  # it has not begun
        slot.look(0)
    slot.state = "ready"
    for ticks in (1, 2, 3):
        for _ in range(HANGS_AFTER):  # slow, but it turns
            slot.look(ticks)
    assert ended == []
    slot.look(4)
    for silent_s in range(1, HANGS_AFTER + 1):
        assert ended == []
        slot.look(4)
        assert slot.status().silent_s == silent_s
    assert ended == [signal.SIGKILL]
    slot.state = "ready"
    slot.look(5)
    assert slot.status().silent_s == 0


@on_uvloop
async def test_a_configuration_that_does_not_fit_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with held() as made:
        supervisor = made.supervisor
        await supervisor.start()
        rows = dict(supervisor.layout.rows)
        floor, supervisor.layout.floor = supervisor.layout.floor, supervisor.layout.end
        backend = CONFIG.pools[0].backends[0]
        other = replace(CONFIG, pools=(replace(CONFIG.pools[0], backends=(backend, replace(backend, name="b2"))),))
        with pytest.raises(CannotApply, match="too many listeners, pools and backends"):
            supervisor.put(other, {}, {})
        supervisor.layout.floor = floor
        monkeypatch.setattr("lbproxy.supervisor.build_snapshot", lambda *_, **__: 1 / 0)
        with pytest.raises(CannotApply, match="cannot be built: ZeroDivisionError"):
            supervisor.put(other, {}, {})
        monkeypatch.undo()
        assert (supervisor.generation, supervisor.config, supervisor.layout.rows) == (1, CONFIG, rows)
        assert await supervisor.acknowledged(supervisor.put(other, {}, {}))
        assert supervisor.generation == 2
        assert set(supervisor.layout.rows) == set(row_keys(other))


def with_more(config: Config) -> Config:
    """With another listener, and two pools whose sessions are remembered."""
    second = replace(config.listeners[0], name="second")
    pool = replace(config.pools[0], session_drain=60.0)
    return replace(config, listeners=(*config.listeners, second), pools=(pool, replace(pool, name="web")))


@on_uvloop
async def test_a_configuration_for_which_there_is_no_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made_already = 0

    def run_out(name: str, size: int) -> int:
        nonlocal made_already
        if made_already:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made_already = 1
        return memory_file(name, size)

    async with held() as made:
        supervisor = made.supervisor
        await supervisor.start()
        known = (supervisor.generation, supervisor.config, dict(supervisor.layout.rows), supervisor.addresses)
        files = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patched:
            patched.setattr("lbproxy.memories.memory_file", run_out)
            with pytest.raises(CannotApply, match="no memory of sessions: Too many open files"):
                supervisor.put(with_more(CONFIG), {}, {})
        assert (supervisor.generation, supervisor.config, supervisor.layout.rows, supervisor.addresses) == known
        assert len(os.listdir("/proc/self/fd")) == files
        assert await supervisor.acknowledged(supervisor.put(with_more(CONFIG), {}, {}))
        assert await supervisor.acknowledged(supervisor.put(CONFIG, {}, {}))
        assert len(os.listdir("/proc/self/fd")) == files


@on_uvloop
async def test_a_reload_that_comes_while_all_ends_is_refused() -> None:
    async with held() as made:
        supervisor = made.supervisor
        await supervisor.start()
        draining = asyncio.create_task(supervisor.drain())
        await until_true(lambda: supervisor.is_draining)
        with pytest.raises(CannotApply, match="the proxy is ending"):
            supervisor.put(with_more(CONFIG), {}, {})
        assert list(supervisor.addresses) == [listener.name for listener in CONFIG.listeners]
        await draining


def test_the_access_logs_path_is_tried_without_leaving_anything_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    config = replace(CONFIG, log=replace(CONFIG.log, access=replace(CONFIG.log.access, path=str(tmp_path / "a"))))
    Supervisor._check_access_log(config)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(open_sink(str(tmp_path / "a")))

"""The processes: what an operator, a crash or a clumsy second start does to a running lbproxy."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.running import (
    Backends,
    Proxy,
    Traffic,
    assert_each_counted_once,
    get,
    in_thread,
    is_alive,
    ports,
    until,
)


@pytest.fixture
async def backends() -> AsyncIterator[Backends]:
    async with Backends("b1", "b2", "b3") as started:
        yield started


async def test_it_serves_and_counts_and_logs_and_ends(tmp_path: Path, backends: Backends) -> None:
    with Proxy(tmp_path, backends.ports) as proxy:
        homes = {user: (await get(proxy.port, user=user))[1] for user in map(str, range(30))}
        assert set(homes.values()) == {"b1", "b2", "b3"}
        assert homes == {user: (await get(proxy.port, user=user))[1] for user in homes}
        assert await asyncio.to_thread(proxy.admin, "/readyz") == "2 of 2 workers ready\n"
        assert await asyncio.to_thread(proxy.metric, "requests_total", pool="api", code="2xx") == 60
        assert await asyncio.to_thread(proxy.metric, "upstream_requests_total", pool="api") == 60
        assert await asyncio.to_thread(proxy.metric, "workers", state="ready") == 2
        info = await asyncio.to_thread(proxy.document, "/v1/info")
        assert (info["generation"], info["ready"], info["workers"]) == (1, True, 2)
        proxy.signal(signal.SIGTERM)
        assert await asyncio.to_thread(proxy.wait) == 0
    lines = [json.loads(line) for line in proxy.access_log.read_text().splitlines()]
    assert len(lines) == 60
    assert all((line["pool"], line["status"], line["decision"]) == ("api", 200, "owner") for line in lines)
    assert "user" not in json.dumps([list(line) for line in lines]).replace("user_agent", "")
    assert [event["event"] for event in proxy.events][-2:] == ["draining", "stopped"]
    assert proxy.other_output == []


def test_a_killed_worker_is_replaced_within_a_second(tmp_path: Path) -> None:
    with Proxy(tmp_path, {"b1": 1}) as proxy:
        gaps = []
        for number in range(3):
            pid = proxy.worker_pids()[number % 2]
            before = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            proxy.wait_event("worker ready", 3 + number)
            gaps.append(time.monotonic() - before)
        # About a quarter of a second, if others leave a core to it.
        assert min(gaps) < 1.0
        assert proxy.admin("/readyz") == "2 of 2 workers ready\n"


async def test_no_count_is_lost_with_a_killed_worker(tmp_path: Path, backends: Backends) -> None:
    kills = 3
    with Proxy(tmp_path, backends.ports) as proxy:
        traffic = Traffic(proxy.port, 16)
        for number in range(kills):
            await traffic.until_answered(200)
            os.kill((await asyncio.to_thread(proxy.worker_pids))[number % 2], signal.SIGKILL)
            await in_thread(proxy, "worker ready", 3 + number)
            answered = traffic.answered
            assert await asyncio.to_thread(proxy.metric, "requests_total", code="2xx") >= answered
        await traffic.until_answered(200)
        await traffic.stop()
        await assert_each_counted_once(proxy, backends, traffic)
        in_flight = await asyncio.to_thread(proxy.metric, "requests_in_flight")
        upstream_in_flight = await asyncio.to_thread(proxy.metric, "upstream_requests_in_flight")
        restarts = await asyncio.to_thread(proxy.metric, "worker_restarts_total", reason="killed")
        workers = (await asyncio.to_thread(proxy.document, "/v1/workers"))["workers"]
    assert (in_flight, upstream_in_flight, restarts) == (0, 0, kills)
    assert [worker["restarts"] for worker in workers] == [2, 1]
    assert traffic.statuses == {200}
    # Each kill cost nobody more than the one exchange that was in the dead worker's hands.
    assert max(traffic.failed.values(), default=0) <= kills
    assert all(len(homes) == 1 for homes in traffic.homes.values())


async def test_connections_to_a_dead_worker_wait_for_the_next_one(tmp_path: Path, backends: Backends) -> None:
    with Proxy(tmp_path, backends.ports, workers=1) as proxy:
        (pid,) = await asyncio.to_thread(proxy.worker_pids)
        os.kill(pid, signal.SIGKILL)
        answers = await asyncio.gather(*(get(proxy.port, user=str(number)) for number in range(40)))
        assert {status for status, _ in answers} == {200}
        assert (await asyncio.to_thread(proxy.worker_pids))[0] != pid


def is_refused(port: int) -> bool:
    """Whether nobody listens on the port any more."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


async def test_sigterm_lets_what_runs_end_and_takes_nothing_new(tmp_path: Path, backends: Backends) -> None:
    with Proxy(tmp_path, backends.ports, drain={"timeout": "60s"}) as proxy:
        held = asyncio.create_task(get(proxy.port, "/held"))
        await asyncio.to_thread(until, lambda: sum(backends.seen.values()))
        proxy.signal(signal.SIGTERM)
        await in_thread(proxy, "draining")
        status, text = await get(proxy.admin_port, "/readyz")
        assert (status, text) == (503, "draining\n")
        await asyncio.to_thread(until, lambda: is_refused(proxy.port))
        assert not held.done()
        backends.release()
        assert (await held)[0] == 200
        assert await asyncio.to_thread(proxy.wait) == 0
        assert proxy.named("exchanges cut off") == []


async def test_what_does_not_end_in_time_is_cut_off(tmp_path: Path, backends: Backends) -> None:
    with Proxy(tmp_path, backends.ports, drain={"timeout": "300ms"}) as proxy:
        slow = asyncio.create_task(get(proxy.port, "/slow/60"))
        await asyncio.to_thread(until, lambda: sum(backends.seen.values()))
        before = time.monotonic()
        proxy.signal(signal.SIGTERM)
        assert await asyncio.to_thread(proxy.wait) == 0
        assert time.monotonic() - before >= 0.3
        with pytest.raises(aiohttp.ClientError):
            await slow
        assert proxy.named("exchanges cut off")[0]["count"] == 1
        (line,) = map(json.loads, proxy.access_log.read_text().splitlines())
        # The worker's own words: it has not been killed, which would come two seconds later.
        assert (line["status"], line["reason"], line["attempts"]) == (0, "drain_timeout", 1)


async def test_a_second_sigint_ends_at_once(tmp_path: Path, backends: Backends) -> None:
    with Proxy(tmp_path, backends.ports, drain={"timeout": "60s"}) as proxy:
        pids = await asyncio.to_thread(proxy.worker_pids)
        slow = asyncio.create_task(get(proxy.port, "/slow/60"))
        await asyncio.to_thread(until, lambda: sum(backends.seen.values()))
        proxy.signal(signal.SIGINT)
        await in_thread(proxy, "draining")
        before = time.monotonic()
        proxy.signal(signal.SIGINT)
        assert await asyncio.to_thread(proxy.wait) == 130
        assert time.monotonic() - before < 10.0  # a fraction of a second on a quiet machine, and a minute by draining
        assert not any(map(is_alive, pids))
        with pytest.raises(aiohttp.ClientError):
            await slow


async def test_a_ctrl_c_reaches_the_workers_too_and_they_leave_it_to_the_supervisor(
    tmp_path: Path, backends: Backends
) -> None:
    with Proxy(tmp_path, backends.ports, drain={"timeout": "60s"}) as proxy:
        held = asyncio.create_task(get(proxy.port, "/held"))
        await asyncio.to_thread(until, lambda: sum(backends.seen.values()))
        for pid in await asyncio.to_thread(proxy.worker_pids):
            os.kill(pid, signal.SIGINT)
        proxy.signal(signal.SIGINT)
        await in_thread(proxy, "draining")
        backends.release()
        assert (await held)[0] == 200
        assert await asyncio.to_thread(proxy.wait) == 0
        assert proxy.named("worker ended") == []


async def test_no_worker_outlives_its_supervisor(tmp_path: Path, backends: Backends) -> None:
    with Proxy(tmp_path, backends.ports, drain={"timeout": "60s"}) as proxy:
        pids = await asyncio.to_thread(proxy.worker_pids)
        held = asyncio.create_task(get(proxy.port, "/held"))
        await asyncio.to_thread(until, lambda: sum(backends.seen.values()))
        proxy.signal(signal.SIGKILL)
        assert proxy.process is not None
        await asyncio.to_thread(proxy.process.wait)
        backends.release()
        assert (await held)[0] == 200
        await asyncio.to_thread(until, lambda: not any(map(is_alive, pids)))


# What ends a start


def run_to_the_end(proxy: Proxy) -> tuple[int, list[str]]:
    proxy.start()
    try:
        code = proxy.wait()
    finally:
        proxy.end()
    return code, proxy.other_output


def test_a_port_in_use_is_one_line_and_exit_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, output = run_to_the_end(Proxy(tmp_path, {"b1": 1}, listen=address))
        assert (code, output) == (1, [f"lbproxy: cannot listen on {address}: the address is in use\n"])
        code, output = run_to_the_end(Proxy(tmp_path, {"b1": 1}, admin={"listen": address}))
        said = f"lbproxy: cannot listen on {address} (admin.listen): the address is in use\n"  # it has a default
        assert (code, output) == (1, [said])


async def test_of_two_started_at_once_on_one_port_exactly_one_serves(tmp_path: Path, backends: Backends) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    proxies = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        proxies.append(Proxy(tmp_path / name, backends.ports, listen=address))
    try:
        for proxy in proxies:
            proxy.start()

        def winners() -> list[Proxy]:
            return [proxy for proxy in proxies if proxy.named("serving")]

        def losers() -> list[Proxy]:
            return [proxy for proxy in proxies if proxy.process is not None and proxy.process.poll() == 1]

        await asyncio.to_thread(until, lambda: len(winners()) == len(losers()) == 1)
        assert losers()[0].other_output == [f"lbproxy: cannot listen on {address}: the address is in use\n"]
        assert (await get(ports(winners()[0].named("serving")[0])[0]))[0] == 200
    finally:
        for proxy in proxies:
            proxy.end()


def test_an_access_log_that_cannot_be_opened_is_shown_where_it_is_named_and_exit_1(tmp_path: Path) -> None:
    log = {"format": "json", "access": {"path": str(tmp_path / "missing" / "access.log")}}
    code, output = run_to_the_end(Proxy(tmp_path, {"b1": 1}, log=log))
    assert (code, len(output)) == (1, 3)
    assert re.fullmatch(rf"\S+:\d+:\d+: log\.access\.path: there is no directory {tmp_path}/missing: .*\n", output[0])


@pytest.mark.parametrize(("written", "why"), [(None, "cannot be read: No such file or directory"), (" \n", "is empty")])
def test_a_token_file_without_a_token_is_shown_where_it_is_named_and_exit_1(
    tmp_path: Path, written: str | None, why: str
) -> None:
    token = tmp_path / "token"
    if written is not None:
        token.write_text(written)
    admin = {"listen": "127.0.0.1:0", "token_file": str(token)}
    code, output = run_to_the_end(Proxy(tmp_path, {"b1": 1}, admin=admin))
    assert (code, len(output)) == (1, 3)
    told = f"admin.token_file: the token file {why}: write a token into {token}\n"
    assert re.fullmatch(rf"\S+:\d+:\d+: {re.escape(told)}", output[0])


def test_a_bad_or_missing_file_is_exit_1(tmp_path: Path) -> None:
    code, output = run_to_the_end(Proxy(tmp_path, {"b1": 1}, lisen=1))
    assert code == 1
    assert "lisen: unknown field" in output[0]
    done = subprocess.run(
        [sys.executable, "-m", "lbproxy", "run", "-c", str(tmp_path / "none.yaml")], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "none.yaml: there is no such file" in done.stderr

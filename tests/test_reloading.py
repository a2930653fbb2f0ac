"""Reloading a running lbproxy: all workers move or none, and the traffic does not notice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.running import (
    PATIENCE_S,
    Backends,
    Proxy,
    Traffic,
    assert_each_counted_once,
    backend_list,
    get,
    in_thread,
    until,
)


@pytest.fixture
async def backends() -> AsyncIterator[Backends]:
    async with Backends("b1", "b2", "b3") as started:
        yield started


async def test_a_reload_moves_all_workers_or_none(tmp_path: Path, backends: Backends) -> None:
    two = backend_list(backends.ports)[:2]
    with Proxy(tmp_path, backends.ports) as proxy:
        first = proxy.wait_event("serving")["fingerprint"]
        proxy.config["pools"]["api"]["backends"] = two
        proxy.write_config()
        proxy.signal(signal.SIGHUP)
        applied = await in_thread(proxy, "configuration applied")
        assert applied["generation"] == 2
        assert applied["fingerprint"] != first
        answers = await asyncio.gather(*(get(proxy.port, user=str(number)) for number in range(60)))
        assert {text for _, text in answers} == {"b1", "b2"}
        assert "b3" not in await asyncio.to_thread(proxy.admin, "/metrics")

        proxy.signal(signal.SIGHUP)
        await in_thread(proxy, "configuration unchanged")

        proxy.file.write_text(proxy.file.read_text().replace("backends:", "bakends:"))
        proxy.signal(signal.SIGHUP)
        await in_thread(proxy, "configuration refused", 2)
        problems = [event["problem"] for event in proxy.named("configuration refused")]
        assert any("bakends: unknown field" in problem for problem in problems)
        assert {text for _, text in await asyncio.gather(*(get(proxy.port, user=str(u)) for u in range(60)))} == {
            "b1",
            "b2",
        }
        info = await asyncio.to_thread(proxy.document, "/v1/info")
        assert (info["generation"], info["fingerprint"]) == (2, applied["fingerprint"])
        for result in ("applied", "unchanged", "refused"):
            assert await asyncio.to_thread(proxy.metric, "config_reloads_total", result=result) == 1
        assert await asyncio.to_thread(proxy.metric, "config_last_reload_success") == 0
        workers = (await asyncio.to_thread(proxy.document, "/v1/workers"))["workers"]
        assert [worker["generation"] for worker in workers] == [2, 2]


async def test_reloads_under_load_cost_no_request(tmp_path: Path, backends: Backends) -> None:
    reloads = 20
    with Proxy(tmp_path, backends.ports) as proxy:
        traffic = Traffic(proxy.port, 16)
        for number in range(reloads):
            proxy.config["pools"]["api"]["backends"][0]["weight"] = 2 + number % 3
            proxy.write_config()
            proxy.signal(signal.SIGHUP)
            await in_thread(proxy, "configuration applied", number + 1)
        await traffic.until_answered(100)
        await traffic.stop()
        total = await asyncio.to_thread(proxy.metric, "requests_total", pool="api", code="2xx")
    assert (traffic.failed, traffic.statuses) == ({}, {200})
    assert total == traffic.answered


async def test_no_counter_ever_falls_while_workers_are_killed_and_configurations_change(
    tmp_path: Path, backends: Backends
) -> None:
    rounds = 4
    with Proxy(tmp_path, backends.ports) as proxy:
        traffic = Traffic(proxy.port, 16)
        known = await asyncio.to_thread(_counters, proxy)
        for number in range(rounds):
            await traffic.until_answered(100)
            os.kill((await asyncio.to_thread(proxy.worker_pids))[number % 2], signal.SIGKILL)
            proxy.config["pools"]["api"]["backends"][0]["weight"] = 2 + number
            proxy.write_config()
            proxy.signal(signal.SIGHUP)
            await in_thread(proxy, "configuration applied", number + 1)
            await in_thread(proxy, "worker ready", 3 + number)
            found = await asyncio.to_thread(_counters, proxy)
            assert {name for name in known if found[name] < known[name]} == set()
            known = found
        await traffic.stop()
        await assert_each_counted_once(proxy, backends, traffic)


def _counters(proxy: Proxy) -> dict[object, float]:
    """Everything on the metrics page that may only grow."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(proxy.admin("/metrics"))
        if family.type in ("counter", "histogram")
        for sample in family.samples
    }


async def test_listeners_come_and_go_with_a_reload(tmp_path: Path, backends: Backends) -> None:
    with Proxy(tmp_path, backends.ports) as proxy:
        path = tmp_path / "proxy.sock"
        proxy.config["listen"] = ["127.0.0.1:0", f"unix:{path}"]
        proxy.write_config()
        proxy.signal(signal.SIGHUP)
        await in_thread(proxy, "configuration applied")
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path)), timeout=timeout) as session,
            session.get("http://any/", headers={"X-User-ID": "ann"}) as answer,
        ):
            assert answer.status == 200
        assert (await get(proxy.port))[0] == 200

        # A worker that starts later has it too, and serves the first listener on the same port as ever.
        os.kill((await asyncio.to_thread(proxy.worker_pids))[0], signal.SIGKILL)
        await in_thread(proxy, "worker ready", 3)
        assert {(await get(proxy.port))[0] for _ in range(20)} == {200}

        proxy.config["listen"] = f"unix:{path}"
        proxy.write_config()
        proxy.signal(signal.SIGHUP)
        await in_thread(proxy, "configuration applied", 2)
        with pytest.raises(aiohttp.ClientConnectionError):
            await get(proxy.port)
        assert path.is_socket()
    assert not path.exists()


async def test_a_listener_that_cannot_be_had_refuses_the_reload(tmp_path: Path, backends: Backends) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, Proxy(tmp_path, backends.ports) as proxy:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        proxy.config["listen"] = ["127.0.0.1:0", address]
        proxy.write_config()
        proxy.signal(signal.SIGHUP)
        refused = await in_thread(proxy, "configuration refused")
        assert refused["problem"] == f"cannot listen on {address}: the address is in use"
        assert (await get(proxy.port))[0] == 200


async def test_what_needs_a_restart_is_said(tmp_path: Path, backends: Backends) -> None:
    with Proxy(tmp_path, backends.ports) as proxy:
        proxy.config["workers"] = 1
        proxy.write_config()
        proxy.signal(signal.SIGHUP)
        assert (await in_thread(proxy, "a restart is needed"))["fields"] == "workers"
        assert len(await asyncio.to_thread(proxy.worker_pids)) == 2


# The program, sent signals as soon as it begins: before most of it has been loaded.
_SIGNALLED = """
import os, sys
from lbproxy import __main__

class Signalling:
    def find_spec(self, name, *_):
        if name == "lbproxy.cli":
            sys.meta_path.remove(self)
            for number in {numbers}:
                os.kill(os.getpid(), number)

sys.meta_path.insert(0, Signalling())
sys.exit(__main__.main())
"""


def _signalled(*numbers: signal.Signals) -> tuple[str, str]:
    return "-c", _SIGNALLED.format(numbers=[int(number) for number in numbers])


async def test_signals_that_come_before_anything_is_loaded_are_remembered(tmp_path: Path, backends: Backends) -> None:
    proxy = Proxy(tmp_path, backends.ports)
    try:
        proxy.start(*_signalled(signal.SIGHUP, signal.SIGUSR1))
        await in_thread(proxy, "serving")
        await in_thread(proxy, "configuration unchanged")
        assert proxy.named("logs reopened")
        proxy.signal(signal.SIGHUP)
        await in_thread(proxy, "configuration unchanged", 2)
        proxy.signal(signal.SIGTERM)
        assert await asyncio.to_thread(proxy.wait) == 0
    finally:
        proxy.end()


def test_before_anything_is_loaded_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    proxy = Proxy(tmp_path, {"b1": 1})
    try:
        proxy.start(*_signalled(signal.SIGHUP, signal.SIGTERM))
        assert proxy.wait() == -signal.SIGTERM
    finally:
        proxy.end()


async def test_sigusr1_reopens_the_access_log(tmp_path: Path, backends: Backends) -> None:
    with Proxy(tmp_path, backends.ports) as proxy:
        await get(proxy.port, "/before")
        await asyncio.to_thread(until, lambda: proxy.access_log.stat().st_size)
        proxy.access_log.rename(tmp_path / "access.log.1")
        proxy.signal(signal.SIGUSR1)
        await in_thread(proxy, "logs reopened")
        await asyncio.to_thread(until, proxy.access_log.exists)
        for number in range(20):
            await get(proxy.port, f"/after/{number}")
    lines = [json.loads(line)["target"] for line in proxy.access_log.read_text().splitlines()]
    old = [json.loads(line)["target"] for line in (tmp_path / "access.log.1").read_text().splitlines()]
    # A worker may hear of it a moment after its first request since; nothing is lost either way.
    assert old[0] == "/before"
    assert sorted(old[1:] + lines) == sorted(f"/after/{number}" for number in range(20))
    assert lines

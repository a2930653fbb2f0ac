"""The figure of adding up: backends hang, die and come back under load, and every request is accounted for once."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crowd import Crowd, backend_processes
from tests.running import PATIENCE_S, Proxy, backend_list, until_true

NAMES = ["b1", "b2", "b3", "b4"]
PAYERS = 10


class Payers:
    """Clients that post without pause, each time to a path of its own; the status of each answer by that path."""

    def __init__(self, port: int, count: int) -> None:
        self.answers: dict[str, int] = {}
        self._port = port
        self._is_over = False
        self._tasks = [asyncio.create_task(self._pay(f"payer-{number}")) for number in range(count)]

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _pay(self, user: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        number = 0
        while not self._is_over:
            number += 1
            path = f"/{user}/{number}"
            body = b"x" * (10 if number % 2 else 65536)
            head = f"POST {path} HTTP/1.1\r\nHost: crowd\r\nX-User-ID: {user}\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            async with asyncio.timeout(PATIENCE_S):
                status, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                length = next(line.partition(":")[2] for line in fields if line.startswith("content-length:"))
                await reader.readexactly(int(length))
            self.answers[path] = int(status.split(" ")[1])
            await asyncio.sleep(0.01)
        writer.close()


@pytest.mark.parametrize("workers", [1, 2])
async def test_every_request_is_accounted_for_once(tmp_path: Path, workers: int) -> None:
    record = tmp_path / "record"
    pool: dict[str, Any] = {
        "bounded_load": {"factor": None},
        "hot_keys": {"mode": "off"},
        # Whoever answers no check for two seconds hangs; for half a second anybody may on a busy machine.
        "health": {"interval": "100ms", "timeout": "500ms", "fall": 4, "rise": 2, "hold": "100ms"},
        "ejection": {"consecutive_errors": 0},
        # One attempt more than there are bad ones at a time, and a budget that is not what is tested here.
        "retry": {"attempts": 3, "min_budget": 10000},
    }
    async with backend_processes(NAMES, record) as backends:
        pools = {"api": pool | {"backends": backend_list(backends.ports)}}
        with Proxy(tmp_path, {}, pools=pools, workers=workers) as proxy:

            def told(backend: str, state: str) -> Callable[[], bool]:
                """Whether it is said to be in this state once more."""
                before = len(states(proxy, backend, state))
                return lambda: len(states(proxy, backend, state)) > before

            async def restart(name: str) -> None:
                is_up = told(name, "up")
                await backends.start(name, backends.ports[name])
                await until_true(is_up)

            crowd = Crowd(proxy.port, [f"user-{number}" for number in range(40)], pause_s=0.01)
            payers = Payers(proxy.port, PAYERS)
            await crowd.until_each_answered(3)
            # One dies, and comes back.
            is_down = told("b1", "down")
            await backends.end("b1")
            await until_true(is_down)
            await restart("b1")
            # One hangs and dies while another one hangs, and goes on.
            is_down, is_other_down = told("b2", "down"), told("b3", "down")
            backends.send("b2", signal.SIGSTOP)
            backends.send("b3", signal.SIGSTOP)
            await until_true(is_other_down)
            await backends.end("b2")
            is_up = told("b3", "up")
            backends.send("b3", signal.SIGCONT)
            await until_true(lambda: is_down() and is_up())
            await restart("b2")
            # One dies and is back before anybody has noticed but those whom it served.
            await backends.end("b1")
            await backends.start("b1", backends.ports["b1"])
            await crowd.until_each_answered(3)
            await crowd.stop()
            await payers.stop()
            asked = crowd.answered + len(payers.answers)
            lines: list[dict[str, Any]] = []

            def have_all_lines() -> bool:
                lines[:] = map(json.loads, proxy.access_log.read_text().splitlines())
                return len(lines) >= asked

            await until_true(have_all_lines)

            async def total(name: str, **labels: str) -> float:
                return await asyncio.to_thread(proxy.metric, name, **labels)

            assert crowd.failed == []
            assert len(lines) == asked == await total("requests_total", pool="api")
            answered = Counter(line["backend"] for line in lines if line["first_byte_us"] is not None)
            assert {name: await total("upstream_requests_total", backend=name) for name in NAMES} == answered
            further = sum(line["attempts"] - 1 for line in lines)
            assert await total("retries_total") - await total("retries_total", reason="stale") == further > 0
            lost = [line for line in lines if line["status"] != 200]
            assert {(line["method"], line["reason"]) for line in lost} <= {("POST", "bad_gateway")}
            assert len(lost) == await total("requests_rejected_total")
            refused = await total("retries_refused_total", reason="not_idempotent")
            assert refused == await total("retries_refused_total")
            # Those that hung where b3 did when it was taken out must not be repeated, and had their answer in the end:
            # at most one of each client's.
            assert len(lost) <= refused <= len(lost) + PAYERS
            gauges = "requests_in_flight", "upstream_requests_in_flight", "connections_open"
            await until_true(lambda: sum(map(proxy.metric, gauges)) == 0)
    # What was answered has been done, and nothing that must not be repeated has been done twice.
    done = Counter(path for path in record.read_text().split() if path.startswith("/payer-"))
    assert set(done.values()) == {1}
    assert {path for path, status in payers.answers.items() if status == 200} <= done.keys() <= payers.answers.keys()
    assert [event for event in proxy.events if event["level"] == "error"] == []
    assert proxy.other_output == []


def states(proxy: Proxy, backend: str, state: str) -> list[dict[str, Any]]:
    return [each for each in proxy.named("backend state") if (each["backend"], each["state"]) == (backend, state)]

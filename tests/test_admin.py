"""The admin API answers what it should, to whom it should, and errors are problem documents."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lbproxy.control.admin.app import AdminServer, build_app, is_own_host
from lbproxy.control.admin.documents import pools_document, workers_document
from lbproxy.control.config import loads
from lbproxy.core import ledger
from lbproxy.core.snapshot import build_snapshot
from lbproxy.core.spec import Address
from lbproxy.observe.facts import WorkerStatus
from lbproxy.observe.journal import Fields, Journal, Level
from lbproxy.observe.metrics import CONTENT_TYPE
from lbproxy.observe.slabs import Layout
from lbproxy.sockets import Listening, listen
from lbproxy.supervisor import row_keys


class Instance:
    """Something to look at (`admin.view.View`)."""

    def __init__(self) -> None:
        self.ready = True
        self.broken = False

    def readiness(self) -> tuple[bool, str]:
        return self.ready, "2 of 2 workers ready" if self.ready else "draining"

    def metrics(self) -> str:
        if self.broken:
            raise RuntimeError("no numbers")
        return "lbproxy_up 1\n"

    def info(self) -> dict[str, Any]:
        return {"version": "x"}

    def pools(self) -> dict[str, Any]:
        return {"pools": []}

    def workers(self) -> dict[str, Any]:
        return {"workers": []}


class Served:
    """The API on a TCP port and a Unix socket."""

    def __init__(self, folder: Path) -> None:
        self.instance = Instance()
        self.events: list[tuple[Level, str, Fields]] = []
        self.tcp: Listening = listen(Address("127.0.0.1", 0))
        self.unix: Listening = listen(Address("", 0, str(folder / "admin.sock")), mode=0o600)
        journal = Journal(lambda level, event, fields: self.events.append((level, event, fields)))
        self.server = AdminServer(build_app(self.instance, journal, ["lb.internal"]))
        self.url = f"http://{self.tcp.address}"

    async def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, aiohttp.ClientResponse]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, headers=headers) as answer,
        ):
            return answer.status, await answer.text(), answer


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path)
    await made.server.start([made.tcp.sockets[0], made.unix.sockets[0]])
    yield made
    await made.server.stop()
    made.tcp.close()
    made.unix.close()


async def test_health_and_readiness(served: Served) -> None:
    assert (await served.get("/healthz"))[:2] == (200, "ok\n")
    assert (await served.get("/readyz"))[:2] == (200, "2 of 2 workers ready\n")
    served.instance.ready = False
    assert (await served.get("/readyz"))[:2] == (503, "draining\n")
    assert (await served.get("/healthz"))[0] == 200


async def test_metrics(served: Served) -> None:
    status, text, answer = await served.get("/metrics")
    assert (status, text, answer.headers["Content-Type"]) == (200, "lbproxy_up 1\n", CONTENT_TYPE)


@pytest.mark.parametrize("path", ["/v1/info", "/v1/pools", "/v1/workers"])
async def test_documents_are_json(served: Served, path: str) -> None:
    status, text, answer = await served.get(path)
    assert status == 200
    assert answer.content_type == "application/json"
    assert isinstance(json.loads(text), dict)


async def test_every_answer_says_little_about_itself_and_is_not_kept(served: Served) -> None:
    for path in ("/healthz", "/nothing"):
        _, _, answer = await served.get(path)
        assert answer.headers.getall("Server") == ["lbproxy"]
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("method", "path", "status", "detail"),
    [
        ("GET", "/nothing", 404, "there is nothing at /nothing"),
        ("POST", "/v1/info", 405, "/v1/info takes GET, HEAD"),
        ("DELETE", "/metrics", 405, "/metrics takes GET, HEAD"),
    ],
)
async def test_errors_are_problem_documents(served: Served, method: str, path: str, status: int, detail: str) -> None:
    answered, text, answer = await served.get(path, method)
    assert answered == status
    assert answer.content_type == "application/problem+json"
    document = json.loads(text)
    assert (document["type"], document["status"], document["detail"]) == ("about:blank", status, detail)
    if status == 405:
        assert answer.headers["Allow"] == "GET, HEAD"


async def test_a_bug_is_a_500_and_a_line_in_the_journal(served: Served) -> None:
    served.instance.broken = True
    status, text, _ = await served.get("/metrics")
    assert status == 500
    assert "no numbers" not in text
    level, event, fields = served.events[-1]
    assert (level, event, fields["path"]) == ("error", "admin request failed", "/metrics")
    assert str(fields["error"]).startswith("RuntimeError: no numbers")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9901", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1", 200),
        ("[::1]:9901", 200),
        ("10.1.2.3:9901", 200),
        ("lb.internal", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:9901", 421),
        ("[evil", 421),
    ],
)
async def test_over_tcp_the_host_must_be_ours(served: Served, host: str, status: int) -> None:
    assert (await served.get("/metrics", Host=host))[0] == status


def test_own_hosts() -> None:
    assert is_own_host("localhost.", {"localhost"})
    assert not is_own_host("", {"localhost"})
    assert not is_own_host("[::1", {"localhost"})


async def test_over_the_unix_socket_any_host_will_do(served: Served) -> None:
    connector = aiohttp.UnixConnector(served.unix.address.path)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://anything.example/healthz") as answer,
    ):
        assert answer.status == 200


# The documents

CONFIG = loads(
    """
version: 1
listen: 127.0.0.1:0
pools:
  api:
    backends:
      - {name: b1, url: http://127.0.0.1:9001, weight: 1, zone: a}
      - {name: b2, url: http://127.0.0.1:9002, weight: 3}
      - {name: b3, url: http://127.0.0.1:9003, weight: 0}
"""
)


def test_pools_tell_weights_shares_and_counts() -> None:
    layout = Layout()
    rows = layout.assign(row_keys(CONFIG), 1)
    totals = [0] * layout.end
    totals[rows[("pool", "api")] + ledger.POOL_REQUESTS + 1] = 40
    totals[rows[("pool", "api")] + ledger.POOL_DECISIONS + ledger.NO_KEY] = 5
    totals[rows[("backend", "api", "b2")] + ledger.BACKEND_REQUESTS + 1] = 30
    totals[rows[("backend", "api", "b2")] + ledger.BACKEND_IN_FLIGHT] = 2
    (pool,) = pools_document(build_snapshot(CONFIG, 1, rows), rows, totals)["pools"]
    assert pool["requests"] == {"1xx": 0, "2xx": 40, "3xx": 0, "4xx": 0, "5xx": 0}
    assert pool["decisions"] == dict.fromkeys(ledger.DECISIONS, 0) | {"no_key": 5}
    first, second, third = pool["backends"]
    assert (first["name"], first["address"], first["zone"], first["expected_share"]) == (
        "b1",
        "127.0.0.1:9001",
        "a",
        0.25,
    )
    assert (second["points"], second["requests"]["2xx"], second["in_flight"]) == (3 * 1024, 30, 2)
    assert second["ring_share"] == pytest.approx(0.75, abs=0.05)
    assert sum(backend["ring_share"] for backend in pool["backends"]) == pytest.approx(1)
    assert (third["weight"], third["points"], third["ring_share"], third["expected_share"]) == (0, 0, 0, 0)
    assert pool["ring"]["points"] == 4 * 1024


def test_workers_tell_each_slot() -> None:
    layout = Layout()
    rows = layout.assign(row_keys(CONFIG), 1)
    lists = [[0] * layout.end for _ in range(2)]
    lists[1][rows[("worker",)] + ledger.WORKER_REQUESTS] = 7
    lists[1][rows[("listener", "127.0.0.1:0")] + ledger.LISTENER_OPEN] = 3
    statuses = [WorkerStatus(0, "down", 0, 0, 0.0, 4), WorkerStatus(1, "ready", 99, 5, 1_796_040_000.5, 0)]
    first, second = workers_document(statuses, rows, lists)["workers"]
    assert first == {
        "worker": 0,
        "state": "down",
        "pid": None,
        "generation": 0,
        "started_at": None,
        "restarts": 4,
        "requests": 0,
        "connections_open": 0,
    }
    assert (second["pid"], second["started_at"], second["requests"], second["connections_open"]) == (
        99,
        "2026-11-30T12:00:00.500Z",
        7,
        3,
    )

"""The admin API answers what it should, to whom it should, and errors are problem documents."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from lbproxy.control.admin import answers, app, feed
from lbproxy.control.admin import connection as connection_module
from lbproxy.control.admin.app import AdminServer, build_app
from lbproxy.control.admin.connection import Connection
from lbproxy.control.admin.documents import pools_document, workers_document
from lbproxy.control.admin.guard import Guard, is_own_host
from lbproxy.control.admin.openapi import description
from lbproxy.control.admin.view import Decision, Rejected
from lbproxy.control.config import MAX_FILE_BYTES, loads
from lbproxy.control.events import Events
from lbproxy.control.overrides import Override
from lbproxy.control.ring_changes import RingChanges
from lbproxy.control.scene import Scene, Shares
from lbproxy.control.wellbeing import Mandate, Wellbeing
from lbproxy.core import ledger
from lbproxy.core.account import OUT
from lbproxy.core.ring import Ring
from lbproxy.core.snapshot import States, build_snapshot
from lbproxy.core.spec import Address, Pin
from lbproxy.observe.facts import WorkerStatus
from lbproxy.observe.journal import Fields, Journal, Level
from lbproxy.observe.metrics import CONTENT_TYPE, Page
from lbproxy.observe.slabs import Layout, Slabs
from lbproxy.sockets import Listening, listen
from lbproxy.supervisor import row_keys
from tests.running import until_true

TOKEN = "correct horse"


class Instance:
    """Something to look at and to steer (`admin.view.Instance`); what was asked of it is kept."""

    def __init__(self) -> None:
        self.ready = True
        self.broken = False
        self.asked: list[tuple[Any, ...]] = []
        self.kept = Events()

    def readiness(self) -> tuple[bool, str]:
        return self.ready, "2 of 2 workers ready" if self.ready else "draining"

    def metrics(self) -> str:
        if self.broken:
            raise RuntimeError("no numbers")
        return "lbproxy_up 1\n"

    def info(self) -> dict[str, Any]:
        return {"version": "x"}

    def pools(self) -> dict[str, Any]:
        return {"pools": [{"name": "api", "backends": [{"name": "b1", "weight": 1}, {"name": "b2", "weight": 1}]}]}

    def workers(self) -> dict[str, Any]:
        return {"workers": []}

    def config(self) -> dict[str, Any]:
        return {"config": {}}

    def hot_keys(self, pool: str) -> dict[str, Any]:
        return {"pool": pool, "keys": []}

    async def explain(self, pool: str, key: bytes, most: int = 0) -> dict[str, Any]:
        return {"pool": pool, "key_hex": key.hex(), "most": most}

    def ring(self, pool: str) -> Ring | None:
        return None

    def ring_document(self, pool: str) -> dict[str, Any]:
        if pool != "api":
            raise Rejected(404, f"there is no pool {pool}")
        return {"pool": pool, "sectors": []}

    def events(self, after: int = 0) -> Sequence[dict[str, Any]]:
        return self.kept.after(after)

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        return self.kept.subscribe(notify)

    async def plan_change(self, pool: str, decisions: Sequence[Decision]) -> dict[str, Any]:
        self.asked.append(("plan", pool, *decisions))
        return {"moved_share": 0.1}

    async def reload(self) -> dict[str, Any]:
        self.asked.append(("reload",))
        if self.broken:
            raise Rejected(409, "the configuration is refused", problems=["a.yaml:1:1: what"])
        return {"outcome": "applied"}

    async def check_text(self, text: bytes) -> dict[str, Any]:
        self.asked.append(("check", text))
        return {"ok": True}

    async def plan_text(self, text: bytes | None) -> dict[str, Any]:
        self.asked.append(("plan", text))
        return {"pools": []}

    async def decide(
        self, pool: str, decisions: Sequence[Decision], who: str, ttl_s: float | None, reason: str, is_forced: bool
    ) -> dict[str, Any]:
        self.asked.append((pool, *decisions, ttl_s, reason, is_forced))
        self.who = who
        return {**self.pools()["pools"][0], "not_saved": None}

    def pins(self, pool: str) -> dict[str, Any]:
        return {"pool": pool, "pins": []}

    async def pin(self, pool: str, pin: Pin, who: str, reason: str) -> dict[str, Any]:
        self.asked.append((pool, pin, reason))
        self.who = who
        return self.pins(pool)

    async def unpin(self, pool: str, key: str, is_prefix: bool, who: str) -> dict[str, Any]:
        self.asked.append((pool, key, is_prefix))
        self.who = who
        return self.pins(pool)

    def drain_process(self) -> None:
        self.asked.append(("drain",))


class Served:
    """The API on a TCP port and a Unix socket."""

    def __init__(self, folder: Path) -> None:
        self.instance = Instance()
        self.events: list[tuple[Level, str, Fields]] = []
        self.tcp: Listening = listen(Address("127.0.0.1", 0))
        self.unix: Listening = listen(Address("", 0, str(folder / "admin.sock")), mode=0o600)
        self.token_file = folder / "token"
        self.token_file.write_text(f"  {TOKEN}\n")
        journal = Journal(lambda level, event, fields: self.events.append((level, event, fields)))
        self.app = build_app(self.instance, journal, Guard(["lb.internal"], str(self.token_file)))
        self.server = AdminServer(self.app)
        self.url = f"http://{self.tcp.address}"

    async def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, aiohttp.ClientResponse]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, headers=headers) as answer,
        ):
            return answer.status, await answer.text(), answer

    async def write(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = TOKEN,
        is_tcp: bool = True,
        kind: str = "",
        **headers: str,
    ) -> tuple[int, dict[str, Any]]:
        """Ask with a body: octets as they are (of that `kind`), anything else as JSON. Returns status and document."""
        if token is not None:
            headers |= {"Authorization": f"Bearer {token}"}
        if body is not None and not isinstance(body, bytes):
            body, kind = json.dumps(body).encode(), "application/json"
        if kind:
            headers |= {"Content-Type": kind}
        connector = None if is_tcp else aiohttp.UnixConnector(self.unix.address.path)
        url = self.url if is_tcp else "http://lbproxy"
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, url + path, headers=headers, data=body) as answer,
        ):
            return answer.status, json.loads(await answer.text())


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


@pytest.mark.parametrize(
    "path",
    [
        "/v1/openapi.json",
        "/v1/info",
        "/v1/config",
        "/v1/workers",
        "/v1/pools",
        "/v1/pools/api",
        "/v1/pools/api/backends",
        "/v1/pools/api/backends/b1",
        "/v1/pools/api/ring",
        "/v1/pools/api/hot-keys",
        "/v1/pools/api/explain?key=ann",
    ],
)
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
        ("GET", "/v1/pools/other", 404, "there is no pool other"),
        ("GET", "/v1/pools/other/ring", 404, "there is no pool other"),
        ("GET", "/v1/pools/api/backends/b9", 404, "pool api has no backend b9"),
        ("GET", "/v1/pools/api/explain", 400, "name one key: key, or key_hex for octets that are no text"),
        ("GET", "/v1/pools/api/explain?key=", 400, "the key is empty, and an empty key counts as a missing one"),
        ("GET", "/v1/pools/api/explain?key_hex=xy", 400, "key_hex is not hexadecimal"),
        ("GET", "/v1/pools/api/explain?kee=ann", 400, "there is no 'kee'; there is key, key_hex, steps"),
        ("GET", "/v1/pools/api/explain?key=ann&steps=0", 400, "steps must be a whole number from 1 to 1000"),
        ("GET", "/v1/pools/api/explain?key=ann&steps=1.5", 400, "steps must be a whole number from 1 to 1000"),
        ("GET", "/v1/events?after=x", 400, "after must be the number of an event"),
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
    "octets",
    [
        b"\x16\x03\x01\x02\x00 what begins a TLS connection",
        b"no HTTP at all\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nLong: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /v1/pools/api/explain?key=" + b"secret" * 2_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    ],
)
async def test_what_cannot_be_read_is_a_problem_document_too_and_no_line_in_a_log(
    served: Served, octets: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.tcp.address.port)
    writer.write(octets)
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.split()[1] == b"400"
    fields = [line.lower() for line in head.split(b"\r\n")]
    assert b"content-type: application/problem+json; charset=utf-8" in fields
    assert b"server: lbproxy" in fields
    assert b"cache-control: no-store" in fields
    document = json.loads(body)
    assert (document["status"], "cannot be read as HTTP" in document["detail"]) == (400, True)
    assert b"secret" not in body
    assert caplog.records == []
    assert served.events == []


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


# A key


async def test_keys_are_octets_and_may_stand_in_the_query_or_in_the_body(served: Served) -> None:
    path = "/v1/pools/api/explain"
    for query, octets in (("?key=%C3%A9%20x", "é x".encode()), ("?key_hex=ff00", b"\xff\x00")):
        status, text, _ = await served.get(path + query)
        assert (status, bytes.fromhex(json.loads(text)["key_hex"])) == (200, octets)
    status, document = await served.write("POST", path, {"key": "ann"}, token=None)
    assert (status, document["key_hex"], document["most"]) == (200, b"ann".hex(), 10)
    _, document = await served.write("POST", path, {"key": "ann", "steps": 3}, token=None)
    assert document["most"] == 3
    assert json.loads((await served.get(path + "?key=ann&steps=40"))[1])["most"] == 40
    for broken in (
        b'{"key": "\\ud800"}',
        b'{"key_hex": "6", "steps": true}',
        b'{"key": "a", "steps": true}',
        b'{"key": "a", "key_hex": null}',
    ):
        assert (await served.write("POST", path, broken, token=None, kind="application/json"))[0] == 400


# Who may change something

WRITES = [
    ("POST", "/v1/reload", None),
    ("POST", "/v1/drain", None),
    ("POST", "/v1/check", b"listen: x"),
    ("POST", "/v1/plan", b"listen: x"),
    ("PATCH", "/v1/pools/api/backends/b1", {"weight": 2}),
    ("PATCH", "/v1/pools/api/backends", {"backends": {"b1": {"weight": 2}}}),
    ("DELETE", "/v1/pools/api/backends/b1/overrides", None),
    ("PUT", "/v1/pools/api/pins", {"key": "ann", "backend": "b1"}),
    ("DELETE", "/v1/pools/api/pins", {"key": "ann"}),
]
# These take a token because of what they may show, and change nothing.
TRIALS = ("/v1/check", "/v1/plan")


def test_these_are_all_the_writes_that_there_are() -> None:
    described = {
        (method.upper(), path)
        for path, item in description()["paths"].items()
        for method, operation in item.items()
        if method != "parameters" and {"token": []} in operation.get("security", ())
    }
    written = {(method, path.replace("/api", "/{pool}").replace("/b1", "/{backend}")) for method, path, _ in WRITES}
    assert written == described


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
async def test_over_tcp_writing_takes_the_token(served: Served, method: str, path: str, body: object) -> None:
    for token in (None, "", "correct", TOKEN + "x", "corr\u00e9ct"):
        status, document = await served.write(method, path, body, token)
        assert (status, document["detail"]) == (401, "the token is missing or wrong, see admin.token_file")
    assert served.instance.asked == []
    status, _ = await served.write(method, path, body, Authorization="Basic abc", token=None)
    assert status == 401
    status, _ = await served.write(method, path, body)
    assert status in (200, 202)
    assert len(served.instance.asked) == 1
    # A token that is changed counts from now on.
    served.token_file.write_text("another")
    assert (await served.write(method, path, body))[0] == 401
    assert (await served.write(method, path, body, "another"))[0] in (200, 202)


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
async def test_over_the_unix_socket_it_takes_none(served: Served, method: str, path: str, body: object) -> None:
    assert (await served.write(method, path, body, None, is_tcp=False))[0] in (200, 202)
    assert len(served.instance.asked) == 1


async def test_connections_are_not_for_ever_nor_for_everybody_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(connection_module, "FIRST_REQUEST_S", 0.3)
    port = served.tcp.sockets[0].getsockname()[1]
    asking = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def connect(said: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        return reader, writer

    talker, writer = await connect(asking)
    await talker.readuntil(b"ok\n")
    silent = [await connect(said) for said in (b"", asking[:20])]
    too_many, _ = await connect(asking)
    assert await _whatever_comes(too_many) == b""
    assert (await served.write("POST", "/v1/reload", is_tcp=False))[0] == 200  # there is another way in
    for reader, _ in silent:
        assert await _whatever_comes(reader) == b""
    assert (await served.get("/healthz"))[0] == 200
    writer.write(asking)
    await talker.readuntil(b"ok\n")
    writer.close()


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("PATCH", "/v1/pools/api/backends/b1", "application/json"),
        ("POST", "/v1/pools/api/explain", "application/json"),
        ("POST", "/v1/plan", "application/yaml"),
        ("POST", "/v1/check", "application/yaml"),
        ("POST", "/v1/reload", "application/yaml"),
        ("GET", "/v1/info", "application/json"),
    ],
)
async def test_a_body_that_never_ends_does_not_hold_its_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, method: str, path: str, kind: str
) -> None:
    monkeypatch.setattr(answers, "BODY_S", 0.1)
    monkeypatch.setattr(connection_module, "LINGER_S", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.tcp.sockets[0].getsockname()[1])
    fields = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: {kind}\r\nContent-Length: 9"
    writer.write(f"{method} {path} HTTP/1.1\r\n{fields}\r\n\r\n{{".encode())
    said = await _whatever_comes(reader)
    assert said.startswith(b"HTTP/1.1 200 " if method == "GET" else b"HTTP/1.1 408 "), said
    assert served.instance.asked == []
    writer.close()


async def _whatever_comes(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        return b""


class _ShortLived(asyncio.Transport):
    """A client's TCP connection that somebody takes away."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def is_closing(self) -> bool:
        return False

    def write(self, data: object) -> None:
        pass

    def close(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def test_who_is_gone_when_it_is_judged_gains_no_rights_by_that(served: Served) -> None:
    """A connection may be lost at any turn of the event loop between a request's last octet and its handler."""
    runner = web.AppRunner(served.app, handle_signals=False)
    await runner.setup()
    assert runner.server is not None
    for lost_after in range(1, 6):
        connection = Connection(runner.server, loop=asyncio.get_running_loop())
        connection.connection_made(_ShortLived())
        await asyncio.sleep(0)
        connection.data_received(b"POST /v1/drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        for turn in range(20):
            if turn == lost_after:
                connection.connection_lost(None)
            await asyncio.sleep(0)
        assert served.instance.asked == [], lost_after
    assert any(event == "admin requests refused" for _, event, _ in served.events)
    await runner.cleanup()


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
async def test_every_write_is_a_line_in_the_journal_that_says_who(
    served: Served, method: str, path: str, body: object
) -> None:
    for is_tcp in (True, False):
        assert (await served.write(method, path, body, is_tcp=is_tcp))[0] in (200, 202)
    written = [(level, fields) for level, event, fields in served.events if event == "admin write"]
    assert [level for level, _ in written] == ([] if path in TRIALS else ["info", "info"])
    for (_, fields), who in zip(written, ("token from 127.0.0.1", pwd.getpwuid(os.getuid()).pw_name), strict=False):
        assert fields == {"method": method, "path": path, "who": who}


async def test_who_guesses_tokens_is_told_of_without_drowning_the_rest(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "REFUSALS_S", 0.3)

    def told() -> list[tuple[Level, Fields]]:
        return [(level, fields) for level, event, fields in served.events if event == "admin requests refused"]

    began = time.monotonic()
    for guess in range(20):
        assert (await served.write("POST", "/v1/reload", None, f"guess{guess}"))[0] == 401
    why = "the token is missing or wrong, see admin.token_file"
    first = {"method": "POST", "path": "/v1/reload", "peer": "127.0.0.1", "why": why}
    assert told()[0] == ("warning", {"count": 1, **first})
    assert (await served.get("/v1/info", Host="evil.example"))[0] == 421
    assert (await served.get("/v1/nothing"))[0] == 404
    await until_true(lambda: sum(int(fields["count"] or 0) for _, fields in told()) == 21)
    assert told()[-1][1]["why"] == "the Host field names another machine"
    assert len(told()) <= 1 + (time.monotonic() - began) / app.REFUSALS_S
    assert not any(event == "admin write" for _, event, _ in served.events)


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
async def test_no_other_web_page_may(
    served: Served, method: str, path: str, body: object, headers: dict[str, str]
) -> None:
    for is_tcp in (True, False):
        assert (await served.write(method, path, body, is_tcp=is_tcp, **headers))[0] == 403
    assert served.instance.asked == []
    assert (await served.write(method, path, body, Origin=served.url))[0] in (200, 202)


async def test_without_a_usable_token_nobody_may(served: Served, tmp_path: Path) -> None:
    served.token_file.write_text("\n")
    assert (await served.write("POST", "/v1/reload", token=""))[0] == 503
    served.token_file.unlink()
    assert (await served.write("POST", "/v1/reload"))[0] == 503
    guard = Guard()
    tcp = listen(Address("127.0.0.1", 0))
    server = AdminServer(build_app(served.instance, Journal(lambda *_: None), guard))
    await server.start([tcp.sockets[0]])
    served.url = f"http://{tcp.address}"
    status, document = await served.write("POST", "/v1/reload", token="")
    assert (status, "admin.token_file" in document["detail"]) == (403, True)
    await server.stop()
    tcp.close()
    assert served.instance.asked == []


# What can be changed


async def test_a_refused_reload_says_every_problem(served: Served) -> None:
    served.instance.broken = True
    status, document = await served.write("POST", "/v1/reload")
    assert (status, document["status"], document["problems"]) == (409, 409, ["a.yaml:1:1: what"])


@pytest.mark.parametrize(
    ("body", "decision", "rest"),
    [
        ({"weight": 2}, (2.0, ...), (None, "", False)),
        ({"weight": 0.5, "ttl": "10m", "reason": "try"}, (0.5, ...), (600.0, "try", False)),
        ({"weight": None}, (None, ...), (None, "", False)),
        ({"state": "drain", "ttl": 2.5, "force": True}, (..., True), (2.5, "", True)),
        ({"state": "active", "weight": 1}, (1.0, False), (None, "", False)),
    ],
)
async def test_decisions(
    served: Served,
    body: dict[str, Any],
    decision: tuple[float | EllipsisType | None, bool | EllipsisType],
    rest: tuple[Any, ...],
) -> None:
    status, document = await served.write("PATCH", "/v1/pools/api/backends/b1", body)
    assert (status, document["name"]) == (200, "b1")
    assert served.instance.asked == [("api", Decision("b1", *decision), *rest)]
    assert served.instance.who == "token from 127.0.0.1"
    several = {"backends": {"b2": {name: body[name] for name in body if name in ("weight", "state")}}}
    several |= {name: body[name] for name in body if name not in ("weight", "state")}
    status, _ = await served.write("PATCH", "/v1/pools/api/backends", several, None, is_tcp=False)
    assert status == 200
    assert served.instance.asked[-1] == ("api", Decision("b2", *decision), *rest)
    assert served.instance.who not in ("", "unknown", "token from 127.0.0.1")
    assert [event for _, event, _ in served.events] == ["admin write"] * 2


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({}, "nothing is wanted of b1"),
        (None, "nothing is wanted of b1"),
        ({"wait": 1}, "there is no 'wait'"),
        ({"weight": -1}, "weight must be a number"),
        ({"weight": True}, "weight must be a number"),
        ({"weight": "2"}, "weight must be a number"),
        ({"weight": 1e9}, "weight must be a number"),
        ({"state": "down"}, "state must be 'drain' or 'active'"),
        ({"weight": 1, "ttl": "10"}, "ttl"),
        ({"weight": 1, "ttl": 0}, "ttl must be a duration"),
        ({"weight": 1, "ttl": True}, "ttl must be a duration"),
        ({"weight": 1, "ttl": 1e300}, "ttl must be a duration"),
        ({"weight": 1, "ttl": 10**400}, "ttl must be a duration"),
        ({"weight": 1, "reason": "\ud800"}, "the body holds a text that is none"),
        ({"weight": 1, "reason": 5}, "reason must be a text"),
        ({"weight": 1, "reason": "x" * 501}, "reason must be a text"),
        ({"weight": 1, "reason": "\x1b[2J"}, "reason must be one line"),
        ({"weight": 1, "reason": "a\nb"}, "reason must be one line"),
        ({"weight": 1, "reason": "\u202eb"}, "reason must be one line"),
        ({"weight": 1, "force": "yes"}, "force must be true or false"),
        ([1], "the body must be a JSON object"),
        (b"{", "the body must be application/json"),
    ],
)
async def test_what_is_no_decision(served: Served, body: object, detail: str) -> None:
    status, document = await served.write("PATCH", "/v1/pools/api/backends/b1", body)
    assert status in (400, 415)
    assert detail in document["detail"]
    assert served.instance.asked == []


@pytest.mark.parametrize("body", [b"{", b"[", b"\xff", b'{"weight": NaN}', b"[" * 100_000])
async def test_what_is_no_json(served: Served, body: bytes) -> None:
    status, document = await served.write("PATCH", "/v1/pools/api/backends/b1", body, kind="application/json")
    assert (status, document["detail"]) == (400, "the body is not JSON")


async def test_bodies_have_an_end(served: Served) -> None:
    large = b" " * (2 << 20)
    assert (await served.write("PATCH", "/v1/pools/api/backends/b1", large, kind="application/json"))[0] == 413
    status, document = await served.write("POST", "/v1/check", b" " * (5 << 20))
    assert (status, document["detail"]) == (413, f"a body has at most {MAX_FILE_BYTES} octets")
    assert (await served.write("POST", "/v1/reload", b"x"))[0] == 400
    assert served.instance.asked == []


async def test_a_backend_that_is_not_there_cannot_be_changed(served: Served) -> None:
    assert (await served.write("PATCH", "/v1/pools/api/backends/b9", {"weight": 1}))[0] == 404
    assert (await served.write("DELETE", "/v1/pools/api/backends/b9/overrides"))[0] == 404
    assert served.instance.asked == []


async def test_plans(served: Served) -> None:
    asked = {"pool": "api", "backends": {"b1": {"weight": 2}, "b2": {"state": "drain"}}}
    assert await served.write("POST", "/v1/plan", asked, token=None) == (200, {"moved_share": 0.1})
    assert served.instance.asked == [("plan", "api", Decision("b1", 2.0), Decision("b2", is_drained=True))]
    for wrong in ({}, {"pool": "api"}, {"pool": "api", "backends": []}, {"pool": 5, "backends": {"b1": {"weight": 1}}}):
        assert (await served.write("POST", "/v1/plan", wrong, token=None))[0] == 400
    assert (await served.write("POST", "/v1/plan", asked, token=None, Origin="http://evil.example"))[0] == 403
    assert (await served.write("POST", "/v1/plan", b"listen: x"))[0] == 200
    assert (await served.write("POST", "/v1/plan"))[0] == 200
    assert served.instance.asked[1:] == [("plan", b"listen: x"), ("plan", None)]


# Events


async def test_events_come_as_they_happen_and_from_where_one_left_off(served: Served) -> None:
    kept = served.instance.kept
    for number in range(3):
        kept.add("info", "worker ready", {"worker": number})
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{served.url}/v1/events") as new,
        session.get(f"{served.url}/v1/events?after=1") as old,
        session.get(f"{served.url}/v1/events", headers={"Last-Event-ID": "2"}) as resumed,
        session.get(f"{served.url}/v1/events", headers={"Last-Event-ID": "500"}) as restarted,
    ):
        assert new.content_type == "text/event-stream"
        kept.add("warning", "backend state", {"pool": "api", "backend": "b1", "state": "down"})
        expected = ((new, [4]), (old, [2, 3, 4]), (resumed, [3, 4]), (restarted, [1, 2, 3, 4]))
        for answer, numbers in expected:
            for number in numbers:
                async with asyncio.timeout(10):
                    lines = [(await answer.content.readline()).decode().rstrip() for _ in range(4)]
                assert (lines[0], lines[3]) == (f"id: {number}", "")
                event = json.loads(lines[2].removeprefix("data: "))
                assert lines[1] == f"event: {event['kind']}"
        assert (event["kind"], event["text"]) == ("state", "b1 is down")


async def test_who_listens_and_takes_nothing_makes_room_for_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "STALLED_S", 0.2)
    with socket.create_connection(served.tcp.sockets[0].getsockname()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until_true(lambda: served.app[feed.LISTENERS])
        for _ in range(100):  # more than all buffers on the way hold
            served.instance.kept.add("info", "much", {"text": "x" * 100_000})
        await until_true(lambda: not served.app[feed.LISTENERS])


async def test_only_so_many_may_listen_to_events(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_LISTENERS", 2)
    async with aiohttp.ClientSession() as session:
        first, second = [await session.get(f"{served.url}/v1/events") for _ in range(2)]
        status, text, _ = await served.get("/v1/events")
        assert (status, json.loads(text)["detail"]) == (503, "too many listen already")
        first.close()
        served.instance.kept.add("info", "worker ready", {"worker": 1})
        await until_true(lambda: len(served.app[feed.LISTENERS]) < 2)
        async with session.get(f"{served.url}/v1/events") as third:
            assert third.status == 200
        second.close()


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


class Stood:
    """How things stand, without workers."""

    def __init__(self) -> None:
        self.layout = Layout()
        self.rows = self.layout.assign(row_keys(CONFIG), 1)
        self.totals = [0] * self.layout.end
        journal = Journal(lambda *_: None)
        self.being = Wellbeing([], self, journal, None, lambda: 1000.0, lambda: 1_796_040_000.0)
        self.being.install(self.being.prepare(CONFIG))
        self.rings = RingChanges(journal)
        self.snapshot = build_snapshot(CONFIG, 1, self.rows)
        self.snapshot.pools["api"].adopt(self.being.pools["api"].states)

    def tell(self, states: States) -> None:
        self.snapshot.pools["api"].adopt(states["api"])

    def reweigh(self, mandate: Mandate) -> None:
        self.snapshot = build_snapshot(CONFIG, 2, self.rows, self.snapshot, weights=mandate.weights)
        self.snapshot.pools["api"].adopt(mandate.states["api"])

    def pool(self) -> dict[str, Any]:
        scene = Scene(self.snapshot, self.rows, self.totals, self.being, self.rings, Shares(), 1000.0, 1_796_040_000.0)
        (pool,) = pools_document(scene)["pools"]
        json.dumps(pool)
        found: dict[str, Any] = pool
        return found


def test_pools_tell_weights_shares_and_counts() -> None:
    stood = Stood()
    rows, totals = stood.rows, stood.totals
    totals[rows[("pool", "api")] + ledger.POOL_REQUESTS + 1] = 40
    totals[rows[("pool", "api")] + ledger.POOL_DECISIONS + ledger.NO_KEY] = 5
    totals[rows[("backend", "api", "b2")] + ledger.BACKEND_REQUESTS + 1] = 30
    totals[rows[("backend", "api", "b2")] + ledger.BACKEND_IN_FLIGHT] = 2
    totals[rows[("backend", "api", "b2")] + ledger.BACKEND_DURATION] = 5
    pool = stood.pool()
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
    assert pool["ring"]["last_change"] is None
    assert (second["duration"]["counts"][0], len(second["duration"]["counts"])) == (5, 16)
    assert (pool["key_sources"], pool["eligible"], pool["panic"]) == (["header X-User-ID"], 2, False)
    assert [backend["state"] for backend in pool["backends"]] == ["up", "up", "draining"]
    assert first["state_since"] == "2026-11-30T12:00:00.000Z"
    assert (first["override"], first["overrides"], first["probe"], first["slots"]) == (None, [], None, 2)


@pytest.mark.parametrize("panic", ["off", "serve_all"])
def test_a_backend_that_takes_no_new_keys_has_no_share_of_them(panic: Literal["off", "serve_all"]) -> None:
    stood = Stood()
    now = 1_796_040_000.0
    stood.being.decide([Override("api", "b2", "drain", 0.0, 3.0, "bob", now, None, "repair")])
    shares = [(each["expected_share"], each["current_share"]) for each in stood.pool()["backends"]]
    assert shares == [(0.25, 1.0), (0.75, 0.0), (0.0, 0.0)]
    (pool,) = CONFIG.pools
    config = replace(CONFIG, pools=(replace(pool, panic=panic),))
    stood.snapshot = build_snapshot(config, 2, stood.rows, stood.snapshot)
    stood.tell({"api": {"b1": OUT, "b2": OUT, "b3": OUT}})
    shares = [(each["expected_share"], each["current_share"]) for each in stood.pool()["backends"]]
    is_asked = panic == "serve_all"
    assert shares == [(0.25, 0.25 * is_asked), (0.75, 0.75 * is_asked), (0.0, 0.0)]


def test_documents_and_the_metrics_page_agree_on_every_count() -> None:
    stood = Stood()
    slabs = Slabs.create(1, capacity=stood.layout.end)
    try:
        for at in range(stood.layout.end):
            slabs.cells[0][at] = stood.totals[at] = 1000 + 7 * at  # no two alike
        page = text_string_to_metric_families(Page(stood.rows, 1).render(slabs))
        cells = slabs.lists(stood.layout.end)
        (worker,) = workers_document([WorkerStatus(0, "ready", 1, 1, 1.0, 0)], stood.rows, cells)["workers"]
    finally:
        slabs.close()
    told = {
        (sample.name.removeprefix("lbproxy_"), *sorted(sample.labels.values())): sample.value
        for family in page
        for sample in family.samples
    }
    pool = stood.pool()
    pairs = [
        ((), pool["in_flight"], "requests_in_flight"),
        ((), pool["upgraded_open"], "upgraded_connections_open"),
        ((), pool["duration"]["sum_s"], "request_duration_seconds_sum"),
        ((), sum(pool["duration"]["counts"]), "request_duration_seconds_count"),
        *[((word,), count, "requests_total") for word, count in pool["requests"].items()],
        *[((word,), count, "route_decisions_total") for word, count in pool["decisions"].items()],
        *[((word,), count, "requests_rejected_total") for word, count in pool["rejected"].items()],
        *[
            ((reason, outcome), count, "retries_total")
            for reason, outcomes in pool["retries"].items()
            for outcome, count in outcomes.items()
        ],
    ]
    for each in pool["backends"]:
        name = each["name"]
        pairs += [
            ((name,), each["in_flight"], "upstream_requests_in_flight"),
            ((name,), each["upgraded_open"], "upstream_upgraded_connections_open"),
            ((name,), each["owned_requests"], "route_owned_requests_total"),
            ((name,), each["spills_received"], "route_spills_received_total"),
            ((name,), each["duration"]["sum_s"], "upstream_request_duration_seconds_sum"),
            ((name,), sum(each["duration"]["counts"]), "upstream_request_duration_seconds_count"),
            *[((name, word), count, "upstream_requests_total") for word, count in each["requests"].items()],
            *[((name, word), count, "route_spills_total") for word, count in each["spills"].items()],
            *[((name, word), count, "upstream_errors_total") for word, count in each["errors"].items()],
            *[((name, word), count, "upstream_connections") for word, count in each["connections"].items()],
        ]
    for labels, count, metric in pairs:
        assert told[(metric, *sorted(("api", *labels)))] == count, (metric, labels)
    assert (worker["requests"], worker["lag_s"]) == (
        told["worker_requests_total", "0"],
        told["worker_event_loop_lag_seconds", "0"],
    )
    assert worker["log_dropped"] == told[("access_log_dropped_total",)]
    assert worker["connections_open"] == told["connections_open", "127.0.0.1:0"]


def test_overrides_stand_wherever_the_weight_does() -> None:
    stood = Stood()
    now = 1_796_040_000.0
    stood.being.decide(
        [
            Override("api", "b1", "weight", 3.0, 1.0, "ann", now, now + 60, "try"),
            Override("api", "b2", "drain", 0.0, 3.0, "bob", now + 1, None, "repair"),
        ]
    )
    first, second, _ = stood.pool()["backends"]
    assert (first["weight"], first["effective_weight"], first["wanted_weight"]) == (1, 3, 3)
    assert first["expected_share"] == 0.5
    assert first["override"] == {
        "weight": 3.0,
        "state": None,
        "by": "ann",
        "since": "2026-11-30T12:00:00.000Z",
        "expires_at": "2026-11-30T12:01:00.000Z",
        "reason": "try",
    }
    assert (second["state"], second["eligible"]) == ("draining", False)
    assert (second["override"]["state"], second["override"]["weight"], second["override"]["by"]) == (
        "drain",
        None,
        "bob",
    )
    stood.being.decide(back=[("api", "b2", "drain")])
    stood.being.note_streak("api", "b1", "reset")
    stood.being.note_streak("api", "b2", "reset")
    first, second, _ = stood.pool()["backends"]
    assert (second["state"], second["ejections"]) == ("up", {"count": 0, "spared": 1})
    assert (first["state"], first["state_until"]) == ("ejected", "2026-11-30T12:00:10.000Z")
    assert first["ejections"] == {"count": 1, "spared": 0}


def test_workers_tell_each_slot() -> None:
    layout = Layout()
    rows = layout.assign(row_keys(CONFIG), 1)
    lists = [[0] * layout.end for _ in range(2)]
    lists[1][rows[("worker",)] + ledger.WORKER_REQUESTS] = 7
    lists[1][rows[("listener", "127.0.0.1:0")] + ledger.LISTENER_OPEN] = 3
    statuses = [WorkerStatus(0, "down", 0, 0, 0.0, 4), WorkerStatus(1, "ready", 99, 5, 1_796_040_000.5, 0, 4)]
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
        "lag_s": 0.0,
        "silent_s": 0,
        "log_dropped": 0,
    }
    assert second["silent_s"] == 4
    assert (second["pid"], second["started_at"], second["requests"], second["connections_open"]) == (
        99,
        "2026-11-30T12:00:00.500Z",
        7,
        3,
    )

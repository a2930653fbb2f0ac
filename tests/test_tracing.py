"""OpenTelemetry spans of real requests, as a collector receives them over OTLP/HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from lbproxy.core.spec import Address, Config, TracingSpec
from lbproxy.observe.journal import Fields, Journal, Level
from lbproxy.observe.otlp import client_attributes, server_attributes
from lbproxy.observe.spans import pack
from lbproxy.observe.tracing import CannotTrace, Tracing, check
from tests.running import PATIENCE_S, Backends, Proxy, get, in_thread, until_true
from tests.test_spans import RECORD

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


class Collector:
    """Takes traces as an OpenTelemetry collector does. `spans` are all that have come."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.status = 200
        self.asked = 0
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.asked += 1
        body = ExportTraceServiceRequest.FromString(await request.read())
        if self.status == 200:
            for resource in body.resource_spans:
                self.resources.append(plain(resource.resource.attributes))
                for scope in resource.scope_spans:
                    assert scope.scope.name == "lbproxy"
                    self.spans += scope.spans
        return web.Response(
            status=self.status,
            body=ExportTraceServiceResponse().SerializeToString(),
            content_type="application/x-protobuf",
        )

    def of(self, trace_id: str) -> dict[int, Span]:
        """The spans of a trace by their kind."""
        return {span.kind: span for span in self.spans if span.trace_id.hex() == trace_id}


def plain(attributes: Any) -> dict[str, Any]:
    """Attributes as a mapping of plain values."""

    def value(any_value: AnyValue) -> Any:
        return getattr(any_value, cast(str, any_value.WhichOneof("value")))

    return {pair.key: value(pair.value) for pair in cast("list[KeyValue]", attributes)}


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    app = web.Application()
    app.add_routes([web.post("/v1/traces", made.take)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library reads when a proxy starts: send soon, and never by way of a proxy."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


async def ask(port: int, headers: dict[str, str], path: str = "/things?token=secret") -> int:
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers={"X-User-ID": "ann", **headers}) as answer,
    ):
        await answer.read()
        return answer.status


async def test_a_sampled_request_is_a_server_span_with_the_attempt_below_it(
    tmp_path: Path, collector: Collector
) -> None:
    tracing = {"otlp": collector.url, "sample": "0%", "service": "edge"}
    async with Backends("b1") as backends:
        with Proxy(tmp_path, backends.ports, tracing=tracing) as proxy:
            sampled = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1", "User-Agent": "curl/8"}
            assert await ask(proxy.port, sampled) == 200
            assert await ask(proxy.port, {"traceparent": f"00-{TRACE[::-1]}-{SPAN}-00"}) == 200
            assert await ask(proxy.port, {}) == 200
            await until_true(lambda: len(collector.of(TRACE)) == 2)
        assert len(collector.spans) == 2  # nothing else was sampled by anybody
        server, client = (collector.of(TRACE)[kind] for kind in (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT))
        assert (server.name, client.name) == ("GET", "GET")
        assert server.parent_span_id.hex() == SPAN
        assert client.parent_span_id == server.span_id
        assert server.trace_state == client.trace_state == "vendor=1"
        told, below = plain(server.attributes), plain(client.attributes)
        request_id = told.pop("lbproxy.request_id")
        assert len(request_id) == 24
        assert told == {
            "http.request.method": "GET",
            "url.scheme": "http",
            "url.path": "/things",
            "server.address": "127.0.0.1",
            "client.address": "127.0.0.1",
            "network.peer.address": "127.0.0.1",
            "network.protocol.version": "1.1",
            "user_agent.original": "curl/8",
            "http.response.status_code": 200,
            "http.request.body.size": 0,
            "http.response.body.size": 2,
            "lbproxy.pool": "api",
            "lbproxy.backend": "b1",
            "lbproxy.decision": "owner",
        }
        assert below == {
            "http.request.method": "GET",
            "url.full": f"http://127.0.0.1:{backends.ports['b1']}/things",
            "server.address": "127.0.0.1",
            "server.port": backends.ports["b1"],
            "network.peer.address": "127.0.0.1",
            "network.peer.port": backends.ports["b1"],
            "network.protocol.version": "1.1",
            "http.response.status_code": 200,
            "lbproxy.pool": "api",
            "lbproxy.backend": "b1",
        }
        assert server.start_time_unix_nano <= client.start_time_unix_nano <= client.end_time_unix_nano
        assert client.end_time_unix_nano == server.end_time_unix_nano
        assert server.status.code == client.status.code == Status.STATUS_CODE_UNSET
        (resource,) = collector.resources
        assert resource["service.name"] == "edge"
        assert resource["telemetry.sdk.name"] == "opentelemetry"


async def test_traces_that_begin_here_reach_the_backend_as_the_parent_of_its_spans(
    tmp_path: Path, collector: Collector
) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers["traceparent"])
        return web.Response(text="here")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ports = {"b1": runner.addresses[0][1]}
    made = Proxy(tmp_path, ports, tracing={"otlp": collector.url, "sample": "100%"})
    with made as proxy:
        for _ in range(20):
            assert await get(proxy.port) == (200, "here")
        await until_true(lambda: len(collector.spans) == 40)
    for traceparent in seen:
        _, trace_id, parent, flags = traceparent.split("-")
        spans = collector.of(trace_id)
        assert flags == "01"
        assert spans[Span.SPAN_KIND_CLIENT].span_id.hex() == parent
        assert spans[Span.SPAN_KIND_SERVER].parent_span_id == b""
    await runner.cleanup()


async def test_tracing_comes_and_goes_with_a_reload_and_the_last_spans_are_sent_at_the_end(
    tmp_path: Path, collector: Collector
) -> None:
    async with Backends("b1") as backends:
        with Proxy(tmp_path, backends.ports) as proxy:

            async def trace(**section: str) -> None:
                proxy.config["tracing"] = section
                proxy.write_config()
                count = len(proxy.named("configuration applied")) + 1
                proxy.signal(signal.SIGHUP)
                await in_thread(proxy, "configuration applied", count)

            await get(proxy.port)
            await trace(otlp=collector.url, sample="100%")
            await get(proxy.port)
            await until_true(lambda: len(collector.spans) == 2)
            await trace()
            await get(proxy.port)
            await trace(otlp=collector.url + "/", sample="100%")
            await get(proxy.port, "/no/such/place")
            await asyncio.to_thread(proxy.end)
        # Ended at once after the request: what was not sent yet is sent on the way out.
        assert len(collector.spans) == 4
        assert {plain(span.attributes)["lbproxy.backend"] for span in collector.spans} == {"b1"}


async def test_a_collector_that_fails_costs_no_request_and_is_told(tmp_path: Path, collector: Collector) -> None:
    collector.status = 400
    async with Backends("b1") as backends:
        made = Proxy(tmp_path, backends.ports, tracing={"otlp": collector.url, "sample": "100%"})
        with made as proxy:
            for _ in range(10):
                assert (await get(proxy.port))[0] == 200
            await until_true(lambda: collector.asked > 0)
            told = await in_thread(proxy, "library message")
            assert "opentelemetry" in str(told["logger"])
            assert proxy.metric("requests_total", code="2xx") == 10


def without_the_extra(folder: Path) -> dict[str, str]:
    """An environment in which the library is not there."""
    (folder / "opentelemetry.py").write_text("raise ModuleNotFoundError('none', name='opentelemetry')\n")
    return os.environ | {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("command", ["run", "check"])
def test_without_the_extra_it_is_said_what_is_missing(tmp_path: Path, command: str) -> None:
    proxy = Proxy(tmp_path, {"b1": 9}, tracing={"otlp": "http://127.0.0.1:4318"})
    proxy.write_config()
    words = [sys.executable, "-m", "lbproxy", command, "-c", str(proxy.file)]
    environ = without_the_extra(tmp_path)
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, env=environ)
    assert (done.returncode, done.stdout) == (1, "")
    said = "tracing.otlp: tracing needs OpenTelemetry, which is not installed: pip install 'lbproxy[otel]'\n"
    place, _, rest = done.stderr.partition(" ")
    assert re.fullmatch(rf"{proxy.file}:\d+:\d+:", place)
    assert rest.startswith(said)
    if command == "check":
        done = subprocess.run([*words, "--no-files"], capture_output=True, text=True, timeout=PATIENCE_S, env=environ)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_mistake_in_our_own_module_is_not_taken_for_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lbproxy.observe.otlp", None)
    with pytest.raises(ModuleNotFoundError):
        check(TracingSpec("http://127.0.0.1:4318"))
    check(TracingSpec())  # nothing was asked for, nothing is loaded


async def test_a_reload_that_asks_for_what_is_missing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in without_the_extra(tmp_path).items():
        monkeypatch.setenv(name, value)
    async with Backends("b1") as backends:
        with Proxy(tmp_path, backends.ports) as proxy:
            proxy.config["tracing"] = {"otlp": "http://127.0.0.1:4318"}
            proxy.write_config()
            proxy.signal(signal.SIGHUP)
            told = await in_thread(proxy, "configuration refused")
            assert "pip install 'lbproxy[otel]'" in str(told["problem"])
            assert (await get(proxy.port))[0] == 200


def test_a_bad_variable_of_the_library_stops_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")  # less than a batch
    told: list[tuple[Level, str]] = []

    def emit(level: Level, event: str, fields: Fields) -> None:
        told.append((level, event))

    tracing = Tracing(Journal(emit))
    tracing.follow(Config((), (), (), tracing=TracingSpec("http://127.0.0.1:9")))
    assert told == [("error", "tracing is off")]
    tracing.take(pack([RECORD]), 1)  # goes nowhere
    with pytest.raises(CannotTrace), pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
        patch.delitem(sys.modules, "lbproxy.observe.otlp")
        tracing.follow(Config((), (), (), tracing=TracingSpec("http://127.0.0.1:10")))


def test_what_failed_is_said_by_the_conventions() -> None:
    b1 = Address("127.0.0.1", 9000)
    refused = RECORD._replace(status=502, reason="connect_failed", first_byte_us=-1, attempts=3)
    assert server_attributes(refused)["error.type"] == "connect_failed"
    client = client_attributes(refused, b1)
    assert (client["error.type"], client["http.request.resend_count"]) == ("connect_failed", 2)
    assert "http.response.status_code" not in client
    answered = RECORD._replace(status=503)
    assert server_attributes(answered)["error.type"] == client_attributes(answered, b1)["error.type"] == "503"
    missing = RECORD._replace(status=404)
    assert "error.type" not in server_attributes(missing)
    assert client_attributes(missing, b1)["error.type"] == "404"
    cut = RECORD._replace(reason="reset")
    assert server_attributes(cut)["error.type"] == client_attributes(cut, b1)["error.type"] == "reset"
    gone = RECORD._replace(status=0, reason="client_abort")
    assert "http.response.status_code" not in server_attributes(gone)
    assert server_attributes(gone)["error.type"] == "client_abort"
    odd = RECORD._replace(method="BREW")
    assert server_attributes(odd)["http.request.method_original"] == "BREW"
    assert server_attributes(odd)["http.request.method"] == "_OTHER"
    unix = client_attributes(RECORD, Address("", 0, "/run/app.sock"))
    assert (unix["server.address"], unix["network.transport"]) == ("/run/app.sock", "unix")
    named = client_attributes(RECORD, Address("app.example", 80))
    assert (named["server.address"], "network.peer.address" in named) == ("app.example", False)

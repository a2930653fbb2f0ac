"""The ids that requests get and keep: X-Request-ID and the W3C trace context, as backends see them."""

from __future__ import annotations

import re
from typing import Literal

import pytest

from lbproxy.core.spec import HeaderPolicy, TracingSpec
from lbproxy.core.trace import ids_of, is_sampled, is_traceparent
from tests.dataplane.harness import Backend, answer, answering, backend, pool_of, request, running

TRACE = b"0af7651916cd43dd8448eb211c80319c"
SPAN = b"b7ad6b7169203331"
SAMPLED = b"00-%b-%b-01" % (TRACE, SPAN)
UNSAMPLED = b"00-%b-%b-00" % (TRACE, SPAN)
STATE = b"tracestate: vendor=1\r\n"

ALL = TracingSpec("http://127.0.0.1:4318", 1.0)
NONE = TracingSpec("http://127.0.0.1:4318", 0.0)
# With a body, and in the absolute form: the two ways beside the usual one.
WAYS = [("GET", "/", b""), ("POST", "/", b"body"), ("GET", "http://a.example/", b"")]


def values(seen: Backend, name: bytes) -> list[bytes]:
    return re.findall(rb"(?im)^%b: (.*)\r$" % name, seen.octets)


def made(seen: Backend) -> bytes:
    """The one traceparent that the backend saw."""
    (found,) = values(seen, b"traceparent")
    assert is_traceparent(found)
    return found


@pytest.mark.parametrize(("method", "target", "body"), WAYS)
async def test_a_request_without_a_trace_begins_one_that_nobody_samples(method: str, target: str, body: bytes) -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        await proxy.ask(request(method, target, body=body))
        assert made(b0).startswith(b"00-")
        assert made(b0).endswith(b"-00")
        assert proxy.lines[0].trace is None
        assert proxy.lines[0].trace_id == ids_of(made(b0))[0]


@pytest.mark.parametrize(("method", "target", "body"), WAYS)
@pytest.mark.parametrize("sent", [SAMPLED, UNSAMPLED, b"cc" + SAMPLED[2:] + b"-later"])
async def test_a_trace_goes_on_as_it_came(method: str, target: str, body: bytes, sent: bytes) -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        await proxy.ask(request(method, target, b"TraceParent: %b\r\n%b" % (sent, STATE), body))
        assert made(b0) == sent
        assert proxy.lines[0].trace_id == ids_of(sent)[0]
        assert b"TraceParent: " in b0.octets
        assert values(b0, b"tracestate") == [b"vendor=1"]
        assert len(values(b0, b"x-request-id")) == 1


@pytest.mark.parametrize(("method", "target", "body"), WAYS)
@pytest.mark.parametrize(
    "lines",
    [
        b"traceparent: 00-%b-%b-01\r\n" % (b"0" * 32, SPAN),
        b"traceparent: \r\n",
        b"traceparent: %b\r\ntraceparent: %b\r\n" % (SAMPLED, SAMPLED),
        b"",
    ],
)
async def test_an_invalid_trace_is_replaced_and_its_state_dropped(
    method: str, target: str, body: bytes, lines: bytes
) -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        await proxy.ask(request(method, target, lines + STATE, body))
        assert ids_of(made(b0))[0] not in (TRACE, b"0" * 32)
        assert values(b0, b"tracestate") == []


async def test_connection_cannot_take_a_trace_away() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        lines = b"traceparent: %b\r\n%bConnection: close, traceparent, tracestate\r\n" % (UNSAMPLED, STATE)
        await proxy.ask(request("GET", "/", lines, close=False))
        assert made(b0) == UNSAMPLED
        assert values(b0, b"tracestate") == [b"vendor=1"]


@pytest.mark.parametrize("lines", [b"", b"traceparent: nonsense\r\n", b"traceparent: a\r\ntraceparent: b\r\n" + STATE])
async def test_with_pass_nothing_is_touched(lines: bytes) -> None:
    async with (
        backend(answering(answer())) as b0,
        running(pool_of(b0.port), headers=HeaderPolicy(traceparent="pass")) as proxy,
    ):
        await proxy.ask(request("GET", "/", lines))
        assert lines in b0.octets
        assert b0.octets.count(b"trace") == lines.count(b"trace")
        assert len(values(b0, b"x-request-id")) == 1
        assert proxy.lines[0].trace_id == b""


@pytest.mark.parametrize("traceparent", ["make", "pass"])
@pytest.mark.parametrize(("method", "target", "body"), WAYS)
async def test_without_request_ids_traces_are_made_all_the_same(
    traceparent: Literal["make", "pass"], method: str, target: str, body: bytes
) -> None:
    policy = HeaderPolicy(request_id="off", traceparent=traceparent)
    async with backend(answering(answer())) as b0, running(pool_of(b0.port), headers=policy) as proxy:
        await proxy.ask(request(method, target, body=body))
        assert values(b0, b"x-request-id") == []
        assert len(values(b0, b"traceparent")) == (traceparent == "make")


@pytest.mark.parametrize(("method", "target", "body"), WAYS)
async def test_a_sampled_trace_that_begins_here_makes_the_attempt_the_backends_parent(
    method: str, target: str, body: bytes
) -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port), tracing=ALL) as proxy:
        await proxy.ask(request(method, target, body=body))
        trace = proxy.lines[0].trace
        assert trace is not None
        assert is_sampled(made(b0))
        assert ids_of(made(b0)) == (trace.id, trace.client)
        assert (trace.parent, len(trace.server)) == (b"", 16)
        assert trace.server != trace.client


@pytest.mark.parametrize("tracing", [ALL, NONE])
@pytest.mark.parametrize(("method", "target", "body"), WAYS)
async def test_whoever_asks_decides_whether_a_trace_is_sampled(
    tracing: TracingSpec, method: str, target: str, body: bytes
) -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port), tracing=tracing) as proxy:
        await proxy.ask(request(method, target, b"traceparent: %b\r\n%b" % (SAMPLED, STATE), body))
        trace = proxy.lines[0].trace
        assert trace is not None
        assert (trace.id, trace.parent) == (TRACE, SPAN)
        assert ids_of(made(b0)) == (TRACE, trace.client)
        assert values(b0, b"tracestate") == [b"vendor=1"]


async def test_what_whoever_asks_has_not_sampled_is_not_told() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port), tracing=ALL) as proxy:
        await proxy.ask(request("GET", "/", b"traceparent: %b\r\n" % UNSAMPLED))
        assert made(b0) == UNSAMPLED
        assert proxy.lines[0].trace is None


async def test_of_a_share_of_zero_nothing_that_begins_here_is_told() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port), tracing=NONE) as proxy:
        await proxy.ask(request("GET", "/") + request("POST", "/", body=b"body"))
        assert [line.trace for line in proxy.lines] == [None]
        assert not is_sampled(made(b0))


async def test_nonsense_behind_a_sampled_request_has_no_spans() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port), tracing=ALL) as proxy:
        await proxy.ask(request(close=False) + b"NONSENSE\r\n\r\n")
        assert [(line.status, line.trace is None) for line in proxy.lines] == [(200, False), (400, True)]


async def test_about_the_share_that_was_asked_for_is_sampled() -> None:
    tracing = TracingSpec("http://127.0.0.1:4318", 0.25)
    async with backend(answering(answer())) as b0, running(pool_of(b0.port), tracing=tracing) as proxy:
        await proxy.ask(request(close=False) * 399 + request())
        sampled = [line.trace for line in proxy.lines if line.trace is not None]
        assert 60 <= len(sampled) <= 140  # 100, give or take four and a half standard deviations
        assert [is_sampled(value) for value in values(b0, b"traceparent")].count(True) == len(sampled)


async def test_no_id_comes_twice_however_many_there_are() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        await proxy.ask(request(close=False) * 799 + request())
        request_ids, traceparents = values(b0, b"x-request-id"), values(b0, b"traceparent")
        assert len(set(request_ids)) == len({ids_of(value) for value in traceparents}) == 800
        assert all(re.fullmatch(rb"[0-9a-f]{24}", value) for value in request_ids)
        assert all(map(is_traceparent, traceparents))
        assert len({part for value in traceparents for part in ids_of(value)}) == 1600

"""How tracing is written in the configuration."""

from __future__ import annotations

import pytest

from lbproxy.control.addresses import read_collector_url
from lbproxy.control.config import loads
from lbproxy.control.problems import ConfigError
from lbproxy.control.values import BadValue
from lbproxy.core.spec import TracingSpec

FILE = """\
listen: 127.0.0.1:8080
pools: {{web: {{backends: [{{url: "http://127.0.0.1:9001"}}]}}}}
{more}
"""


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
        ("HTTP://collector/", "http://collector"),
        ("https://otel.example.com/tenants/a/", "https://otel.example.com/tenants/a"),
        ("http://[::1]:4318", "http://[::1]:4318"),
    ],
)
def test_a_collector_is_a_url_with_a_path_perhaps(text: str, url: str) -> None:
    assert read_collector_url(text) == url


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("127.0.0.1:4318", "http://127.0.0.1:4318"),
        ("grpc://127.0.0.1:4317", ""),
        ("http://user:secret@collector", ""),
        ("http://collector?x=1", ""),
        ("http://collector/a?x=1", ""),
        ("http://collector/a#b", ""),
        ("http://collector/a b", ""),
        ("http://collector:0", ""),
        ("http://", ""),
    ],
)
def test_what_is_no_collector(text: str, hint: str) -> None:
    with pytest.raises(BadValue) as caught:
        read_collector_url(text)
    assert caught.value.hint == hint


def test_tracing_is_off_unless_it_says_where_to() -> None:
    assert loads(FILE.format(more=""), "x").tracing == TracingSpec("", 0.01, "lbproxy")
    more = "tracing: {otlp: 'http://127.0.0.1:4318/', sample: 5%, service: edge}"
    assert loads(FILE.format(more=more), "x").tracing == TracingSpec("http://127.0.0.1:4318", 0.05, "edge")
    passing = loads(FILE.format(more="headers: {traceparent: pass}"), "x")
    assert passing.headers.traceparent == "pass"


def test_spans_need_traces_that_begin_here() -> None:
    more = "headers: {traceparent: pass}\ntracing: {otlp: 'http://127.0.0.1:4318'}"
    with pytest.raises(ConfigError, match=r"x:3:24: headers\.traceparent: must be make for tracing"):
        loads(FILE.format(more=more), "x")

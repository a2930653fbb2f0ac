"""From a file to what the core understands: defaults, names, order of routes, and the way back to a file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.control.build import build
from lbproxy.control.config import load, loads, read, reads
from lbproxy.control.write import resolved, to_yaml
from lbproxy.core import spec
from lbproxy.core.spec import Address, KeySource, Route

CONFIG = Path(__file__).parent.parent / "config"


def test_what_a_small_file_leaves_out_is_what_the_core_calls_default() -> None:
    found = loads("listen: 0.0.0.0:8080\nworkers: 3\npools: {web: {backends: [{url: http://10.0.0.1:81}]}}")
    assert found == spec.Config(
        listeners=(spec.ListenerSpec("0.0.0.0:8080", Address("0.0.0.0", 8080)),),
        pools=(spec.PoolSpec("web", (spec.BackendSpec("10.0.0.1:81", Address("10.0.0.1", 81)),)),),
        routes=(Route("web"),),
        workers=3,
    )


def test_the_small_example() -> None:
    found = load(CONFIG / "small.yaml")
    assert [backend.name for backend in found.pools[0].backends] == ["b1", "b2"]
    assert found.source == str(CONFIG / "small.yaml")


def test_the_full_example() -> None:
    found = load(CONFIG / "full.yaml")
    api, web = found.pools
    assert [listener.bind for listener in found.listeners] == [
        Address("0.0.0.0", 8080),
        Address("", 0, "/run/lbproxy/http.sock"),
    ]
    assert found.listeners[0].trusted_proxies == ("10.0.0.0/8", "fd00::/8")
    assert [backend.weight for backend in api.backends] == [1.0, 2.0, 0.5]
    assert api.health.kind == "http"
    assert api.health.expect_status == ((200, 399),)
    assert web.health == spec.Health()
    assert web.sticky.keys == (
        KeySource("header", "X-User-ID"),
        KeySource("cookie", "session"),
        KeySource("query", "user"),
        KeySource("path_segment", index=1),
        KeySource("client_ip"),
    )
    assert found.routes == (Route("api", "api.example.com", "/"), Route("web"))
    assert found.admin == spec.AdminSpec(Address("127.0.0.1", 9901), "/run/lbproxy/admin.sock")


def test_the_example_of_the_design() -> None:
    found = loads(
        dedent("""\
        version: 1
        listen: 0.0.0.0:8080
        workers: auto
        pools:
          api:
            match: {host: api.example.com, path: /}
            sticky:
              header: X-User-ID
              on_missing: balance
            ring: {vnodes: 1024}
            bounded_load: {factor: 1.25, min_gap: 4}
            hot_keys: {mode: spread}
            health: {path: /healthz, interval: 2s, timeout: 1s, rise: 2, fall: 3}
            ejection: {consecutive_errors: 5, base: 10s, max: 5m, max_share: 50%}
            retry: {attempts: 3, budget: 20%}
            timeout: {connect: 1s, first_byte: 30s, idle: 60s}
            backends:
              - {name: b1, url: http://10.0.0.1:8080, weight: 1, zone: a}
              - {name: b2, url: http://10.0.0.2:8080, weight: 2, zone: b}
        admin: {listen: 127.0.0.1:9901, socket: /run/lbproxy/admin.sock}
        log: {level: info, format: text, access: {path: "-", format: json}}
        """)
    )
    [pool] = found.pools
    assert pool.bounded_load == spec.BoundedLoad(min_gap=4)
    assert (pool.hot_keys, pool.ejection) == (spec.HotKeys(), spec.Ejection())
    assert (pool.retry, pool.timeout) == (spec.Retry(), spec.PoolTimeouts())
    assert pool.health == replace(spec.Health(), kind="http")


def test_listen_can_be_an_address_a_section_or_a_list_of_either() -> None:
    rest = "\npools: {web: {backends: [{url: http://a}]}}"
    one = loads("listen: '[::1]:80'" + rest).listeners
    assert one == loads("listen: {bind: '[::1]:80'}" + rest).listeners
    assert one == loads("listen: ['[::1]:80']" + rest).listeners
    assert one == loads("listen: [{bind: '[::1]:80'}]" + rest).listeners
    assert one[0].name == "[::1]:80"


def test_auto_is_one_worker_per_usable_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 5})
    assert load(CONFIG / "small.yaml").workers == 3


def test_routes_are_tried_from_the_most_particular_on() -> None:
    matches = {
        "any": "{}",
        "any_api": "{path: /api}",
        "wild": "{host: '*.example.com'}",
        "wilder": "{host: '*.a.example.com'}",
        "exact": "{host: a.example.com}",
        "exact_api": "{host: a.example.com, path: /api}",
        "exact_api_v1": "{host: a.example.com, path: /api/v1}",
    }
    expected = ["exact_api_v1", "exact_api", "exact", "wilder", "wild", "any_api", "any"]
    for order in (list(matches), list(reversed(matches)), sorted(matches)):
        pools = ", ".join(f"{name}: {{match: {matches[name]}, backends: [{{url: http://a}}]}}" for name in order)
        found = loads(f"listen: 127.0.0.1:1\npools: {{{pools}}}")
        assert [route.pool for route in found.routes] == expected


def test_a_pool_can_have_several_matches_and_one_pool_may_take_the_rest() -> None:
    found = loads(
        "listen: 127.0.0.1:1\npools: {a: {match: [{host: b.example}, {host: A.example, path: /x}], "
        "backends: [{url: http://a}]}, rest: {backends: [{url: http://a}]}}"
    )
    assert found.routes == (Route("a", "a.example", "/x"), Route("a", "b.example", "/"), Route("rest"))


@pytest.mark.parametrize(
    ("sticky", "keys"),
    [
        ("{}", (KeySource("header", "X-User-ID"),)),
        ("{on_missing: reject}", (KeySource("header", "X-User-ID"),)),
        ("{cookie: sid}", (KeySource("cookie", "sid"),)),
        ("{query: 'user id'}", (KeySource("query", "user id"),)),
        ("{path_segment: 0}", (KeySource("path_segment", index=0),)),
        ("{client_ip: true}", (KeySource("client_ip"),)),
        ("{keys: [{query: u}, {header: A}]}", (KeySource("query", "u"), KeySource("header", "A"))),
    ],
)
def test_where_the_key_comes_from(sticky: str, keys: tuple[KeySource, ...]) -> None:
    found = loads(f"listen: 127.0.0.1:1\npools: {{web: {{sticky: {sticky}, backends: [{{url: http://a}}]}}}}")
    assert found.pools[0].sticky.keys == keys


@pytest.mark.parametrize(
    ("text", "ranges"),
    [("204", ((204, 204),)), ("200-299", ((200, 299),)), ("[200, 300-399]", ((200, 200), (300, 399)))],
)
def test_statuses_that_count_as_healthy(text: str, ranges: tuple[tuple[int, int], ...]) -> None:
    found = loads(
        f"listen: 127.0.0.1:1\npools: {{web: {{health: {{expect_status: {text}}}, backends: [{{url: http://a}}]}}}}"
    )
    assert found.pools[0].health.expect_status == ranges


def test_what_is_switched_off_is_off() -> None:
    found = loads(
        "listen: 127.0.0.1:1\npools: {web: {bounded_load: {factor: null}, hot_keys: {mode: off}, "
        "backends: [{url: http://a}]}}\nadmin: {listen: null}\nheaders: {via: ''}\nlog: {access: {path: ''}}"
    )
    assert found.pools[0].bounded_load.factor is None
    assert found.pools[0].hot_keys.mode == "off"
    assert found.admin.listen is None
    assert (found.headers.via, found.log.access.path) == ("", "")


def test_moves_pins_zones_and_queues() -> None:
    found = loads(
        dedent("""\
        listen: 127.0.0.1:1
        zone: a
        pools:
          web:
            zone: prefer_local
            panic: serve_all
            slow_start: 30s
            session_drain: 30m
            pace: 6%/min
            on_move: pin
            queue: {size: 0, timeout: 2s}
            pins:
              - {key: alice, backend: b1}
              - {prefix: "t-", backend: b1, on_down: reject}
            sticky:
              affinity: {cookie: sid, secret: 0123456789abcdef, max_age: 1h, secure: true, same_site: None}
            health: {hold: 0, longest_hold: 0s, forgive: 5m}
            bounded_load: {min_gap: 0, tunnel_weight: 0.5}
            backends: [{name: b1, url: http://a}]
        """)
    )
    [pool] = found.pools
    assert found.zone == "a"
    assert (pool.prefer_local, pool.panic, pool.on_move) == (True, "serve_all", "pin")
    assert (pool.slow_start, pool.session_drain, pool.pace) == (30.0, 1800.0, 0.001)
    assert pool.queue == spec.Queue(0, 2.0)
    assert pool.pins == (spec.Pin("alice", "b1"), spec.Pin("t-", "b1", is_prefix=True, on_down="reject"))
    assert pool.sticky.keys == (KeySource("header", "X-User-ID"),)
    assert pool.sticky.cookie == spec.AffinityCookie("sid", "0123456789abcdef", 3600.0, secure=True, same_site="None")
    assert (pool.health.hold, pool.health.longest_hold, pool.health.forgive) == (0.0, 0.0, 300.0)
    assert pool.bounded_load == spec.BoundedLoad(min_gap=0, tunnel_weight=0.5)


# And back


@pytest.mark.parametrize("name", ["small.yaml", "full.yaml"])
def test_a_resolved_example_loads_again_to_the_same(name: str) -> None:
    text = to_yaml(resolved(read(CONFIG / name)))
    assert loads(text, environ={}) == load(CONFIG / name)
    assert to_yaml(resolved(reads(text, environ={}))) == text


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=8).filter(
    str.isprintable
)
durations = (
    st.floats(min_value=0.001, max_value=86400).map(lambda seconds: f"{seconds:f}s").filter(lambda text: text > "0.001")
)
weights = st.floats(min_value=0.001, max_value=100)


@st.composite
def files(draw: st.DrawFn) -> str:
    """Some valid file: awkward words as text, odd numbers, any of the ways to say a thing."""
    words = st.sampled_from(
        ["on", "no", "010", "1:30", "~", "null", "$", "$$x", "${X}", "<<", "=", "", "#", "a: b", "- x"]
    )
    lines = [
        "listen: " + draw(st.sampled_from(["127.0.0.1:0", "[{bind: '[::]:80', timeout: {body_idle: 3s}}]"])),
        "pools:",
    ]
    for number in range(draw(st.integers(1, 3))):
        lines.append(f"  p{number}:")
        lines.append(f"    match: {{host: h{number}.example}}")
        factor = draw(st.one_of(st.none(), st.floats(min_value=1.001, max_value=99)))
        lines.append(f"    bounded_load: {{factor: {'null' if factor is None else repr(factor)}}}")
        lines.append(f"    timeout: {{connect: {draw(durations)}}}")
        lines.append(f"    sticky: {draw(st.sampled_from(['{}', '{cookie: a}', '{keys: [{client_ip: true}]}']))}")
        lines.append(
            f"    retry: {{budget: {draw(st.integers(0, 1000)) / 10}%, buffer: {draw(st.integers(0, 10**9))}B}}"
        )
        lines.append("    backends:")
        for backend in range(draw(st.integers(1, 3))):
            zone = draw(st.one_of(texts, words)).replace("$", "$$").replace("'", "''")
            lines.append(f"      - {{url: 'http://b{backend}', weight: {draw(weights)!r}, zone: '{zone}'}}")
    return "\n".join(lines)


@given(files())
def test_a_resolved_file_loads_again_to_the_same(text: str) -> None:
    file = reads(text, environ={})
    assert loads(to_yaml(resolved(file)), environ={}) == build(file)

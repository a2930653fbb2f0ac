"""Bad files and what is said about them, to the letter."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from lbproxy.control import config
from lbproxy.control.config import load, loads, reads
from lbproxy.control.faults import _ELSEWHERE
from lbproxy.control.paths import all_fields
from lbproxy.control.problems import ConfigError, Problem
from lbproxy.control.reference import json_schema
from lbproxy.control.write import resolved, to_yaml

POOLS = "pools: {web: {backends: [{url: 'http://127.0.0.1:9001'}]}}\n"
GOOD = "listen: 127.0.0.1:8080\n" + POOLS


def headlines(text: str, **environ: str) -> list[str]:
    """Every problem of `text` in one line, in the order in which they are shown."""
    with pytest.raises(ConfigError) as caught:
        loads(text, "f", environ)
    return [problem.headline() for problem in caught.value.problems]


def pool(body: str) -> str:
    """A file whose one pool has `body`, which starts at line 3, column 3, besides its backend."""
    return f"listen: 127.0.0.1:8080\npools: {{web: {{backends: [{{url: 'http://a'}}],\n  {body}}}}}\n"


def backend(body: str) -> str:
    """A file whose one backend is `{body}`; it starts at line 3, column 4."""
    return f"listen: 127.0.0.1:8080\npools: {{web: {{backends: [\n  {{{body}}}]}}}}\n"


def test_the_good_file_is_good() -> None:
    assert loads(GOOD).pools[0].backends[0].name == "127.0.0.1:9001"


# One mistake, one line


FIELDS = [
    # unknown fields
    (pool("stiky: {}"), "f:3:3: pools.web.stiky", "unknown field, did you mean sticky?"),
    (pool("retries: {}"), "f:3:3: pools.web.retries", "unknown field, did you mean retry?"),
    (
        pool("timeout: {first-byte: 1s}"),
        "f:3:13: pools.web.timeout.first-byte",
        "unknown field, did you mean first_byte?",
    ),
    (pool("servers: []"), "f:3:3: pools.web.servers", "unknown field, did you mean backends?"),
    (pool("xyzzy: 1"), "f:3:3: pools.web.xyzzy", "unknown field"),
    (pool("hash: X"), "f:3:3: pools.web.hash", "unknown field, did you mean sticky?"),
    (pool("retry_policy: {}"), "f:3:3: pools.web.retry_policy", "unknown field, did you mean retry?"),
    (
        pool("hash_balance_factor: 125"),
        "f:3:3: pools.web.hash_balance_factor",
        "unknown field, did you mean bounded_load?",
    ),
    (
        backend("url: http://a, maxconn: 2"),
        "f:3:19: pools.web.backends[0].maxconn",
        "unknown field, did you mean max_in_flight?",
    ),
    (
        pool("retry: {num_retries: 2}"),
        "f:3:11: pools.web.retry.num_retries",
        "unknown field, did you mean attempts?",
    ),
    (
        pool("health: {unhealthy_threshold: 3}"),
        "f:3:12: pools.web.health.unhealthy_threshold",
        "unknown field, did you mean fall?",
    ),
    (
        "listen: {bind: '127.0.0.1:1', maxconn: 5}\n" + POOLS,
        "f:1:31: listen.maxconn",
        "unknown field, did you mean limits?",
    ),
    (
        pool("timeout: {connect: 5000}"),
        "f:3:22: pools.web.timeout.connect",
        '"5000" has no unit (ms, s, m, h)',
    ),
    (
        pool("vnodes: 100"),
        "f:3:3: pools.web.vnodes",
        "unknown field here, it belongs to pools.NAME.ring.vnodes",
    ),
    (
        backend("url: http://a, wieght: 2"),
        "f:3:19: pools.web.backends[0].wieght",
        "unknown field, did you mean weight?",
    ),
    (GOOD + "sticky: {}\n", "f:3:1: sticky", "unknown field here, it belongs to pools.NAME.sticky"),
    (pool("drain: {}"), "f:3:3: pools.web.drain", "unknown field here, it belongs to drain"),
    (
        pool("sticky: {cookie: c, headers: X}"),
        "f:3:23: pools.web.sticky.headers",
        "unknown field, did you mean header?",
    ),
    ("listen: [{bind: '127.0.0.1:1', tls: {}}]\n" + POOLS, "f:1:32: listen[0].tls", "TLS is not available yet"),
    (
        "listen: {bind: '127.0.0.1:1', proxy_protocol: true}\n" + POOLS,
        "f:1:31: listen.proxy_protocol",
        "the PROXY protocol is not available yet",
    ),
    # missing ones
    ("pools: {web: {backends: [{url: http://a}]}}", "f:1:1: listen", "missing"),
    ("listen: 127.0.0.1:1", "f:1:1: pools", "missing"),
    ("listen: 127.0.0.1:1\npools: {web: {}}", "f:2:9: pools.web.backends", "missing"),
    (backend("name: b1"), "f:3:3: pools.web.backends[0].url", "missing"),
    ("listen: 127.0.0.1:1\npools: {}", "f:2:1: pools", "may not be empty"),
    ("listen: 127.0.0.1:1\npools:", "f:2:1: pools", "expected a mapping, got nothing"),
    ("listen: []\n" + POOLS, "f:1:1: listen", "may not be empty"),
    ("listen: 127.0.0.1:1\npools: {web: {backends: []}}", "f:2:15: pools.web.backends", "may not be empty"),
    # of the wrong kind
    ("listen: 127.0.0.1:1\npools: [web]", "f:2:1: pools", "expected a mapping, got a list"),
    (pool("retry: 3"), "f:3:10: pools.web.retry", 'expected a mapping, got "3", did you mean {attempts: 3}?'),
    (pool("queue: 3"), "f:3:10: pools.web.queue", 'expected a mapping, got "3"'),
    (
        pool("sticky: X-User"),
        "f:3:11: pools.web.sticky",
        'expected a mapping, got "X-User", did you mean {header: X-User}?',
    ),
    (
        pool("health: /live"),
        "f:3:11: pools.web.health",
        'expected a mapping, got "/live", did you mean {path: /live}?',
    ),
    (
        "listen: 127.0.0.1:1\npools: {web: {backends: ['http://a:1']}}",
        "f:2:26: pools.web.backends[0]",
        'expected a mapping, got "http://a:1", did you mean {url: "http://a:1"}?',
    ),
    (
        "listen: 127.0.0.1:1\npools: {web: {backends: ['a:1']}}",
        "f:2:26: pools.web.backends[0]",
        'expected a mapping, got "a:1", did you mean {url: "http://a:1"}?',
    ),
    (
        pool("timeout: {connect: [1s]}"),
        "f:3:13: pools.web.timeout.connect",
        "expected a duration such as 5s, got a list",
    ),
    (pool("timeout: {connect: }"), "f:3:13: pools.web.timeout.connect", "expected a duration such as 5s, got nothing"),
    (backend("url: http://a, zone: {a: b}"), "f:3:19: pools.web.backends[0].zone", "expected text, got a mapping"),
    (
        "listen: 127.0.0.1:1\npools: {web: {backends: {url: http://a}}}",
        "f:2:15: pools.web.backends",
        "expected a list, got a mapping",
    ),
    (pool("retry: {statuses: 502}"), "f:3:21: pools.web.retry.statuses", 'expected a list, got "502"'),
    ("listen: {}\n" + POOLS, "f:1:1: listen.bind", "missing"),
    ("just text", "f:1:1", 'expected fields such as listen and pools, got "just text"'),
    ("[1, 2]", "f:1:1", "expected fields such as listen and pools, got a list"),
    # durations, sizes, percentages
    (
        pool("timeout: {connect: 1}"),
        "f:3:22: pools.web.timeout.connect",
        '"1" has no unit (ms, s, m, h), did you mean 1s?',
    ),
    (
        pool("timeout: {connect: 1:30}"),
        "f:3:22: pools.web.timeout.connect",
        '"1:30" is not a duration, did you mean 1m30s?',
    ),
    (pool("timeout: {connect: 0s}"), "f:3:22: pools.web.timeout.connect", '"0s" must be at least 1ms'),
    (
        pool("timeout: {connect: fast}"),
        "f:3:22: pools.web.timeout.connect",
        '"fast" is not a duration such as 250ms, 5s, 2m or 1h',
    ),
    (
        pool("retry: {buffer: 65536}"),
        "f:3:19: pools.web.retry.buffer",
        '"65536" has no unit (B, KiB, MiB, GiB, KB, MB, GB), did you mean 65536B?',
    ),
    (pool("retry: {budget: 0.2}"), "f:3:19: pools.web.retry.budget", '"0.2" has no %, did you mean 20%?'),
    (pool("retry: {budget: 120%}"), "f:3:19: pools.web.retry.budget", '"120%" is more than 100%'),
    (pool("slow_start: 30"), "f:3:15: pools.web.slow_start", '"30" has no unit (ms, s, m, h), did you mean 30s?'),
    (pool("pace: 5%"), "f:3:9: pools.web.pace", '"5%" is not a pace such as 5%/min, did you mean 5%/min?'),
    (pool("pace: 0%/h"), "f:3:9: pools.web.pace", '"0%/h" would never move anything'),
    (pool("sticky: {affinity: cookie}"), "f:3:22: pools.web.sticky.affinity.secret", "missing"),
    (
        pool("sticky: {affinity: {secret: hunter2}}"),
        "f:3:31: pools.web.sticky.affinity.secret",
        "a secret is 16 printable characters or more",
    ),
    # numbers and truth
    (pool("health: {rise: 0}"), "f:3:18: pools.web.health.rise", "must be at least 1"),
    (pool("health: {fall: 1.5}"), "f:3:18: pools.web.health.fall", '"1.5" is not a whole number'),
    (
        pool("health: {fall: 03}"),
        "f:3:18: pools.web.health.fall",
        '"03" is read differently by different YAML versions, write plain decimal, did you mean 3?',
    ),
    (pool("health: {port: 0}"), "f:3:18: pools.web.health.port", '"0" is not a port from 1 to 65535'),
    (pool("bounded_load: {factor: 1}"), "f:3:26: pools.web.bounded_load.factor", "must be more than 1"),
    (
        pool("bounded_load: {factor: 125}"),
        "f:3:26: pools.web.bounded_load.factor",
        "must be less than 100, did you mean 1.25?",
    ),
    (pool("bounded_load: {factor: 100}"), "f:3:26: pools.web.bounded_load.factor", "must be less than 100"),
    (pool("ring: {vnodes: 100000}"), "f:3:18: pools.web.ring.vnodes", "must be at most 65536"),
    (pool("ring: {hash_version: 2}"), "f:3:24: pools.web.ring.hash_version", "2 is not known, there is 1"),
    (backend("url: http://a, weight: -1"), "f:3:27: pools.web.backends[0].weight", "must be at least 0"),
    (backend("url: http://a, weight: .inf"), "f:3:27: pools.web.backends[0].weight", '".inf" is not a number'),
    (backend("url: http://a, weight: 1e999"), "f:3:27: pools.web.backends[0].weight", '"1e999" is too large'),
    (GOOD + "workers: 010\n", "f:3:10: workers", '"010" is neither auto nor a whole number, did you mean 10?'),
    (GOOD + "workers: 0\n", "f:3:10: workers", '"0" is not from 1 to 1024'),
    (GOOD + "headers: {forwarded: on}\n", "f:3:22: headers.forwarded", '"on" is not true or false, did you mean true?'),
    (
        GOOD + "version: 2\n",
        "f:3:10: version",
        '"2" is not a version of the configuration that this lbproxy reads, it reads 1',
    ),
    # words
    (
        pool("hot_keys: {mode: sprd}"),
        "f:3:20: pools.web.hot_keys.mode",
        '"sprd" is not one of spread, spill, off, did you mean spread?',
    ),
    (
        GOOD + "log: {level: Debug}\n",
        "f:3:14: log.level",
        '"Debug" is not one of debug, info, warning, error, did you mean debug?',
    ),
    (GOOD + "log: {level: loud}\n", "f:3:14: log.level", '"loud" is not one of debug, info, warning, error'),
    # addresses
    ("listen: 8080\n" + POOLS, "f:1:9: listen", '"8080" names no address to bind, did you mean 0.0.0.0:8080?'),
    ("listen: [127.0.0.1:1, nowhere]\n" + POOLS, "f:1:23: listen[1]", '"nowhere" has no port'),
    (
        backend("url: 'https://a'"),
        "f:3:9: pools.web.backends[0].url",
        '"https://a" asks for TLS to the backend, which is not available yet',
    ),
    (
        backend("url: 10.0.0.1:80"),
        "f:3:9: pools.web.backends[0].url",
        '"10.0.0.1:80" has no scheme, did you mean http://10.0.0.1:80?',
    ),
    (
        "listen: {bind: '127.0.0.1:1', trusted_proxies: [10.0.0.1/8]}\n" + POOLS,
        "f:1:49: listen.trusted_proxies[0]",
        '"10.0.0.1/8" has bits set after its prefix, did you mean 10.0.0.0/8?',
    ),
    (pool("match: {path: api}"), "f:3:17: pools.web.match.path", '"api" does not start with /, did you mean /api?'),
    (
        pool("match: {host: 'a.example:80'}"),
        "f:3:17: pools.web.match.host",
        '"a.example:80" has a port, and a match is made on the host alone, did you mean a.example?',
    ),
    (
        GOOD + "admin: {listen: 'unix:/x'}\n",
        "f:3:17: admin.listen",
        '"unix:/x" is a Unix socket, which goes into `socket`',
    ),
    # names and other text
    (
        "listen: 127.0.0.1:1\npools: {a b: {backends: [{url: http://a}]}}",
        'f:2:9: pools["a b"]',
        '"a b" is not a name: letters, digits and . _ : @ - [ ], 100 at the most, first a letter or digit',
    ),
    (
        backend("url: http://a, name: ''"),
        "f:3:25: pools.web.backends[0].name",
        '"" is not a name: letters, digits and . _ : @ - [ ], 100 at the most, first a letter or digit',
    ),
    (
        pool("sticky: {header: 'X User'}"),
        "f:3:20: pools.web.sticky.header",
        '"X User" holds characters that HTTP does not allow there',
    ),
    (pool("sticky: {query: ''}"), "f:3:19: pools.web.sticky.query", "may not be empty"),
    (
        pool('health: {headers: {A: "b\\r\\nC: d"}}'),
        "f:3:25: pools.web.health.headers.A",
        '"b\\r\\nC: d" holds a line break or a control character',
    ),
    (
        pool("health: {method: get}"),
        "f:3:20: pools.web.health.method",
        '"get" is not in upper case, and methods are told apart by case, did you mean GET?',
    ),
    (
        pool("health: {expect_status: 399-200}"),
        "f:3:27: pools.web.health.expect_status",
        '"399-200" ends before it begins, did you mean 200-399?',
    ),
    (
        pool("retry: {statuses: [200]}"),
        "f:3:22: pools.web.retry.statuses[0]",
        '"200" is not an error status from 400 to 599',
    ),
    (
        pool("sticky: {client_ip: false}"),
        "f:3:23: pools.web.sticky.client_ip",
        '"false" says nothing, leave the field out instead',
    ),
]


@pytest.mark.parametrize(("text", "where", "what"), FIELDS)
def test_a_field(text: str, where: str, what: str) -> None:
    assert headlines(text) == [f"{where}: {what}"]


ACROSS = [
    (
        "listen: [127.0.0.1:1, 'unix:/a', 127.0.0.1:1]\n" + POOLS,
        "f:1:34: listen[2]: 127.0.0.1:1 is already listen[0]",
    ),
    (
        "listen: [127.0.0.1:0, 127.0.0.1:0]\n" + POOLS,
        "f:1:23: listen[1]: 127.0.0.1:0 is already listen[0]",
    ),
    (
        "listen: {bind: '127.0.0.1:1', limits: {line_bytes: 64KiB}}\n" + POOLS,
        "f:1:52: listen.limits.line_bytes: a line of 64KiB does not fit into head_bytes, which is 32KiB",
    ),
    (
        GOOD + "admin: {listen: '0.0.0.0:9901'}\n",
        "f:3:17: admin.listen: others can reach 0.0.0.0:9901, which needs a token_file beside it",
    ),
    (
        GOOD + "admin: {listen: '127.0.0.1:8080'}\n",
        "f:3:17: admin.listen: 127.0.0.1:8080 already takes requests (listen)",
    ),
    (
        backend("url: http://a, name: x}, {url: http://b, name: x"),
        "f:3:51: pools.web.backends[1].name: x is already the name of backends[0]",
    ),
    (
        backend("url: http://a}, {url: http://A:80"),
        "f:3:26: pools.web.backends[1].url: a:80 is already the name of backends[0]",
    ),
    (
        backend("url: http://a, weight: 0}, {url: http://b, weight: 0.0"),
        "f:2:15: pools.web.backends: every weight is 0, so nobody would take a new key",
    ),
    (
        backend("url: http://a, weight: 10000"),
        "f:2:15: pools.web.backends: weights of 10000 with 1024 vnodes each make 10,240,000 tokens, more than "
        "5,000,000: lower the weights or vnodes",
    ),
    (
        pool("sticky: {header: A, cookie: b}"),
        "f:3:3: pools.web.sticky: only one of header, cookie can hold the key, or `keys` a list of places",
    ),
    (
        pool("sticky: {header: A, keys: [{cookie: b}]}"),
        "f:3:3: pools.web.sticky: only one of header, keys can hold the key, or `keys` a list of places",
    ),
    (
        pool("sticky: {keys: [{cookie: b}, {}]}"),
        "f:3:32: pools.web.sticky.keys[1]: needs exactly one of header, cookie, query, path_segment and client_ip",
    ),
    (
        pool("sticky: {keys: [{cookie: b, header: c}]}"),
        "f:3:19: pools.web.sticky.keys[0]: needs exactly one of header, cookie, query, path_segment and client_ip",
    ),
    (
        pool("health: {fast_interval: 3s}"),
        "f:3:27: pools.web.health.fast_interval: 3s is not faster than interval, which is 2s",
    ),
    (pool("ejection: {base: 1h}"), "f:3:20: pools.web.ejection.base: 1h is longer than max, which is 5m"),
    (
        pool("zone: prefer_local"),
        "f:3:9: pools.web.zone: needs to know where this proxy runs: set `zone` at the top",
    ),
    (
        pool("pins: [{key: a, backend: 'a:81'}]"),
        "f:3:28: pools.web.pins[0].backend: the pool has no backend a:81, did you mean a:80?",
    ),
    (
        pool("pins: [{key: a, prefix: b, backend: 'a:80'}]"),
        "f:3:10: pools.web.pins[0]: needs exactly one of key and prefix",
    ),
    (
        pool("pins: [{key: a, backend: 'a:80'}, {key: a, backend: 'a:80'}]"),
        "f:3:37: pools.web.pins[1]: pins what pins[0] has already pinned",
    ),
    (
        pool("sticky: {affinity: {secret: 0123456789abcdef, same_site: None}}"),
        "f:3:60: pools.web.sticky.affinity.same_site: "
        "browsers drop a cookie that is SameSite=None without `secure: true`",
    ),
    (
        "listen: 127.0.0.1:1\npools:\n  a: {backends: [{url: http://a}]}\n  b: {backends: [{url: http://a}]}",
        "f:4:3: pools.b: has no match, and pool a already takes all that is left",
    ),
    (
        "listen: 127.0.0.1:1\npools:\n  a: {backends: [{url: http://a}]}\n  b: {match: {}, backends: [{url: http://a}]}",
        "f:4:7: pools.b.match: any host / already goes to pool a",
    ),
    (
        "listen: 127.0.0.1:1\npools:\n  a: {match: {host: x, path: /p}, backends: [{url: http://a}]}\n"
        "  b: {match: [{host: y}, {host: X, path: /p}], backends: [{url: http://a}]}",
        "f:4:26: pools.b.match[1]: x /p already goes to pool a",
    ),
]


@pytest.mark.parametrize(("text", "line"), ACROSS)
def test_several_fields(text: str, line: str) -> None:
    assert headlines(text) == [line]


YAML = [
    ("", "f: is empty"),
    ("# nothing but a comment\n", "f: is empty"),
    ("a: [1, 2", "f:1:4: this [ is not closed"),
    ("a: {1: 2\n", "f:1:4: this { is not closed"),
    ('a: "b\nc: d\n', "f:1:4: this quote is not closed"),
    ("a: [b, c: d: e]", "f:1:12: a comma or the closing ] is missing before this, or quotes around it"),
    ("a: }", "f:1:4: this bracket closes nothing, or stands where a value must"),
    ("a: @b", "f:1:4: a value that begins with @ needs quotes"),
    ("a: *:80", "f:1:4: a value that begins with * needs quotes"),
    ("a: &:80", "f:1:4: a value that begins with & needs quotes"),
    ("listen: [::1]:80", "f:1:9: an IPv6 address in brackets needs quotes"),
    ("a: {b: http://[::1]:80}", "f:1:8: an IPv6 address in brackets needs quotes"),
    ("a:\n  b: 1\n c: 2", "f:3:2: the indentation of this line does not fit the lines above"),
    ("a: 'b' c", "f:1:8: this follows a value that has already ended, or a quote above is not closed"),
    ('a: "b\nc: {d: "e"}', "f:2:9: this follows a value that has already ended, or a quote above is not closed"),
    ("a:\n b\nc", "f:3:1: this line has no colon behind its key"),
    (
        "a: b: c",
        "f:1:5: this colon does not belong here: the line is indented too far, or what stands before it needs quotes",
    ),
    ("a:\n\tb: 1", "f:2:1: a tab stands where YAML wants spaces"),
    ('a: "\\q"', "f:1:6: \\q means nothing between double quotes, write \\\\ for a backslash"),
    ("a: |x", "f:1:5: expected chomping or indentation indicators, but found 'x', while scanning a block scalar"),
    ('a: "\\U00110000"', "f:1:7: this is not valid YAML"),
    (
        backend('url: http://a, zone: "\\ud800"'),
        "f:3:25: pools.web.backends[0].zone: holds the character U+D800, which no value may have",
    ),
    ("a: \x00", "f:1:4: the character U+0000 may not stand in YAML"),
    ("# x\r\na: \x07", "f:2:4: the character U+0007 may not stand in YAML"),
    ("a: 1\n---\nb: 2", "f:2:1: a second YAML document begins here, and there may be only one"),
    ("[" * 40 + "]" * 40, "f:1:34: nested more than 32 levels deep"),
    ("? " * 40 + "x", "f:1:67: nested more than 32 levels deep"),
    ("a: &x [*x]", "f:1:8: a[0]: *x stands inside the value that it repeats"),
    (GOOD + "workers: 1\nworkers: 2\n", "f:4:1: workers: given twice, first on line 3"),
    (pool("retry: {attempts: 1, attempts: 1}"), "f:3:24: pools.web.retry.attempts: given twice, first on line 3"),
    (GOOD + "workers: !!int 2\n", 'f:3:10: workers: the tag "!!int" is not supported, fields know their types'),
    (GOOD + "? [a]\n: 1\n", "f:3:3: a key must be text"),
    (GOOD + "'': 1\n", "f:3:1: a key is missing before the colon"),
    (GOOD + "workers: *n\n", "f:3:10: workers: *n repeats &n, which is not defined before it"),
    (GOOD + "admin: {<<: 1}\n", 'f:3:9: admin["<<"]: only a mapping, or a list of mappings, can be merged'),
    (GOOD + "workers: ${N}\n", "f:3:10: workers: the environment variable N is not set, and ${N} has no default"),
    (
        pool("retry: {attempts: ${N}}"),
        "f:3:22: ${NAME} needs quotes inside { } and [ ]",
    ),
    (
        GOOD + "workers: ${}\n",
        "f:3:10: workers: ${ begins no ${NAME} or ${NAME:-default}, write $${ to mean the characters",
    ),
    (GOOD + "workers: ${A:-${B}}\n", "f:3:10: workers: the default of ${A} may not hold another ${"),
]


@pytest.mark.parametrize(("text", "line"), YAML)
def test_the_text(text: str, line: str) -> None:
    assert headlines(text) == [line]


@pytest.mark.parametrize(
    ("section", "word", "meant"),
    [
        ("bounded_load", "off", "{factor: null}"),
        ("bounded_load", "1.5", "{factor: 1.5}"),
        ("bounded_load", "1", ""),
        ("hot_keys", "off", "{mode: off}"),
        ("hot_keys", "spread", "{mode: spread}"),
        ("hot_keys", "on", ""),
        ("health", "off", "{kind: none}"),
        ("health", "none", "{kind: none}"),
        ("health", "tcp", "{kind: tcp}"),
        ("health", "live", ""),
        ("retry", "off", "{attempts: 1}"),
        ("retry", "many", ""),
        ("ejection", "disabled", "{consecutive_errors: 0}"),
        ("queue", "off", "{size: 0}"),
        ("sticky", "client_ip", "{client_ip: true}"),
        ("sticky", "X User", ""),
        ("match", "a.example", "{host: a.example}"),
        ("match", "/api", "{path: /api}"),
        ("match", "a b", ""),
        ("ring", "few", ""),
        ("timeout", "off", ""),
    ],
)
def test_what_a_word_for_a_section_may_have_meant_would_be_taken(section: str, word: str, meant: str) -> None:
    (line,) = headlines(pool(f"{section}: {word}"))
    _, _, hint = line.rstrip("?").partition(", did you mean ")
    assert hint == meant
    if hint:
        loads(pool(f"{section}: {hint}"))


def test_an_address_that_is_none_is_not_proposed_as_one() -> None:
    (line,) = headlines("listen: 127.0.0.1:1\npools: {web: {backends: ['a b']}}")
    assert line.endswith('expected a mapping, got "a b"')


def test_aliases_cannot_be_made_a_bomb() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for before, after in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]")
    [line] = headlines("\n".join(lines))
    assert line.endswith("aliases repeat more than 50000 values, or as much text")
    [line] = headlines(f"a: &a {'a' * 1_000_000}\nx: [{'*a, ' * 10}]")
    assert line == "f:2:21: x[4]: aliases repeat more than 50000 values, or as much text"


# All at once


def test_every_mistake_is_said_with_its_place_in_the_order_of_the_file() -> None:
    text = dedent("""\
        listen:
          - 0.0.0.0:8080
          - {bind: "[::]:8080", timeout: {request_head: 5}}
        workers: 010
        pools:
          api:
            stiky: {header: X-User-ID}
            backends:
              - {name: b1, url: "10.0.0.1:8080", wieght: 2}
              - {name: b2, url: http://10.0.0.2}
              - {name: b2, url: http://10.0.0.3}
              - {url: "${URL}"}
          web:
            sticky: {header: A, cookie: B}
            backends: [{url: http://a}]
        admin: {listen: 0.0.0.0:9901}
        admin: {}
        """)
    assert headlines(text) == [
        'f:3:49: listen[1].timeout.request_head: "5" has no unit (ms, s, m, h), did you mean 5s?',
        'f:4:10: workers: "010" is neither auto nor a whole number, did you mean 10?',
        "f:7:5: pools.api.stiky: unknown field, did you mean sticky?",
        'f:9:25: pools.api.backends[0].url: "10.0.0.1:8080" has no scheme, did you mean http://10.0.0.1:8080?',
        "f:9:42: pools.api.backends[0].wieght: unknown field, did you mean weight?",
        "f:11:16: pools.api.backends[2].name: b2 is already the name of backends[1]",
        "f:12:15: pools.api.backends[3].url: the environment variable URL is not set, and ${URL} has no default",
        "f:13:3: pools.web: has no match, and pool api already takes all that is left",
        "f:14:5: pools.web.sticky: only one of header, cookie can hold the key, or `keys` a list of places",
        "f:16:17: admin.listen: others can reach 0.0.0.0:9901, which needs a token_file beside it",
        "f:17:1: admin: given twice, first on line 16",
    ]


def test_the_line_and_a_caret_stand_under_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        loads("listen: 127.0.0.1:1\npools:\n  web:\n    stiky: 1\n    backends: [{url: http://a}]\n", "lbproxy.yaml")
    assert str(caught.value) == (
        "lbproxy.yaml:4:5: pools.web.stiky: unknown field, did you mean sticky?\n"
        "    stiky: 1\n"
        "    ^"
    )  # fmt: skip


def test_tabs_before_the_caret_are_kept_and_control_characters_are_not() -> None:
    with pytest.raises(ConfigError) as caught:
        loads("x:\t1\x1b[31m", "f")
    assert str(caught.value).splitlines()[1:] == ["x:\t1\N{REPLACEMENT CHARACTER}[31m", "  \t ^"]


def test_of_a_long_line_the_part_around_the_column_is_shown() -> None:
    text = pool("health: {headers: {" + "".join(f"H{n}: v, " for n in range(200)) + "}, rise: 0}")
    with pytest.raises(ConfigError) as caught:
        loads(text, "f")
    _, source, caret = str(caught.value).splitlines()
    assert len(source) <= 120
    assert source[caret.index("^") :] == "0}}}"


def test_very_many_mistakes_are_counted_rather_than_printed() -> None:
    with pytest.raises(ConfigError) as caught:
        loads(GOOD + "".join(f"x{n}: 1\n" for n in range(130)), "f")
    assert len(caught.value.problems) == 130
    assert str(caught.value).endswith("\nand 30 more")


# Nobody can keep the proxy busy with a file that is wrong


def many(form: str, count: int, **more: str) -> str:
    return "".join([form.format(n=n, **more) for n in range(count)])


@pytest.mark.parametrize(
    ("text", "told", "end"),
    [
        (many("a: \n", 400_000), 1001, "f:1001:1: there are 1000 mistakes up to here, and no more is looked at"),
        ("[" + many("!x a,", 400_000) + "]", 1001, "there are 1000 mistakes up to here, and no more is looked at"),
        ("a: '" + many("${{GONE}}", 400_000) + "'", 1001, "f:1:4: there are 1000 mistakes up to here, and no more is "),
        (GOOD + many("u{n}: \n", 50_000), 1001, "f:1002:1: there are more than 1000 mistakes, and no more is told"),
        (pool("pins: [" + many("{{k: 1}},", 5000) + "]"), 1001, "there are more than 1000 mistakes"),
        (pool("pins: [" + many("{{key: k{n}, backend: c}},", 10_000) + "]"), 1001, "there are more than 1000 mistakes"),
        ("a: [" + many("[],", 400_000) + "]", 1, "there are more than 60000 values"),
        ("a: '" + many("${{X:-", 400_000) + "'", 1001, "there are 1000 mistakes up to here, and no more is looked at"),
    ],
)
def test_the_number_of_mistakes_is_limited(text: str, told: int, end: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(text, "f", environ={})
    assert len(caught.value.problems) == told
    assert end in caught.value.problems[-1].headline()


def test_what_is_told_of_many_mistakes_in_one_line_is_not_the_line_for_each() -> None:
    with pytest.raises(ConfigError) as caught:
        loads("{" + many("a: 1, a: 1, ", 200_000) + "}", "f")
    told = caught.value.problems[:-1]
    assert len(told) == 1000
    for problem in told:
        assert problem.source[problem.column - 1 - problem.source_start] == "a"
        _, shown, caret = str(problem).splitlines()
        assert shown[caret.index("^")] == "a"
    assert sum(len(str(problem.as_dict())) for problem in told) < 2_000_000


def test_a_long_key_is_shortened_where_it_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        loads(f"pools: {{{'p' * 100_000}: {{a: 1, b: 1}}}}", "f")
    assert all(len(problem.headline()) < 300 for problem in caught.value.problems)


def test_what_the_environment_brings_is_limited() -> None:
    with pytest.raises(ConfigError) as caught:
        loads("a: '" + "${A}" * 1000 + "'", "f", environ={"A": "a" * 100_000})
    assert [problem.headline() for problem in caught.value.problems] == ["f:1:4: a: variables bring more than 4 MiB"]


def test_a_name_is_not_looked_for_among_many_for_ever() -> None:
    names = "".join(f"{{name: backend-{n}, url: 'http://a', weight: 0.001}}," for n in range(5000))
    pins = "".join(f"{{key: k{n}, backend: backendx{n}}}," for n in range(500))
    text = f"listen: 127.0.0.1:1\npools: {{web: {{backends: [{names}], pins: [{pins}]}}}}"
    with pytest.raises(ConfigError) as caught:
        loads(text, "f")
    first, *_, last = caught.value.problems
    assert (first.hint.startswith("backend-"), last.hint) == (True, "")


def test_a_number_with_very_many_digits_is_refused_in_our_words() -> None:
    for word in ("0x" + "1" * 10_000, "0" * 10_000, "1" * 10_000):
        assert "Value error" not in headlines(GOOD + f"workers: {word}")[0]
        assert len(headlines(pool(f"retry: {{attempts: {word}}}"))[0]) < 300


def test_a_problem_keeps_its_parts_apart() -> None:
    with pytest.raises(ConfigError) as caught:
        loads(pool("stiky: {}"), "f")
    assert caught.value.problems == (Problem("f", 3, 3, "pools.web.stiky", "unknown field", "sticky", "  stiky: {}}}"),)


# Variables


@pytest.mark.parametrize(
    ("text", "environ", "zone"),
    [
        ("${Z}", {"Z": "a"}, "a"),
        ("x-${Z}-${Z}", {"Z": "a"}, "x-a-a"),
        ("${Z:-b}", {}, "b"),
        ("${Z:-b}", {"Z": ""}, "b"),
        ("${Z:-b}", {"Z": "a"}, "a"),
        ("'${Z:-}'", {}, ""),
        ("${Z:-}", {}, ""),
        ("$${Z}", {"Z": "a"}, "${Z}"),
        ("$Z$", {"Z": "a"}, "$Z$"),
        ("$$$${Z}", {"Z": "a"}, "$${Z}"),
        ("${Z}", {"Z": "${Y}"}, "${Y}"),
        ("'${Z}'", {"Z": "1, weight: 0"}, "1, weight: 0"),
        ("${Z}", {"Z": "[a, b]"}, "[a, b]"),
        ("${Z}", {"Z": "*x &y #z"}, "*x &y #z"),
    ],
)
def test_variables_bring_text_and_never_structure(text: str, environ: dict[str, str], zone: str) -> None:
    found = loads(
        f"listen: 127.0.0.1:1\npools:\n  w:\n    backends:\n      - url: http://a\n        zone: {text}\n", "f", environ
    )
    assert found.pools[0].backends[0].zone == zone


def test_a_variable_can_bring_a_number_and_no_value() -> None:
    text = pool("bounded_load: {factor: '${F}', min_gap: '${G:-7}'}, hot_keys: {max_in_flight: '${M:-null}'}")
    bound = loads(text, "f", {"F": "1.5"}).pools[0].bounded_load
    assert (bound.factor, bound.min_gap) == (1.5, 7)
    assert loads(text, "f", {"F": "1.5"}).pools[0].hot_keys.max_in_flight is None
    assert loads(text, "f", {"F": "1.5", "M": "9"}).pools[0].hot_keys.max_in_flight == 9


def test_variables_are_not_looked_for_in_keys() -> None:
    assert headlines("listen: 127.0.0.1:1\npools: {'${P}': {backends: [{url: http://a}]}}", P="web")[0].startswith(
        'f:2:9: pools["${P}"]: "${P}" is not a name'
    )


# Anchors, aliases, merge keys, and words that only look like something else


def test_aliases_and_merge_keys() -> None:
    text = dedent("""\
        listen: 127.0.0.1:1
        pools:
          a:
            match: {host: a}
            retry: &retry {attempts: 7, budget: 50%}
            timeout: &slow {connect: 9s}
            backends: &machines [{url: http://a, zone: z}]
          b:
            retry: {<<: *retry, budget: 10%}
            timeout: {idle: 1s, <<: [*slow, {connect: 1s, first_byte: 2s}]}
            backends: *machines
        """)
    a, b = loads(text, "f", {}).pools
    assert (b.retry.attempts, b.retry.budget) == (7, 0.1)
    assert (b.timeout.connect, b.timeout.first_byte, b.timeout.idle) == (9.0, 2.0, 1.0)
    assert a.backends == b.backends


ASIDE = """\
x-health: &health {path: /healthz, interval: 2s}
x-: 1
x-any: [{what: ever}, *health]
listen: 127.0.0.1:8080
pools:
  a: {health: *health, backends: [{url: "http://10.0.0.1"}]}
  b: {health: {<<: *health, interval: 5s}, match: {path: /b}, backends: [{url: "http://10.0.0.2"}]}
"""


def test_outermost_fields_that_begin_with_x_are_a_place_for_anchors() -> None:
    """As in Compose files. Nothing else is done with them."""
    first, second = loads(ASIDE).pools
    assert [each.health.interval for each in (first, second) if each.health is not None] == [2.0, 5.0]
    assert Draft202012Validator(json_schema()).is_valid(yaml.safe_load(ASIDE))
    assert "x-" not in to_yaml(resolved(reads(ASIDE)))


@pytest.mark.parametrize(
    ("was", "becomes", "told"),
    [
        ("path: /healthz", "path: healthz", "f:1:26: pools.a.health.path: "),
        ("path: /healthz", 'path: "${NOT_SET_ANYWHERE}"', "f:1:26: x-health.path: the environment variable"),
        ("x-any:", "x-health:", "f:3:1: x-health: given twice"),
        ("x-any:", "X-any:", "f:3:1: X-any: unknown field"),
        ("x-any:", "xany:", "f:3:1: xany: unknown field"),
        ("  a: {", "  a: {x-any: 1, ", "f:6:7: pools.a.x-any: unknown field"),
    ],
)
def test_only_the_outermost_are_and_what_is_wrong_in_them_is_told(was: str, becomes: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(ASIDE.replace(was, becomes), "f", {})
    assert str(caught.value.problems[0]).startswith(told)


def test_what_is_wrong_in_an_anchor_is_told_once() -> None:
    """It is to be mended in one place, however many aliases there are."""
    text = dedent("""\
        listen: 127.0.0.1:1
        pools:
          a:
            match: {host: a}
            retry: &retry {attempts: 0}
            timeout: {connect: &slow 5 sec, idle: *slow}
            backends: &machines [{url: http://a, weigth: 2}, {zone: z}]
          b:
            match: {host: b}
            retry: {<<: *retry, budget: 10%}
            backends: *machines
          c: {match: {host: c}, backends: *machines}
        """)
    assert headlines(text) == [
        "f:5:30: pools.a.retry.attempts: must be at least 1 (so, too, in 1 place that repeats it)",
        'f:6:24: pools.a.timeout.connect: "5 sec" is not a duration such as 250ms, 5s, 2m or 1h '
        "(so, too, in 1 place that repeats it), did you mean 5s?",
        "f:7:42: pools.a.backends[0].weigth: unknown field (so, too, in 2 places that repeat it), did you mean weight?",
        "f:7:54: pools.a.backends[1].url: missing (so, too, in 2 places that repeat it)",
    ]


def test_an_alias_that_does_not_fit_is_told_where_it_stands() -> None:
    text = dedent("""\
        listen: 127.0.0.1:1
        pools:
          a: {match: {host: a}, timeout: {idle: &much 5s}, backends: [{url: http://a, weight: *much}]}
          b: {match: {host: b}, retry: {attempts: *much, budget: *much}, backends: [{url: http://a}]}
        """)
    assert [line.partition(" ")[2].partition(":")[0] for line in headlines(text)] == [
        "pools.a.backends[0].weight",
        "pools.b.retry.attempts",
        "pools.b.retry.budget",
    ]


def test_mistakes_in_one_place_that_differ_are_all_told() -> None:
    assert headlines("{}") == ["f:1:1: listen: missing", "f:1:1: pools: missing"]


@pytest.mark.parametrize("word", ["on", "no", "010", "0x1F", "1.10", "1:30", "2026-01-01", "true", "12e3", "=", "1_0"])
def test_text_is_text_whatever_it_looks_like(word: str) -> None:
    assert loads(backend(f"url: http://a, zone: {word}"), "f").pools[0].backends[0].zone == word


def test_a_word_that_yaml_1_1_takes_for_false_is_a_word() -> None:
    assert loads(pool("hot_keys: {mode: off}"), "f").pools[0].hot_keys.mode == "off"


# Files


def file_headline(path: str | Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    [problem] = caught.value.problems
    assert str(caught.value) == problem.headline()
    return problem.headline()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert file_headline(tmp_path / "x.yaml") == f"{tmp_path}/x.yaml: there is no such file"


def test_a_directory(tmp_path: Path) -> None:
    assert file_headline(tmp_path) == f"{tmp_path}: is a directory"


def test_a_file_inside_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(GOOD)
    assert file_headline(tmp_path / "x" / "y") == f"{tmp_path}/x/y: cannot be read: Not a directory"


def test_a_path_that_no_file_can_have() -> None:
    assert file_headline("a\0b") == "a\0b: cannot be read: embedded null byte"


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads everything

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("builtins.open", refuse)
    assert file_headline(path) == f"{path}: may not be read: permission denied"


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").touch()
    assert file_headline(tmp_path / "x.yaml") == f"{tmp_path}/x.yaml: is empty"


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"listen: 127.0.0.1:1\n# \xff\n")
    assert file_headline(tmp_path / "x.yaml") == f"{tmp_path}/x.yaml:2:3: is not UTF-8: byte 0xff"


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"#" * (config.MAX_FILE_BYTES + 1))
    assert file_headline(tmp_path / "x.yaml") == f"{tmp_path}/x.yaml: is larger than 4 MiB"


def test_a_byte_order_mark_and_other_line_ends_are_taken(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    found = load(tmp_path / "x.yaml")
    assert found.source == f"{tmp_path}/x.yaml"
    assert found == loads(GOOD)


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, GOOD.encode())
    os.close(writer)
    try:
        assert load(f"/dev/fd/{reader}") == loads(GOOD)
    finally:
        os.close(reader)


def test_every_word_that_others_use_leads_to_a_field() -> None:
    known = {path.rpartition(".")[2] for path, _, _ in all_fields()}
    for word, meant in _ELSEWHERE.items():
        assert set(meant.split()) <= known, word

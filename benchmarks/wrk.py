"""Driving wrk: a Lua script made for each load, and the figures that its `done` hands back as one line of JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.loads import Load
from benchmarks.machine import find_binary
from benchmarks.proxies.base import BenchmarkError

# Requests are formatted once and taken in turn: wrk then spends little of its core on Lua.
_SCRIPT = """\
local prepared, position = {{}}, 0

function init(arguments)
  local headers = {{ {headers} }}
  for name, value in pairs(wrk.headers) do headers[name] = value end
  local body = {body}
  for user = 1, {users} do
    headers["X-User-ID"] = string.format("user-%06d", user)
    prepared[user] = wrk.format("{method}", "{path}", headers, body)
  end
end

function request()
  position = position % {users} + 1
  return prepared[position]
end

function done(summary, latency, requests)
  local failed = summary.errors
  io.write(string.format(
    '{{"requests": %d, "duration_us": %d, "bytes": %d, "median_us": %d, "p99_us": %d, "connect": %d, "read": %d, ' ..
    '"write": %d, "status": %d, "timeout": %d}}\\n',
    summary.requests, summary.duration, summary.bytes, latency:percentile(50.0), latency:percentile(99.0),
    failed.connect, failed.read, failed.write, failed.status, failed.timeout))
end
"""

_ERRORS = ("connect", "read", "write", "status", "timeout")
_SAMPLE_S = 0.25


@dataclass(frozen=True, slots=True)
class WrkResult:
    requests: int
    duration_s: float
    received_bytes: int
    median_us: int
    p99_us: int


def user_id(number: int) -> str:
    """The id that the script gives user `number`, from 1."""
    return f"user-{number:06d}"


def script(load: Load) -> str:
    """The Lua source for this load."""
    quoted = (f"[{json.dumps(name)}] = {json.dumps(value)}" for name, value in load.headers)
    body = f'string.rep("x", {load.body_bytes})' if load.body_bytes else "nil"
    return _SCRIPT.format(headers=", ".join(quoted), body=body, users=load.users, method=load.method, path=load.path)


def run(
    load: Load,
    port: int,
    seconds: int,
    cores: Iterable[int],
    folder: Path,
    sample: Callable[[], None] | None = None,
) -> WrkResult:
    """Send `load` to `port` for some seconds; `sample` is called every quarter of a second meanwhile.

    Raises:
        BenchmarkError: any error, any status above 399, or wrk itself failed.
    """
    source = folder / f"{load.name}.lua"
    source.write_text(script(load))
    pinned = sorted(cores)
    threads = min(len(pinned), load.connections)
    command = [
        *("taskset", "--cpu-list", ",".join(map(str, pinned)), find_binary("wrk") or "wrk"),
        *("-t", str(threads), "-c", str(load.connections), "-d", f"{seconds}s", "--timeout", "10s"),
        *("-s", str(source), f"http://127.0.0.1:{port}{load.path}"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as wrk:
        while True:
            try:
                output, _ = wrk.communicate(timeout=_SAMPLE_S if sample else seconds + 30)
                break
            except subprocess.TimeoutExpired:
                if sample is None:
                    wrk.kill()
                    raise BenchmarkError("wrk did not end") from None
                sample()
    return parse(output)


def parse(output: str) -> WrkResult:
    """The figures in wrk's output.

    Raises:
        BenchmarkError: there are none, or they count an error.
    """
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise BenchmarkError(f"wrk gave no figures:\n{output}")
    figures = json.loads(lines[-1])
    failed = {name: figures[name] for name in _ERRORS if figures[name]}
    if failed or not figures["requests"]:
        raise BenchmarkError(f"wrk counted errors in {figures['requests']} requests: {failed}\n{output}")
    return WrkResult(
        requests=figures["requests"],
        duration_s=figures["duration_us"] / 1e6,
        received_bytes=figures["bytes"],
        median_us=figures["median_us"],
        p99_us=figures["p99_us"],
    )

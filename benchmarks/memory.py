"""Memory, not speed: what an idle connection costs, and whether a large upload to a slow backend stays flat.

Each proxy is started anew for this, so that nothing freed earlier hides what is taken now.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from benchmarks import sink
from benchmarks.figures import CheckResult
from benchmarks.fleet import Fleet, Started, running
from benchmarks.loads import CHECKS
from benchmarks.machine import free_port
from benchmarks.process import Process
from benchmarks.proxies import Backend, BenchmarkError, Proxy
from benchmarks.proxies.base import await_answer
from benchmarks.rounds import say
from benchmarks.wrk import user_id

_SETTLE_S = 1.0
_SAMPLE_S = 0.05
_CHUNK_BYTES = 256 * 1024
_CHECKED_EVERY = 100
_UPLOAD_HEAD = "\r\n".join(
    ("POST /slow HTTP/1.1", "Host: bench", "X-User-ID: up", "Content-Length: {size_bytes}", "Connection: close", "", "")
)


def run_idle(proxies: Iterable[Proxy], fleet: Fleet, count: int) -> CheckResult:
    """Open `count` connections, one request on each, and see how much the proxy has grown."""
    figures = {}
    for proxy in proxies:
        with running(proxy, fleet.folder / "idle", fleet.cores, 1, fleet.backends.members, log=False) as started:
            figures[proxy.name] = _idle(started, count)
        say(f"idle: {proxy.name} {figures[proxy.name]['pss_kb_each']:.1f} KB each")
    return CheckResult("idle", f"{count:,} {CHECKS['idle']}", figures)


def run_slow_upload(proxies: Iterable[Proxy], fleet: Fleet, size_bytes: int, rate: float) -> CheckResult:
    """Upload through each proxy to a backend that reads `rate` bytes a second."""
    figures = {}
    port = free_port()
    command = (sys.executable, "-P", sink.__file__, "--port", str(port), "--rate", str(rate))
    slow = Process(command, fleet.cores.load, fleet.folder / "sink.log")
    try:
        await_answer(slow, "the slow backend", port)
        for proxy in proxies:
            folder = fleet.folder / "upload"
            with running(proxy, folder, fleet.cores, 1, (Backend("slow", port),), log=False) as started:
                figures[proxy.name] = _slow_upload(started, size_bytes)
            say(f"slow-upload: {proxy.name} grew by {figures[proxy.name]['growth_mb']:.1f} MB")
    finally:
        slow.stop()
    title = f"an upload of {size_bytes / 2**20:,.0f} MB to a backend that reads {rate / 1e6:,.0f} MB/s: memory"
    return CheckResult("slow-upload", title, figures)


def _idle(started: Started, count: int) -> dict[str, float]:
    _ask(_connect(started), 0)
    time.sleep(_SETTLE_S)
    rss, pss = started.process.rss_bytes(), started.process.pss_bytes()
    connections: list[socket.socket] = []
    try:
        for number in range(count):
            connections.append(_connect(started))
            _ask(connections[-1], number)
        time.sleep(_SETTLE_S)
        grown_rss, grown_pss = started.process.rss_bytes() - rss, started.process.pss_bytes() - pss
        for number in range(0, count, _CHECKED_EVERY):
            _ask(connections[number], number)
    except OSError as error:
        raise BenchmarkError(f"idle: {started.name}: connection {len(connections):,}: {error}") from error
    finally:
        for connection in connections:
            connection.close()
    return {
        "connections": count,
        "pss_kb_each": grown_pss / count / 1024,
        "rss_kb_each": grown_rss / count / 1024,
        "before_mb": pss / 2**20,
    }


def _connect(started: Started) -> socket.socket:
    return socket.create_connection(("127.0.0.1", started.setting.port), timeout=10)


def _ask(connection: socket.socket, number: int) -> None:
    """One small keyed GET; the backends end that body with an empty line.

    Raises:
        OSError: no whole answer with status 200 came.
    """
    request = f"GET / HTTP/1.1\r\nHost: bench\r\nX-User-ID: {user_id(number)}\r\n\r\n"
    connection.sendall(request.encode())
    answer = b""
    while not answer.endswith(b"\n\n"):
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("closed")
        answer += part
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise ConnectionError(answer.partition(b"\r\n")[0].decode("latin-1"))


def _slow_upload(started: Started, size_bytes: int) -> dict[str, float]:
    _upload(started.setting.port, 4 * _CHUNK_BYTES)
    before = peak = started.process.rss_bytes()
    begin = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        upload = pool.submit(_upload, started.setting.port, size_bytes)
        while not upload.done():
            peak = max(peak, started.process.rss_bytes())
            time.sleep(_SAMPLE_S)
        try:
            received = upload.result()
        except OSError as error:
            raise BenchmarkError(f"slow-upload: {started.name}: {error}") from error
    if received != size_bytes:
        raise BenchmarkError(f"slow-upload: {started.name}: {received:,} of {size_bytes:,} bytes arrived")
    return {
        "megabytes_per_s": size_bytes / 1e6 / (time.monotonic() - begin),
        "before_mb": before / 2**20,
        "growth_mb": (peak - before) / 2**20,
    }


def _upload(port: int, size_bytes: int) -> int:
    """Send a body as fast as the proxy takes it; returns how many bytes the backend says it got."""
    chunk = b"x" * _CHUNK_BYTES
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(_UPLOAD_HEAD.format(size_bytes=size_bytes).encode())
        for _ in range(size_bytes // _CHUNK_BYTES):
            connection.sendall(chunk)
        connection.sendall(chunk[: size_bytes % _CHUNK_BYTES])
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head_lines, _, body = answer.partition(b"\r\n\r\n")
    if not head_lines.startswith(b"HTTP/1.1 200 "):
        raise ConnectionError(head_lines.partition(b"\r\n")[0].decode("latin-1"))
    return int(body)

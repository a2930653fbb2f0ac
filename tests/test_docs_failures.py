"""docs/failures.md against a running proxy: what a failing backend leads to, for the client, in log and metrics."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lbproxy.core.ledger import UPSTREAM_ERRORS
from tests.dataplane.harness import refusing
from tests.running import PATIENCE_S, Proxy, until

ROOT = Path(__file__).parent.parent
GET = b"GET /%b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
UPLOAD = b"POST /%b HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 100000000\r\n\r\n"

Play = Callable[[socket.socket], None]


def rows() -> dict[str, tuple[int, str]]:
    """By the backend's error: the status and the reason that the docs tell."""
    _, _, rest = (ROOT / "docs" / "failures.md").read_text().partition("## What the client gets")
    found = re.findall(r"^\| [^|]+ \| `(\w+)` \| (\d{3}) \| `(\w+)` \|$", rest.partition("\n## ")[0], re.MULTILINE)
    return {error: (int(status), reason) for error, status, reason in found}


ROWS = rows()


@contextlib.contextmanager
def backend(play: Play) -> Iterator[int]:
    """The port of a backend that does the same with every connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    threading.Thread(target=one, args=(connection,), daemon=True).start()

        def one(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                play(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def unanswering() -> Iterator[int]:
    """A port whose queue of connections is full: the kernel answers no further one."""
    with socket.socket() as listening, contextlib.ExitStack() as stack:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


def answer(octets: bytes) -> Play:
    def play(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(octets)

    return play


def reset(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def silence(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def deafness(connection: socket.socket) -> None:
    threading.Event().wait(3.0)


CASES: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[int]], bytes]] = {
    "connect_refused": (refusing, GET),
    "connect_timeout": (unanswering, GET),
    "reset": (lambda: backend(reset), GET),
    "closed_early": (lambda: backend(answer(b"")), GET),
    "protocol": (lambda: backend(answer(b"hello\r\n\r\n")), GET),
    "first_byte_timeout": (lambda: backend(silence), GET),
    "idle_timeout": (lambda: backend(deafness), UPLOAD),
}


def test_the_table_has_a_row_for_every_error() -> None:
    assert list(ROWS) == list(UPSTREAM_ERRORS)
    assert set(UPSTREAM_ERRORS) - CASES.keys() == {"connect_failed"}  # nothing on loopback fails in another way


CUTS = {
    "closed_early": answer(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345"),
    "protocol": answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\nx\r\n"),
}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy with a pool for each of these backends, which has its requests by their path."""
    failing = {error: make for error, (make, _) in CASES.items()}
    cutting = {f"cut-{error}": functools.partial(backend, play) for error, play in CUTS.items()}
    with contextlib.ExitStack() as stack:
        pools = {
            name: {
                "match": {"path": f"/{name}"},
                "backends": [{"name": "b1", "url": f"http://127.0.0.1:{stack.enter_context(make())}"}],
                "timeout": {"connect": "300ms", "first_byte": "300ms", "idle": "300ms"},
                "retry": {"attempts": 1},
            }
            for name, make in (failing | cutting).items()
        }
        yield stack.enter_context(Proxy(tmp_path_factory.mktemp("failures"), {}, workers=1, pools=pools))


@pytest.mark.parametrize("error", CASES)
def test_a_failed_attempt_ends_as_the_docs_say(error: str, proxy: Proxy) -> None:
    status, reason = ROWS[error]
    head = ask(proxy, CASES[error][1], error)[0]
    assert head.startswith(b"HTTP/1.1 %d " % status)
    line = only_line(proxy, error)
    assert (line["status"], line["reason"], line["backend"]) == (status, reason, "b1")
    assert proxy.metric("upstream_errors_total", pool=error, backend="b1", reason=error) == line["attempts"] == 1
    assert proxy.metric("requests_rejected_total", pool=error, reason=reason) == 1


@pytest.mark.parametrize("error", CUTS)
def test_an_answer_that_has_begun_is_cut_and_never_completed(error: str, proxy: Proxy) -> None:
    pool = f"cut-{error}"
    head, body = ask(proxy, GET, pool)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert not body.endswith(b"0\r\n\r\n")
    line = only_line(proxy, pool)
    assert (line["status"], line["reason"]) == (200, error)
    assert proxy.metric("upstream_errors_total", pool=pool, backend="b1", reason=error) == 1


def ask(proxy: Proxy, request: bytes, pool: str) -> tuple[bytes, bytes]:
    """Head and body of what comes back until the connection ends, while sending for as long as that is possible."""
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S) as client:
        client.sendall(request % pool.encode())
        if request is UPLOAD:
            threading.Thread(target=send_much, args=(client,), daemon=True).start()
        received = b""
        while piece := client.recv(65536):
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        return head, body


def send_much(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            client.sendall(bytes(65536))


def only_line(proxy: Proxy, pool: str) -> dict[str, Any]:
    """The line of the access log of the one request to this pool."""
    until(lambda: lines(proxy, pool))
    (line,) = lines(proxy, pool)
    return line


def lines(proxy: Proxy, pool: str) -> list[dict[str, Any]]:
    text = proxy.access_log.read_text() if proxy.access_log.exists() else ""
    found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in found if line["pool"] == pool]

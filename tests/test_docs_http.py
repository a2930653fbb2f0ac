"""docs/http.md against a running proxy: what it says is refused is refused so, with that status and that reason."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import PATIENCE_S, Proxy, until

ROOT = Path(__file__).parent.parent
LINE_BYTES = 256
HEAD_BYTES = 1024
HEADER_COUNT = 20
BODY_BYTES = 10

HEAD = b"POST /p HTTP/1.1\r\nHost: api.test\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

# By the beginning of a row: requests that are such.
CASES: dict[str, list[bytes]] = {
    "malformed request line or field": [
        b"GET  /p HTTP/1.1\r\nHost: api.test\r\n\r\n",
        HEAD + b"A: b\nc: d\r\n\r\n",
        HEAD + b"A: b\rc\r\n\r\n",
        HEAD + b"A: b\0c\r\n\r\n",
        HEAD + b"A : b\r\n\r\n",
        HEAD + b"A: b\r\n c\r\n\r\n",
        HEAD + b"A(): b\r\n\r\n",
    ],
    "no `Host`": [
        b"GET /p HTTP/1.1\r\n\r\n",
        HEAD + b"Host: api.test\r\n\r\n",
        b"GET /p HTTP/1.1\r\nHost: a b\r\n\r\n",
    ],
    "a target with a fragment": [
        b"GET /p#f HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET /p?q=\x01 HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET /p?q=\xc3\xa4 HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET /p<q HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET /%2 HTTP/1.1\r\nHost: api.test\r\n\r\n",
    ],
    "a `Connection` that names": [
        HEAD + b"Connection: X-User-ID\r\n\r\n",
        HEAD + b"Connection: keep-alive, x-forwarded-for\r\n\r\n",
    ],
    "`Content-Length` that is not a number": [
        HEAD + b"Content-Length: +1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    "`Transfer-Encoding` more than once": [
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /p HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: identity\r\n\r\n",
    ],
    "another transfer coding before `chunked`": [HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n"],
    "a malformed chunk": [
        CHUNKED + b"x\r\n",
        CHUNKED + b"1;" + b"a" * 40_000,
        CHUNKED + b"0\r\n" + b"a: b\r\n" * 8_000,
    ],
    "`CONNECT`": [
        b"CONNECT api.test:80 HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"TRACE /p HTTP/1.1\r\nHost: api.test\r\nMax-Forwards: 0\r\n\r\n",
    ],
    "a version that is not": [b"GET /p HTTP/2.0\r\nHost: api.test\r\n\r\n"],
    "a request line longer": [b"GET /" + b"p" * LINE_BYTES + b" HTTP/1.1\r\nHost: api.test\r\n\r\n"],
    "a field line longer": [
        HEAD + b"A: " + b"b" * LINE_BYTES + b"\r\n\r\n",
        HEAD + b"A: bbbbbbbbbbbbbbbb\r\n" * (HEAD_BYTES // 20) + b"\r\n",
        HEAD + b"A: b\r\n" * (HEADER_COUNT + 1) + b"\r\n",
    ],
    "a body longer": [HEAD + b"Content-Length: 11\r\n\r\n", CHUNKED + b"b\r\n12345678901\r\n0\r\n\r\n"],
    "a head that takes longer": [HEAD],
    "a pause in a body": [HEAD + b"Content-Length: 10\r\n\r\n12345"],
    "a request that [has passed": [HEAD + b"Via: 1.1 lbproxy\r\n" * 9 + b"\r\n"],
    "no pool for host": [b"GET /p HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n"],
}


def every_case() -> Iterator[tuple[str, bytes]]:
    for start, cases in CASES.items():
        for case in cases:
            yield start, case


def rows() -> dict[str, tuple[int, str]]:
    """The table: what is refused, the status and the reason."""
    _, _, rest = (ROOT / "docs" / "http.md").read_text().partition("## What is refused")
    found = re.findall(r"^\| (.+?) \| (\d{3}) \| `(\w+)` \|$", rest.partition("\n## ")[0], re.MULTILINE)
    return {what: (int(status), reason) for what, status, reason in found}


ROWS = rows()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy with small limits. Its backend takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        backend = {"url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        listen = {
            "bind": "127.0.0.1:0",
            "timeout": {"request_head": "300ms", "body_idle": "300ms"},
            "limits": {
                "line_bytes": f"{LINE_BYTES}B",
                "head_bytes": f"{HEAD_BYTES}B",
                "header_count": HEADER_COUNT,
                "body_bytes": f"{BODY_BYTES}B",
            },
        }
        pools = {"api": {"match": {"host": "api.test"}, "backends": [backend]}}
        with Proxy(tmp_path_factory.mktemp("http"), {}, listen=listen, workers=1, pools=pools) as running:
            yield running


def test_the_table_has_a_case_for_every_row() -> None:
    assert [what for what in ROWS if not any(what.startswith(start) for start in CASES)] == []
    assert [start for start in CASES if not any(what.startswith(start) for what in ROWS)] == []


# Each case comes from an address of its own, by which its lines are found in the log.
NUMBERED = [(f"127.0.1.{at}", start, case) for at, (start, case) in enumerate(every_case(), 1)]


@pytest.fixture(scope="module")
def answers(proxy: Proxy) -> dict[str, bytes]:
    """What came back to each case, by its client. The log is written a few times a second, so all are played first."""
    return {client: exchange(proxy, client, octets) for client, _, octets in NUMBERED}


@pytest.mark.parametrize(
    ("client", "start"), [pytest.param(client, start, id=f"{start} - {client}") for client, start, _ in NUMBERED]
)
def test_what_is_refused_is_refused_as_the_docs_say(
    proxy: Proxy, answers: dict[str, bytes], client: str, start: str
) -> None:
    (expected,) = [answer for what, answer in ROWS.items() if what.startswith(start)]
    assert answers[client].startswith(b"HTTP/1.1 %d " % expected[0]), answers[client][:200]
    until(lambda: reasons(proxy, client))
    assert reasons(proxy, client) == [expected]


def exchange(proxy: Proxy, client: str, octets: bytes) -> bytes:
    """All that comes back until the proxy closes the connection, which after a refusal it must."""
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S, (client, 0)) as connection:
        connection.sendall(octets)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def reasons(proxy: Proxy, client: str) -> list[tuple[int, str]]:
    """Status and reason of each line of the access log so far that is this client's."""
    lines = proxy.access_log.read_text().splitlines() if proxy.access_log.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return [(line["status"], line["reason"]) for line in found if line["client"] == client]

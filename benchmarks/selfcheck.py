"""Before anything is timed: each proxy is sticky, spreads its keys, and answers the load as it should."""

from __future__ import annotations

import http.client

from benchmarks.fleet import Started
from benchmarks.loads import Load
from benchmarks.proxies import BenchmarkError
from benchmarks.wrk import user_id

_USERS = 100
_REPEATS = 3


def check_sticky(started: Started) -> None:
    """Ask for many users, several times in turn, over new and kept connections.

    Raises:
        BenchmarkError: a user saw two backends, a backend saw no user, or an answer was not 200.
    """
    seen: dict[str, set[str]] = {user_id(number): set() for number in range(1, _USERS + 1)}
    for _ in range(_REPEATS):
        connection = _connect(started)
        for user, backends in seen.items():
            status, backend, _ = _ask(connection, "GET", "/", {"X-User-ID": user})
            if status != 200:
                raise BenchmarkError(f"{started.name} answered {status} to {user}")
            backends.add(backend)
        connection.close()
    moved = {user: backends for user, backends in seen.items() if len(backends) != 1}
    if moved:
        raise BenchmarkError(f"{started.name} is not sticky: {moved}")
    used = {backend for backends in seen.values() for backend in backends}
    expected = {backend.name for backend in started.setting.backends}
    if used != expected:
        raise BenchmarkError(f"{started.name} sent {_USERS} users to {sorted(used)} only, not to {sorted(expected)}")


def check_load(started: Started, load: Load) -> None:
    """One request of this load.

    Raises:
        BenchmarkError: not 200, or a body of another length than the backend sent.
    """
    connection = _connect(started)
    headers = {**dict(load.headers), "X-User-ID": user_id(1)}
    status, _, size = _ask(connection, load.method, load.path, headers, b"x" * load.body_bytes)
    connection.close()
    if status != 200 or size != load.response_bytes:
        raise BenchmarkError(f"{load.name}: {started.name} answered {status} with {size} bytes")


def _connect(started: Started) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", started.setting.port, timeout=10)


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str], body: bytes = b""
) -> tuple[int, str, int]:
    """Status, the backend's name, length of the body."""
    try:
        connection.request(method, path, body=body or None, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("X-Backend") or "none", len(answer.read())
    except (OSError, http.client.HTTPException) as error:
        raise BenchmarkError(f"{method} {path} was not answered: {error!r}") from error

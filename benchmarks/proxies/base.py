"""What the harness asks of a proxy: is it here, which version, how is it started, what is switched on."""

from __future__ import annotations

import http.client
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import Process

_START_S = 30.0


class BenchmarkError(Exception):
    """A figure could not be taken, and none must be shown in its place."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One member of the pool, on 127.0.0.1."""

    name: str
    port: int


@dataclass(frozen=True, slots=True)
class Setting:
    """What one started proxy is given. `folder` is its own, and gone when it has ended."""

    folder: Path
    port: int
    admin_port: int
    workers: int
    backends: tuple[Backend, ...]
    log: bool
    connections: int


class Proxy(ABC):
    """A kind of proxy, configured like all the others: sticky by X-User-ID, keep-alive on both sides."""

    name: str
    features: str
    """What its configuration switches on, for the method section of the results."""
    loads: tuple[str, ...] = ()
    """The only loads that it carries; none: all."""

    @abstractmethod
    def binary(self) -> str | None:
        """Path of the program; None when it is not installed."""

    @abstractmethod
    def version(self) -> str:
        """Such as "1.22.1"."""

    @abstractmethod
    def command(self, setting: Setting) -> Sequence[str]:
        """Write the configuration into the folder; returns the command that runs it in the foreground."""

    def environment(self, setting: Setting) -> Mapping[str, str]:
        """Variables to add."""
        return {}

    def complaints(self, setting: Setting) -> list[str]:
        """What makes a finished run less than it claims, such as log lines that were dropped."""
        return []


def await_answer(process: Process, what: str, port: int, path: str = "/healthz") -> None:
    """Wait until `path` is answered with 200.

    Raises:
        BenchmarkError: the process ended, or the time was over.
    """
    end = time.monotonic() + _START_S
    answer = "nothing"
    while time.monotonic() < end:
        if process.has_ended():
            raise BenchmarkError(f"{what} ended at its start:\n{process.log_tail()}")
        try:
            answer = str(_status(port, path))
        except (OSError, http.client.HTTPException) as error:
            answer = str(error)
        if answer == "200":
            return
        time.sleep(0.05)
    raise BenchmarkError(f"{what} did not answer {path} on port {port}: {answer}\n{process.log_tail()}")


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path, headers={"X-User-ID": "start"})
        return connection.getresponse().status
    finally:
        connection.close()

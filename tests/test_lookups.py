"""Backends whose name nobody knows are told of, and nobody else is."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lbproxy.control import lookups
from lbproxy.control.lookups import Lookups
from lbproxy.core.spec import Address, BackendSpec, Config, Health, PoolSpec
from lbproxy.observe.journal import Journal
from tests.running import Proxy, until


def config(*hosts: str, **pool: Any) -> Config:
    backends = tuple(BackendSpec(f"b{number}", Address(host, 80)) for number, host in enumerate(hosts))
    return Config((), (PoolSpec("api", backends, **pool),), ())


async def told(asked: Config) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    journal = Journal(lambda level, event, fields: found.append({"level": level, "event": event, **fields}))
    await Lookups(journal).look(asked)
    return found


async def test_names_that_are_not_known() -> None:
    first, second = await told(config("127.0.0.1", "host.invalid", "localhost", "::1", "host.invalid"))
    why = first["why"]
    assert why
    common = {"level": "warning", "event": "backend name unknown", "pool": "api", "host": "host.invalid", "why": why}
    assert (first, second) == ({**common, "backend": "b1"}, {**common, "backend": "b4"})


async def test_what_is_checked_is_told_by_its_checks() -> None:
    assert await told(config("host.invalid", health=Health(kind="tcp"))) == []


async def test_neither_a_socket_nor_an_impossible_name_is_an_error() -> None:
    assert await told(Config((), (PoolSpec("api", (BackendSpec("b1", Address("", 0, "/run/b1")),)),), ())) == []
    (found,) = await told(config("a" * 70 + ".invalid"))
    assert found["why"]


async def test_an_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    released, ended = threading.Event(), threading.Event()

    def slow(host: str) -> str:
        released.wait(30)
        ended.set()
        return host

    monkeypatch.setattr(lookups, "_why_unknown", slow)
    monkeypatch.setattr(lookups, "TIMEOUT_S", 0.01)
    (found,) = await told(config("host.invalid"))
    assert found["why"] == "no answer within 0.01 s"
    (thread,) = [each for each in threading.enumerate() if each.name == "look-up"]
    assert thread.daemon  # or the end of the process would wait for it
    released.set()
    assert await asyncio.to_thread(ended.wait, 30)


def test_a_running_proxy_tells_at_its_start_and_at_a_reload(tmp_path: Path) -> None:
    with Proxy(tmp_path, {}, pools={"api": {"backends": [{"name": "b1", "url": "http://one.invalid"}]}}) as proxy:
        until(lambda: [each["host"] for each in proxy.named("backend name unknown")] == ["one.invalid"])
        proxy.config["pools"]["api"]["backends"][0]["url"] = "http://two.invalid"
        proxy.write_config()
        proxy.signal(signal.SIGHUP)
        until(lambda: [each["host"] for each in proxy.named("backend name unknown")] == ["one.invalid", "two.invalid"])

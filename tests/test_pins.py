"""Pins that operators set: over the file's, under the file's backends, and still there after a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lbproxy.control.admin.key_documents import key_document
from lbproxy.control.admin.openapi import LONGEST_KEY
from lbproxy.control.pins import MOST_PINS, Pins, SetPin, pin_store
from lbproxy.control.reach import Admin
from lbproxy.control.source import Source
from lbproxy.control.store import StoreBroken
from lbproxy.core.account import OUT, SERVING
from lbproxy.core.pieces import Pieces, at_once
from lbproxy.core.snapshot import Weights
from lbproxy.core.spec import Address, BackendSpec, Config, ListenerSpec, Pin, PoolSpec, Route
from lbproxy.exits import Stop
from lbproxy.instance import Instance
from lbproxy.observe.journal import Stderr
from tests.running import Backends, Proxy, backend_list, get
from tests.test_balance import fill, one, pool_spec
from tests.test_operating import CALM, cli

BACKENDS = tuple(BackendSpec(name, Address("127.0.0.1", 1)) for name in ("b1", "b2"))
OF_FILE = (Pin("ann", "b1"), Pin("team-", "b2", True))
POOL = PoolSpec("api", BACKENDS, pins=OF_FILE)
CONFIG = Config((ListenerSpec("l", Address("127.0.0.1", 0)),), (POOL,), (Route("api"),))


def set_pin(key: str, backend: str, is_prefix: bool = False) -> SetPin:
    return SetPin("api", Pin(key, backend, is_prefix, "reject"), "kim", 12.5, "why")


def test_one_of_an_operator_goes_before_one_of_the_file_for_the_same_keys() -> None:
    pins = Pins([set_pin("ann", "b2"), set_pin("team-", "b1")])
    config, left = pins.under(CONFIG)
    assert list(left) == list(pins)
    # A key is not a prefix, though they read alike.
    assert config.pools[0].pins == (OF_FILE[1], Pin("ann", "b2", False, "reject"), Pin("team-", "b1", False, "reject"))
    assert pins.under(config)[0] == config
    assert Pins().under(CONFIG)[0] == CONFIG


def test_one_ends_with_its_backend_and_its_pool() -> None:
    pins = Pins([set_pin("ann", "b1"), set_pin("bob", "b2")])
    config, left = pins.under(replace(CONFIG, pools=(replace(POOL, backends=BACKENDS[:1], pins=()),)))
    assert [each.pin.key for each in left] == ["ann"]
    assert [pin.key for pin in config.pools[0].pins] == ["ann"]
    assert list(pins.under(replace(CONFIG, pools=(replace(POOL, name="web"),)))[1]) == []


def test_they_are_kept(tmp_path: Path) -> None:
    store = pin_store(str(tmp_path / "pins"))
    assert store.load() == []
    pins = Pins([set_pin("\u00e4nn \u2028", "b1"), set_pin("team-", "b2", True)])
    store.save(pins)
    assert store.load() == list(pins)
    assert (tmp_path / "pins").stat().st_mode & 0o777 == 0o600


def test_as_many_as_may_be_set_are_kept(tmp_path: Path) -> None:
    store = pin_store(str(tmp_path / "pins"))
    pins = [set_pin(f"{number:04}".ljust(LONGEST_KEY, "\u00e4"), "b1") for number in range(MOST_PINS)]
    store.save(pins)
    assert store.load() == pins


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"pins": [1]}', b'{"pins": [{"pool": "api"}]}']
    + [
        json.dumps({"pins": [{"pool": "api", "who": "", "since": 1, "pin": pin}]}).encode()
        for pin in (
            1,
            {"key": "", "backend": "b"},
            {"key": 1, "backend": "b"},
            {"key": "k", "backend": "b", "on_down": 1},
        )
    ],
)
def test_a_broken_file_is_told_and_not_believed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pins").write_bytes(content)
    with pytest.raises(StoreBroken):
        pin_store(str(tmp_path / "pins")).load()


async def test_a_pin_that_is_set_while_a_reload_is_being_built_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.yaml"
    text = "listen: 127.0.0.1:0\npools: {api: {backends: [{name: b1, url: 'http://127.0.0.1:1'}]}}\n"
    file.write_text(f"{text}workers: 1\nadmin: {{listen: null}}\n")
    source = Source(str(file))
    instance = Instance(source.load(), source, Stderr("error", "text"))
    supervisor = instance.supervisor
    forge = supervisor.forge
    is_forging, may_go_on = asyncio.Event(), False

    def slowly(config: Config, weights: Weights) -> Pieces[None]:
        is_forging.set()
        while not may_go_on:
            yield
        yield from forge(config, weights)

    async def at_once(_number: int) -> bool:
        return True

    monkeypatch.setattr(supervisor, "forge", slowly)
    monkeypatch.setattr(supervisor, "acknowledged", at_once)
    try:
        file.write_text(file.read_text() + "drain: {timeout: 9s}\n")
        reloading = asyncio.create_task(instance.reload_now())
        await is_forging.wait()
        pinning = asyncio.create_task(instance.pin("api", Pin("bob", "b1"), "kim", ""))
        await asyncio.sleep(0)
        may_go_on = True
        told = await pinning
        assert (await reloading).outcome == "applied"
        assert [pin["key"] for pin in told["pins"]] == ["bob"]
        assert supervisor.snapshot.pools["api"].pinned(b"bob") == Pin("bob", "b1")
        assert supervisor.config.drain_timeout == 9.0
    finally:
        instance.close()


# A running proxy


@pytest.fixture
async def backends() -> AsyncIterator[Backends]:
    async with Backends("b1", "b2", "b3") as started:
        yield started


async def ask(admin: Admin, method: str, pool: str = "api", **body: Any) -> Any:
    content = json.dumps(body).encode() if body else None
    return await asyncio.to_thread(admin.ask, method, f"/v1/pools/{pool}/pins", content)


async def home(proxy: Proxy, user: str) -> str:
    """Where both workers send a user: the requests are many connections."""
    answers = await asyncio.gather(*(get(proxy.port, user=user) for _ in range(8)))
    (answer,) = set(answers)
    assert answer[0] == 200
    return answer[1]


async def test_pins_over_the_admin_api(tmp_path: Path, backends: Backends) -> None:
    socket = tmp_path / "admin.sock"
    pool = {**CALM, "backends": backend_list(backends.ports), "pins": [{"key": "ann", "backend": "b1"}]}
    admin = Admin(path=str(socket))
    with Proxy(
        tmp_path, {}, pools={"api": pool}, admin={"listen": "127.0.0.1:0", "socket": str(socket)}, reload={"watch": "0"}
    ) as proxy:
        natural = await home(proxy, "bob")
        other = next(name for name in ("b1", "b2", "b3") if name != natural)
        told = await ask(admin, "PUT", key="bob", backend=other, reason="ticket 7")
        assert await home(proxy, "bob") == other
        mine, of_file = sorted(told["pins"], key=lambda pin: str(pin["key"]), reverse=True)
        assert (of_file["key"], of_file["source"], of_file["by"]) == ("ann", "file", None)
        assert (mine["key"], mine["source"], mine["reason"]) == ("bob", "operator", "ticket 7")
        said = await asyncio.to_thread(proxy.document, "/v1/pools/api/explain?key=bob")
        assert (said["decision"]["decision"], said["decision"]["backend"], said["pin"]["backend"]) == (
            "pinned",
            other,
            other,
        )
        shown = await asyncio.to_thread(proxy.document, "/v1/config")
        assert [pin["key"] for pin in shown["config"]["pools"]["api"]["pins"]] == ["ann"]
        # Over the file's pin, and whole families of keys.
        await ask(admin, "PUT", key="ann", backend="b3", on_down="reject")
        await ask(admin, "PUT", prefix="tenant-", backend="b2")
        assert [await home(proxy, user) for user in ("ann", "tenant-1", "tenant-2")] == ["b3", "b2", "b2"]
        # A reload leaves them, and a plan does not think that they would go.
        proxy.config["pools"]["api"]["pins"].append({"key": "eve", "backend": "b1"})
        proxy.write_config()
        assert (await cli(proxy, "diff"))[0] in (0, 1)
        assert (await cli(proxy, "reload"))[0] == 0
        assert [await home(proxy, user) for user in ("bob", "ann", "eve")] == [other, "b3", "b1"]
        assert "bob" not in json.dumps(proxy.events)
    with Proxy(
        tmp_path, {}, pools={"api": pool}, admin={"listen": "127.0.0.1:0", "socket": str(socket)}, reload={"watch": "0"}
    ) as proxy:
        assert [await home(proxy, user) for user in ("bob", "tenant-3")] == [other, "b2"]
        for refused, why in (
            ({"key": "bob", "backend": "b9"}, "there is no backend b9"),
            ({"key": "bob"}, "backend must name"),
            ({"key": "bob", "prefix": "b", "backend": "b1"}, "either key or prefix"),
            ({"backend": "b1"}, "either key or prefix"),
            ({"key": "", "backend": "b1"}, "1 to 4096 characters"),
            ({"key": "bob", "backend": "b1", "on_down": "wait"}, "on_down must be"),
        ):
            with pytest.raises(Stop, match=why):
                await ask(admin, "PUT", **refused)
        with pytest.raises(Stop, match="no operator has set that pin"):
            await ask(admin, "DELETE", key="eve")
        await ask(admin, "DELETE", key="bob")
        assert await home(proxy, "bob") == natural
        left = (await ask(admin, "GET"))["pins"]
        assert {pin["key"] or pin["prefix"]: pin["source"] for pin in left} == {
            "eve": "file",
            "ann": "operator",
            "tenant-": "operator",
        }
        # A backend that is gone takes its pins with it.
        proxy.config["pools"]["api"]["backends"] = [each for each in pool["backends"] if each["name"] != "b2"]
        proxy.write_config()
        assert (await cli(proxy, "reload"))[0] == 0
        assert [pin["key"] for pin in (await ask(admin, "GET"))["pins"]] == ["eve", "ann"]
    assert [each.pin.key for each in pin_store(f"{socket}.pins").load()] == ["ann"]


@pytest.mark.parametrize(
    ("state", "what"),
    [
        (OUT, "which cannot serve, and may go nowhere else"),
        (SERVING, "which is full: the request waits for a seat, as it may go nowhere else"),
    ],
)
def test_explain_tells_a_strict_pin_that_is_out_from_one_that_is_full(state: int, what: str) -> None:
    full = BackendSpec("b0", Address("127.0.0.1", 9000), max_in_flight=1)
    pool = one(pool_spec([full, *pool_spec(2).backends[1:]], pins=(Pin("kim", "b0", on_down="reject"),)))
    fill(pool, "b0", 1)
    pool.adopt({"b0": state})
    document = at_once(key_document(pool, b"kim", dict.fromkeys(pool.backends, "up"), 1, 10))
    assert document["decision"] == {"backend": None, "decision": None, "why": f"the key is pinned to b0, {what}"}

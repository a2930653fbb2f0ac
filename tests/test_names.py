"""The hottest keys are named where that is allowed, and nowhere else."""

from __future__ import annotations

import asyncio
import html
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core.exchange import Finished
from lbproxy.core.hashing import hash_key
from lbproxy.observe.names import LONGEST, MOST_KEPT, KeyNames, NameFinder, pack_names, unpack_names
from tests.exchanges import ended
from tests.running import PATIENCE_S, Backends, Proxy, backend_list, in_thread

NAME = "<ann & bob>"


class Loop:
    """Calls back when it is told to."""

    def __init__(self) -> None:
        self.due: Any = None

    def call_later(self, delay_s: float, callback: Any) -> Any:
        self.due = callback
        return SimpleNamespace(cancel=lambda: None)


class Found:
    """A finder with everything around it."""

    def __init__(self, *hottest: bytes) -> None:
        self.hottest = [hash_key(key) for key in hottest]
        self.sent: list[dict[int, bytes]] = []
        self.told: list[Finished] = []
        self.loop = Loop()
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        send = lambda text: self.sent.append(unpack_names(text))  # noqa: E731
        self.finder = NameFinder(self.told.append, lambda: self.hottest, send, loop)

    def serve(self, *keys: bytes | None) -> None:
        for key in keys:
            self.finder(ended(key=key))


def test_a_name_is_taken_from_the_next_request_once_it_is_wanted_and_told_once() -> None:
    found = Found(b"ann", b"bob")
    found.serve(b"ann")
    found.loop.due()
    assert found.sent == [], "nothing was wanted yet"
    found.serve(b"kim", None, b"ann", b"ann")
    assert len(found.told) == 5, "the access log has had all of them"
    found.loop.due()
    assert found.sent == [{hash_key(b"ann"): b"ann"}]
    found.serve(b"ann", b"bob")
    found.loop.due()
    assert found.sent[1:] == [{hash_key(b"bob"): b"bob"}]
    found.hottest = []
    found.loop.due()
    found.hottest = [hash_key(b"ann")]
    found.loop.due()
    found.serve(b"ann")
    found.loop.due()
    assert found.sent[2:] == [{hash_key(b"ann"): b"ann"}], "it came back, and its name may have been forgotten"
    found.finder.close()
    found.serve(b"bob")


def test_many_names_go_in_several_messages_and_long_ones_are_cut() -> None:
    keys = [b"%d " % number * 200 for number in range(100)]
    found = Found(*keys)
    found.loop.due()
    found.serve(*keys)
    found.loop.due()
    assert [len(each) for each in found.sent] == [64, 36]
    assert {key for each in found.sent for key in each.values()} == {key[:LONGEST] for key in keys}


@given(st.dictionaries(st.integers(0, 2**64 - 1), st.binary(max_size=LONGEST)))
def test_what_is_packed_is_unpacked(names: dict[int, bytes]) -> None:
    assert unpack_names(pack_names(names)) == names


@given(
    st.one_of(
        st.text(), st.sampled_from(["[[1]]", "[[-1, '00']]", '[["a", "00"]]', "[[1, 2]]", "{}", "3", '[[1, "x"]]'])
    )
)
def test_what_is_no_message_has_no_names(text: str) -> None:
    assert unpack_names(text) == {}


def test_the_oldest_names_are_forgotten() -> None:
    names = KeyNames()
    for h in range(MOST_KEPT + 5):
        names.take(pack_names({h: b"\xff"}))
    assert (names.get(4), names.get(5)) == (None, "\\xff")
    names.clear()
    assert names.get(5) is None


async def test_a_hot_key_has_its_name_where_that_is_allowed_and_only_as_long(tmp_path: Path) -> None:
    async with Backends("b1", "b2") as backends:
        pools = {"api": {"backends": backend_list(backends.ports)}}
        admin = {"listen": "127.0.0.1:0", "show_keys": True}
        with Proxy(tmp_path, backends.ports, pools=pools, admin=admin) as proxy:
            asking = asyncio.create_task(_ask(proxy.port))
            async with asyncio.timeout(PATIENCE_S):
                while (await _hottest(proxy))["key"] != NAME:  # noqa: ASYNC110  # it has no event
                    await asyncio.sleep(0.1)
            page = await asyncio.to_thread(proxy.admin, "/")
            assert html.escape(NAME) in page
            assert NAME not in page

            proxy.config["admin"]["show_keys"] = False
            await asyncio.to_thread(proxy.write_config)
            proxy.signal(signal.SIGHUP)
            await in_thread(proxy, "configuration applied")
            assert (await _hottest(proxy))["key"] is None
            assert proxy.document("/v1/info")["needs_restart"] == []
            metrics = await asyncio.to_thread(proxy.admin, "/metrics")
            asking.cancel()
        told = metrics + str(proxy.events) + str(proxy.other_output) + proxy.access_log.read_text()
        assert "ann" not in told
        assert "bob" not in told


async def _ask(port: int) -> None:
    async with aiohttp.ClientSession(headers={"X-User-ID": NAME}) as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/") as answer:
                await answer.read()
            await asyncio.sleep(0.01)


async def _hottest(proxy: Proxy) -> dict[str, Any]:
    document = await asyncio.to_thread(proxy.document, "/v1/pools/api/hot-keys")
    assert document["names_shown"] is proxy.config["admin"]["show_keys"]
    keys: list[dict[str, Any]] = document["keys"] or [{"key": ""}]
    return keys[0]

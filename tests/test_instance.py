"""An instance in this process, without workers: what happens between the question and the answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lbproxy import views
from lbproxy.control.admin.view import Decision, Rejected
from lbproxy.control.plan import PoolPlan, Side, plan_pool
from lbproxy.control.source import Source
from lbproxy.core.sample import Keys
from lbproxy.core.spec import Pin
from lbproxy.instance import Instance
from lbproxy.observe.journal import Stderr
from tests.running import until_true

TEXT = """\
listen: 127.0.0.1:0
workers: 1
admin: {listen: null}
pools:
  api: {backends: [{name: b1, url: 'http://127.0.0.1:1'}, {name: b2, url: 'http://127.0.0.1:2'}]}
"""
WEB = "  web: {match: {path: /web}, backends: [{name: w1, url: 'http://127.0.0.1:3'}]}\n"


@asynccontextmanager
async def held(file: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Instance]:
    """The instance of a file; nobody is waited for, as there are no workers."""
    source = Source(str(file))
    instance = Instance(source.load(), source, Stderr("error", "text"))

    async def at_once(_number: int | None = None) -> bool:
        return True

    for wait in ("acknowledged", "adopted"):
        monkeypatch.setattr(instance.supervisor, wait, at_once)
    try:
        yield instance
    finally:
        await instance.abort()
        instance.close()


async def test_a_pool_that_goes_while_something_is_decided_for_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lbproxy.yaml"
    file.write_text(TEXT + WEB)
    async with held(file, monkeypatch) as instance:

        async def adopted() -> bool:
            file.write_text(TEXT)
            assert (await instance.reload_now()).outcome == "applied"
            return True

        monkeypatch.setattr(instance.supervisor, "adopted", adopted)
        with pytest.raises(Rejected, match="there is no pool web") as caught:
            await instance.decide("web", [Decision("w1", weight=2.0)], "kim", None, "", False)
        assert caught.value.status == 404


async def test_a_pool_that_goes_takes_what_was_known_of_it_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lbproxy.yaml"
    file.write_text(TEXT + WEB)
    async with held(file, monkeypatch) as instance:
        assert {pool["name"] for pool in instance.pools()["pools"]} == {"api", "web"}
        file.write_text(TEXT)
        assert (await instance.reload_now()).outcome == "applied"
        assert set(instance._shares._known) == {"api"}
        assert set(instance.rings.pools) == {"api"}


async def test_a_pin_that_could_not_be_put_in_force_is_not_there_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lbproxy.yaml"
    file.write_text(TEXT)
    async with held(file, monkeypatch) as instance:
        with monkeypatch.context() as patched:
            patched.setattr(instance.supervisor, "put", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                await instance.pin("api", Pin("ann", "b1"), "kim", "")
        await instance.pin("api", Pin("bob", "b1"), "kim", "")
        assert [each.pin.key for each in instance.set_pins] == ["bob"]
        assert [pin["key"] for pin in instance.pins("api")["pins"]] == ["bob"]


async def test_plans_are_worked_out_one_after_the_other_and_not_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lbproxy.yaml"
    file.write_text(TEXT)
    may_go_on, lock, under_way, together = threading.Event(), threading.Lock(), 0, 0

    def slowly(before: Side, after: Side, keys: Keys) -> PoolPlan:
        nonlocal under_way, together
        with lock:
            under_way += 1
            together = max(together, under_way)
        may_go_on.wait(10)
        with lock:
            under_way -= 1
        return plan_pool(before, after, keys)

    monkeypatch.setattr(views, "plan_pool", slowly)
    async with held(file, monkeypatch) as instance:

        async def plan() -> float:
            return float((await instance.plan_change("api", [Decision("b1", weight=3.0)]))["moved_share"])

        plans = [asyncio.create_task(plan()) for _ in range(views.MOST_PLANS)]
        await until_true(lambda: under_way)
        with pytest.raises(Rejected, match="8 plans are being worked out already") as caught:
            await plan()
        assert caught.value.status == 503
        may_go_on.set()
        assert len(set(await asyncio.gather(*plans))) == 1
        assert together == 1
        assert await plan() > 0.2


async def test_what_is_in_force_and_could_not_be_written_is_said_until_it_could(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, socket = tmp_path / "lbproxy.yaml", tmp_path / "admin.sock"
    file.write_text(TEXT.replace("listen: null", f"listen: null, socket: {socket}"))
    in_the_way = [tmp_path / f"admin.sock.{what}.new" for what in ("overrides", "pins")]
    async with held(file, monkeypatch) as instance:
        for place in in_the_way:
            place.mkdir()
        decided = await instance.decide("api", [Decision("b1", weight=2.0)], "kim", None, "", False)
        pinned = await instance.pin("api", Pin("ann", "b1"), "kim", "")
        assert [backend["effective_weight"] for backend in decided["backends"]] == [2.0, 1.0]
        assert [pin["key"] for pin in pinned["pins"]] == ["ann"]
        problems = [f"cannot write {socket}.{what}: Is a directory" for what in ("overrides", "pins")]
        assert [decided["not_saved"], pinned["not_saved"]] == problems
        assert instance.info()["not_saved"] == problems
        for place in in_the_way:
            place.rmdir()
        decided = await instance.decide("api", [Decision("b1", is_drained=True)], "kim", None, "", False)
        pinned = await instance.unpin("api", "ann", False, "kim")
        assert [decided["not_saved"], pinned["not_saved"], instance.info()["not_saved"]] == [None, None, []]


async def test_the_event_loop_turns_while_a_long_preference_list_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lbproxy.yaml"
    listed = ", ".join(f"{{name: b{number}, url: 'http://127.0.0.1:{number}'}}" for number in range(1, 101))
    file.write_text(TEXT.partition("pools:")[0] + f"pools: {{api: {{ring: {{vnodes: 8}}, backends: [{listed}]}}}}\n")
    async with held(file, monkeypatch) as instance:
        explaining = asyncio.create_task(instance.explain("api", b"ann", 100))
        turns = 0
        while not explaining.done():
            turns += 1
            await asyncio.sleep(0)
        assert len({step["token"] for step in explaining.result()["preference"]}) == 100
        assert turns >= 100

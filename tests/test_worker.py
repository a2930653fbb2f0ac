"""A worker's way with its orders, in this process: what takes effect when, while a generation is being built."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from lbproxy import worker as worker_module
from lbproxy.channel import Adopt, Channel, Generation, Order, Report, pack_order
from lbproxy.control.config import loads
from lbproxy.core.account import OUT, SERVING
from lbproxy.core.pieces import Pieces
from lbproxy.core.rings import Rings
from lbproxy.core.snapshot import snapshot_rings
from lbproxy.observe.slabs import Layout, Slabs
from lbproxy.supervisor import row_keys
from lbproxy.worker import Worker
from tests.loops import on_uvloop
from tests.running import until_true

CONFIG = loads(
    "{version: 1, listen: '127.0.0.1:0', workers: 1, admin: {listen: null}, log: {access: {path: ''}},"
    " pools: {api: {backends: [{name: b1, url: 'http://127.0.0.1:1'}, {name: b2, url: 'http://127.0.0.1:2'}]}}}"
)
ALL: dict[str, dict[str, int]] = {"api": {"b1": SERVING, "b2": SERVING}}
ONE: dict[str, dict[str, int]] = {"api": {"b1": OUT, "b2": SERVING}}


class Ordered:
    """A worker, and the state of b1 at each of its reports."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        self.slabs = Slabs.create(1)
        self.worker = Worker(0, theirs, self.slabs, loop)
        self.told: list[tuple[str, int, int]] = []
        self._channel = Channel(ours, loop, lambda *_: None, lambda: None)
        self._rows = Layout().assign(row_keys(CONFIG), 1)
        self._following = asyncio.create_task(self.worker._follow_orders())

    def order(self, *orders: Order) -> None:
        for order in orders:
            self._channel.send(pack_order(order))

    def generation(self, number: int, adopt: Adopt) -> Generation:
        return Generation(number, CONFIG, self._rows, {}, adopt)

    def state(self) -> int:
        """Whether b1 may be asked now."""
        snapshot = self.worker._snapshot
        return OUT if snapshot is None else snapshot.pools["api"].backends["b1"].state

    def say(self, report: Report) -> None:
        """What the worker says, at the moment at which it says it."""
        if report.kind != "event":
            self.told.append((report.kind, report.number, self.state()))

    async def end(self) -> None:
        self._following.cancel()
        with suppress(asyncio.CancelledError):
            await self._following
        if self.worker._plane is not None:
            await self.worker._plane.drain(0.0)
        self.worker._channel.close()
        self._channel.close()
        self.slabs.close()


@asynccontextmanager
async def ordered(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ordered]:
    monkeypatch.setattr(worker_module, "settle", lambda: None)  # which is for a process of its own
    made = Ordered()
    monkeypatch.setattr(made.worker, "_say", made.say)
    try:
        made.order(made.generation(1, Adopt(1, ALL)))
        await until_true(lambda: made.told)
        await until_true(lambda: made.told[-1] == ("applied", 1, SERVING))
        yield made
    finally:
        await made.end()


@pytest.mark.parametrize("is_together", [True, False])
@on_uvloop
async def test_who_leaves_while_a_generation_is_built_leaves_at_once_and_does_not_come_back_with_it(
    monkeypatch: pytest.MonkeyPatch, is_together: bool
) -> None:
    may_go_on, is_building = False, False

    def slowly(*arguments: object) -> Pieces[dict[str, Rings]]:
        nonlocal is_building
        is_building = True
        while not may_go_on:
            yield
        return (yield from snapshot_rings(*arguments))  # type: ignore[arg-type]

    async with ordered(monkeypatch) as made:
        monkeypatch.setattr(worker_module, "snapshot_rings", slowly)
        made.order(made.generation(2, Adopt(2, ALL)))
        if not is_together:  # else both are there before the first is looked at
            await until_true(lambda: is_building)
        made.order(Adopt(3, ONE))
        await until_true(lambda: made.state() == OUT)
        may_go_on = True
        await until_true(lambda: ("adopted", 3, OUT) in made.told)
        assert made.told[2:] == [("adopted", 2, OUT), ("applied", 2, OUT), ("adopted", 3, OUT)]
        made.order(made.generation(4, Adopt(4, ALL)))
        await until_true(lambda: ("applied", 4, SERVING) in made.told)

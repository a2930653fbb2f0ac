"""Messages arrive whole and in order with their descriptors, and nothing a worker sends can harm the supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.channel import (
    HEADER,
    MAX_DESCRIPTORS,
    Adopt,
    Channel,
    Generation,
    Order,
    ReopenLogs,
    Report,
    Sockets,
    Tables,
    TellKeys,
    pack_order,
    pack_report,
    unpack_order,
    unpack_report,
)
from lbproxy.core.spec import Address, BackendSpec, Config, ListenerSpec, PoolSpec, Route

CONFIG = Config(
    (ListenerSpec("127.0.0.1:0", Address("127.0.0.1", 0)),),
    (PoolSpec("api", (BackendSpec("b1", Address("127.0.0.1", 9000)),)),),
    (Route("api"),),
)


class End:
    """One end of a channel and what came out of it."""

    def __init__(self, sock: socket.socket, longest: int | None = None) -> None:
        self.messages: list[bytes] = []
        self.descriptors: list[int] = []
        self.closed = 0
        self.channel = Channel(sock, asyncio.get_running_loop(), self.receive, self.count_closed, longest)

    def receive(self, payload: bytes, descriptors: list[int]) -> None:
        self.messages.append(payload)
        self.descriptors += descriptors

    def count_closed(self) -> None:
        self.closed += 1


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.001)


def pair(longest: int | None = None) -> tuple[End, End]:
    one, other = socket.socketpair()
    return End(one), End(other, longest)


async def test_messages_of_any_size_arrive_whole_and_in_order() -> None:
    here, there = pair()
    sent = [b"", b"x", os.urandom(3_000_000), b"y" * 70_000, b""]
    for payload in sent:
        here.channel.send(payload)
    await until(lambda: len(there.messages) == len(sent))
    assert there.messages == sent
    there.channel.send(b"back")
    await until(lambda: here.messages)
    assert here.messages == [b"back"]
    here.channel.close()
    await until(lambda: there.closed)


async def test_descriptors_come_with_their_message_even_behind_a_full_socket() -> None:
    here, there = pair()
    pipes = [os.pipe() for _ in range(5)]
    here.channel.send(b"a" * 2_000_000)
    here.channel.send(b"two", [pipes[0][1], pipes[1][1]])
    here.channel.send(b"none")
    here.channel.send(b"three", [pipe[1] for pipe in pipes[2:]])
    await until(lambda: len(there.messages) == 4)
    assert there.messages[1:] == [b"two", b"none", b"three"]
    assert len(there.descriptors) == 5
    for number, descriptor in enumerate(there.descriptors):
        assert not os.get_inheritable(descriptor)
        os.write(descriptor, b"%d" % number)
        assert os.read(pipes[number][0], 9) == b"%d" % number
    for descriptor in (*there.descriptors, *(end for pipe in pipes for end in pipe)):
        os.close(descriptor)
    with pytest.raises(ValueError, match="more than one message"):
        here.channel.send(b"", [0] * (MAX_DESCRIPTORS + 1))
    here.channel.close()
    there.channel.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_descriptors_may_be_closed_once_they_are_sent_though_they_wait() -> None:
    before = open_files()
    here, there = pair()
    read_end, write_end = os.pipe()
    here.channel.send(b"a" * 2_000_000)
    here.channel.send(b"two", [write_end])
    os.close(write_end)
    taken = os.open(os.devnull, os.O_RDONLY)
    assert taken == write_end
    await until(lambda: len(there.messages) == 2)
    os.write(there.descriptors[0], b"x")
    assert os.read(read_end, 9) == b"x"
    here.channel.send(b"a" * 2_000_000)
    here.channel.send(b"never", [taken])
    here.channel.close()
    there.channel.close()
    for descriptor in (taken, read_end, *there.descriptors):
        os.close(descriptor)
    assert open_files() == before


async def test_the_peers_end_is_told_once_and_sending_to_it_is_harmless() -> None:
    here, there = pair()
    there.channel.close()
    there.channel.close()
    await until(lambda: here.closed)
    here.channel.send(b"x")
    assert (here.closed, there.closed) == (1, 0)


async def test_finish_takes_in_what_the_peer_said_last() -> None:
    here, there = pair()
    there.channel.send(b"one")
    there.channel.send(b"last words")
    there.channel.close()
    here.channel.finish()
    assert here.messages == [b"one", b"last words"]
    assert here.closed == 0
    assert not here.channel.is_open


@pytest.mark.parametrize("header", [HEADER.pack(1001, 0), HEADER.pack(2**32 - 1, 0), HEADER.pack(5, 1)])
async def test_a_peer_that_breaks_the_rules_is_cut_off(header: bytes) -> None:
    one, other = socket.socketpair()
    end = End(other, longest=1000)
    one.sendall(HEADER.pack(1000, 0) + b"x" * 1000 + header + b"x" * 100)
    await until(lambda: end.closed)
    assert [len(message) for message in end.messages] == [1000]
    one.close()


def test_orders_survive_the_way() -> None:
    orders: list[Order] = [
        Sockets(("a", "b")),
        Tables(("api",)),
        Generation(3, CONFIG, {("worker",): 0, ("backend", "api", "b1"): 40}),
        Generation(4, CONFIG, {("worker",): 0}, {("api", "b1"): 0.5}, Adopt(7, {"api": {"b1": 2}})),
        Adopt(8, {"api": {"b1": 0}}),
        TellKeys(9),
        ReopenLogs(),
    ]
    for order in orders:
        assert unpack_order(pack_order(order)) == order
    with pytest.raises(ValueError, match="no order"):
        unpack_order(pickle.dumps("something else"))


@given(
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()),
    st.text(),
)
def test_reports_survive_the_way(fields: dict[str, Any], event: str) -> None:
    report = Report("event", 7, "info", event, fields)
    assert unpack_report(pack_report(report)) == report


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"{}",
        b"7",
        b"[1,2,3,4,5]",
        b'["event",1,"info","x"]',
        b'["event",1,"info","x",[]]',
        b'["event",1,"info","x",{"a":[]}]',
        b'["event","1","info","x",{}]',
        b"[" * 100_000,
        pickle.dumps(Report("event")),
    ],
)
def test_what_is_no_report_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):
        unpack_report(payload)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=6)))
def test_no_json_at_all_does_more_than_be_refused(value: Any) -> None:
    try:
        report = unpack_report(json.dumps(value).encode())
    except ValueError:
        return
    assert isinstance(report.fields, dict)

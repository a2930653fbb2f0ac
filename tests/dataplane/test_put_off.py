"""More requests in one turn of the loop than it begins: who waits, for how long, and what may happen meanwhile."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from typing import Any, cast

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from lbproxy.core import ledger
from lbproxy.core.account import CROWD
from lbproxy.core.spec import ListenerTimeouts
from lbproxy.dataplane import flow
from lbproxy.dataplane.downstream import AWAIT, Downstream
from lbproxy.dataplane.plane import monotonic
from lbproxy.dataplane.turn import MOST
from tests.dataplane.harness import (
    PATIENCE_S,
    Plane,
    Talk,
    answer,
    backend,
    pool_of,
    read_head,
    request,
    running,
)
from tests.loops import on_both_loops

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def echoing(heads: list[bytes] | None = None) -> Talk:
    """A backend that answers with the target, and keeps the heads that it reads."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            if heads is not None:
                heads.append(head)
            await reader.readexactly(length_of(head))
            writer.write(answer(head.split(b" ")[1]))

    return talk


def length_of(head: bytes) -> int:
    found = re.search(rb"content-length: (\d+)", head.lower())
    return int(found[1]) if found else 0


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The status line and the body."""
    async with asyncio.timeout(PATIENCE_S):
        head = await read_head(reader)
        return head.split(b"\r\n")[0], await reader.readexactly(length_of(head))


def fill(plane: Plane) -> None:
    """Let this turn have begun as much as it begins."""
    while plane.plane._plane.turn.admit():
        pass


def hold(plane: Plane, side: Downstream, octets: bytes) -> None:
    """Let these octets come in a turn that is full."""
    fill(plane)
    side.data_received(octets)
    assert side.is_put_off


async def clients_of(plane: Plane, number: int) -> tuple[list[Streams], list[Downstream]]:
    """Clients, and the proxy's side of each."""
    streams: list[Streams] = []
    sides: list[Downstream] = []
    connections = plane.plane._listeners["l"].connections
    for count in range(1, number + 1):
        streams.append(await plane.connect())
        await plane.settled(lambda count=count: len(connections) == count)  # type: ignore[misc]
        sides.extend(connections - set(sides))
    return streams, sides


async def one_client(plane: Plane) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Downstream]:
    ((reader, writer),), (side,) = await clients_of(plane, 1)
    return reader, writer, side


def get(target: str, key: bytes = b"kim") -> bytes:
    return request(target=target, close=False, key=key)


@on_both_loops
async def test_a_turn_begins_so_many_requests_and_the_others_in_the_order_in_which_they_came() -> None:
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        streams, sides = await clients_of(plane, 100)
        for number, side in enumerate(sides):
            side.data_received(get(f"/{number}."))
        begun = [sum(side.mode != AWAIT for side in sides)]
        while begun[-1] < 100:
            await asyncio.sleep(0)
            has_begun = [side.mode != AWAIT or side.exchange.target != b"" for side in sides]
            begun.append(sum(has_begun))
            assert has_begun == sorted(has_begun, reverse=True)
        assert begun[0] in range(MOST - CROWD + 1, MOST + 1)  # a few of the turns before may count
        assert all(after - before <= MOST for before, after in pairwise(begun))
        for number, (reader, writer) in enumerate(streams):
            await read_head(reader)
            assert await reader.readuntil(b".") == b"/%d." % number
            writer.close()
        assert plane.pool_cell(ledger.POOL_REQUESTS + 1) == 100


@on_both_loops
async def test_answers_do_not_wait_for_requests_that_were_put_off() -> None:
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        streams, sides = await clients_of(plane, 200)
        sides[0].data_received(get("/."))
        await streams[0][0].readuntil(b"/.")
        for side in sides:
            side.data_received(get("/."))
        upstream = sides[0].exchange.upstream
        assert upstream is not None
        upstream.data_received(answer(b"early"))
        assert sides[0].unsent.endswith(b"early")
        await asyncio.sleep(0)
        assert sides[0].unsent == b""
        assert sum(side.is_put_off for side in sides) >= 200 - 2 * MOST
        await streams[0][0].readuntil(b"early")
        for reader, writer in streams[1:]:
            await reader.readuntil(b"/.")
            writer.close()
        streams[0][1].close()


@on_both_loops
async def test_few_requests_are_never_put_off() -> None:
    """Also when they are many over time: what earlier turns have begun does not count for long."""
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        reader, writer, side = await one_client(plane)
        for number in range(4 * MOST):
            side.data_received(get(f"/{number}."))
            assert not side.is_put_off
            await reader.readuntil(b"/%d." % number)
        writer.close()


@on_both_loops
async def test_what_was_put_off_takes_the_time_from_when_it_came() -> None:
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        reader, writer, side = await one_client(plane)

        async def timed(is_full: bool) -> tuple[float, int, int]:
            """How long a request took as its client sees it, and the durations of it and its attempt, in us."""
            sums = [
                plane.pool_cell(histogram + ledger.DURATION_SUM)
                for histogram in (ledger.POOL_DURATION, ledger.POOL_FIRST_BYTE)
            ]
            before = monotonic()
            if is_full:
                hold(plane, side, get("/."))
                passes(0.02)
            else:
                side.data_received(get("/."))
            await read_answer(reader)
            elapsed = (monotonic() - before) * 1e6
            return (
                elapsed,
                plane.pool_cell(ledger.POOL_DURATION + ledger.DURATION_SUM) - sums[0],
                plane.pool_cell(ledger.POOL_FIRST_BYTE + ledger.DURATION_SUM) - sums[1],
            )

        for is_full in (True, True, False):
            elapsed, duration, attempt = await timed(is_full)
            assert attempt <= duration <= elapsed
            assert duration >= attempt + (19_000 if is_full else 0)
        assert plane.pool_cell(ledger.POOL_REQUESTS + 1) == 3
        writer.close()


@on_both_loops
async def test_nobody_passes_those_who_were_put_off() -> None:
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        streams, sides = await clients_of(plane, 2 * MOST + 1)
        fill(plane)
        for side in sides[:-1]:
            side.data_received(get("/."))
        while sides[0].is_put_off:  # noqa: ASYNC110  # turns of the loop are what is counted
            await asyncio.sleep(0)
        assert sides[-2].is_put_off
        sides[-1].data_received(get("/late."))
        assert sides[-1].is_put_off
        for reader, writer in streams:
            await read_answer(reader)
            writer.close()


@on_both_loops
async def test_a_head_in_pieces_that_was_put_off_takes_the_time_from_its_end() -> None:
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        reader, writer, side = await one_client(plane)
        fill(plane)
        octets = get("/.")
        side.data_received(octets[:20])
        assert side.is_put_off
        await plane.settled(lambda: not side.is_put_off)
        passes(0.02)
        side.data_received(octets[20:])
        await reader.readuntil(b"/.")
        assert plane.pool_cell(ledger.POOL_DURATION + ledger.DURATION_SUM) < 20_000
        writer.close()


def passes(seconds: float) -> None:
    """Let time pass, and nothing else happen."""
    until = monotonic() + seconds
    while monotonic() < until:
        pass


@pytest.mark.parametrize("lines", [b"\r\n", b"\r", b"\r\n\r\n", b"\r\n\r"])
@pytest.mark.parametrize("is_behind", [True, False])
@on_both_loops
async def test_empty_lines_that_were_held_are_not_the_beginning_of_the_next_request(
    lines: bytes, is_behind: bool
) -> None:
    """Some clients send them behind a request (RFC 9112 2.2)."""
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        reader, writer, side = await one_client(plane)
        if is_behind:
            side.data_received(get("/first.") + lines)
            await read_answer(reader)
        else:
            hold(plane, side, lines)
        await plane.settled(lambda: not side.is_put_off)
        before = plane.pool_cell(ledger.POOL_DURATION + ledger.DURATION_SUM)
        passes(0.05)
        side.data_received((b"\n" if lines.endswith(b"\r") else b"") + get("/second."))
        await read_answer(reader)
        assert plane.pool_cell(ledger.POOL_DURATION + ledger.DURATION_SUM) - before < 50_000
        writer.close()


@on_both_loops
async def test_no_time_of_a_request_runs_while_its_client_does_not_take_what_it_got_before() -> None:
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        reader, writer, side = await one_client(plane)
        hold(plane, side, get("/."))
        side.pause_writing()
        await plane.settled(lambda: not side.is_put_off)
        passes(0.05)
        side.resume_writing()
        await reader.readuntil(b"/.")
        assert plane.pool_cell(ledger.POOL_DURATION + ledger.DURATION_SUM) < 50_000
        writer.close()


@on_both_loops
async def test_who_takes_what_it_got_does_not_pass_those_who_were_put_off() -> None:
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        streams, sides = await clients_of(plane, 2 * MOST + 1)
        fill(plane)
        for side in sides:
            side.data_received(get("/."))
        sides[-1].pause_writing()
        sides[-1].resume_writing()
        while sides[0].is_put_off:  # noqa: ASYNC110  # turns of the loop are what is counted
            await asyncio.sleep(0)
        assert sides[-1].is_put_off
        for reader, writer in streams:
            await read_answer(reader)
            writer.close()


@pytest.mark.parametrize("event", ["is gone", "ends", "says more", "is full"])
@on_both_loops
async def test_what_a_client_does_while_it_waits_for_its_turn(event: str) -> None:
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        reader, writer, side = await one_client(plane)
        hold(plane, side, get("/first."))
        if event == "is gone":
            side.transport.abort()
            await plane.settled(lambda: side.plane.clients == 0)
            assert (side.is_put_off, served.octets, plane.lines) == (False, b"", [])
        elif event == "ends":
            assert side.eof_received()
            assert side.is_put_off
            assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"/first.")
        elif event == "says more":
            more = get("/second.") + get("/third.")
            for octet in more:
                side.data_received(bytes([octet]))
            assert (await asyncio.wait_for(reader.readuntil(b"/third."), PATIENCE_S)).count(b"200 OK") == 3
        else:
            side.pause_writing()
            await plane.settled(lambda: not side.is_put_off)
            assert side.mode == AWAIT
            side.resume_writing()
            assert (await asyncio.wait_for(reader.readuntil(b"/first."), PATIENCE_S)).count(b"200 OK") == 1
        writer.close()


@on_both_loops
async def test_no_more_is_read_of_a_client_that_is_put_off_with_much() -> None:
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        reader, writer, side = await one_client(plane)
        fill(plane)
        number = flow.HOLD // len(get("/.")) + 1
        side.data_received(get("/.") * number)
        assert side.is_put_off
        assert side.read_paused
        writer.write(get("/last."))
        for _ in range(number):
            assert (await read_answer(reader))[1] == b"/."
        assert (await read_answer(reader))[1] == b"/last."
        assert not side.read_paused
        writer.close()


@pytest.mark.parametrize("is_first", [True, False])
@on_both_loops
async def test_no_deadline_falls_on_a_client_whose_turn_has_not_come(is_first: bool) -> None:
    timeouts = ListenerTimeouts(request_head=0.05, keep_alive=0.05)
    async with backend(echoing()) as served, running(pool_of(served.port), timeouts=timeouts) as plane:
        reader, writer, side = await one_client(plane)
        if not is_first:
            side.data_received(get("/first."))
            await reader.readuntil(b"/first.")
        hold(plane, side, get("/."))
        side.pass_deadline()
        assert (await asyncio.wait_for(reader.readuntil(b"/."), PATIENCE_S)).startswith(b"HTTP/1.1 200")
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""  # the next one's falls
        writer.close()


@on_both_loops
async def test_what_was_put_off_is_answered_while_the_proxy_drains() -> None:
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        reader, writer, side = await one_client(plane)
        hold(plane, side, get("/."))
        assert await plane.plane.drain(PATIENCE_S) == 0
        octets = await reader.read()
        assert b"Connection: close" in octets
        assert octets.endswith(b"/.")
        writer.close()


class Broken:
    """A transport on which the one question fails that is asked before a held request is taken up."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def is_closing(self) -> bool:
        raise RuntimeError("no answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@on_both_loops
async def test_what_goes_wrong_with_one_that_was_put_off_is_not_the_others_affair() -> None:
    async with backend(echoing()) as served, running(pool_of(served.port)) as plane:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        streams, sides = await clients_of(plane, 3)
        fill(plane)
        for side in sides:
            side.data_received(get("/."))
            assert side.is_put_off
        sides[1].transport = cast(asyncio.Transport, Broken(sides[1].transport))
        for at in (0, 2):
            assert (await streams[at][0].readuntil(b"/.")).startswith(b"HTTP/1.1 200")
        assert await asyncio.wait_for(streams[1][0].read(), PATIENCE_S) == b""
        assert [(context["message"], str(context["exception"])) for context in told] == [
            ("a request that was put off could not be begun", "no answer")
        ]
        for _, writer in streams:
            writer.close()


_TARGETS = st.integers(0, 99_999).map(lambda number: b"/%d." % number)
_ASKED = st.one_of(
    _TARGETS.map(lambda target: (target, request(target=target.decode(), close=False))),
    st.tuples(_TARGETS, st.binary(min_size=1, max_size=40)).map(
        lambda each: (each[0], request("POST", each[0].decode(), body=each[1], close=False))
    ),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(_ASKED, min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300), st.booleans(), st.booleans()), max_size=60),
    st.booleans(),
)
def test_however_full_the_turns_are_each_client_gets_its_answers_in_order(
    asked: list[list[tuple[bytes, bytes]]], steps: list[tuple[int, int, bool, bool]], ends: bool
) -> None:
    """Pipelined requests of several clients, cut anywhere, into turns that are full or not; in the end each client has
    all its answers, and the backend has seen each request once."""

    async def scene() -> None:
        heads: list[bytes] = []
        async with backend(echoing(heads)) as served, running(pool_of(served.port)) as plane:
            streams, sides = await clients_of(plane, len(asked))
            rest = [b"".join(octets for _, octets in requests) for requests in asked]
            for who, size, is_full, is_over in [*steps, *((at, 1 << 20, True, False) for at in range(len(asked)))]:
                at = who % len(asked)
                if is_full:
                    fill(plane)
                if rest[at]:
                    sides[at].data_received(rest[at][:size])
                    rest[at] = rest[at][size:]
                if is_over:
                    await asyncio.sleep(0)
            if ends:
                for side in sides:
                    side.eof_received()
            for requests, (reader, writer) in zip(asked, streams, strict=True):
                for target, _ in requests:
                    assert await read_answer(reader) == (b"HTTP/1.1 200 OK", target)
                writer.close()
            targets = sorted(target for requests in asked for target, _ in requests)
            assert sorted(line.target for line in plane.lines) == targets
            assert sorted(head.split(b" ")[1] for head in heads) == targets
            assert all(line.status == 200 for line in plane.lines)

    uvloop.run(scene())

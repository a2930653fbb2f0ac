"""Heads at the edge of what a listener takes, and just beyond: how their octets arrive makes no difference."""

from __future__ import annotations

import asyncio
import re

import pytest

from lbproxy.core.spec import Limits, ListenerTimeouts
from tests.dataplane.harness import PATIENCE_S, answering, backend, pool_of, read_head, request, running
from tests.loops import on_both_loops

LINE = 100
HEAD = 300
LIMITS = Limits(head_bytes=HEAD, line_bytes=LINE)
FIRST = b"GET / HTTP/1.1"


def cuts(head: bytes) -> list[int]:
    """Where a head may be cut: within the first line, around the ends of all lines, and behind everything."""
    ends = [found.start() for found in re.finditer(rb"\r\n", head)]
    return sorted({cut for end in (3, *ends) for cut in range(end - 2, end + 4) if 0 < cut <= len(head)})


def long_target(size: int) -> bytes:
    """A head whose request line has so many octets."""
    return b"GET /%b HTTP/1.1\r\nHost: a\r\nX-User-ID: kim\r\n\r\n" % (b"a" * (size - len(FIRST)))


def long_field(size: int) -> bytes:
    """One with a field line of so many octets."""
    return b"%b\r\nHost: a\r\nX: %b\r\nX-User-ID: kim\r\n\r\n" % (FIRST, b"a" * (size - 3))


def long_head(size: int) -> bytes:
    """One of so many octets altogether."""
    lines = b"%b\r\nHost: a\r\nX-User-ID: kim\r\nX: %b\r\nY: %b\r\nZ: " % (FIRST, b"a" * 80, b"a" * 80)
    return lines + b"a" * (size - len(lines) - 4) + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        *((long_target(size), 200 if size <= LINE else 414) for size in range(LINE - 1, LINE + 2)),
        *((long_field(size), 200 if size <= LINE else 431) for size in range(LINE - 1, LINE + 2)),
        *((long_head(size), 200 if size <= HEAD else 431) for size in range(HEAD - 1, HEAD + 2)),
    ],
)
@on_both_loops
async def test_a_head_at_the_edge_of_the_limits_may_come_in_two_pieces_of_any_sizes(head: bytes, status: int) -> None:
    nothing = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    async with backend(answering(nothing)) as served, running(pool_of(served.port), limits=LIMITS) as plane:
        connections = plane.plane._listeners["l"].connections
        for cut in cuts(head):
            reader, writer = await plane.connect()
            await plane.settled(lambda: len(connections) == 1)
            (side,) = connections
            side.data_received(head[:cut])
            if cut < len(head):
                side.data_received(head[cut:])
            answer = await asyncio.wait_for(read_head(reader), PATIENCE_S)
            assert re.findall(rb"^HTTP/1.1 (\d+)", answer) == [b"%d" % status], head[:cut]
            writer.close()
            await plane.settled(lambda: not connections)
        assert len(plane.lines) == len(cuts(head))


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b" /%b HTTP/1.1\r\n\r\n" % (b"a" * LINE), 414),
        (b" /%b" % (b"a" * LINE), 414),
        (b" / HTTP/1.1\r\nX: %b\r\n\r\n" % (b"a" * LINE), 431),
        (b" / HTTP/1.1\r\nX: %b" % (b"a" * LINE), 431),
        (b" / HTTP/1.1\r\nX Y: 1\r\n", 400),
        (b" / HTTP/1.1\r\n\r\n", 400),  # without a host
        (b" / HTTP/1.1 1\r\nHost: a\r\n\r\n", 400),
        (b" / HTTP/1.1\r\n", 408),
    ],
)
@pytest.mark.parametrize("before", ["GET", "HEAD"])
@on_both_loops
async def test_a_refusal_has_a_body_unless_its_own_request_was_head(
    before: str, rest: bytes, status: int, method: bytes
) -> None:
    nothing = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    timeouts = ListenerTimeouts(request_head=0.01 if status == 408 else 10.0)
    async with (
        backend(answering(nothing)) as served,
        running(pool_of(served.port), limits=LIMITS, timeouts=timeouts) as plane,
    ):
        reader, writer = await plane.connect()
        writer.write(request(before, close=False))
        assert (await read_head(reader)).startswith(b"HTTP/1.1 200")
        writer.write(method + rest)
        head, _, body = (await asyncio.wait_for(reader.read(), PATIENCE_S)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        length = re.findall(rb"Content-Length: (\d+)", head)
        assert length == [b"%d" % len(body)] if method == b"GET" else (body == b"" and length != [b"0"])
        writer.close()


@on_both_loops
async def test_octets_that_begin_no_request_are_refused_with_a_body_whatever_came_before() -> None:
    nothing = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    async with backend(answering(nothing)) as served, running(pool_of(served.port)) as plane:
        octets = await plane.ask(request("HEAD", close=False) + b"\x01")
        assert re.findall(rb"HTTP/1.1 (\d+)", octets) == [b"200", b"400"]
        assert octets.endswith(b"\r\n\r\n400 Bad Request\n")

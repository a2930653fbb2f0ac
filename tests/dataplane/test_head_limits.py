"""Heads at the edge of what a listener takes, and just beyond: how their octets arrive makes no difference."""

from __future__ import annotations

import asyncio
import re

import pytest

from lbproxy.core.spec import Limits
from tests.dataplane.harness import PATIENCE_S, answering, backend, pool_of, read_head, running
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

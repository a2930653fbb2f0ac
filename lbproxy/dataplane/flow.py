"""Back-pressure: each side stops reading while the other side's send buffer is full.

A transport calls `pause_writing` when its send buffer passes the high-water mark and `resume_writing` when it has
drained; a connection answers by pausing and resuming the reading of its counterpart. So a transfer of any size holds
at most one buffer per side.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from fcntl import ioctl
from socket import SO_LINGER, SOL_SOCKET
from termios import TIOCOUTQ
from typing import Final, TypeAlias

# Octets of a send buffer at which the other side stops reading, and at which it goes on.
HIGH_WATER: Final = 262_144
LOW_WATER: Final = 65_536
# Octets that are held for an attempt that is not connected yet, or as pipelined requests, before reading stops.
HOLD: Final = 65_536

# A piece of a body: what was received, or a part of it that has not been copied.
Octets: TypeAlias = bytes | memoryview

# Octets up to which a copy takes less time than a view.
_SHORT: Final = 4096

_RESET: Final = struct.pack("ii", 1, 0)


def part(data: bytes, start: int, end: int) -> Octets:
    """The octets from `start` to `end`: a copy of few, and a view of many."""
    return data[start:end] if end - start <= _SHORT else memoryview(data)[start:end]


def pause(transport: asyncio.Transport) -> None:
    """Stop reading, unless the transport is closing or has stopped already."""
    if not transport.is_closing() and transport.is_reading():
        transport.pause_reading()


def resume(transport: asyncio.Transport) -> None:
    """Go on reading, unless the transport is closing or reads already."""
    if not transport.is_closing() and not transport.is_reading():
        transport.resume_reading()


def send(transport: asyncio.Transport, data: bytes) -> None:
    """Send octets, unless there are none or the transport is closing."""
    if data and not transport.is_closing():
        transport.write(data)


def end(transport: asyncio.Transport) -> None:
    """Say that no more will be sent. Somebody who has reset the connection, of which the loop has not read yet, cannot
    be told; some loops raise then."""
    if transport.is_closing():
        return
    try:
        transport.write_eof()
    except OSError:
        transport.abort()


def unsent(transport: asyncio.Transport) -> int:
    """Octets that the kernel still holds for the peer: not sent, or not acknowledged (SIOCOUTQ, tcp(7))."""
    socket = transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return 0
    try:
        answer = ioctl(socket.fileno(), TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(answer, sys.byteorder)


def rest(transport: asyncio.Transport) -> bytes:
    """What the kernel still holds for us of a connection that the loop has given up. A loop closes at the first write
    error, but what the peer had said before it went is there to be read. Only inside `connection_lost`."""
    socket = transport.get_extra_info("socket")
    parts = []
    try:
        while data := os.read(socket.fileno(), HIGH_WATER):
            parts.append(data)
    except OSError:
        pass  # that was all
    return b"".join(parts)


def reset(transport: asyncio.Transport) -> None:
    """Close so that the peer sees a reset and not an end: the only way to show that a body without a length is cut."""
    socket = transport.get_extra_info("socket")
    if socket is not None and not transport.is_closing():
        try:
            socket.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
        except OSError:
            pass  # already gone, or not a socket that knows lingering
    transport.abort()

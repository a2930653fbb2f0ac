"""The capturing backend: keeps every octet it receives, judges nothing by any proxy's parser, answers by script."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Callable

from tests.wire.case import (
    AwaitBody,
    AwaitEof,
    AwaitOctets,
    AwaitTunnel,
    BackendStep,
    Case,
    Close,
    Echo,
    HalfClose,
    Pause,
    Reset,
    Trickle,
    Tunnel,
    answer,
    ok,
)
from tests.wire.http1 import Message, Stream

_MARK = re.compile(rb"~[0-9a-f]{6}~")
_NAMED = re.compile(rb"(~[0-9a-f]{6}~)(?:/([a-z0-9\-]+))?")


def reset(transport: asyncio.Transport) -> None:
    """End a connection with RST."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def stock_answer(name: str) -> bytes:
    """What a request gets for which its case has no answer of its own."""
    return ok(f"answer to {name}".encode(), f"X-Answer: {name}")


class Link(asyncio.Protocol):
    """One connection from the proxy."""

    def __init__(self, backend: Backend) -> None:
        self.stream = Stream()
        self.received = bytearray()
        self._backend = backend
        self._change = asyncio.Event()
        self._is_over = False
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._backend.links.append(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.stream.feed(data)
        self._change.set()

    def eof_received(self) -> bool:
        self._is_over = True
        self._change.set()
        return True  # what is still to be sent may be sent

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._change.set()

    # The script.

    async def _until(self, test: Callable[[], bool]) -> bool:
        """Wait for the test or for the end of the connection; returns whether the test holds."""
        while not test() and not self._is_over:
            self._change.clear()
            await self._change.wait()
        return test()

    async def _arrived(self, index: int) -> bool:
        """Wait for the beginning of request number `index`."""
        return await self._until(lambda: len(self.stream.messages) > index)

    async def _heard(self, message: Message, whole: bool = True) -> None:
        """Wait until a request is whole, or its head is, or nothing more can be made of it."""
        await self._until(lambda: (message.is_complete if whole else message.has_head) or bool(self.stream.trouble))

    async def _serve(self) -> None:
        assert self._transport is not None
        messages, index = self.stream.messages, 0
        while await self._arrived(index):
            message = messages[index]
            await self._heard(message, whole=False)
            case, name = self._backend.whose(message)
            if message.has_head and not (case and case.early):
                await self._heard(message)
            if not message.has_head or (self.stream.trouble and not message.is_complete):
                self._transport.write(answer("400 Bad Request", "Content-Length: 0", "Connection: close"))
                break
            if self._is_over and not message.is_complete:
                break
            if not await self._perform(message, self._script(case, name, message)):
                return
            if b"close" in message.members(b"connection") or self.stream.is_tunnel:
                break
            await self._heard(message)
            index += 1
        self._transport.close()

    def _script(self, case: Case | None, name: str, message: Message) -> tuple[BackendStep, ...]:
        given = case.answer.get(name, case.answer.get("*")) if case is not None else None
        if given is None:
            stock = stock_answer(name or "main")
            given = stock[: stock.index(b"\r\n\r\n") + 4] if message.method == b"HEAD" else stock
        return (given,) if isinstance(given, bytes) else given

    async def _perform(self, message: Message, script: tuple[BackendStep, ...]) -> bool:
        """Carry the steps out; returns whether the connection is still of use."""
        assert self._transport is not None
        mark = self._backend.mark_of(message)
        for step in script:
            match step:
                case bytes():
                    self._transport.write(step.replace(b"~~", mark))
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Trickle(octets, size):
                    for start in range(0, len(octets), size):
                        self._transport.write(octets[start : start + size])
                        await asyncio.sleep(0.001)
                case AwaitBody():
                    await self._until(lambda: message.is_complete)
                case AwaitOctets(count):
                    await self._received(message, count)
                case AwaitEof():
                    await self._until(lambda: False)
                case Tunnel():
                    self.stream.switch()
                case AwaitTunnel(count):
                    await self._tunnelled(count)
                case Echo():
                    await self._echo()
                case HalfClose():
                    with contextlib.suppress(OSError):  # the proxy may have broken off just now
                        self._transport.write_eof()
                case Close():
                    self._transport.close()
                    return False
                case Reset():
                    reset(self._transport)
                    return False
        return not self._transport.is_closing()

    async def _echo(self) -> None:
        assert self._transport is not None
        sent = 0
        while await self._tunnelled(sent + 1):
            self._transport.write(bytes(self.stream.tunnel[sent:]))
            sent = len(self.stream.tunnel)

    async def _received(self, message: Message, count: int) -> bool:
        return await self._until(lambda: len(message.body) >= count)

    async def _tunnelled(self, count: int) -> bool:
        return await self._until(lambda: len(self.stream.tunnel) >= count)

    def abort(self) -> None:
        """End it at once."""
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()


class Backend:
    """Listens on loopback; `links` are all connections it ever had, `cases` the runs it knows by their mark."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.cases: dict[bytes, Case] = {}
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> int:
        """Begin to listen; returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Link(self), "127.0.0.1", port, backlog=1024)
        chosen: int = self._server.sockets[0].getsockname()[1]
        return chosen

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in self.links:
            link.abort()

    def mark_of(self, message: Message) -> bytes:
        """The mark that stands in a request, b"" if there is none."""
        match = _MARK.search(bytes(message.raw))
        return match[0] if match is not None else b""

    def whose(self, message: Message) -> tuple[Case | None, str]:
        """The case a request belongs to and the request's own name."""
        match = _NAMED.search(bytes(message.raw))
        if match is None:
            return None, ""
        return self.cases.get(match[1]), (match[2] or b"").decode()

    def holding(self, mark: bytes) -> list[Link]:
        """The connections that brought octets of this run."""
        return [link for link in self.links if mark in link.received]

    def strays(self) -> list[Message]:
        """What arrived without the mark of any run."""
        return [
            message
            for link in self.links
            for message in link.stream.messages
            if message.raw and self.mark_of(message) not in self.cases
        ]

"""Runs cases against a proxy: plays the client, lets the backend play its part, and gathers what both have seen."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.wire.backend import Backend, reset
from tests.wire.case import (
    MUST,
    AwaitFinals,
    AwaitHeads,
    AwaitTunnel,
    Case,
    ClientStep,
    HalfClose,
    Pause,
    Reset,
    Trickle,
    case,
    get,
    post,
)
from tests.wire.expect import ALWAYS, Seen, forwarded, named
from tests.wire.http1 import Message, Stream

BYSTANDER = case(
    "bystander",
    "9112 11.2",
    MUST,
    (get(path="/~~/one"), AwaitFinals(1), post(b"hello", path="/~~/two") + get(path="/~~/three")),
    named("one", "two", "three"),
    forwarded(3),
    methods="GET POST GET",
    patience=5,
)
SETTLE_S = 0.12  # how long nothing more must come before a client believes that nothing more comes
CLOSE_S = 1.0  # how long a client waits for an end that it has reason to expect
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Result:
    """A case and how it went. `faults` is empty when it passed."""

    case: Case
    seen: Seen
    faults: tuple[str, ...]

    @property
    def has_passed(self) -> bool:
        return not self.faults


class Client(asyncio.Protocol):
    """One raw connection to the proxy."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.received = bytearray()
        self.ended: str = ""
        self._change = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._has_reset = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.stream.feed(data)
        self._change.set()

    def eof_received(self) -> bool:
        self._end("fin")
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._end("rst" if isinstance(error, ConnectionError) else "fin")

    def _end(self, how: str) -> None:
        if not self.ended:
            self.ended = how
            self.stream.close()
        self._change.set()

    @property
    def is_gone(self) -> bool:
        """Whether nothing more can be sent: the connection is broken, not just half-closed by the proxy."""
        return self._transport is None or self._transport.is_closing()

    async def until(self, test: Callable[[], bool], patience: float) -> bool:
        """Wait until the test holds, the connection ends or patience runs out; returns whether the test holds."""
        deadline = asyncio.get_running_loop().time() + patience
        while not test() and not self.ended:
            self._change.clear()
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._change.wait(), left)
        return test()

    async def perform(self, step: ClientStep, mark: bytes, patience: float) -> None:
        """Carry out one step."""
        assert self._transport is not None
        match step:
            case bytes():
                self._transport.write(step.replace(b"~~", mark))
            case Trickle(octets, size):
                filled = octets.replace(b"~~", mark)
                for start in range(0, len(filled), size):
                    self._transport.write(filled[start : start + size])
                    await asyncio.sleep(0.001)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case AwaitHeads(count):
                await self.until(lambda: sum(message.has_head for message in self.stream.messages) >= count, patience)
            case AwaitFinals(count):
                await self.until(lambda: self._whole() >= count, patience)
            case AwaitTunnel(count):
                await self.until(lambda: len(self.stream.tunnel) >= count, patience)
            case HalfClose():
                if not self._transport.is_closing():
                    with contextlib.suppress(OSError):  # the proxy may have broken off just now
                        self._transport.write_eof()
            case Reset():
                self._has_reset = True
                reset(self._transport)

    async def settle(self, case: Case) -> None:
        """Wait until all that is to come has come."""
        if self._has_reset:
            return
        wanted = len(case.methods)
        await self.until(lambda: self._whole() >= wanted or bool(self.stream.trouble), case.patience)
        if case.awaits_close:
            await self.until(lambda: False, CLOSE_S)
        while not self.ended:
            count = len(self.received)
            await self._more(count)
            if len(self.received) == count:
                break

    def _whole(self) -> int:
        return sum(message.is_complete for message in self.stream.finals)

    async def _more(self, count: int) -> bool:
        return await self.until(lambda: len(self.received) > count, SETTLE_S)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def play(case: Case, backend: Backend, host: str, port: int) -> Result:
    """Run one case."""
    mark = b"~%06x~" % next(_numbers)
    backend.cases[mark] = case
    stream = Stream(case.methods)
    loop = asyncio.get_running_loop()
    client = Client(stream)
    try:
        await loop.create_connection(lambda: client, host, port)
    except OSError as error:
        return Result(case, Seen(mark, stream), (f"no connection to the proxy: {error}",))
    for step in case.send:
        if client.is_gone:
            break
        await client.perform(step, mark, case.patience)
    await client.settle(case)
    end = client.ended or "open"
    client.close()
    await asyncio.sleep(0.03)  # octets on their way to the backend may still arrive
    seen = gather(mark, client, end, backend)
    faults = tuple(f"not so: {check.text}: {found}" for check in (*case.expect, *ALWAYS) if (found := check.test(seen)))
    return Result(case, seen, faults)


def gather(mark: bytes, client: Client, end: str, backend: Backend) -> Seen:
    """What a run has left on both sides."""
    seen = Seen(
        mark, client.stream, bytes(client.received), "rst" if end == "rst" else "fin" if end == "fin" else "open"
    )
    for link in backend.holding(mark):
        seen.connections += 1
        mine = [message for message in link.stream.messages if mark in message.raw]
        seen.forwarded += mine
        if link.stream.trouble and (not mine or link.stream.messages[-1] in mine):
            seen.trouble.append(f"the backend got {link.stream.trouble}")
        seen.tunnel += bytes(link.stream.tunnel)
    seen.forwarded.sort(key=lambda message: message.arrival)
    return seen


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a corpus: the results in the order of the cases, those of the bystander, and what reached the
    backend without belonging to anybody."""

    results: list[Result]
    bystander: list[Result]
    strays: list[Message]


async def play_all(
    cases: Sequence[Case], backend: Backend, host: str, port: int, jobs: int = 32, retry: bool = True
) -> Played:
    """Run the cases, `jobs` at a time, then those that must run alone; `retry` runs each failure again among few, so
    that neither a neighbour nor a busy machine counts against it. All the while a bystander sends good requests."""
    results: dict[str, Result] = {}
    over = asyncio.Event()
    watch = asyncio.create_task(_stand_by(backend, host, port, over))

    async def run(some: Iterable[Case], width: int) -> None:
        gate = asyncio.Semaphore(width)

        async def guarded(case: Case) -> None:
            async with gate:
                results[case.id] = await play(case, backend, host, port)

        await asyncio.gather(*map(guarded, some))

    await run((case for case in cases if not case.alone), jobs)
    if retry:
        await run([result.case for result in results.values() if not result.has_passed], 4)
    over.set()
    bystander = await watch
    await run((case for case in cases if case.alone), 1)
    return Played([results[case.id] for case in cases], bystander, backend.strays())


async def _stand_by(backend: Backend, host: str, port: int, over: asyncio.Event) -> list[Result]:
    """Be somebody whom the bad requests of others are nothing to: every one of these must pass."""
    results = []
    while not over.is_set():
        results.append(await play(BYSTANDER, backend, host, port))
    return results

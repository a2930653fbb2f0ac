"""A data plane on real sockets in the test's own loop, in front of backends that say exactly what a test tells them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from lbproxy.core import ledger
from lbproxy.core.balance import Pool
from lbproxy.core.exchange import Finished
from lbproxy.core.hashing import hash_key
from lbproxy.core.ledger import RowKey, RowKind
from lbproxy.core.snapshot import States, build_snapshot
from lbproxy.core.spec import (
    Address,
    BackendSpec,
    Config,
    HeaderPolicy,
    Limits,
    ListenerSpec,
    ListenerTimeouts,
    PoolSpec,
    Route,
    TracingSpec,
)
from lbproxy.core.trace import Trace
from lbproxy.dataplane.listener import DataPlane

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

PATIENCE_S = 5.0


def lay_out(config: Config) -> tuple[dict[RowKey, int], int]:
    """Rows one behind the other, and how many cells they take."""
    rows: dict[RowKey, int] = {}
    end = 0

    def add(key: RowKey, kind: RowKind) -> None:
        nonlocal end
        rows[key] = end
        end += ledger.row_width(kind)

    add(("worker",), "worker")
    for listener in config.listeners:
        add(("listener", listener.name), "listener")
    for pool in config.pools:
        add(("pool", pool.name), "pool")
        for backend in pool.backends:
            add(("backend", pool.name, backend.name), "backend")
        add(("sketch", pool.name), "sketch")
        if pool.on_move == "pin":
            add(("homes", pool.name), "homes")
    return rows, end


@dataclass
class Line:
    """What a log keeps of an ended exchange."""

    method: bytes
    target: bytes
    status: int
    pool: str
    backend: str
    decision: str
    reason: str
    attempts: int
    request_bytes: int
    response_bytes: int
    key: bytes | None
    client: str
    upgraded: bool
    connect_us: int
    first_byte_us: int
    attempt_us: int
    trace: Trace | None
    trace_id: bytes


@dataclass
class Plane:
    """A running data plane and everything a test may ask it."""

    plane: DataPlane
    config: Config
    rows: dict[RowKey, int]
    cells: list[int]
    port: int
    peer: list[int]
    lines: list[Line] = field(default_factory=list)

    @property
    def pool(self) -> Pool:
        """The pool "p", as it is now."""
        return self.plane._plane.snapshot.pools["p"]

    def key_of(self, name: str) -> bytes:
        """A key that this backend owns."""
        pool = self.pool
        return next(b"u%d" % n for n in range(1000) if pool.owner(hash_key(b"u%d" % n)) is pool.backends[name])

    def cell(self, *key: str, column: int) -> int:
        return self.cells[self.rows[key] + column]

    def pool_cell(self, column: int) -> int:
        return self.cell("pool", "p", column=column)

    def backend_cell(self, name: str, column: int) -> int:
        return self.cell("backend", "p", name, column=column)

    def retries(self, reason: str, outcome: str) -> int:
        at = ledger.RETRY_REASONS.index(reason) * len(ledger.RETRY_OUTCOMES) + ledger.RETRY_OUTCOMES.index(outcome)
        return self.pool_cell(ledger.POOL_RETRIES + at)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, octets: bytes) -> bytes:
        """Send octets, and return everything that comes until the other side closes."""
        reader, writer = await self.connect()
        writer.write(octets)
        try:
            return await asyncio.wait_for(reader.read(), PATIENCE_S)
        finally:
            writer.close()

    async def settled(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, at most `PATIENCE_S` seconds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110  # the condition is a number in a cell, nobody signals it
                await asyncio.sleep(0.001)

    def keep(self, exchange: Finished) -> None:
        self.lines.append(
            Line(
                exchange.method,
                exchange.target,
                exchange.status,
                exchange.pool_name,
                exchange.backend_name,
                ledger.DECISIONS[exchange.decision] if exchange.decision >= 0 else "",
                exchange.reason,
                exchange.attempts,
                exchange.request_bytes,
                exchange.response_bytes,
                exchange.key,
                exchange.client,
                exchange.upgraded,
                exchange.connect_us,
                exchange.first_byte_us,
                exchange.attempt_us,
                exchange.trace,
                exchange.trace_id,
            )
        )


def pool_of(*ports: int) -> PoolSpec:
    """A pool "p" of backends b0, b1, ... on these ports."""
    return PoolSpec("p", tuple(BackendSpec(f"b{i}", Address("127.0.0.1", port)) for i, port in enumerate(ports)))


@asynccontextmanager
async def running(
    *pools: PoolSpec,
    routes: tuple[Route, ...] | None = None,
    headers: HeaderPolicy | None = None,
    tracing: TracingSpec | None = None,
    limits: Limits | None = None,
    timeouts: ListenerTimeouts | None = None,
    trusted: tuple[str, ...] = (),
    report: Callable[[str, str, str], None] | None = None,
    has_peer: bool = False,
) -> AsyncIterator[Plane]:
    """A data plane with one listener "l" and these pools. `has_peer`: there is another worker, whose cells a test
    writes."""
    listener = ListenerSpec(
        "l", Address("127.0.0.1", 0), timeouts or ListenerTimeouts(), limits or Limits(), trusted_proxies=trusted
    )
    config = Config(
        (listener,),
        pools,
        routes or (Route(pools[0].name),),
        headers=headers or HeaderPolicy(),
        tracing=tracing or TracingSpec(),
    )
    rows, size = lay_out(config)
    cells, peer = [0] * size, [0] * size
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    sock.listen(512)
    holder: list[Plane] = []
    plane = DataPlane(
        asyncio.get_running_loop(),
        build_snapshot(config, 1, rows, cells=cells, peers=[peer] if has_peer else []),
        cells,
        lambda exchange: holder[0].keep(exchange),
        report,
    )
    holder.append(Plane(plane, config, rows, cells, sock.getsockname()[1], peer))
    await plane.start({"l": sock})
    try:
        yield holder[0]
    finally:
        # Whoever has just closed is seen off. Nobody else is waited for: a test asks for what it wants to know.
        for _ in range(20):
            if not plane.open_connections():
                break
            await asyncio.sleep(0.001)
        await plane.drain(0)


def reload(running_plane: Plane, config: Config, generation: int = 2, states: States | None = None) -> None:
    """Swap in another configuration with the same rows, and these states with it."""
    running_plane.plane.apply(
        build_snapshot(
            config,
            generation,
            running_plane.rows,
            running_plane.plane._plane.snapshot,
            cells=running_plane.cells,
        ),
        states or {},
    )


@dataclass
class Backend:
    """A raw backend: what each connection received, in order, and how many there were."""

    port: int
    received: list[bytearray]

    @property
    def octets(self) -> bytes:
        return bytes(b"".join(bytes(part) for part in self.received))


@asynccontextmanager
async def backend(talk: Talk) -> AsyncIterator[Backend]:
    """A backend whose every connection is handled by `talk`; what it reads through the reader is recorded."""
    received: list[bytearray] = []
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        log = bytearray()
        received.append(log)
        original = reader.feed_data

        def feed(data: bytes) -> None:
            log.extend(data)
            original(data)

        reader.feed_data = feed  # type: ignore[method-assign,assignment]
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield Backend(server.sockets[0].getsockname()[1], received)
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def answering(*answers: bytes, close: bool = False) -> Talk:
    """A backend that reads a head (and a body of Content-Length) and gives the next of these answers, on each
    connection from the first again; after the last it repeats it, or closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turn = 0
        while True:
            head = await read_head(reader)
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if length:
                await reader.readexactly(int(length[0].split(b":")[1]))
            elif b"transfer-encoding: chunked" in head.lower():
                await reader.readuntil(b"0\r\n\r\n")
            writer.write(answers[min(turn, len(answers) - 1)])
            await writer.drain()
            turn += 1
            if close:
                return

    return talk


def waiting_for(gate: asyncio.Event) -> Talk:
    """A backend that answers no request before the gate is open."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_head(reader)
            await gate.wait()
            writer.write(answer())

    return talk


@contextmanager
def refusing() -> Iterator[int]:
    """A port that nobody listens on, kept from others meanwhile."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def answer(body: bytes = b"ok", status: str = "200 OK", extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status.encode(), len(body), extra, body)


def status(octets: bytes) -> int:
    """That of the first answer in them."""
    return int(octets[9:12])


def request(
    method: str = "GET",
    target: str = "/",
    extra: bytes = b"",
    body: bytes = b"",
    close: bool = True,
    key: bytes = b"kim",
) -> bytes:
    """A request with a key, that closes the connection unless told otherwise."""
    lines = b"%b %b HTTP/1.1\r\nHost: a.example\r\nX-User-ID: %b\r\n" % (method.encode(), target.encode(), key)
    if close:
        lines += b"Connection: close\r\n"
    if body:
        lines += b"Content-Length: %d\r\n" % len(body)
    return lines + extra + b"\r\n" + body

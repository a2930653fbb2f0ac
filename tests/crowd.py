"""Many users at once against a proxy, each on a connection of its own, and backends that are processes to be killed.

Raw HTTP over streams: a crowd of hundreds must leave the machine to what is tested.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

from tests.running import PATIENCE_S

_BACKEND = """
import asyncio, os, re, signal, sys
NAME = sys.argv[1].encode()
ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%b" % (len(NAME), NAME)
SICK = b"HTTP/1.1 503 Service Unavailable\\r\\nContent-Length: 0\\r\\n\\r\\n"
LENGTH = re.compile(rb"\\r\\ncontent-length: (\\d+)\\r\\n", re.I)
record = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if len(sys.argv) > 3 else -1
is_well = True

async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            length = LENGTH.search(head)
            if length:
                await reader.readexactly(int(length[1]))
            if record >= 0 and not head.startswith(b"GET /healthz "):
                os.write(record, head.split(b" ")[1] + b"\\n")
            writer.write(ANSWER if is_well or not head.startswith(b"GET /healthz ") else SICK)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

def flip():
    global is_well
    is_well = not is_well

async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, flip)
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[2]), backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


class BackendProcesses:
    """Backends in processes of their own, by name. They answer everything with their name; a sick one says so when its
    health is asked about. What they have been asked for, they write into the file `record`, if there is one."""

    def __init__(self, record: Path | None = None) -> None:
        self.ports: dict[str, int] = {}
        self._record = [str(record)] if record is not None else []
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str, port: int = 0) -> None:
        """Start one, on a port of the system's choice."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", _BACKEND, name, str(port), *self._record), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        self._processes[name] = process
        self.ports[name] = int(await process.stdout.readline())

    async def end(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End one at once."""
        process = self._processes.pop(name)
        process.send_signal(number)
        await process.wait()

    def send(self, name: str, number: signal.Signals) -> None:
        """Send one a signal; SIGUSR1 makes a well one sick, or a sick one well."""
        self._processes[name].send_signal(number)

    async def end_all(self) -> None:
        for name in list(self._processes):
            await self.end(name)


@asynccontextmanager
async def backend_processes(names: Iterable[str], record: Path | None = None) -> AsyncIterator[BackendProcesses]:
    """These backends, started together."""
    made = BackendProcesses(record)
    try:
        await asyncio.gather(*(made.start(name) for name in names))
        made.ports = dict(sorted(made.ports.items()))
        yield made
    finally:
        await made.end_all()


class Crowd:
    """Users that ask without pause. `way` is where each was served, one after the other; `failed` what went wrong."""

    def __init__(self, port: int, users: Sequence[str], pause_s: float = 0.0) -> None:
        self.way: dict[str, list[str]] = {user: [] for user in users}
        self.failed: list[str] = []
        self._port = port
        self._pause_s = pause_s
        self._is_over = False
        self._tasks = [asyncio.create_task(self._ask(user)) for user in users]

    @property
    def answered(self) -> int:
        return sum(map(len, self.way.values()))

    def moves(self, user: str) -> list[str]:
        """The backends of a user in order, each named once per stay."""
        return [name for name, _ in groupby(self.way[user])]

    async def until_each_answered(self, more: int) -> None:
        """Until every user has had so many more answers."""
        goals = {user: len(answers) + more for user, answers in self.way.items()}
        async with asyncio.timeout(PATIENCE_S):
            while any(len(self.way[user]) < goal for user, goal in goals.items()):  # noqa: ASYNC110  # it has no event
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Let everybody have their last answer."""
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _ask(self, user: str) -> None:
        request = f"GET /{user} HTTP/1.1\r\nHost: crowd\r\nX-User-ID: {user}\r\n\r\n".encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while not self._is_over:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    writer.write(request)
                    self.way[user].append(await _answer(reader))
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                self.failed.append(f"{user}: {type(error).__name__}: {error}")
                writer.close()
                if self._is_over:
                    return
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> str:
    """The body of an answer; ValueError for one that is not 200."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status, *fields = head.split("\r\n")
    length = next(int(line.partition(":")[2]) for line in fields if line.lower().startswith("content-length:"))
    body = (await reader.readexactly(length)).decode()
    if " 200 " not in status:
        raise ValueError(f"{status}: {body.strip()}")
    return body

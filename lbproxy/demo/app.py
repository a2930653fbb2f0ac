"""`lbproxy demo`: backends, a real proxy and traffic, and where it goes, with nothing to set up."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from lbproxy import open_files
from lbproxy.control.source import Source
from lbproxy.core.hashing import hash_key
from lbproxy.core.spec import Address
from lbproxy.demo.backends import KEY_HEADER, DemoBackend
from lbproxy.demo.drama import Drama
from lbproxy.demo.table import Picture, Screen, picture
from lbproxy.demo.traffic import HOT_USER, Traffic
from lbproxy.ending import run_to_end
from lbproxy.exits import BAD, OK
from lbproxy.observe.journal import Stderr
from lbproxy.server import Server
from lbproxy.sockets import CannotListen, listen
from lbproxy.supervisor import CannotStart

PORT: Final = 8080
ADMIN_PORT: Final = 9901
MAX_WORKERS: Final = 2
REDRAW_S: Final = 1.0
LEAST_S: Final = 0.05  # what is left of a run after its last picture is not worth another
POOL: Final = "demo"

_CONFIG: Final = """\
version: 1
listen:
  bind: 127.0.0.1:{port}
  trusted_proxies: [127.0.0.1]   # trusted, so that answers say who decided what
  limits: {{connections: 1000}}
workers: {workers}
pools:
  {pool}:
    bounded_load: {{min_gap: 12}}   # the demo's own load is small; chance alone shall not make it spill
    health: {{path: /healthz, interval: 500ms, hold: 1s, longest_hold: 3s, forgive: 20s}}
    ejection: {{base: 3s}}
    backends:
{backends}
headers: {{debug_headers: true}}
admin: {{listen: "127.0.0.1:{admin_port}", token_file: "{token_file}"}}
log: {{level: warning, access: {{path: ""}}}}
drain: {{timeout: 300ms}}
"""

_LEAD: Final = "{count} behind http://{proxy}, sticky by {header}. Try, in another terminal:"

# What can be tried, and what it shows.
_TRIALS: Final = (
    ("curl -i -H '{header}: ann' http://{proxy}/", "ann's backend, the same every time"),
    ('for u in ann bob eve kim; do curl -s -H "{header}: $u" http://{proxy}/; done', ""),
    ("curl -N -H '{header}: ann' http://{proxy}/stream", "server-sent events"),
    ("curl -H '{header}: ann' -T FILE http://{proxy}/upload", "an upload"),
    ("curl 'http://{proxy}/slow?seconds=2'", "a slow answer, and no user: the least loaded backend"),
    ("{python} -m websockets ws://{proxy}/ws", "a WebSocket that echoes"),
    ("curl http://{admin}/metrics", "what Prometheus sees"),
    ("curl http://{admin}/v1/pools", "the same as JSON"),
)

_END: Final = """\
Watch it in a browser: http://{admin}/    (the token for changing weights there: {token})
{drama}Ctrl-C ends it.
"""


_DRAMA: Final = "Now and then a user runs hot, or a backend dies and returns; --calm does without. "


def run(seconds: float | None, backends: int, port: int | None, is_calm: bool = False) -> int:
    """Run the demo for so long, or until Ctrl-C; returns the exit code. `port` None: 8080, or a free one. `is_calm`:
    nobody runs hot, and no backend dies."""
    open_files.raise_limit()
    try:
        return run_to_end(_main(seconds, backends, port, is_calm))
    except CannotStart as error:
        print(f"lbproxy: {error}", file=sys.stderr)
        return BAD


async def _main(seconds: float | None, count: int, port: int | None, is_calm: bool) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        backends = [DemoBackend(f"b{number}") for number in range(1, count + 1)]
        for backend in backends:
            stack.push_async_callback(backend.stop)
            await backend.start()
        token = secrets.token_urlsafe(9)
        token_file = Path(stack.enter_context(TemporaryDirectory(prefix="lbproxy-demo-"))) / "token"
        token_file.write_text(token)
        server = await _started(stop, partial(_config, backends, port, token_file))
        stack.push_async_callback(server.stop)
        if not stop.is_set():
            _invite(server, len(backends), port, token, is_calm)
            await _unless(stop, _play(server, seconds, None if is_calm else backends))
    return OK


async def _started(stop: asyncio.Event, configuration: Callable[[], str]) -> Server:
    """A proxy that has been started, or told to stop. The `configuration` has the ports that are free when it is asked
    for; where one of them has been taken since, perhaps by another demo, it is asked for again. Raises CannotStart."""
    text = configuration()
    while True:
        source = Source("demo", text)
        server = Server(source.load(), source, Stderr("error"))  # the rest is on the page, and would be in the table
        try:
            await _unless(stop, server.start())
            return server
        except CannotStart:
            await server.abort()
            failed, text = text, configuration()
            if text == failed:
                raise


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do the work to its end, or until told to stop."""
    task = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        task.result()
    else:
        task.cancel()
        await asyncio.wait((task,))


def _config(backends: Sequence[DemoBackend], port: int | None, token_file: Path) -> str:
    """The configuration, as a file would say it. The last of several backends has twice the weight."""
    lines = [
        f"      - {{name: {backend.name}, url: http://127.0.0.1:{backend.port}, weight: {weight}}}"
        for backend, weight in zip(backends, _weights(len(backends)), strict=True)
    ]
    return _CONFIG.format(
        port=_free(PORT) if port is None else port,
        workers=min(MAX_WORKERS, os.cpu_count() or 1),
        pool=POOL,
        backends="\n".join(lines),
        admin_port=_free(ADMIN_PORT),
        token_file=token_file,
    )


def _weights(count: int) -> list[int]:
    return [1] * (count - 1) + [2 if count > 1 else 1]


def _free(port: int) -> int:
    """The port, or 0 for one of the system's choice if it is taken."""
    try:
        listen(Address("127.0.0.1", port)).close()
    except CannotListen:
        return 0
    return port


def _invite(server: Server, count: int, port: int | None, token: str, is_calm: bool) -> None:
    (proxy,) = server.supervisor.addresses.values()
    admin = server.admin_address
    if port is None and proxy != f"127.0.0.1:{PORT}":
        print(f"Port {PORT} is taken; the proxy listens on {proxy}.")
    if admin != f"127.0.0.1:{ADMIN_PORT}":
        print(f"Port {ADMIN_PORT} is taken; the admin API listens on {admin}.")
    words = {
        "count": _counted(count),
        "proxy": proxy,
        "admin": admin,
        "header": KEY_HEADER,
        "python": _python(),
        "token": token,
        "drama": "" if is_calm else _DRAMA,
    }
    print(_LEAD.format(**words), *_trials(words), _END.format(**words), sep="\n", flush=True)


def _trials(words: Mapping[str, str]) -> Iterator[str]:
    """A line for each, with what it shows below each other, between two empty lines."""
    trials = [(command.format(**words), shows) for command, shows in _TRIALS]
    if not find_spec("websockets"):  # the client is no dependency of ours
        trials = [trial for trial in trials if " -m websockets " not in trial[0]]
    width = max(len(command) for command, shows in trials if shows)
    yield ""
    for command, shows in trials:
        yield f"  {command:{width}}    {shows}".rstrip()
    yield ""


def _python() -> str:
    """How the Python that runs this is called from here."""
    here = os.path.relpath(sys.executable)
    return shlex.quote(sys.executable if here.startswith("..") else here)


def _counted(count: int) -> str:
    return f"{count} backends" if count > 1 else "1 backend"


async def _play(server: Server, seconds: float | None, backends: Sequence[DemoBackend] | None) -> None:
    """Send traffic and show where it goes; with drama if these are the `backends` for it."""
    (proxy,) = server.supervisor.addresses.values()
    traffic = Traffic(f"http://{proxy}/")
    screen = Screen(sys.stdout)
    began = time.monotonic()
    end = began + seconds if seconds is not None else math.inf
    running = {asyncio.create_task(traffic.run())}
    if backends is not None:
        running.add(asyncio.create_task(Drama(traffic, _victim(server, backends)).run()))
    try:
        while (left := end - time.monotonic()) > LEAST_S:
            await asyncio.sleep(min(REDRAW_S, left))
            screen.show(_picture(server, traffic), time.monotonic() - began)
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


def _victim(server: Server, backends: Sequence[DemoBackend]) -> DemoBackend | None:
    """The backend that may die: the first on which the hot user does not live."""
    owner = server.supervisor.snapshot.pools[POOL].owner(hash_key(HOT_USER.encode()))
    return next((backend for backend in backends if owner is not None and backend.name != owner.name), None)


def _picture(server: Server, traffic: Traffic) -> Picture:
    view = server.instance
    keys = view.hot_keys(POOL)["keys"]
    return picture(view.pools()["pools"][0], traffic.homes, len(traffic.moved), traffic.failures, keys)

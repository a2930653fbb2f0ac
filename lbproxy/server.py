"""The composition root: the one file that knows every package, and the life of a running proxy.

    run(path)                what `lbproxy run` does; returns the exit code
    Server(config, source)   the same in pieces, for whoever embeds it (the demo)

Signals: SIGTERM and SIGINT drain and end with 0, SIGINT after either ends at once; SIGHUP reloads; SIGUSR1 reopens the
logs.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from functools import partial
from typing import Any, Final

from lbproxy import __version__, open_files
from lbproxy.control.admin.app import AdminServer, build_app
from lbproxy.control.admin.guard import Guard
from lbproxy.control.admin.page import add_page
from lbproxy.control.problems import ConfigError
from lbproxy.control.source import Source
from lbproxy.control.token import NoToken, read_token
from lbproxy.core.spec import Address, Config
from lbproxy.ending import run_to_end
from lbproxy.exits import BAD, INTERRUPTED, OK
from lbproxy.instance import Instance
from lbproxy.notify import Notifier
from lbproxy.observe.journal import LoggingBridge, Stderr, describe, tell_loop_exception
from lbproxy.sockets import CannotListen, Listening, listen
from lbproxy.supervisor import CannotStart, Supervisor

_OWNER_ONLY: Final = 0o600


class Server:
    """A running proxy with its admin API."""

    def __init__(self, config: Config, source: Source, emit: Stderr | None = None) -> None:
        """`source` is where the configuration came from and is read from again. Raises CannotStart."""
        self.instance = Instance(config, source, emit or Stderr(config.log.level, config.log.format))
        self.journal = self.instance.journal
        self._admin_listening: list[Listening] = []
        self._admin: AdminServer | None = None

    @property
    def supervisor(self) -> Supervisor:
        return self.instance.supervisor

    @property
    def admin_address(self) -> str:
        """The admin API's TCP address as it really is; "" when there is none."""
        return next((str(each.address) for each in self._admin_listening if not each.address.path), "")

    async def start(self) -> None:
        """Bring everything up; return when all workers serve. Raises CannotStart."""
        config = self.supervisor.config
        try:
            await self._start_admin(config)
            await self.instance.start()
        except CannotListen as error:
            raise CannotStart(str(error)) from None
        self.journal.info(
            "serving",
            version=__version__,
            listen=", ".join(self.supervisor.addresses.values()),
            admin=", ".join(str(listening.address) for listening in self._admin_listening),
            workers=config.workers,
            pools=len(config.pools),
            fingerprint=self.supervisor.snapshot.fingerprint,
        )

    async def stop(self) -> None:
        """Drain, and give everything back."""
        self.journal.info("draining", timeout_s=self.supervisor.config.drain_timeout)
        await self.instance.stop()
        await self._close()
        self.journal.info("stopped")

    async def abort(self) -> None:
        """End at once."""
        await self.instance.abort()
        await self._close()

    def status_line(self) -> str:
        """How it stands, in one line for the service manager."""
        supervisor, last = self.supervisor, self.instance.reloader.last
        places = ", ".join(supervisor.addresses.values())
        line = f"{len(supervisor.statuses())} workers serve {places}, generation {supervisor.generation}"
        if last is not None and last.outcome == "refused":
            line += f"; the last reload was refused: {last.problems[0]}"
        return line

    async def _start_admin(self, config: Config) -> None:
        spec = config.admin
        self._check_token(spec.token_file)
        if spec.listen is not None:
            self._admin_listening.append(listen(spec.listen, field="admin.listen"))
        if spec.socket:
            self._admin_listening.append(listen(Address("", 0, spec.socket), mode=_OWNER_ONLY))
        guard = Guard([spec.listen.host] if spec.listen is not None else [], spec.token_file)
        app = build_app(self.instance, self.journal, guard)
        add_page(app, self.instance)
        self._admin = AdminServer(app)
        await self._admin.start([listening.sockets[0] for listening in self._admin_listening])

    @staticmethod
    def _check_token(path: str) -> None:
        try:
            if path:
                read_token(path)
        except NoToken as error:
            raise CannotStart(f"admin.token_file {path}: {error}") from None

    async def _close(self) -> None:
        if self._admin is not None:
            await self._admin.stop()
        for listening in self._admin_listening:
            listening.close()
        self.instance.close()


class _Signals:
    """Turns signals into what a server does. `stop` is set by the first that ends it, `abort` by a SIGINT after that: a
    second Ctrl-C is somebody who will not wait. (A service manager that repeats SIGTERM has SIGKILL for that.)"""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._wants_reload = asyncio.Event()
        self.stop = asyncio.Event()
        self.abort = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGHUP, self._wants_reload.set)
        loop.add_signal_handler(signal.SIGUSR1, self._reopen)
        # Until now they would have ended the process, and `__main__` has held them back.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP, signal.SIGUSR1))

    def _end(self, number: signal.Signals) -> None:
        (self.abort if self.stop.is_set() and number == signal.SIGINT else self.stop).set()

    async def reload(self) -> None:
        """Reload whenever it was asked for, for ever. What comes while one is under way leads to one more."""
        while True:
            await self._wants_reload.wait()
            self._wants_reload.clear()
            try:
                await self._server.instance.reload_now()
            except Exception as error:  # a bug, and no reason to stop carrying traffic
                self._server.journal.error("reload failed", error=describe(error))

    def _reopen(self) -> None:
        self._server.journal.info("logs reopened")
        self._server.supervisor.reopen_logs()


async def _first(*waits: asyncio.Future[Any]) -> None:
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in (one, other)]
    await _first(*waits)
    for wait in waits:
        wait.cancel()


async def serve(server: Server) -> int:
    """Run a server until a signal ends it; returns the exit code. Raises CannotStart."""
    asyncio.get_running_loop().set_exception_handler(partial(tell_loop_exception, server.journal))
    bridge = LoggingBridge(server.journal)
    logging.getLogger().addHandler(bridge)
    signals = _Signals(server)
    stop = asyncio.create_task(_either(signals.stop, server.instance.stop_wanted))
    abort = asyncio.create_task(signals.abort.wait())
    starting = asyncio.create_task(server.start())
    notifier = Notifier()
    living: asyncio.Task[None] | None = None
    try:
        await _first(starting, stop)
        if starting.done():
            starting.result()
            server.instance.reloader.on_begin = notifier.reloading
            server.instance.reloader.on_end = lambda: notifier.ready(server.status_line())
            notifier.ready(server.status_line())
            living = asyncio.create_task(notifier.keep_alive())
            reloading = asyncio.create_task(signals.reload())
            await _first(stop)
            reloading.cancel()
        starting.cancel()
        notifier.stopping("draining")
        stopping = asyncio.create_task(server.stop())
        await _first(stopping, abort)
        if stopping.done():
            stopping.result()
            return OK
        server.journal.warning("ended at once")
        server.supervisor.kill()
        await stopping
        return INTERRUPTED
    except CannotStart:
        await server.abort()
        raise
    finally:
        logging.getLogger().removeHandler(bridge)
        for task in (stop, abort, living):
            if task is not None:
                task.cancel()


def run(path: str) -> int:
    """Run the proxy that the file describes until a signal ends it; returns the exit code."""
    open_files.raise_limit()
    source = Source(path)
    try:
        config = source.load_to_start()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return BAD

    async def main() -> int:
        return await serve(Server(config, source))

    try:
        return run_to_end(main())
    except CannotStart as error:
        print(f"lbproxy: {error}", file=sys.stderr)
        return BAD

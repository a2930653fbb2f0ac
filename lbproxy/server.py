"""The composition root: the one file that knows every package, and the life of a running proxy.

    run(path)           what `lbproxy run` does; returns the exit code
    Server(config)      the same in pieces, for whoever embeds it (the demo)

Signals: SIGTERM and SIGINT drain and end with 0, a second one ends at once; SIGHUP reloads; SIGUSR1 reopens the logs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import uvloop

from lbproxy import __version__
from lbproxy.control.admin.app import AdminServer, build_app
from lbproxy.control.admin.documents import pools_document, workers_document
from lbproxy.control.config import ConfigError, load
from lbproxy.control.reload import Refused, Reloader, ReloadResult
from lbproxy.core.spec import Address, Config
from lbproxy.observe.facts import process_families
from lbproxy.observe.journal import Journal, LoggingBridge, Stderr, describe
from lbproxy.observe.lines import iso_time
from lbproxy.sockets import CannotListen, Listening, listen
from lbproxy.supervisor import CannotApply, CannotStart, Supervisor

OK: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130  # as a shell reports SIGINT
_OWNER_ONLY: Final = 0o600


class Server:
    """A running proxy: supervisor, admin API and reloading. Is also what the admin API looks at (`admin.view.View`)."""

    def __init__(
        self, config: Config, reload_from: Callable[[], Config] | None = None, emit: Stderr | None = None
    ) -> None:
        """`reload_from` reads the configuration again and may raise ConfigError; without it, it stays as it is.

        Raises CannotStart."""
        self._emit = emit or Stderr(config.log.level, config.log.format)
        self.journal = Journal(self._emit)
        self.supervisor = Supervisor(config, self.journal)
        self._reloader = Reloader(config, reload_from or (lambda: config), self._apply, self.journal)
        self._started_at = time.time()
        self._admin_listening: list[Listening] = []
        self._admin: AdminServer | None = None

    @property
    def admin_address(self) -> str:
        """The admin API's TCP address as it really is; "" when there is none."""
        return next((str(each.address) for each in self._admin_listening if not each.address.path), "")

    async def start(self) -> None:
        """Bring everything up; return when all workers serve. Raises CannotStart."""
        config = self.supervisor.config
        try:
            await self._start_admin(config)
            await self.supervisor.start()
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
        await self.supervisor.drain()
        await self._close()
        self.journal.info("stopped")

    async def abort(self) -> None:
        """End at once."""
        self.supervisor.kill()
        await self.supervisor.drain()
        await self._close()

    async def reload(self) -> ReloadResult:
        """Read the configuration again and put it in force, or tell why not."""
        return await self._reloader.reload()

    async def _start_admin(self, config: Config) -> None:
        spec = config.admin
        if spec.listen is not None:
            self._admin_listening.append(listen(spec.listen))
        if spec.socket:
            self._admin_listening.append(listen(Address("", 0, spec.socket), mode=_OWNER_ONLY))
        hosts = [spec.listen.host] if spec.listen is not None else []
        self._admin = AdminServer(build_app(self, self.journal, hosts))
        await self._admin.start([listening.sockets[0] for listening in self._admin_listening])

    async def _close(self) -> None:
        if self._admin is not None:
            await self._admin.stop()
        for listening in self._admin_listening:
            listening.close()
        self.supervisor.close()

    async def _apply(self, config: Config) -> bool:
        try:
            is_complete = await self.supervisor.apply(config)
        except CannotApply as error:
            raise Refused(str(error)) from None
        self._emit.configure(config.log.level, config.log.format)
        self.journal.info(
            "configuration applied",
            generation=self.supervisor.generation,
            fingerprint=self.supervisor.snapshot.fingerprint,
        )
        return is_complete

    # What the admin API asks

    def readiness(self) -> tuple[bool, str]:
        supervisor = self.supervisor
        if supervisor.is_draining:
            return False, "draining"
        statuses = supervisor.statuses()
        ready = sum(status.state == "ready" for status in statuses)
        return supervisor.is_ready(), f"{ready} of {len(statuses)} workers ready"

    def metrics(self) -> str:
        supervisor = self.supervisor
        families = process_families(supervisor.statuses(), supervisor.restarts, self._reloader.status)
        return supervisor.page.render(supervisor.slabs, families)

    def info(self) -> dict[str, Any]:
        supervisor = self.supervisor
        return {
            "version": __version__,
            "python": platform.python_version(),
            "pid": os.getpid(),
            "started_at": iso_time(int(self._started_at * 1000)),
            "uptime_s": round(time.time() - self._started_at, 3),
            "config": supervisor.config.source,
            "generation": supervisor.generation,
            "fingerprint": supervisor.snapshot.fingerprint,
            "ready": supervisor.is_ready(),
            "draining": supervisor.is_draining,
            "workers": len(supervisor.statuses()),
            "listeners": [{"name": name, "address": text} for name, text in supervisor.addresses.items()],
        }

    def pools(self) -> dict[str, Any]:
        supervisor = self.supervisor
        return pools_document(supervisor.snapshot, supervisor.layout.rows, supervisor.totals())

    def workers(self) -> dict[str, Any]:
        supervisor = self.supervisor
        lists = supervisor.slabs.lists(supervisor.layout.end)
        return workers_document(supervisor.statuses(), supervisor.layout.rows, lists)


class _Signals:
    """Turns signals into what a server does. `stop` is set by the first that ends it, `abort` by the second."""

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

    def _end(self, number: signal.Signals) -> None:
        (self.abort if self.stop.is_set() and number == signal.SIGINT else self.stop).set()

    async def reload(self) -> None:
        """Reload whenever it was asked for, for ever. What comes while one is under way leads to one more."""
        while True:
            await self._wants_reload.wait()
            self._wants_reload.clear()
            try:
                await self._server.reload()
            except Exception as error:  # a bug, and no reason to stop carrying traffic
                self._server.journal.error("reload failed", error=describe(error))

    def _reopen(self) -> None:
        self._server.journal.info("logs reopened")
        self._server.supervisor.reopen_logs()


async def _first(*waits: asyncio.Future[Any]) -> None:
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)


async def serve(server: Server) -> int:
    """Run a server until a signal ends it; returns the exit code. Raises CannotStart."""
    asyncio.get_running_loop().set_exception_handler(partial(_tell_exception, server.journal))
    bridge = LoggingBridge(server.journal)
    logging.getLogger().addHandler(bridge)
    signals = _Signals(server)
    stop = asyncio.create_task(signals.stop.wait())
    abort = asyncio.create_task(signals.abort.wait())
    starting = asyncio.create_task(server.start())
    try:
        await _first(starting, stop)
        if starting.done():
            starting.result()
            reloading = asyncio.create_task(signals.reload())
            await _first(stop)
            reloading.cancel()
        starting.cancel()
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
        for task in (stop, abort):
            task.cancel()


def _tell_exception(journal: Journal, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    journal.error(
        "unexpected error",
        message=str(context.get("message", "")),
        error=describe(error) if isinstance(error, BaseException) else "",
    )


def run(path: str) -> int:
    """Run the proxy that the file describes until a signal ends it; returns the exit code."""
    try:
        config = load(path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return FAILED
    return run_config(config, lambda: load(path))


def run_config(config: Config, reload_from: Callable[[], Config] | None = None) -> int:
    """Run a proxy with this configuration until a signal ends it; returns the exit code."""

    async def main() -> int:
        return await serve(Server(config, reload_from))

    try:
        return uvloop.run(main())
    except CannotStart as error:
        print(f"lbproxy: {error}", file=sys.stderr)
        return FAILED

"""Telling of backends whose name nobody knows, once a configuration is in force.

A start does not fail for that, as the name may come to be known, and each connection looks it up anew. But until then
the backend's users get 502, for which a misspelt name is the likeliest reason. Backends that are checked are left out:
what their checks come to is told anyway.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Final, final

from lbproxy.control.probes import targets
from lbproxy.core.hosts import is_address
from lbproxy.core.spec import Address, Config
from lbproxy.observe.journal import Journal

TIMEOUT_S: Final = 10.0


@final
class Lookups:
    """Looks up what `follow` was given last, one name after the other."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._task: asyncio.Task[None] | None = None

    def follow(self, config: Config) -> None:
        """Look up the names of this configuration, in the background."""
        self.stop()
        self._task = asyncio.create_task(self.look(config))

    def stop(self) -> None:
        """Look up no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def look(self, config: Config) -> None:
        """Tell which names are not known."""
        for host, backends in _names(config).items():
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    why = await _look_up(host)
            except TimeoutError:
                why = f"no answer within {TIMEOUT_S:g} s"
            for pool, backend in backends if why else ():
                self._journal.warning("backend name unknown", pool=pool, backend=backend, host=host, why=why)


async def _look_up(host: str) -> str:
    """Why a name is not known; empty: it is. In a thread that nobody waits for: one of the event loop's would hold up
    the end of the process for as long as a resolver does not answer, and keep checks waiting."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str] = loop.create_future()

    def done(why: str) -> None:
        if not found.done():
            found.set_result(why)

    def ask() -> None:
        why = _why_unknown(host)
        with suppress(RuntimeError):  # the loop is closed by now
            loop.call_soon_threadsafe(done, why)

    threading.Thread(target=ask, name="look-up", daemon=True).start()
    return await found


def _why_unknown(host: str) -> str:
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def _names(config: Config) -> dict[str, list[tuple[str, str]]]:
    """Each name that stands for an address, with the pools and backends that it is for."""
    names: dict[str, list[tuple[str, str]]] = {}
    checked = targets(config)
    for pool in config.pools:
        for backend in pool.backends:
            if (pool.name, backend.name) not in checked and _is_name(backend.address):
                names.setdefault(backend.address.host, []).append((pool.name, backend.name))
    return names


def _is_name(address: Address) -> bool:
    return not address.path and not is_address(address.host)

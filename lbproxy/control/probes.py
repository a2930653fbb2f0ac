"""Active checks of the backends: one task per backend, in the supervisor, whatever the number of workers.

A check is one request, or one connection, on a connection of its own that is never used again: what is tested is that
the backend can still accept somebody new. It ends as one of RESULTS; whatever goes wrong is a result, and no error of a
backend's making ever leaves this module. What follows from a result is decided elsewhere (`core.health`).
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import aiohttp
from yarl import URL

from lbproxy import __version__
from lbproxy.core.health import OUR_ERRORS
from lbproxy.core.spec import Address, Config, Health

OK: Final = "ok"
# The check could not be made, for want of something on our side: it says nothing of the backend.
UNABLE: Final = "unable"
# How a check can end: well, with another status, without the expected text, without an answer in time, without a
# connection, with an answer that is none, or not made at all.
RESULTS: Final = (OK, "status", "body", "timeout", "connect", "protocol", UNABLE)

JITTER: Final = 0.1
# How much of a body is searched for the expected text.
BODY_BYTES: Final = 1 << 16
# So many checks may be under way at a time; a pool of thousands must not open thousands of connections at once.
MOST_AT_ONCE: Final = 256

Observe = Callable[[str, str, str, str], None]
IsFlipping = Callable[[str, str], bool]


class Outcome(NamedTuple):
    """How a check has ended: one of RESULTS, and what more can be said for whoever looks for the reason."""

    result: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What is checked, and how."""

    pool: str
    backend: str
    address: Address
    health: Health


def targets(config: Config) -> dict[tuple[str, str], Target]:
    """What a configuration wants checked, by pool and backend."""
    return {
        (pool.name, backend.name): Target(pool.name, backend.name, backend.address, pool.health)
        for pool in config.pools
        if pool.health.kind != "none"
        for backend in pool.backends
    }


class Prober:
    """Checks what `follow` was given last. `observe(pool, backend, result, why)` takes each outcome;
    `is_flipping(pool, backend)` says whether a backend is changing its state, and so is to be looked at more often."""

    def __init__(self, observe: Observe, is_flipping: IsFlipping, chance: random.Random | None = None) -> None:
        self._observe = observe
        self._is_flipping = is_flipping
        self._chance = chance or random.Random()  # noqa: S311  # jitter is no secret
        self._watches: dict[tuple[str, str], tuple[Target, asyncio.Task[None]]] = {}
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)
        # For all checks over TCP: to make a session costs more than to ask with it.
        self._session: aiohttp.ClientSession | None = None

    def follow(self, config: Config) -> None:
        """Check the backends of this configuration from now on. Those whose checks did not change notice nothing."""
        wanted = targets(config)
        if wanted and self._session is None:
            self._session = _session(aiohttp.TCPConnector(force_close=True, limit=0, use_dns_cache=False))
        for name, (target, task) in list(self._watches.items()):
            if wanted.get(name) != target:
                task.cancel()
                del self._watches[name]
        for name, target in wanted.items():
            if name not in self._watches:
                self._watches[name] = target, asyncio.create_task(self._watch(target))

    async def close(self) -> None:
        """End all checks."""
        tasks = [task for _, task in self._watches.values()]
        self._watches.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _watch(self, target: Target) -> None:
        while True:
            started = time.monotonic()
            async with self._at_once:
                outcome = await check(target, self._session)
            try:
                self._observe(target.pool, target.backend, outcome.result, outcome.why)
            except Exception as error:  # a bug in what follows from it, and no reason to check no more
                told = {"message": "what follows from a check failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)
            pause_s = self._interval_s(target) * self._chance.uniform(1 - JITTER, 1 + JITTER)
            await asyncio.sleep(max(0.0, started + pause_s - time.monotonic()))

    def _interval_s(self, target: Target) -> float:
        health = target.health
        if health.fast_interval is not None and self._is_flipping(target.pool, target.backend):
            return health.fast_interval
        return health.interval


class _CutOff(aiohttp.ClientError):
    """The connection ended before the answer had begun. `errno` is the system's, if it was one of its errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(*error.args)
        self.errno: Final = getattr(error, "errno", None)


async def check(target: Target, session: aiohttp.ClientSession | None = None) -> Outcome:
    """One check, and what it came to. `session` is one that keeps no connection; without it, or for a Unix socket, the
    check makes its own."""
    try:
        async with asyncio.timeout(target.health.timeout):
            return await (_connect(target) if target.health.kind == "tcp" else _ask(target, session))
    except TimeoutError:
        return Outcome("timeout")
    except (OSError, _CutOff) as error:  # aiohttp's errors of connecting are such, too
        if error.errno in OUR_ERRORS:
            return Outcome(UNABLE, os.strerror(error.errno))
        is_later = isinstance(error, aiohttp.ClientError) and not isinstance(error, aiohttp.ClientConnectorError)
        return Outcome("protocol") if is_later else Outcome("connect", _why(error))
    except Exception:  # whatever an answer can bring aiohttp to raise
        return Outcome("protocol")


def _why(error: Exception) -> str:
    """The system's words for why there was no connection."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, socket.gaierror):
        return f"the name is not known here ({cause.strerror})"
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    return " ".join(str(cause).split())


async def _connect(target: Target) -> Outcome:
    address, port = target.address, target.health.port
    if address.path and port is None:
        _, writer = await asyncio.open_unix_connection(address.path)
    else:
        _, writer = await asyncio.open_connection(address.host, port or address.port)
    writer.transport.abort()
    return Outcome(OK)


async def _ask(target: Target, session: aiohttp.ClientSession | None) -> Outcome:
    is_unix = bool(target.address.path) and target.health.port is None
    if session is not None and not is_unix:
        return await _judge(target, session)
    connector = (
        aiohttp.UnixConnector(target.address.path, force_close=True)
        if is_unix
        else aiohttp.TCPConnector(force_close=True, use_dns_cache=False)
    )
    async with _session(connector) as own:
        return await _judge(target, own)


async def _judge(target: Target, session: aiohttp.ClientSession) -> Outcome:
    health = target.health
    asking = session.request(health.method, _url(target), headers=dict(health.headers), allow_redirects=False)
    async with asking as answer:
        if not any(first <= answer.status <= last for first, last in health.expect_status):
            return Outcome("status", str(answer.status))
        if health.expect_body is not None and not await _has(answer, health.expect_body.encode()):
            return Outcome("body")
        return Outcome(OK)


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """A middleware for aiohttp, by which one check is one request. What ends with one of these two errors it would send
    once more by itself, and a backend that cuts every other request off would look well."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _CutOff(error) from error


def _session(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": f"lbproxy/{__version__} (health check)", "Accept": "*/*"},
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        middlewares=(_once,),
    )


def _url(target: Target) -> URL:
    address, port = target.address, target.health.port
    authority = "localhost" if address.path and port is None else str(Address(address.host, port or address.port))
    return URL(f"http://{authority}{target.health.path}", encoded=True)


async def _has(answer: aiohttp.ClientResponse, wanted: bytes) -> bool:
    """Whether the text stands in the first BODY_BYTES of the body; what comes after that is not waited for."""
    body = b""
    async for chunk in answer.content.iter_any():
        body += chunk
        if wanted in body[:BODY_BYTES]:
            return True
        if len(body) >= BODY_BYTES:
            return False
    return False

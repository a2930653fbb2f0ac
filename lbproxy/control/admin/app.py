"""The admin API: aiohttp in the supervisor, over loopback TCP and a Unix socket, never in the way of traffic.

Handlers answer from memory through an `Instance` (`view.py`); who may do what is judged by the `Guard`. Errors are
`application/problem+json` (RFC 9457).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lbproxy.control.admin import feed, reads, writes
from lbproxy.control.admin.answers import GUARD, INSTANCE, JOURNAL, problem
from lbproxy.control.admin.connection import BUG, FIXED_HEADERS, Connection
from lbproxy.control.admin.guard import Guard
from lbproxy.control.admin.view import Instance, Rejected
from lbproxy.control.config import MAX_FILE_BYTES
from lbproxy.observe.journal import Journal, Value, describe

KEEP_ALIVE_S: Final = 75.0
SHUTDOWN_TIMEOUT_S: Final = 1.0
# How often refused requests are told.
REFUSALS_S: Final = 60.0


def build_app(instance: Instance, journal: Journal, guard: Guard) -> web.Application:
    """The application."""
    app = web.Application(middlewares=[_problems(journal)], client_max_size=MAX_FILE_BYTES)
    app[INSTANCE] = instance
    app[GUARD] = guard
    app[JOURNAL] = journal
    app.add_routes([*reads.routes(), *writes.routes()])
    feed.add_feed(app)
    app.on_response_prepare.append(_add_fixed_headers)
    return app


async def _add_fixed_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in FIXED_HEADERS.items():
        if name == "Server" or name not in response.headers:
            response.headers[name] = value


class _Refusals:
    """Tells of requests that somebody was not allowed to make: of the first at once, of those that follow once a minute
    how many they were. Whoever guesses tokens must not push everything else out of the memory of events."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._count = 0
        self._last: dict[str, Value] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, request: web.Request, rejected: Rejected) -> None:
        """Take note of it, if it is one."""
        if rejected.status not in (401, 403, 421):
            return
        self._count += 1
        self._last = {
            "method": request.method,
            "path": request.path,
            "peer": request.remote or "unknown",
            "why": rejected.detail,
        }
        if self._timer is None:
            self._tell()

    def _tell(self) -> None:
        count, self._count = self._count, 0
        self._timer = None
        if count:
            self._journal.warning("admin requests refused", count=count, **self._last)
            self._timer = asyncio.get_running_loop().call_later(REFUSALS_S, self._tell)


def _problems(journal: Journal) -> Middleware:
    """Refuse what comes under a foreign name, and answer every error with a document."""
    refusals = _Refusals(journal)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if isinstance(request.protocol, Connection):
            request.protocol.has_asked()
        try:
            request.app[GUARD].check_host(request)
            return await handler(request)
        except Rejected as rejected:
            refusals.note(request, rejected)
            headers = {"WWW-Authenticate": 'Bearer realm="lbproxy"'} if rejected.status == 401 else None
            return problem(rejected.status, rejected.detail, headers, **rejected.members)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            return problem(405, f"{request.path} takes {allowed}", {"Allow": allowed})
        except web.HTTPNotFound:
            return problem(404, f"there is nothing at {request.path}")
        except web.HTTPRequestEntityTooLarge:
            return problem(413, f"a body has at most {MAX_FILE_BYTES} octets")
        except web.HTTPException as error:
            return problem(error.status, error.reason)
        except Exception as error:
            journal.error("admin request failed", path=request.path, error=describe(error))
            return problem(500, BUG)

    return middleware


class AdminServer:
    """The application on its listening sockets."""

    def __init__(self, app: web.Application) -> None:
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
        self._servers: list[asyncio.Server] = []

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on sockets that listen already."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        server = self._runner.server
        assert server is not None
        options: dict[str, Any] = {"loop": loop, "access_log": None, "keepalive_timeout": KEEP_ALIVE_S}
        for sock in sockets:
            connect = partial(Connection, server, set(), **options)
            if sock.family == socket.AF_UNIX:
                self._servers.append(await loop.create_unix_server(connect, sock=sock))
            else:
                self._servers.append(await loop.create_server(connect, sock=sock))

    async def stop(self) -> None:
        """Close the listening sockets and the connections."""
        for server in self._servers:
            server.close()
        await self._runner.cleanup()

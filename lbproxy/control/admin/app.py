"""The admin API: aiohttp in the supervisor, over loopback TCP and a Unix socket, never in the way of traffic.

Handlers answer from memory through a `View`. Errors are `application/problem+json` (RFC 9457). Over TCP the Host field
must name this machine, so that no web page can reach the API through a name that its owner points at 127.0.0.1; a Unix
socket is guarded by its file mode.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lbproxy.control.admin.view import Document, View
from lbproxy.observe.journal import Journal, describe
from lbproxy.observe.metrics import CONTENT_TYPE

VIEW: Final = web.AppKey("view", View)
MAX_BODY_BYTES: Final = 1 << 20
KEEP_ALIVE_S: Final = 75.0
SHUTDOWN_TIMEOUT_S: Final = 1.0

_FIXED_HEADERS: Final = {"Server": "lbproxy", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def build_app(view: View, journal: Journal, hosts: Collection[str] = ()) -> web.Application:
    """The application. `hosts` are names by which it may be asked over TCP, besides localhost and plain addresses."""
    app = web.Application(
        middlewares=[_problems(journal), _host_check({"localhost", *map(str.lower, hosts)})],
        client_max_size=MAX_BODY_BYTES,
    )
    app[VIEW] = view
    app.add_routes(
        [
            web.get("/healthz", _healthz),
            web.get("/readyz", _readyz),
            web.get("/metrics", _metrics),
            web.get("/v1/info", _info),
            web.get("/v1/pools", _pools),
            web.get("/v1/workers", _workers),
        ]
    )
    app.on_response_prepare.append(_add_fixed_headers)
    return app


async def _add_fixed_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_FIXED_HEADERS)


# Answers


async def _healthz(request: web.Request) -> web.Response:
    """The supervisor's event loop turns."""
    return web.Response(text="ok\n")


async def _readyz(request: web.Request) -> web.Response:
    """Whether traffic should be sent here."""
    is_ready, why = request.app[VIEW].readiness()
    return web.Response(text=f"{why}\n", status=200 if is_ready else 503)


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(body=request.app[VIEW].metrics().encode(), headers={"Content-Type": CONTENT_TYPE})


async def _info(request: web.Request) -> web.Response:
    return _json(request.app[VIEW].info())


async def _pools(request: web.Request) -> web.Response:
    return _json(request.app[VIEW].pools())


async def _workers(request: web.Request) -> web.Response:
    return _json(request.app[VIEW].workers())


def _json(document: Document) -> web.Response:
    return web.Response(text=json.dumps(document) + "\n", content_type="application/json")


# Errors


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> web.Response:
    """An error as RFC 9457 has it."""
    document = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return web.Response(
        text=json.dumps(document) + "\n", status=status, content_type="application/problem+json", headers=headers
    )


def _problems(journal: Journal) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            return problem(405, f"{request.path} takes {allowed}", {"Allow": allowed})
        except web.HTTPNotFound:
            return problem(404, f"there is nothing at {request.path}")
        except web.HTTPException as error:
            return problem(error.status, error.reason)
        except Exception as error:
            journal.error("admin request failed", path=request.path, error=describe(error))
            return problem(500, "this is a bug; the journal says more")

    return middleware


def _host_check(names: Collection[str]) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if _is_tcp(request) and not is_own_host(request.headers.get("Host", ""), names):
            return problem(421, "the Host field names another machine")
        return await handler(request)

    return middleware


def _is_tcp(request: web.Request) -> bool:
    own = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return isinstance(own, tuple)


def is_own_host(value: str, names: Collection[str]) -> bool:
    """Whether a Host field is a plain address or one of `names`: nothing that somebody else's DNS can point here."""
    host = value.rpartition("]")[0].removeprefix("[") if value.startswith("[") else value.partition(":")[0]
    if host.lower().removesuffix(".") in names:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# The server


class AdminServer:
    """The application on its listening sockets."""

    def __init__(self, app: web.Application) -> None:
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )
        self._servers: list[asyncio.Server] = []

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on sockets that listen already."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        protocol = self._runner.server
        assert protocol is not None
        for sock in sockets:
            if sock.family == socket.AF_UNIX:
                self._servers.append(await loop.create_unix_server(protocol, sock=sock))
            else:
                self._servers.append(await loop.create_server(protocol, sock=sock))

    async def stop(self) -> None:
        """Close the listening sockets and the connections."""
        for server in self._servers:
            server.close()
        await self._runner.cleanup()

"""What can be read over the admin API, and asked without changing anything."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lbproxy.control.admin.answers import INSTANCE, document, only, read_json
from lbproxy.control.admin.openapi import MOST_STEPS, STEPS, description
from lbproxy.control.admin.view import Rejected
from lbproxy.observe.metrics import CONTENT_TYPE


def routes() -> list[web.RouteDef]:
    return [
        web.get("/healthz", _healthz),
        web.get("/readyz", _readyz),
        web.get("/metrics", _metrics),
        web.get("/v1/openapi.json", _openapi),
        web.get("/v1/info", _info),
        web.get("/v1/config", _config),
        web.get("/v1/workers", _workers),
        web.get("/v1/pools", _pools),
        web.get("/v1/pools/{pool}", _pool),
        web.get("/v1/pools/{pool}/backends", _backends),
        web.get("/v1/pools/{pool}/backends/{backend}", _backend),
        web.get("/v1/pools/{pool}/ring", _ring),
        web.get("/v1/pools/{pool}/hot-keys", _hot_keys),
        web.get("/v1/pools/{pool}/pins", _pins),
        web.get("/v1/pools/{pool}/explain", _explain),
        web.post("/v1/pools/{pool}/explain", _explain_body),
    ]


async def _healthz(request: web.Request) -> web.Response:
    """The supervisor's event loop turns."""
    return web.Response(text="ok\n")


async def _readyz(request: web.Request) -> web.Response:
    """Whether traffic should be sent here."""
    is_ready, why = request.app[INSTANCE].readiness()
    return web.Response(text=f"{why}\n", status=200 if is_ready else 503)


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(body=request.app[INSTANCE].metrics().encode(), headers={"Content-Type": CONTENT_TYPE})


async def _openapi(request: web.Request) -> web.Response:
    return document(description())


async def _info(request: web.Request) -> web.Response:
    return document(request.app[INSTANCE].info())


async def _config(request: web.Request) -> web.Response:
    return document(request.app[INSTANCE].config())


async def _workers(request: web.Request) -> web.Response:
    return document(request.app[INSTANCE].workers())


async def _pools(request: web.Request) -> web.Response:
    return document(request.app[INSTANCE].pools())


async def _pool(request: web.Request) -> web.Response:
    return document(find_pool(request))


async def _backends(request: web.Request) -> web.Response:
    return document({"pool": request.match_info["pool"], "backends": find_pool(request)["backends"]})


async def _backend(request: web.Request) -> web.Response:
    return document(find_backend(request))


async def _ring(request: web.Request) -> web.Response:
    return document(request.app[INSTANCE].ring_document(request.match_info["pool"]))


async def _pins(request: web.Request) -> web.Response:
    return document(request.app[INSTANCE].pins(request.match_info["pool"]))


async def _hot_keys(request: web.Request) -> web.Response:
    return document(request.app[INSTANCE].hot_keys(request.match_info["pool"]))


async def _explain(request: web.Request) -> web.Response:
    return await _explained(request, dict(request.query))


async def _explain_body(request: web.Request) -> web.Response:
    """The same with the key in the body, which no log and no history keeps."""
    return await _explained(request, await read_json(request))


async def _explained(request: web.Request, asked: dict[str, Any]) -> web.Response:
    only(asked, "key", "key_hex", "steps")
    text, octets = asked.get("key"), asked.get("key_hex")
    if len(asked.keys() & {"key", "key_hex"}) != 1:
        raise Rejected(400, "name one key: key, or key_hex for octets that are no text")
    if isinstance(text, str):
        key = text.encode("utf-8", "surrogateescape")
    elif isinstance(octets, str):
        try:
            key = bytes.fromhex(octets)
        except ValueError:
            raise Rejected(400, "key_hex is not hexadecimal") from None
    else:
        raise Rejected(400, "a key is a text")
    if not key:
        raise Rejected(400, "the key is empty, and an empty key counts as a missing one")
    most = _steps(asked.get("steps", STEPS))
    return document(await request.app[INSTANCE].explain(request.match_info["pool"], key, most))


def _steps(asked: Any) -> int:
    """How much of the preference list is told: a number, as text in a query."""
    if isinstance(asked, str) and asked.isascii() and asked.isdigit():
        asked = int(asked[:9])
    if isinstance(asked, float) and asked.is_integer():
        asked = int(asked)
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= MOST_STEPS:
        raise Rejected(400, f"steps must be a whole number from 1 to {MOST_STEPS}")
    return asked


def find_pool(request: web.Request) -> dict[str, Any]:
    """The document of the pool in the path. Raises Rejected."""
    name = request.match_info["pool"]
    for pool in request.app[INSTANCE].pools()["pools"]:
        if pool["name"] == name:
            found: dict[str, Any] = pool
            return found
    raise Rejected(404, f"there is no pool {name}")


def find_backend(request: web.Request) -> dict[str, Any]:
    """The document of the backend in the path. Raises Rejected."""
    return backend_in(find_pool(request), request.match_info["backend"])


def backend_in(pool: dict[str, Any], name: str) -> dict[str, Any]:
    """The document of a backend in that of its pool. Raises Rejected."""
    for backend in pool["backends"]:
        if backend["name"] == name:
            found: dict[str, Any] = backend
            return found
    raise Rejected(404, f"pool {pool['name']} has no backend {name}")

"""The routes of the page.

    GET /               the whole page, readable as it is; ?pool=&key= answers about a key
    GET /page/NAME      style sheet, scripts, icons
    GET /page/live      what changes, as server-sent events
    GET /page/key       the answer about a key alone

Everything comes from this server, nothing is written into the page that a browser would run, and the headers forbid
anything else.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress
from importlib.resources import files
from typing import Final, final

from aiohttp import web

from lbproxy.control.admin.answers import send
from lbproxy.control.admin.page import key as keys
from lbproxy.control.admin.page.source import Source
from lbproxy.control.admin.page.watch import Clock, Watch

MOST_VIEWERS: Final = 64
LONGEST_KEY: Final = 4096
RETRY_MS: Final = 2000
WATCH: Final = web.AppKey("watch", Watch)

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@final
class Asset:
    """A file of the page, plain and packed. `tag` is a hash of its content."""

    def __init__(self, name: str, content: bytes) -> None:
        self.type: Final = _TYPES[name.rpartition(".")[2]]
        self.content: Final = content
        self.packed: Final = gzip.compress(content, 9, mtime=0)
        self.tag: Final = hashlib.sha256(content).hexdigest()[:16]


def load_assets() -> dict[str, Asset]:
    """The files of the page by name."""
    folder = files("lbproxy.control.admin.page").joinpath("assets")
    found = sorted(folder.iterdir(), key=lambda each: each.name)
    return {each.name: Asset(each.name, each.read_bytes()) for each in found if each.name.rpartition(".")[2] in _TYPES}


def version_of(assets: dict[str, Asset]) -> str:
    """What changes when any file does."""
    return hashlib.sha256("".join([asset.tag for asset in assets.values()]).encode()).hexdigest()[:12]


def add_page(app: web.Application, source: Source, clock: Clock = time.monotonic, wall: Clock = time.time) -> None:
    """Serve the page of what `source` knows at `/`."""
    assets = load_assets()
    version = version_of(assets)
    app[WATCH] = Watch(source, clock, wall)

    async def index(request: web.Request) -> web.Response:
        return _html(request, app[WATCH].page(version, await _said(app[WATCH], request)))

    async def asset(request: web.Request) -> web.StreamResponse:
        found = assets.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        return _asset(request, found, is_current=request.query_string == version)

    app.add_routes(
        [
            web.get("/", index),
            web.get("/page/live", _live),
            web.get("/page/key", _key),
            web.get("/page/{name}", asset),
        ]
    )
    app.cleanup_ctx.append(_watching)
    app.on_shutdown.append(_let_go)


async def _watching(app: web.Application) -> AsyncIterator[None]:
    task = asyncio.create_task(app[WATCH].run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _let_go(app: web.Application) -> None:
    app[WATCH].close()


def _html(request: web.Request, text: str) -> web.Response:
    response = web.Response(text=text, content_type="text/html", headers={**HEADERS, "Cache-Control": "no-store"})
    response.enable_compression()
    return response


def _asset(request: web.Request, asset: Asset, is_current: bool) -> web.StreamResponse:
    """A file; for as long as a browser likes when it was asked for by the hash of what is in force."""
    headers = {
        **HEADERS,
        "Content-Type": f"{asset.type}; charset=utf-8",
        "Cache-Control": "max-age=31536000, immutable" if is_current else "no-cache",
        "ETag": f'"{asset.tag}"',
        "Vary": "Accept-Encoding",
    }
    if any(tag.value == asset.tag for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    if _takes_gzip(request):
        return web.Response(body=asset.packed, headers={**headers, "Content-Encoding": "gzip"})
    return web.Response(body=asset.content, headers=headers)


def _takes_gzip(request: web.Request) -> bool:
    return "gzip" in request.headers.get("Accept-Encoding", "")


# A key


async def _said(watch: Watch, request: web.Request) -> dict[int, str]:
    """The answer about the key in the query, by the number of its pool; nothing when none was asked about."""
    pool, key = request.query.get("pool", ""), request.query.get("key", "")
    number = watch.number_of(pool) if key else None
    if number is None:
        return {}
    return {number: await _about(watch, number, pool, key)}


async def _about(watch: Watch, number: int, pool: str, key: str) -> str:
    encoded = key.encode("utf-8", "surrogateescape")
    if len(encoded) > LONGEST_KEY:
        return keys.failed(number, f"That key is longer than {LONGEST_KEY} bytes.")
    return keys.answer(number, await watch.source.explain(pool, encoded))


async def _key(request: web.Request) -> web.Response:
    watch = request.app[WATCH]
    pool, key = request.query.get("pool", ""), request.query.get("key", "")
    number = watch.number_of(pool)
    if number is None:
        raise web.HTTPNotFound
    return _html(request, await _about(watch, number, pool, key) if key else keys.nothing(number))


# The live feed


async def _live(request: web.Request) -> web.StreamResponse:
    """Each message is a JSON object: the number of the look, when it was, and the pieces of the page that changed."""
    watch = request.app[WATCH]
    if watch.viewers >= MOST_VIEWERS:
        raise web.HTTPServiceUnavailable(reason="Too many viewers")
    pack = _Packer(_takes_gzip(request))
    headers = {**HEADERS, "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}
    if pack.is_packing:
        headers["Content-Encoding"] = "gzip"
    response = web.StreamResponse(headers=headers)
    seen = _seen(watch, request.headers.get("Last-Event-ID") or request.query.get("since", ""))
    watch.enter()
    try:
        await response.prepare(request)
        await send(request, response, pack(f"retry: {RETRY_MS}\n\n"))
        while not watch.is_closing:
            await watch.newer(watch.board.number if seen < 0 else seen)
            message = f"id: {watch.boot}.{watch.board.number}\ndata: {watch.message(seen)}\n\n"
            seen = watch.board.number
            await send(request, response, pack(message))
    except ConnectionError:
        pass
    finally:
        watch.leave()
    return response


def _seen(watch: Watch, text: str) -> int:
    """What a viewer has seen, from the id of the last message; -1 when that was in another life."""
    boot, _, number = text.partition(".")
    if boot != watch.boot or not re.fullmatch(r"[0-9]{1,12}", number):
        return -1
    return int(number) if int(number) <= watch.board.number else -1


@final
class _Packer:
    """Packs a stream in pieces, each of which can be unpacked as soon as it is there; or leaves it as it is."""

    def __init__(self, is_packing: bool) -> None:
        self.is_packing: Final = is_packing
        self._press: Final = zlib.compressobj(5, zlib.DEFLATED, 31)

    def __call__(self, text: str) -> bytes:
        data = text.encode()
        return self._press.compress(data) + self._press.flush(zlib.Z_SYNC_FLUSH) if self.is_packing else data

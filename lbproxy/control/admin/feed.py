"""`GET /v1/events`: what happens, as server-sent events, from wherever the client last was."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from aiohttp import web

from lbproxy.control.admin.answers import INSTANCE, send
from lbproxy.control.admin.view import Rejected

MOST_LISTENERS: Final = 64
KEEP_ALIVE_S: Final = 15.0
LISTENERS: Final = web.AppKey("listeners", set[asyncio.Task[object]])


def add_feed(app: web.Application) -> None:
    """Serve the feed; it ends with the application."""
    app[LISTENERS] = set()
    app.router.add_get("/v1/events", _events)
    app.on_shutdown.append(_end)


async def _end(app: web.Application) -> None:
    for task in app[LISTENERS]:
        task.cancel()


async def _events(request: web.Request) -> web.StreamResponse:
    """`?after=N`, or a browser's Last-Event-ID, gives what came after that event first; without it, what comes."""
    instance, listeners = request.app[INSTANCE], request.app[LISTENERS]
    asked = request.headers.get("Last-Event-ID") or request.query.get("after")
    if asked is not None and not (asked.isascii() and asked.isdigit()):
        raise Rejected(400, "after must be the number of an event")
    if len(listeners) >= MOST_LISTENERS:
        raise Rejected(503, "too many listen already")
    told = instance.events()
    newest = int(told[-1]["id"]) if told else 0
    last = newest if asked is None else int(asked[:18])
    if last > newest:  # it counts what happened before we were started: of us it has heard nothing
        last = 0
    news = asyncio.Event()
    news.set()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
    task = asyncio.current_task()
    assert task is not None
    unsubscribe = instance.subscribe(news.set)
    listeners.add(task)
    try:
        await response.prepare(request)
        while True:
            try:
                await asyncio.wait_for(news.wait(), KEEP_ALIVE_S)
            except TimeoutError:
                await send(request, response, b": nothing new\n\n")
                continue
            news.clear()
            for event in instance.events(last):
                last = event["id"]
                line = json.dumps(event)
                await send(request, response, f"id: {last}\nevent: {event['kind']}\ndata: {line}\n\n".encode())
    except ConnectionError:
        return response
    finally:
        listeners.discard(task)
        unsubscribe()

"""Demo backends: small aiohttp servers on ports of their own that say who they are and whom they serve."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from typing import Any, Final

from aiohttp import WSMsgType, web

KEY_HEADER: Final = "X-User-ID"
LONGEST_WAIT_S: Final = 60.0
EVENT_INTERVAL_S: Final = 1.0
NOBODY: Final = "(nobody)"


class DemoBackend:
    """One backend. `requests` counts by user."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: Counter[str] = Counter()
        self.port = 0
        # Keeps the port while nobody listens on it.
        self._place: socket.socket | None = None
        self._runner: web.AppRunner | None = None

    @property
    def is_alive(self) -> bool:
        return self._runner is not None

    async def start(self) -> None:
        """Listen on a free loopback port."""
        self._place = _bound(0)
        self.port = self._place.getsockname()[1]
        await self.revive()

    async def stop(self) -> None:
        """Give everything back."""
        await self.die()
        if self._place is not None:
            self._place.close()

    async def die(self) -> None:
        """Break off everything and refuse connections."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def revive(self) -> None:
        """Listen on the same port as before."""
        app = web.Application(client_max_size=0)
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/slow", self._slow),
                web.get("/stream", self._stream),
                web.get("/ws", self._echo),
                web.post("/upload", self._upload),
                web.put("/upload", self._upload),
                web.put("/upload/{name}", self._upload),
                web.route("*", "/{path:.*}", self._hello),
            ]
        )
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.SockSite(self._runner, _bound(self.port)).start()

    def _greeting(self, request: web.Request, **more: Any) -> dict[str, Any]:
        user = request.headers.get(KEY_HEADER) or NOBODY
        self.requests[user] += 1
        return {
            "backend": self.name,
            "user": user,
            "requests_of_user": self.requests[user],
            "requests_in_all": self.requests.total(),
            **more,
        }

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _hello(self, request: web.Request) -> web.Response:
        return _line(self._greeting(request, path=request.path))

    async def _slow(self, request: web.Request) -> web.Response:
        """Answers after `?seconds=`."""
        try:
            seconds = min(LONGEST_WAIT_S, max(0.0, float(request.query.get("seconds", "1"))))
        except ValueError:
            return web.Response(status=400, text="seconds is a number\n")
        await asyncio.sleep(seconds)
        return _line(self._greeting(request, waited_s=seconds))

    async def _upload(self, request: web.Request) -> web.Response:
        """Counts what it is sent."""
        size = 0
        async for piece in request.content.iter_any():
            size += len(piece)
        return _line(self._greeting(request, received_bytes=size))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events, one a second."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        greeting = self._greeting(request)
        number = 0
        while True:
            number += 1
            try:
                await response.write(f"id: {number}\ndata: {json.dumps(greeting)}\n\n".encode())
            except ConnectionResetError:  # the client has had enough
                return response
            await asyncio.sleep(EVENT_INTERVAL_S)

    async def _echo(self, request: web.Request) -> web.StreamResponse:
        """A WebSocket that says everything back, with the backend's name before it."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._greeting(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await socket.send_str(f"{self.name}: {message.data}")
            elif message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data)
        return socket


def _bound(port: int) -> socket.socket:
    """A socket on a loopback port that others of ours may have too. Only those that listen are given connections."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


def _line(document: dict[str, Any]) -> web.Response:
    return web.Response(text=json.dumps(document) + "\n", content_type="application/json")

"""How the admin API answers: JSON documents, and problems as RFC 9457 has them."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from lbproxy.control.admin.guard import Guard
from lbproxy.control.admin.view import Document, Instance, Rejected
from lbproxy.observe.journal import Journal

INSTANCE: Final = web.AppKey("instance", Instance)
GUARD: Final = web.AppKey("guard", Guard)
JOURNAL: Final = web.AppKey("journal", Journal)

MAX_JSON_BYTES: Final = 1 << 20
# How long all of a request's body may take.
BODY_S: Final = 30.0
# How long a stream waits for a client that takes nothing of it; there is room for a few streams only.
STALLED_S: Final = 30.0


def document(content: Document, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(text=json.dumps(content) + "\n", status=status, content_type="application/json")


def problem(status: int, detail: str, headers: dict[str, str] | None = None, **members: Any) -> web.Response:
    """An error; `members` are further members of its document."""
    about = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return web.Response(
        text=json.dumps(about | members) + "\n",
        status=status,
        content_type="application/problem+json",
        headers=headers,
    )


async def send(request: web.Request, response: web.StreamResponse, piece: bytes) -> None:
    """Write a piece of a stream. Raises ConnectionError when the client is gone, or might as well be."""
    try:
        async with asyncio.timeout(STALLED_S):
            await response.write(piece)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionAbortedError("the client takes nothing") from None


async def read_body(request: web.Request) -> bytes:
    """All of the body. Raises Rejected when it is too long in coming; the connection is closed soon after that."""
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise Rejected(408, f"all of a body must come within {BODY_S:g} s") from None


async def read_json(request: web.Request) -> dict[str, Any]:
    """The object in the body; an empty body is an empty one. Raises Rejected."""
    body = await read_body(request)
    if len(body) > MAX_JSON_BYTES:
        raise Rejected(413, f"a body of JSON has at most {MAX_JSON_BYTES} octets")
    if not body:
        return {}
    if request.content_type != "application/json":
        raise Rejected(415, "the body must be application/json")
    try:
        content = json.loads(body, parse_constant=_refuse_constant)
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a pair, such as "\ud800"
        raise Rejected(400, "the body holds a text that is none: Unicode has no such character") from None
    except (ValueError, RecursionError):
        raise Rejected(400, "the body is not JSON") from None
    if not isinstance(content, dict):
        raise Rejected(400, "the body must be a JSON object")
    return content


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def only(content: dict[str, Any], *names: str) -> None:
    """Raises Rejected when there are members besides these."""
    for name in content:
        if name not in names:
            raise Rejected(400, f"there is no {name!r}; there is {', '.join(names)}")

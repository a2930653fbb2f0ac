"""Connections to backends: opening them, and keeping idle ones, last in first out, bounded, expired lazily."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from lbproxy.dataplane.connecting import connect
from lbproxy.dataplane.upstream import Upstream

if TYPE_CHECKING:
    from lbproxy.core.account import Backend
    from lbproxy.dataplane.plane import Plane
    from lbproxy.dataplane.relay import Exchange


def take_idle(plane: Plane, backend: Backend, is_careful: bool) -> Upstream | None:
    """The idle connection used last that still lives, or None.

    `is_careful` asks the kernel whether the backend has closed it meanwhile: for requests that could not be repeated
    if it had.
    """
    idle = backend.idle
    while idle:
        upstream: Upstream = idle.pop()  # type: ignore[assignment]  # a cast is a call, and this is every request
        if upstream.idle_until >= plane.now and not (is_careful and upstream.has_news()):
            return upstream
        upstream.close()
    return None


def expire_idle(plane: Plane, backend: Backend) -> None:
    """Close what has been idle for too long or is more than may be kept; the oldest are at the left, so this looks at
    no living ones but one."""
    idle = backend.idle
    most = backend.keep.max_idle if backend.keep is not None else 0
    end = 0
    while end < len(idle) and (len(idle) - end > most or cast(Upstream, idle[end]).idle_until < plane.now):
        end += 1
    expired = idle[:end]
    del idle[:end]
    for upstream in expired:
        cast(Upstream, upstream).close()


def close_idle(backend: Backend) -> None:
    """Close every idle connection of a backend that is no longer asked."""
    while backend.idle:
        cast(Upstream, backend.idle.pop()).close()


def review_idle(backend: Backend) -> None:
    """Hold a backend's idle connections against what the configuration has now: close those to another address, and
    keep the others as long as it says."""
    keep = backend.keep
    for each in list(backend.idle):
        upstream = cast(Upstream, each)
        if upstream.address is not backend.address:
            upstream.close()
        elif keep is not None:
            upstream.keep_for(keep)


def start_connecting(plane: Plane, backend: Backend, exchange: Exchange) -> asyncio.Task[None]:
    """Run `connect` as a task that is held until it ends."""
    task = plane.loop.create_task(connect(plane, backend, exchange))
    plane.spawn(task)
    return task

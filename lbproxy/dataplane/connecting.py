"""Opening a connection to a backend, in a coroutine that is never compiled (see `hatch_build.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbproxy.core.health import OUR_ERRORS
from lbproxy.core.ledger import CLOSED_EARLY, CONNECT_FAILED, CONNECT_REFUSED
from lbproxy.dataplane.upstream import Upstream

if TYPE_CHECKING:
    from lbproxy.core.account import Backend
    from lbproxy.dataplane.plane import Plane
    from lbproxy.dataplane.relay import Exchange


async def connect(plane: Plane, backend: Backend, exchange: Exchange) -> None:
    """Open a connection for an exchange and tell it how that went. Its deadline is the exchange's, which cancels."""
    address = backend.address

    def new_upstream() -> Upstream:
        return Upstream(plane, backend)

    try:
        if address.path:
            _, upstream = await plane.loop.create_unix_connection(new_upstream, address.path)  # type: ignore[type-var]
        else:
            _, upstream = await plane.loop.create_connection(  # type: ignore[type-var]
                new_upstream, address.host, address.port
            )
    except ConnectionRefusedError:
        exchange.attempt_failed(CONNECT_REFUSED)
    except OSError as error:
        if error.errno in OUR_ERRORS:
            exchange.could_not_try()
        else:
            exchange.attempt_failed(CONNECT_FAILED)
    else:
        if upstream.transport.is_closing():
            exchange.attempt_failed(CLOSED_EARLY)  # the backend closed it before it was sent anything
        else:
            upstream.count()
            exchange.connected(upstream)

"""A connection to the admin API that answers what it cannot read as it answers everything else.

aiohttp hands a request to the application once it has been understood. What is no HTTP never gets that far, and would
be answered in plain text under aiohttp's own name, with a traceback in the log for each.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast, final

from aiohttp import web

from lbproxy.control.admin.answers import problem
from lbproxy.control.reach import SERVER

# On every answer, whoever makes it.
FIXED_HEADERS: Final = {"Server": SERVER, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
UNREADABLE: Final = "the request cannot be read as HTTP, or its head is too long"
BUG: Final = "this is a bug; the journal says more"


# Who reaches the port may ask, but not take all the open files, which checks and new workers need as well.
MOST_CONNECTIONS: Final = 512
FIRST_REQUEST_S: Final = 30.0
# How long a client may go on with a body when it has its answer already.
LINGER_S: Final = 5.0


@final
class Connection(web.RequestHandler):
    """One connection of a client, or of something that takes this for another kind of server.

    It is closed at once where there are too many of its kind already, and after a while when no request comes. (Once
    one has come, aiohttp closes what is idle.)
    """

    __slots__ = ("_kind", "_silence")

    def __init__(self, manager: web.Server, kind: set[Connection] | None = None, **options: Any) -> None:
        """`kind` are the connections that are open on the same listening socket, this one added while it is."""
        super().__init__(manager, lingering_time=LINGER_S, **options)
        self._kind = kind if kind is not None else set()
        self._silence: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # No `isinstance` here: uvloop's transports have asyncio's methods and none of its classes.
        abort = cast(asyncio.Transport, transport).abort
        if len(self._kind) >= MOST_CONNECTIONS:
            abort()
            return
        self._kind.add(self)
        self._silence = asyncio.get_running_loop().call_later(FIRST_REQUEST_S, abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.has_asked()
        self._kind.discard(self)
        super().connection_lost(exc)

    def has_asked(self) -> None:
        """A request has come."""
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Called for what could not be read, and for what went wrong outside of the application's own answers."""
        if status >= 500:
            self.log_exception("an admin request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun, and can be nothing else any more")
        answer = problem(status, UNREADABLE if status < 500 else BUG, FIXED_HEADERS)
        answer.force_close()
        return answer

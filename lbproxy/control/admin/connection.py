"""A connection to the admin API that answers what it cannot read as it answers everything else.

aiohttp hands a request to the application once it has been understood. What is no HTTP never gets that far, and would
be answered in plain text under aiohttp's own name, with a traceback in the log for each.
"""

from __future__ import annotations

from typing import Final, final

from aiohttp import web

from lbproxy.control.admin.answers import problem
from lbproxy.control.reach import SERVER

# On every answer, whoever makes it.
FIXED_HEADERS: Final = {"Server": SERVER, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
UNREADABLE: Final = "the request cannot be read as HTTP, or its head is too long"
BUG: Final = "this is a bug; the journal says more"


@final
class Connection(web.RequestHandler):
    """One connection of a client, or of something that takes this for another kind of server."""

    __slots__ = ()

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

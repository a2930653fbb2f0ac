"""One request with its response: how far it got, what is therefore still possible, and what is told when it has ended.

An exchange has two sides. The downstream side says how much of the request has come from the client:

    IDLE   no request yet            HEAD  its head is arriving        BODY  its body is arriving
    DONE   it is here completely     GONE  the client went away

The upstream side says how far the current attempt got:

    NONE   no backend chosen         CONNECTING  nothing was sent      SENDING  something was sent, no answer received
    RESPONDING  the answer's final head has been received              FINISHED it has ended      BROKEN  it failed

Two things can go wrong at any moment: the attempt fails (refused, reset, cut short, a deadline), or the client leaves.
What follows is a matter of the pair of states alone, so it is a table and not a nest of conditions; a pair that cannot
come about says IMPOSSIBLE, and meeting one is an error in the program. Whether a NEXT or a REPEAT is then really made
also depends on what the request allows (`core/retry.py`), on the attempts left and on the backends left.
"""

from __future__ import annotations

from typing import Final

from lbproxy.core.headers import RequestShape, Values
from lbproxy.core.trace import Trace

IDLE: Final = 0
HEAD: Final = 1
BODY: Final = 2
DONE: Final = 3
GONE: Final = 4
DOWNSTREAM_STATES: Final = ("idle", "head", "body", "done", "gone")

NONE: Final = 0
CONNECTING: Final = 1
SENDING: Final = 2
RESPONDING: Final = 3
FINISHED: Final = 4
BROKEN: Final = 5
UPSTREAM_STATES: Final = ("none", "connecting", "sending", "responding", "finished", "broken")

# What is done about it.
IMPOSSIBLE: Final = 0
IGNORE: Final = 1  # nobody is waiting for anything
QUIT: Final = 2  # close the downstream connection, there is no request to account for
NEXT: Final = 3  # nothing was sent: the next backend may have it, whatever the method
REPEAT: Final = 4  # something was sent and no answer received: the next backend may have it if it may be repeated
CUT: Final = 5  # the answer has begun: close both sides so that the client sees that it is cut, never fake an end
DETACH: Final = 6  # the answer has ended while the request was still arriving: drop the upstream connection only
ABANDON: Final = 7  # the client left: drop the attempt, count an abort, and blame no backend

Table = tuple[tuple[int, ...], ...]

# Rows: downstream state. Columns: none, connecting, sending, responding, finished, broken.
WHEN_ATTEMPT_FAILS: Final[Table] = (
    (IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE, IGNORE, IGNORE),  # idle
    (IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE, IGNORE, IGNORE),  # head
    (IMPOSSIBLE, NEXT, REPEAT, CUT, DETACH, IGNORE),  # body
    (IMPOSSIBLE, NEXT, REPEAT, CUT, IGNORE, IGNORE),  # done
    (IGNORE, IGNORE, IGNORE, IGNORE, IGNORE, IGNORE),  # gone
)
WHEN_CLIENT_LEAVES: Final[Table] = (
    (QUIT, IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE, QUIT, QUIT),  # idle
    (QUIT, IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE, QUIT, QUIT),  # head
    (ABANDON, ABANDON, ABANDON, ABANDON, DETACH, ABANDON),  # body
    (ABANDON, ABANDON, ABANDON, ABANDON, QUIT, ABANDON),  # done
    (IGNORE, IGNORE, IGNORE, IGNORE, IGNORE, IGNORE),  # gone
)

# Of a request whose head has not been read.
NO_SHAPE: Final = RequestShape((), frozenset())


class Finished:
    """What logs and traces may read of an exchange when it has ended. A class and no protocol, for compiled code reads
    the attributes of a class ten times as fast, and a line of the access log reads twenty.

    Times are in microseconds. `status` 0: none was sent. `backend_name` "": none was chosen. `decision`: index into
    `ledger.DECISIONS`, -1 when not routed. `reason`: "", or a word of `ledger.REJECTIONS` or `ledger.UPSTREAM_ERRORS`,
    or `ledger.CLIENT_ABORT`. `connect_us` -1: the connection was reused. `first_byte_us` -1: no answer began. `agent`
    and `referer` are the request's User-Agent and Referer, b"" when there is none. `trace_id` is what the backend was
    told, b"" when the policy is to pass on what comes. `trace` None: its spans are told to nobody. `path` is the target
    in origin-form. `peer` is who connected, `client` who that one speaks for. `started` and `sent` are the monotonic
    seconds at which the request came and at which its last attempt was sent. `shape` and `values` are its header.
    """

    __slots__ = (
        "agent", "attempts", "backend_name", "client", "connect_us", "decision", "duration_us", "first_byte_us", "host",
        "key", "method", "minor", "path", "peer", "pool_name", "reason", "referer", "request_bytes", "request_id",
        "response_bytes", "sent", "shape", "started", "status", "target", "trace", "trace_id", "upgraded", "values",
    )  # fmt: skip

    def __init__(self) -> None:
        self.peer = ""
        self.client = ""
        self.method = b""
        self.target = b""
        self.path = b""
        self.host = b""
        self.agent = b""
        self.referer = b""
        self.minor = 1
        self.shape = NO_SHAPE
        self.values: Values = ()
        self.request_id = b""
        self.trace_id = b""
        self.trace: Trace | None = None
        self.key: bytes | None = None
        self.pool_name = ""
        self.backend_name = ""
        self.decision = -1
        self.attempts = 0
        self.status = 0
        self.reason = ""
        self.upgraded = False
        self.request_bytes = 0
        self.response_bytes = 0
        self.started = 0.0
        self.sent = 0.0
        self.duration_us = 0
        self.connect_us = -1
        self.first_byte_us = -1

    @property
    def attempt_us(self) -> int:
        """From the beginning of the last attempt, its connecting included, to the end; -1: there was none."""
        if not self.attempts:
            return -1
        return self.duration_us - int((self.sent - self.started) * 1e6) + max(0, self.connect_us)

    def field(self, name: bytes) -> bytes:
        """The request's header of that lower-case name, its lines joined; b"" when there is none. Only with a `trace`:
        else the request's values have been forgotten."""
        return self.shape.joined(name, self.values)

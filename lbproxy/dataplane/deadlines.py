"""Deadlines: one coarse timer sweeps all connections; setting one is storing two numbers.

(Cancelling and re-arming a loop timer costs about 1290 ns, storing a deadline 90.) A deadline is never early, and late
by at most two ticks, and by as long as the loop has stood still, for which nobody else is to be blamed (every other
time, where it does so again and again).
"""

from __future__ import annotations

from typing import Final

TICK: Final = 0.1
NEVER: Final = float("inf")

# What a downstream connection, or the exchange on it, is waiting for.
DUE_HEAD: Final = 0  # the rest of a request head
DUE_KEEP_ALIVE: Final = 1  # the next request
DUE_BODY: Final = 2  # more of the request's body
DUE_SEND: Final = 3  # the client to take what we send
DUE_LINGER: Final = 4  # the client to close, after we have
DUE_CONNECT: Final = 5  # the backend to accept
DUE_FIRST_BYTE: Final = 6  # the head of the answer
DUE_UPSTREAM: Final = 7  # more of the answer
DUE_TUNNEL: Final = 8  # anything on an upgraded connection
DUE_TRY: Final = 9  # the head of the answer, from this backend
DUE_SEAT: Final = 10  # a seat, while every backend is full
# Added to one of these: less time than there is for it, because the client may be gone.
CUT_SHORT: Final = 16

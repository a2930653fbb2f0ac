"""What may be tried again: decided by how far the attempt got, not by how it failed.

    phase       what has happened                                   another attempt
    UNSENT      no octet of the request has left                    always: nobody has seen it
    SENT        some has left, no whole head has come back          if repeating it does no harm, and all of it is kept
    ANSWERED    a response head has come, nothing is passed on      the same, and its status is one that was configured
    BEGUN       some of a response has been passed on               never: the client would get two halves

Repeating does no harm when the method is idempotent (RFC 9110 9.2.2), or when the configuration vouches for it. A proxy
must not repeat any other request on its own, not even when a kept-alive connection turned out to be closed.

Attempts that may have given a backend work multiply load just when there is too much of it, so those are also drawn
from a budget: a share of live traffic. An attempt that was never sent has cost nobody anything and is free; drawing it
from the budget would fail requests because backends are dead, which is what retries are for.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final, final

from lbproxy.core.bound import exact
from lbproxy.core.spec import Retry

UNSENT: Final = 0
SENT: Final = 1
ANSWERED: Final = 2
BEGUN: Final = 3

# The answer: go on, it was never possible, or possible but refused, with the reason as an index into REFUSALS.
ALLOWED: Final = -1
IMPOSSIBLE: Final = -2
REFUSALS: Final = ("attempts", "budget", "buffer", "not_idempotent")
NO_ATTEMPTS: Final = 0
NO_BUDGET: Final = 1
NO_BUFFER: Final = 2
NOT_IDEMPOTENT: Final = 3

IDEMPOTENT: Final = frozenset((b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"))

WINDOW_S: Final = 10.0
_SAMPLES: Final = 10


@final
class RetryBudget:
    """How many repeated attempts live traffic entitles to: `floor`, and `share` of every request that is in flight or
    was answered in the last ten seconds. One per pool and worker, and for as long as the worker has the pool: what it
    has seen holds on when a new configuration changes its `share` and its `floor`.

    It reads a running count of the pool's requests, which stands at `requests` when it begins, on the coarse timer and
    when it is asked; the hot path pays nothing.
    """

    __slots__ = ("_retries", "_samples", "floor", "share")

    def __init__(self, share: float = 0.0, floor: int = 0, requests: int = 0) -> None:
        self.share = share
        self.floor = floor
        self._retries = 0
        # (when, requests, retries) about once a second, the oldest no younger than the window.
        self._samples: Final[deque[tuple[float, int, int]]] = deque([(-inf, requests, 0)])

    def advance(self, now: float, requests: int) -> None:
        """Take note of the running count of requests. To be called at least once a second: what comes between two
        calls counts as long as the whole of it is not too old."""
        samples = self._samples
        if now - samples[-1][0] >= WINDOW_S / _SAMPLES:
            samples.append((now, requests, self._retries))
        while len(samples) > 1 and now - samples[1][0] >= WINDOW_S:
            samples.popleft()

    def left(self, now: float, requests: int, in_flight: int) -> int:
        """How many attempts may still be repeated now."""
        self.advance(now, requests)
        _, requests_then, retries_then = self._samples[0]
        live = max(0, requests - requests_then) + in_flight
        return self.floor + int(exact(self.share) * live) - (self._retries - retries_then)

    def spend(self, now: float, requests: int, in_flight: int) -> bool:
        """Draw one attempt, if there is one left."""
        if self.left(now, requests, in_flight) <= 0:
            return False
        self._retries += 1
        return True


@final
class RetryPolicy:
    """A pool's rules, prepared."""

    __slots__ = ("_attempts", "_methods", "_statuses")

    def __init__(self, spec: Retry) -> None:
        self._attempts: Final = spec.attempts
        self._methods: Final = IDEMPOTENT | {method.encode() for method in spec.methods}
        self._statuses: Final = frozenset(spec.statuses)

    def may_repeat(self, method: bytes) -> bool:
        """Whether a request of this method may be sent again after it has been sent."""
        return method in self._methods

    def verdict(self, phase: int, method: bytes, attempts: int, is_kept: bool, status: int = 0) -> int:
        """Whether another attempt may follow, the budget apart: ALLOWED, IMPOSSIBLE, or an index into REFUSALS.

        `attempts` have been made so far. `is_kept`: all that has been sent of the body can be sent again. `status` is
        that of the response, in the phase ANSWERED.
        """
        if phase == BEGUN or (phase == ANSWERED and status not in self._statuses):
            return IMPOSSIBLE
        if phase != UNSENT:
            if not self.may_repeat(method):
                return NOT_IDEMPOTENT
            if not is_kept:
                return NO_BUFFER
        return ALLOWED if attempts < self._attempts else NO_ATTEMPTS

    @staticmethod
    def is_charged(phase: int) -> bool:
        """Whether a further attempt after this phase is drawn from the budget."""
        return phase != UNSENT

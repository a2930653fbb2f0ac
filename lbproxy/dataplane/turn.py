"""What one turn of the event loop begins, and what it has brought to its end: counted first, then sent.

A turn reads from every connection that has something; the answers that it completes go out together when it is over,
behind the requests for the backends. A client or a backend that is written to while its processor sleeps is woken for
every single message; written to in a row, it is awake already. With 64 clients on two cores that is 1,400 interrupts a
second instead of 8,000, and a quarter of all CPU time.

A turn of a crowd that has gathered little looks once more, without waiting, at what has come meanwhile: a worker that
shares its processors with others is interrupted between any two of them, and many small turns cost more than a few.

A turn begins no more than so many requests. The others wait for the next one, in the order in which they came, so that
a crowd of new requests does not hold up the answers to those before it; and what serves them, the few connections to
backends that were used last, is still in the processor's caches when they come to their turn.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from lbproxy.core.account import CROWD
from lbproxy.core.ledger import Cells

if TYPE_CHECKING:
    from lbproxy.core.account import Account
    from lbproxy.core.balance import Pool
    from lbproxy.dataplane.downstream import Downstream
    from lbproxy.dataplane.upstream import Upstream

# Requests that one turn begins. With 1,000 clients 21.0 us of CPU a request, where it is 21.4 with 16, 21.5
# with 48, and 24.1 without an end; with 64 clients it makes no difference until it is 16 (17.5 instead of 16.8).
MOST: Final = 32

# Requests in flight from which on a turn that has less than so much to send looks once more. With two workers that
# share two cores with clients and backends, 1.02 times the requests per second, and with one worker on a core of its
# own as many with 32 clients; but 0.97 times with 8 clients and 0.9 times with 5, who only wait for each other.
LARGE_CROWD: Final = 10
FEW: Final = 24


@final
class Turn:
    """Gathers while the loop's callbacks run. What a client has got whole has been counted, whatever happens then."""

    __slots__ = (
        "_answered", "_asked", "_begun", "_cells", "_crowd", "_has_looked", "_is_ending", "_loop", "_moved", "_put_off",
        "_tallied",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, cells: Cells) -> None:
        self._loop: Final = loop
        self._cells: Final = cells
        self._is_ending = False
        self._crowd = 0
        self._has_looked = False  # once more
        self._begun = 0
        self._tallied: Final[list[Pool]] = []
        self._moved: Final[list[Account]] = []
        self._asked: Final[list[Upstream]] = []
        self._answered: Final[list[Downstream]] = []
        self._put_off: Final[list[Downstream]] = []

    def tallied(self, pool: Pool) -> None:
        """The tally of `pool` has been begun: a plain request (see `core.tally`) was answered. `send` or `count`
        follows."""
        self._tallied.append(pool)

    def moved(self, account: Account) -> None:
        """Seats have been taken or given back, of which the other workers are to be told."""
        self._moved.append(account)
        self._end_soon()

    def send(self, downstream: Downstream, crowd: int) -> None:
        """Send what `downstream.unsent` holds when the turn is over. So many requests are in flight in its pool."""
        self._answered.append(downstream)
        self._crowd = max(self._crowd, crowd)
        self._end_soon()

    def ask(self, upstream: Upstream, crowd: int) -> None:
        """Send the request whose head `upstream.unsent` holds when the turn is over. So many are in flight in its
        pool."""
        self._asked.append(upstream)
        self._crowd = max(self._crowd, crowd)
        self._end_soon()

    def admit(self) -> bool:
        """Whether a request that comes now may begin in this turn. If so it counts as begun, whatever becomes of it."""
        if self._begun >= MOST or self._put_off:
            return False
        self._begun += 1
        if self._begun >= CROWD:  # fewer, over several turns perhaps, are no crowd
            self._end_soon()
        return True

    def put_off(self, downstream: Downstream) -> None:
        """Let `downstream` go on with what it holds when its turn comes, behind all that were put off before."""
        self._put_off.append(downstream)
        self._end_soon()

    def _end_soon(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        if not self._has_looked and self._may_look():
            self._has_looked = True
            self._loop.call_soon(self._end)
            return
        self._crowd = 0
        self._has_looked = False
        if self._put_off:
            self._begin_more()
        self._begun = 0
        self._is_ending = False
        if self._put_off:
            self._end_soon()
        for upstream in self._asked:
            try:
                upstream.send_rest()
            except Exception as error:
                upstream.fail("a request could not be sent", error)
        self._asked.clear()
        self.count()
        for downstream in self._answered:
            try:
                downstream.send_rest()
            except Exception as error:
                downstream.fail("an answer could not be sent", error)
        self._answered.clear()
        for account in self._moved:
            account.tell()
        self._moved.clear()

    def _may_look(self) -> bool:
        """Whether it pays to look once more before anything is sent."""
        return self._crowd >= LARGE_CROWD and not self._put_off and 0 < len(self._asked) + len(self._answered) < FEW

    def _begin_more(self) -> None:
        """Begin what was put off, as far as this turn has room."""
        room = MOST - self._begun
        begun = self._put_off[:room]
        del self._put_off[:room]
        for downstream in begun:
            try:
                downstream.go_on()
            except Exception as error:
                downstream.fail("a request that was put off could not be begun", error)

    def count(self) -> None:
        """Count what has been gathered."""
        for pool in self._tallied:
            pool.account.tally.count(self._cells, pool.row)
        self._tallied.clear()

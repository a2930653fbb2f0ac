"""The clock: events in the order of their time, and who is called by each.

Time starts at START and no event takes any. Every worker measures its keys each TICK_S, at moments of its own, as
processes do that know nothing of each other. A client in a closed loop keeps its connection, and so its worker; which
one that is has been left to chance, as it is when workers share a port.

A recorded night is long, and ticks are most of it. When nothing has been in flight for SETTLED_S, every measure has
faded to less than a rounding error, no key is hot nor remembered as one (`core/hotkeys.py`), and further ticks change
nothing: they are left out until LEAD_S before something happens again. Those that remain come when they would have.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, final

from lbproxy.core.hashing import NO_HASH
from lbproxy.simulate.machine import FULL, TICK_S, Router
from lbproxy.simulate.tally import Tally
from lbproxy.simulate.traffic import NO_KEY, Load, Traffic

START: Final = 1000.0
# How often somebody is told how far it has come, in simulated seconds.
_REPORT_S: Final = 0.25
SETTLED_S: Final = 120.0
LEAD_S: Final = 5.0

Action = Callable[[float, Any], None]


@final
class Exchange:
    """One request on its way. `client` -1: it comes from nobody who waits."""

    __slots__ = ("backend", "client", "h", "key", "service_s", "worker")

    def __init__(self, client: int, worker: int, key: int, h: int, service_s: float) -> None:
        self.client = client
        self.worker = worker
        self.key = key
        self.h = h
        self.service_s = service_s
        self.backend = -1


@final
class Engine:
    """Runs traffic through a router. `watch` is called after every tick of a worker with the time."""

    def __init__(
        self,
        router: Router,
        traffic: Traffic,
        load: Load,
        tally: Tally,
        watch: Callable[[float], None] | None = None,
        report: Callable[[float], None] | None = None,
    ) -> None:
        """`report` is told now and then which part of the run is done, from 0 to 1."""
        self._router: Final = router
        self._traffic: Final = traffic
        self._load: Final = load
        self._tally: Final = tally
        self._watch: Final = watch
        self._report: Final = report
        # What is random here makes traffic and must come out the same again.
        self._chance: Final = random.Random(load.seed)  # noqa: S311
        self._events: Final[list[tuple[float, int, Action, Any]]] = []
        self._count = 0
        self._end_of_run: Final = START + load.seconds
        self._open = 0  # requests that have come and are not over
        self._rests_since = START  # when the last of them was
        self._waiting: Final = [deque[Exchange]() for _ in range(load.workers)]
        self._worker_of: Final = [self._chance.randrange(load.workers) for _ in range(load.clients)]

    def run(self) -> None:
        """From START until the load's time is over."""
        self._begin()
        events = self._events
        while events:
            now, _, action, subject = heapq.heappop(events)
            if now >= self._end_of_run:
                break
            action(now, subject)

    def _begin(self) -> None:
        load = self._load
        for worker in range(load.workers):
            self._at(START + self._chance.random() * TICK_S, self._tick, worker)
        if self._report is not None:
            self._at(START, self._tell, None)
        if self._traffic.recorded:
            self._at(START + self._traffic.recorded[0].at_s, self._replay, 0)
        elif load.rate is not None:
            self._at(START, self._come, None)
        else:
            for client in range(load.clients):
                self._at(START + self._chance.random() * load.service_s, self._ask, client)

    def _at(self, when: float, action: Action, subject: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, action, subject))

    # What happens.

    def _tick(self, now: float, worker: int) -> None:
        self._router.tick(worker, now)
        if self._watch is not None:
            self._watch(now)
        self._seat_those_who_wait(now, worker)
        next_tick, until = now + TICK_S, self._rests_until(now)
        while next_tick + TICK_S < until:  # step by step, so that it comes at the very moment
            next_tick += TICK_S
        self._at(next_tick, self._tick, worker)

    def _rests_until(self, now: float) -> float:
        """Until when ticks change nothing; `now` when they may."""
        if self._open or self._watch is not None or now - self._rests_since < SETTLED_S:
            return now
        clockwork = (self._tick, self._tell)
        happens = min([when for when, _, action, _ in self._events if action not in clockwork], default=None)
        return (self._end_of_run if happens is None else happens) - LEAD_S

    def _tell(self, now: float, _: None) -> None:
        assert self._report is not None
        self._report((now - START) / self._load.seconds)
        self._at(max(now + _REPORT_S, self._rests_until(now)), self._tell, None)

    def _ask(self, now: float, client: int) -> None:
        """A client of the closed loop sends its next request."""
        key = self._traffic.draw(self._chance, now - START)
        self._arrive(now, Exchange(client, self._worker_of[client], key, self._traffic.hashes[key], self._service_s()))

    def _come(self, now: float, _: None) -> None:
        """A request comes from somewhere, and the next one will."""
        rate = self._load.rate
        assert rate is not None
        key = self._traffic.draw(self._chance, now - START)
        self._arrive(now, Exchange(-1, self._any_worker(), key, self._traffic.hashes[key], self._service_s()))
        self._at(now + self._chance.expovariate(rate), self._come, None)

    def _replay(self, now: float, index: int) -> None:
        """A recorded request comes again."""
        recorded = self._traffic.recorded
        arrival = recorded[index]
        h = self._traffic.hashes[arrival.key] if arrival.key != NO_KEY else NO_HASH
        self._arrive(now, Exchange(-1, self._any_worker(), arrival.key, h, arrival.duration_s))
        if index + 1 < len(recorded):
            self._at(START + recorded[index + 1].at_s, self._replay, index + 1)

    def _arrive(self, now: float, exchange: Exchange) -> None:
        self._open += 1
        if not self._router.admit(exchange.worker, exchange.h):
            self._refuse(now, exchange, "key_limit")
        elif not self._seat(now, exchange):
            waiting = self._waiting[exchange.worker]
            if len(waiting) >= self._router.queue.size:
                self._refuse(now, exchange, "queue_full")
            else:
                waiting.append(exchange)
                self._at(now + self._router.queue.timeout, self._give_up, exchange)

    def _seat(self, now: float, exchange: Exchange) -> bool:
        """Give the exchange to a backend, or refuse it; False when it must wait."""
        key = self._traffic.keys[exchange.key] if exchange.key != NO_KEY else b""
        backend, decision = self._router.seat(exchange.worker, key, exchange.h)
        if backend == FULL:
            return False
        if backend < 0:
            self._refuse(now, exchange, "no_backend")
        else:
            exchange.backend = backend
            self._tally.place(now, exchange.key, backend, decision)
            self._at(now + exchange.service_s, self._end, exchange)
        return True

    def _end(self, now: float, exchange: Exchange) -> None:
        self._router.leave(exchange.worker, exchange.backend, exchange.h)
        self._tally.leave(now, exchange.backend)
        self._open -= 1
        self._rests_since = now
        self._seat_those_who_wait(now, exchange.worker)
        if exchange.client >= 0:
            self._ask(now, exchange.client)

    def _seat_those_who_wait(self, now: float, worker: int) -> None:
        waiting = self._waiting[worker]
        while waiting and self._seat(now, waiting[0]):
            waiting.popleft()

    def _give_up(self, now: float, exchange: Exchange) -> None:
        waiting = self._waiting[exchange.worker]
        if exchange in waiting:
            waiting.remove(exchange)
            self._refuse(now, exchange, "queue_timeout")

    def _refuse(self, now: float, exchange: Exchange, reason: str) -> None:
        """The client hears no, and comes again after as long as an answer would have taken."""
        self._tally.refuse(now, reason)
        self._open -= 1
        self._rests_since = now
        if exchange.client >= 0:
            self._at(now + exchange.service_s, self._ask, exchange.client)

    def _service_s(self) -> float:
        load = self._load
        return load.service_s * (1 + load.spread * (2 * self._chance.random() - 1))

    def _any_worker(self) -> int:
        return self._chance.randrange(self._load.workers)

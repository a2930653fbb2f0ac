"""Whether a backend may be asked: independent facts, each with its own rule, and one question over them.

    fact            changed by                              meaning
    healthy         probes: `rise` or `fall` in a row       None until the first result: unknown
    held_until      coming up again after a fall            up, but not trusted yet
    ejected_until   live results of real requests           taken out for a time
    draining        the operator                            takes nothing new

A backend is *eligible* when it is healthy, neither held nor ejected, and not draining. It is on *standby* when all that
speaks against it is lack of trust: unknown or held. Standbys serve when nobody is eligible, so a cold start has traffic
before the first probe.

*Strictly consecutive.* A contrary result sets the streak to zero. Two failures, a success and a failure are one failure
in a row. The very first result decides at once: there is nothing yet that it could contradict.

*Flaps.* Every fall of a healthy backend raises its penalty by one, and it must then be good without a break for
`hold`, doubled for each further penalty up to `longest_hold`, before it is trusted again. A failure meanwhile
starts that time anew, and costs nobody anything: its sessions have taken refuge once, stay where they are, and come
home once. A penalty is forgiven after each `forgive` of good service. Nobody is held while fewer than half of a pool
are eligible: then doubt is the smaller harm.

*Ejection.* Live results take a backend out when `consecutive_errors` requests in a row fail in one worker, or when of
at least `min_requests` in the last ten seconds more than `failure_rate` fail. It is out for `base`, doubled with each
repetition up to `max`, and one repetition is forgotten for every span of good service as long as the last one it was
out. At most `max_share` of a pool is out at a time, and nobody who is the last to serve; what is left in for that
reason is counted.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from copy import copy
from typing import Final, final

from lbproxy.core.bound import exact
from lbproxy.core.spec import Ejection, Health

WINDOW_S: Final = 10.0
RAMP_STEPS: Final = 10

# Why a connection could not be opened for want of something on our side: never held against a backend.
OUR_ERRORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))

# Every word that `BackendHealth.state` can say.
STATES: Final = ("up", "unknown", "held", "draining", "ejected", "down")


def ramp(elapsed_s: float, slow_start_s: float) -> float:
    """The part of its weight that a backend has `elapsed_s` after it came (back) into service, above 0 and at most 1.

    It grows in steps, so that a ring is rebuilt ten times and not at every tick.
    """
    if elapsed_s >= slow_start_s:
        return 1.0
    return (int(max(0.0, elapsed_s) / slow_start_s * RAMP_STEPS) + 1) / RAMP_STEPS


@final
class BackendHealth:
    """The facts about one backend. Asked by anybody, changed only by its `PoolHealth`."""

    __slots__ = (
        "counts",
        "draining",
        "ejected_until",
        "ejection_s",
        "ejections",
        "forgiven_at",
        "healthy",
        "held_until",
        "penalty",
        "reformed_at",
        "since",
        "streak",
        "window_at",
    )

    def __init__(self, healthy: bool | None) -> None:
        # By probes. `streak` counts results in a row that contradict `healthy`; `penalty` is the number of falls.
        self.healthy = healthy
        self.streak = 0
        self.held_until = 0.0
        self.penalty = 0
        self.forgiven_at = 0.0
        # By live results. `counts` are good and bad in this half of the window and in the one before; `ejections` is
        # how often of late, `ejection_s` how long the last time.
        self.counts = (0, 0, 0, 0)
        self.window_at = 0.0
        self.ejected_until = 0.0
        self.ejections = 0
        self.ejection_s = 0.0
        self.reformed_at = 0.0
        # By the operator.
        self.draining = False
        # When it last became eligible beside others that were; -inf when it had to carry the pool at once or
        # began with it, for then nobody else had its keys.
        self.since = float("-inf")

    def is_eligible(self, now: float) -> bool:
        """Whether it may be given new exchanges."""
        return self.healthy is True and not self.draining and now >= self.held_until and now >= self.ejected_until

    def is_standby(self, now: float) -> bool:
        """Whether it may be given new exchanges when nobody is eligible: unknown or held, and nothing worse."""
        if self.draining or now < self.ejected_until:
            return False
        return self.healthy is None or (self.healthy and now < self.held_until)

    def state(self, now: float) -> str:
        """One word for all facts: draining, down, ejected, unknown, held or up; the gravest first."""
        if self.draining:
            return "draining"
        if self.healthy is False:
            return "down"
        if now < self.ejected_until:
            return "ejected"
        if self.healthy is None:
            return "unknown"
        return "held" if now < self.held_until else "up"


@final
class PoolHealth:
    """The health of a pool's backends by name. It outlives the configuration: `keep` adds and forgets names.

    Every `observe_*` returns whether a fact has flipped; then call `advance`. `now` never runs backwards.
    """

    def __init__(self, probes: Health, ejection: Ejection) -> None:
        self.probes = probes
        self.ejection = ejection
        self.backends: Final[dict[str, BackendHealth]] = {}
        # How often a backend was left in although its results were bad: max_share was reached, or it was the last one.
        self.spared = 0
        self._eligible: set[str] = set()
        # Those that began together with the pool and have no result yet: nobody carried their keys before them.
        self._founders: set[str] = set()

    def keep(self, names: Collection[str]) -> None:
        """Know exactly these backends: new ones are unknown (or up, when the pool has no probes), others forgotten."""
        is_founding = not self.backends
        for name in self.backends.keys() - set(names):
            del self.backends[name]
        for name in names:
            if name not in self.backends:
                self.backends[name] = BackendHealth(True if self.probes.kind == "none" else None)
                if is_founding:
                    self._founders.add(name)
        self._founders &= self.backends.keys()
        self._eligible &= self.backends.keys()

    def under(
        self,
        probes: Health,
        ejection: Ejection,
        names: Collection[str],
        renewed: Collection[str] = (),
    ) -> PoolHealth:
        """The same facts under another configuration, as a copy. `renewed` are names of what are now new machines."""
        heir = PoolHealth(probes, ejection)
        heir.spared = self.spared
        heir.backends.update({name: copy(self.backends[name]) for name in self.backends if name not in renewed})
        heir._eligible = self._eligible.difference(renewed)
        heir._founders = self._founders.difference(renewed)
        heir.keep(names)
        for backend in heir.backends.values():
            heir._shorten(backend, self)
        if probes.kind == "none":
            for backend in heir.backends.values():
                if backend.healthy is not True:
                    backend.healthy, backend.streak, backend.held_until = True, 0, 0.0
        return heir

    def _shorten(self, backend: BackendHealth, before: PoolHealth) -> None:
        """What is shorter than under the rules before is so at once: a hold, an ejection. What is longer begins with
        the next one, or who has done his time would be out again."""
        if backend.penalty:
            backend.held_until -= max(0.0, before._hold_s(backend) - self._hold_s(backend))
        if not self.ejection.consecutive_errors and self.ejection.failure_rate is None:
            backend.ejected_until = 0.0
        elif backend.ejections:
            ejection_s = self._ejection_s(backend.ejections - 1)
            if ejection_s < min(backend.ejection_s, before._ejection_s(backend.ejections - 1)):
                backend.ejected_until -= backend.ejection_s - ejection_s
                backend.ejection_s = ejection_s

    def serving(self, now: float) -> set[str]:
        """Who may be given new exchanges: the eligible, or if there are none the standbys, or nobody."""
        eligible = {name for name, backend in self.backends.items() if backend.is_eligible(now)}
        return eligible or {name for name, backend in self.backends.items() if backend.is_standby(now)}

    def observe_probe(self, name: str, ok: bool, now: float) -> bool:
        """Take the result of an active check."""
        backend = self.backends[name]
        if not ok and backend.healthy and now < backend.held_until:
            backend.held_until = backend.forgiven_at = now + self._hold_s(backend)
        if ok is backend.healthy:
            backend.streak = 0
            return False
        backend.streak += 1
        needed = 1 if backend.healthy is None else self.probes.rise if ok else self.probes.fall
        if backend.streak < needed:
            return False
        backend.streak = 0
        if ok:
            self._rise(backend, now)
        else:
            self._founders.discard(name)
            self._fall(backend, now)
        return True

    def observe_counts(self, name: str, good: int, bad: int, now: float) -> bool:
        """Take the results of real requests, in no known order: only their rate can speak against a backend. Late ones
        of an ejected backend say nothing."""
        backend = self.backends[name]
        if now < backend.ejected_until or not good + bad:
            return False
        self._count(backend, good, bad, now)
        return bad > 0 and self._is_rate_bad(backend) and self._eject(backend, now)

    def observe_streak(self, name: str, now: float) -> bool:
        """Take a worker's word that so many requests in a row have failed as the policy allows."""
        backend = self.backends[name]
        return now >= backend.ejected_until and self._eject(backend, now)

    def observe_drain(self, name: str, draining: bool) -> bool:
        """The operator drains a backend, or takes that back."""
        backend = self.backends[name]
        flipped = backend.draining is not draining
        backend.draining = draining
        return flipped

    def advance(self, now: float) -> float | None:
        """Let time do its work: forgive, release the held when too few are eligible, note who is new in service.

        Called on the coarse timer and after every flip. Returns when time alone will next change something, or None.
        """
        for backend in self.backends.values():
            self._forgive(backend, now)
        self._release(now)
        eligible = {name for name, backend in self.backends.items() if backend.is_eligible(now)}
        for name in eligible - self._eligible:
            is_latecomer = self._eligible and name not in self._founders
            self.backends[name].since = now if is_latecomer else float("-inf")
        self._founders -= eligible
        self._eligible = eligible
        ends = [end for each in self.backends.values() for end in (each.held_until, each.ejected_until) if end > now]
        return min(ends, default=None)

    def share(self, name: str, now: float, slow_start_s: float) -> float:
        """The part of its weight that a backend has now, for slow start."""
        return ramp(now - self.backends[name].since, slow_start_s)

    def _rise(self, backend: BackendHealth, now: float) -> None:
        trusted = backend.healthy is None or not backend.penalty
        backend.healthy = True
        backend.held_until = now if trusted else now + self._hold_s(backend)
        backend.forgiven_at = backend.held_until

    def _fall(self, backend: BackendHealth, now: float) -> None:
        if backend.healthy and now >= backend.held_until:
            backend.penalty += 1
        backend.healthy = False
        backend.held_until = now

    def _hold_s(self, backend: BackendHealth) -> float:
        return min(self.probes.hold * 2.0 ** min(backend.penalty - 1, 60), self.probes.longest_hold)

    def _ejection_s(self, ejections: int) -> float:
        return min(self.ejection.base * 2.0 ** min(ejections, 60), self.ejection.max)

    def _release(self, now: float) -> None:
        able = [backend for backend in self.backends.values() if not backend.draining]
        held = [backend for backend in able if backend.state(now) == "held"]
        short = (len(able) + 1) // 2 - sum(backend.is_eligible(now) for backend in able)
        for backend in sorted(held, key=lambda each: each.held_until)[: max(0, short)]:
            backend.held_until = backend.forgiven_at = now

    def _forgive(self, backend: BackendHealth, now: float) -> None:
        while backend.penalty and backend.healthy and now - backend.forgiven_at >= self.probes.forgive:
            backend.penalty -= 1
            backend.forgiven_at += self.probes.forgive
        while backend.ejections and now - backend.reformed_at >= backend.ejection_s:
            backend.ejections -= 1
            backend.reformed_at += backend.ejection_s

    def _count(self, backend: BackendHealth, more_good: int, more_bad: int, now: float) -> None:
        good, bad, good_before, bad_before = backend.counts
        halves = int((now - backend.window_at) / (WINDOW_S / 2))
        if halves:
            backend.window_at += halves * (WINDOW_S / 2)
            good_before, bad_before = (good, bad) if halves == 1 else (0, 0)
            good = bad = 0
        backend.counts = (good + more_good, bad + more_bad, good_before, bad_before)

    def _is_rate_bad(self, backend: BackendHealth) -> bool:
        policy = self.ejection
        if policy.failure_rate is None:
            return False
        good, bad, good_before, bad_before = backend.counts
        requests = good + bad + good_before + bad_before
        return requests >= policy.min_requests and bad + bad_before > exact(policy.failure_rate) * requests

    def _eject(self, backend: BackendHealth, now: float) -> bool:
        """Take it out, unless too many are out already. Either way its account starts anew."""
        backend.counts = (0, 0, 0, 0)
        out = sum(now < each.ejected_until for each in self.backends.values())
        is_last = not any(each.is_eligible(now) for each in self.backends.values() if each is not backend)
        if is_last or out + 1 > exact(self.ejection.max_share) * len(self.backends):
            self.spared += 1
            return False
        self._forgive(backend, now)
        backend.ejection_s = self._ejection_s(backend.ejections)
        backend.ejections += 1
        backend.ejected_until = backend.reformed_at = now + backend.ejection_s
        return True

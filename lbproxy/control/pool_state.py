"""How one pool stands: who may be asked, and with which weight.

Facts come in (checks, live results, what the operator decided, time), and two things follow from them, together:

    state    of each backend: SERVING, DRAINING or OUT, as `core.account` has them
    weight   of each backend: how many tokens it has on the ring now

The weight that is *wanted* is the override's or else the file's. The *effective* one may differ for a while:

* slow_start: a backend that comes beside others gets its tokens in ten steps over that time.
* pace: no step of anybody's weight moves more keys than the pace allows (`core.pace`). A backend that comes back starts
  without a token, because its keys have all found another place. What cannot wait does not: a backend that is down,
  drained or removed loses its keys at once, and one that must carry the pool alone has its whole weight at once.
* session_drain: a backend of weight 0 keeps its tokens until its last session is over, for a known key finds its way by
  them; everybody else's go on meanwhile, since it is DRAINING.

A backend that is out keeps its tokens: its keys go to the next of their list and come back to it, and the ring, which
everybody can compute from the file, stays what it is. `now` is monotonic time in seconds and never runs backwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, final

from lbproxy.control.overrides import Overrides
from lbproxy.core.account import DRAINING, OUT, SERVING
from lbproxy.core.health import RAMP_STEPS, PoolHealth, ramp
from lbproxy.core.pace import LEAST_PAUSE_S, Pace, rounded
from lbproxy.core.pieces import Pieces
from lbproxy.core.spec import BackendSpec, PoolSpec

# Why a ring changes.
CAUSES: Final = ("reload", "override", "slow_start", "pace", "drain")
# How long an order takes at the most until every worker follows it.
SETTLING_S: Final = 1.0
# How long a step of the pace is put off until it is planned, where what is wanted changes again and again.
LONGEST_PUT_OFF_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Flip:
    """A backend is in another state (one of `health.STATES`) than before."""

    backend: str
    was: str
    state: str


@dataclass(frozen=True, slots=True)
class Change:
    """What an advance came to. `cause` is one of CAUSES, or "" while no weight has changed."""

    flips: tuple[Flip, ...]
    has_states: bool
    cause: str


@dataclass(slots=True)
class _Leaving:
    """A draining backend: how much it has served, and since when it has been without a request."""

    served: int
    quiet_since: float
    is_empty: bool = False


@final
class PoolState:
    """One pool under one configuration. `under` gives its successor under the next."""

    def __init__(self, spec: PoolSpec, overrides: Overrides, previous: PoolState | None = None) -> None:
        """`overrides` are looked at in each advance. What `previous` knew of the backends that stay is copied."""
        names = [backend.name for backend in spec.backends]
        self.spec: Final = spec
        self.overrides: Final = overrides
        self._backends: Final = {backend.name: backend for backend in spec.backends}
        known: PoolHealth = previous.health if previous is not None else PoolHealth(spec.health, spec.ejection)
        renewed = [name for name in names if previous is not None and previous._is_another(self._backends[name])]
        self.health: Final[PoolHealth] = known.under(spec.health, spec.ejection, names, renewed)
        # What is in force, by name.
        self.states: dict[str, int] = {}
        self.words: dict[str, str] = {}
        self.weights: dict[str, float] = {}
        self.serving: frozenset[str] = frozenset()
        self.due: float | None = None
        # Whether somebody calls `plan` when it `needs_plan`; without that, a step is worked out when it is taken.
        self.is_patient = False
        self._put_off_at: float | None = None
        self._joining: set[str] = set()
        self._leaving: dict[str, _Leaving] = {}
        self._pace = Pace(spec.vnodes, spec.hash_version)
        if previous is not None:
            self._inherit(previous, set(names))

    def _is_another(self, backend: BackendSpec) -> bool:
        known = self._backends.get(backend.name)
        return known is not None and known.address != backend.address

    def _inherit(self, previous: PoolState, names: set[str]) -> None:
        self.states = {name: state for name, state in previous.states.items() if name in names}
        self.words = {name: word for name, word in previous.words.items() if name in names}
        self.weights = {name: weight for name, weight in previous.weights.items() if name in names}
        self.serving = previous.serving & names
        self._joining = (previous._joining & names) | (names - previous.weights.keys())
        self._leaving = {name: leaving for name, leaving in previous._leaving.items() if name in names}
        if (previous.spec.vnodes, previous.spec.hash_version) == (self.spec.vnodes, self.spec.hash_version):
            self._pace = previous._pace.copy()

    # What is asked.

    @property
    def is_panicking(self) -> bool:
        """Whether nobody is left who should be asked."""
        return not self.serving

    def wanted(self, name: str) -> float:
        """The weight that the operator wants a backend to have: by override, or else by the file."""
        weight = self.overrides.weight(self.spec.name, name)
        return self._backends[name].weight if weight is None else weight

    def is_draining(self, name: str) -> bool:
        """Whether the operator wants it to take no new keys."""
        return self.overrides.is_drained(self.spec.name, name) or not self.wanted(name)

    def is_empty(self, name: str) -> bool:
        """Whether a draining backend has nothing left: it may be stopped."""
        leaving = self._leaving.get(name)
        return leaving is not None and leaving.is_empty

    @property
    def leaving(self) -> Collection[str]:
        """Those that drain, whose traffic is to be observed."""
        return self._leaving.keys()

    # What comes in, besides `health`.

    def observe_traffic(self, name: str, served: int, in_flight: int, now: float) -> bool:
        """What a backend has served so far and holds now. Returns whether a draining one has just become empty."""
        leaving = self._leaving.get(name)
        if leaving is None:
            return False
        if served != leaving.served or in_flight:
            self._leaving[name] = _Leaving(served, now)
            return False
        rest_s = max(SETTLING_S, 1.01 * self.spec.session_drain)
        if leaving.is_empty or now - leaving.quiet_since < rest_s:
            return False
        leaving.is_empty = True
        return True

    # What follows.

    def advance(self, now: float, cause: str = "") -> Change:
        """Let everything that is known take effect. `cause` is why weights change, if not because time has passed."""
        lingering = self._observe_drains(now)
        due = self.health.advance(now)
        for name in lingering:
            # Its sessions have never left it: to give it its tokens slowly would send them away first.
            self.health.backends[name].since = float("-inf")
        serving = frozenset(self.health.serving(now))
        weights, why = self._weigh(serving, now)
        flips = self._flips(now)
        states = {name: self._state(name, serving, now) for name in self._backends}
        change = Change(flips, states != self.states, (cause or why) if weights != self.weights else "")
        self.states, self.weights, self.serving = states, weights, serving
        self._joining -= serving
        self.due = self._next(due, now)
        return change

    def _observe_drains(self, now: float) -> list[str]:
        """Take note of who is to drain. Returns those that no longer are and still have their sessions."""
        lingering = []
        for name in self._backends:
            self.health.observe_drain(name, self.is_draining(name))
            if self.is_draining(name):
                self._leaving.setdefault(name, _Leaving(-1, now))
                continue
            leaving = self._leaving.pop(name, None)
            if leaving is not None and self.spec.session_drain and not leaving.is_empty:
                lingering.append(name)
        return lingering

    def _state(self, name: str, serving: frozenset[str], now: float) -> int:
        if name in serving:
            return SERVING
        backend = self.health.backends[name]
        if backend.draining and backend.healthy is not False and now >= backend.ejected_until:
            return DRAINING
        return OUT

    def _flips(self, now: float) -> tuple[Flip, ...]:
        words = {name: backend.state(now) for name, backend in self.health.backends.items()}
        known = self.words
        self.words = words
        return tuple(
            [Flip(name, known.get(name, ""), word) for name, word in words.items() if known.get(name, "") != word]
        )

    # Weights.

    def _weigh(self, serving: frozenset[str], now: float) -> tuple[dict[str, float], str]:
        """The effective weights, and why they change if nobody has asked for it."""
        targets = {name: self._target(name, name in serving, now) for name in self._backends}
        changed = [name for name in targets if targets[name] != self.weights.get(name)]
        why = "slow_start" if any(map(self.wanted, changed)) else "drain"
        if self.spec.pace is None or not self.weights:
            return targets, why
        present = {name: self._present(name) for name in self._backends if name in serving}
        if not any(present.values()):
            return targets, why
        wanted = {name: targets[name] for name in present}
        stepped = self._step(now, present, wanted, self.spec.pace)
        return targets | (present if stepped is None else stepped), "pace"

    def _step(
        self, now: float, present: dict[str, float], wanted: dict[str, float], pace: float
    ) -> dict[str, float] | None:
        """The next weights on the way, or None: not yet."""
        if self.is_patient and not self._pace.is_ready(present, wanted, pace):
            if self._put_off_at is None:
                self._put_off_at = now
            if now - self._put_off_at < LONGEST_PUT_OFF_S:
                return None
        self._put_off_at = None
        return self._pace.step(now, present, wanted, pace)

    def _way(self, now: float) -> tuple[dict[str, float], dict[str, float]]:
        """The weights of those that serve, and those that they are to have."""
        present = {name: self._present(name) for name in self._backends if name in self.serving}
        return present, {name: self._target(name, True, now) for name in present}

    def needs_plan(self, now: float) -> bool:
        """Whether there is a step to take that takes long to work out."""
        if self.spec.pace is None:
            return False
        present, wanted = self._way(now)
        return any(present.values()) and not self._pace.is_ready(present, wanted, self.spec.pace)

    def plan(self, now: float) -> Pieces[None]:
        """Work out the next step; it is taken in the next advance that finds it due."""
        present, wanted = self._way(now)
        assert self.spec.pace is not None
        yield from self._pace.plan(present, wanted, self.spec.pace)

    def _target(self, name: str, is_serving: bool, now: float) -> float:
        wanted = self.wanted(name)
        present = self.weights.get(name)
        if not wanted:
            return present if present and self.spec.session_drain and not self.is_empty(name) else 0.0
        if is_serving:
            return rounded(wanted * self.health.share(name, now, self.spec.slow_start))
        if name in self._joining:
            return 0.0 if self.spec.pace is not None else rounded(wanted * ramp(0.0, self.spec.slow_start))
        return wanted

    def _present(self, name: str) -> float:
        """The weight that a serving backend has had in effect: none while others had its keys."""
        is_back = name not in self.serving and self.health.backends[name].since > float("-inf")
        return 0.0 if is_back else self.weights.get(name, 0.0)

    def _next(self, due: float | None, now: float) -> float | None:
        """When time alone will change something next, or None."""
        times = [due] if due is not None else []
        if self.spec.pace is not None and any(
            self.weights[name] != self._target(name, True, now) for name in self.serving
        ):
            times.append(now + LEAST_PAUSE_S)
        span_s = self.spec.slow_start
        for name in self.serving:
            since = self.health.backends[name].since
            if ramp(now - since, span_s) < 1.0:
                steps = int((now - since) / span_s * RAMP_STEPS) + 1
                times.append(since + steps * span_s / RAMP_STEPS + 1e-6)
        return min(times, default=None)


def effective_weights(pools: Mapping[str, PoolState]) -> dict[tuple[str, str], float]:
    """The weights in effect where they are not the file's, by pool and backend."""
    return {
        (pool, backend.name): state.weights[backend.name]
        for pool, state in pools.items()
        for backend in state.spec.backends
        if state.weights[backend.name] != backend.weight
    }

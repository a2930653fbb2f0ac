"""PromQL, in pieces that dashboards put together.

A `Scope` says which series a panel looks at: its matchers stand in every selector. All expressions are aggregated over
instances, because several proxies with the same configuration have the same ring and share one load; what each of them
knows for itself (shares of the ring, weights) is averaged.

The share of a pool's requests that a backend gets differs from what its weight asks for by three causes, and by
nothing else:

    observed - expected = (ring - expected) + (owned - ring) + (observed - owned)
                           ring error          key skew         spill

`ring` is the backend's share of the hash space, `owned` its share of the requests whose key it owns. Spill is all that
was served elsewhere: because the owner was at its bound, because a hot key was spread, because the owner was down; and
requests without a key, which are dealt out by load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PREFIX: Final = "lbproxy_"

# How far from its share a backend may be, as a part of that share and beyond what chance explains.
NEARLY: Final = 0.10
UNEVEN: Final = 0.25

RING_ERROR: Final = "ring error"
KEY_SKEW: Final = "key skew"
SPILL: Final = "spill"
CAUSES: Final = (RING_ERROR, KEY_SKEW, SPILL)

# For how many seconds the event loop of a worker stands still before that is worth a word, and before it is replaced.
SILENT_AFTER_S: Final = 3
HANGS_AFTER_S: Final = 10

# The states of a backend, the best first: a number stands for each in panels that cannot show words as they come.
STATES: Final = ("up", "draining", "unknown", "held", "ejected", "down")


@dataclass(frozen=True, slots=True)
class Scope:
    """Which series: matchers that stand in every selector."""

    matchers: tuple[str, ...]

    def narrow(self, *matchers: str) -> Scope:
        """The same with more matchers."""
        return Scope(self.matchers + matchers)

    def series(self, metric: str, *matchers: str) -> str:
        """The selector of a metric, named without its prefix."""
        return f"{PREFIX}{metric}{{{', '.join(self.matchers + matchers)}}}"

    def rate(self, metric: str, *matchers: str) -> str:
        """A counter per second."""
        return f"rate({self.series(metric, *matchers)}[$__rate_interval])"

    def increase(self, metric: str, *matchers: str) -> str:
        """A counter per window."""
        return f"increase({self.series(metric, *matchers)}[$__rate_interval])"


PROXIES: Final = Scope(('job=~"$job"', 'instance=~"$instance"'))
POOLS: Final = PROXIES.narrow('pool=~"$pool"')
POOL: Final = PROXIES.narrow('pool="$pool"')
BACKEND: Final = POOL.narrow('backend="$backend"')


def by(labels: str, expression: str, aggregate: str = "sum") -> str:
    """An expression aggregated by labels; "" for none."""
    return f"{aggregate} by ({labels}) ({expression})" if labels else f"{aggregate}({expression})"


def ratio(part: str, whole: str) -> str:
    """One expression over another with the same labels."""
    return f"{part}\n/\n{whole}"


def quantile(q: float, scope: Scope, histogram: str, labels: str = "") -> str:
    """A quantile of a histogram, in its unit."""
    return f"histogram_quantile({q}, {by(f'le, {labels}' if labels else 'le', scope.rate(histogram + '_bucket'))})"


def error_share(scope: Scope, counter: str, labels: str = "") -> str:
    """The share of answers with a status of 500 or above."""
    return ratio(by(labels, scope.rate(counter, 'code="5xx"')), by(labels, scope.rate(counter)))


def kept_share(scope: Scope, labels: str = "") -> str:
    """The share of keyed requests that their owner served, or the backend that they are pinned to."""
    return ratio(
        by(labels, scope.rate("route_decisions_total", 'decision=~"owner|pinned"')),
        by(labels, scope.rate("route_decisions_total", 'decision!="no_key"')),
    )


def silent(scope: Scope) -> str:
    """How many workers are ready, but their event loop stands still."""
    return by("", f"{scope.series('worker_silent_seconds')} >= bool {SILENT_AFTER_S}")


def serving(scope: Scope) -> str:
    """How many workers serve."""
    ready = by("", scope.series("workers", 'state="ready"'))
    return f"{ready}\n- {silent(scope)}"


def not_serving(scope: Scope) -> str:
    """How many workers do not."""
    absent = by("", scope.series("workers", 'state!="ready"'))
    return f"{absent}\n+ {silent(scope)}"


def share_of(scope: Scope, whole: Scope, counter: str) -> str:
    """The share that each backend has in a counter of its pool. `whole` takes in all backends of the pool."""
    part = by("pool, backend", scope.rate(counter))
    return f"({part} / on (pool) group_left () {by('pool', whole.rate(counter))})"


@dataclass(frozen=True, slots=True)
class Shares:
    """A backend's four shares, and the causes that lie between them. By pool and backend."""

    expected: str
    ring: str
    owned: str
    observed: str
    requests: str
    """How many requests of the pool the observed share is made from."""

    @staticmethod
    def of(scope: Scope, whole: Scope) -> Shares:
        """The shares of the backends in `scope`; `whole` takes in all backends of their pools."""
        ring = by("pool, backend", scope.series("ring_ownership_ratio"), "avg")
        return Shares(
            expected=by("pool, backend", scope.series("backend_expected_share_ratio"), "avg"),
            ring=ring,
            # Without any keyed request there is no skew of keys.
            owned=f"({share_of(scope, whole, 'route_owned_requests_total')} >= 0 or {ring})",
            observed=share_of(scope, whole, "upstream_requests_total"),
            requests=by("pool", whole.increase("upstream_requests_total")),
        )

    @property
    def deviation(self) -> str:
        return f"({self.observed} - {self.expected})"

    @property
    def relative(self) -> str:
        """The deviation as a part of the expected share."""
        return f"({self.observed} / ({self.expected} > 0) - 1)"

    def cause(self, name: str) -> str:
        """How much one of `CAUSES` adds to the deviation."""
        more, less = {
            RING_ERROR: (self.ring, self.expected),
            KEY_SKEW: (self.owned, self.ring),
            SPILL: (self.observed, self.owned),
        }[name]
        return f"({more} - {less})"

    @property
    def excess(self) -> str:
        """How far a backend is off, as a part of its expected share, beyond three standard deviations of chance."""
        expected = self.expected
        chance = f"3 * sqrt({expected} * (1 - {expected}) / on (pool) group_left () {self.requests})"
        return f"(clamp_min(abs({self.deviation}) - {chance}, 0) / ({expected} > 0))"

    @property
    def furthest(self) -> str:
        """The backend of each pool that is furthest off, and by what part of its share, when it is off at all."""
        return f"({self.relative} and topk by (pool) (1, {self.excess} > {NEARLY}))"

    @property
    def main_cause(self) -> str:
        """What adds most to the deviation of the backend that is furthest off, labelled with the cause."""
        causes = "\nor ".join(f'label_replace({self.cause(name)}, "cause", "{name}", "", "")' for name in CAUSES)
        towards = f"(\n{causes}\n) * on (pool, backend) group_left () sgn({self.deviation})"
        worst = f"topk by (pool) (1, {self.excess} > {NEARLY})"
        return f"topk by (pool) (1,\n({towards})\nand on (pool, backend) {worst})"


def state_code(scope: Scope, labels: str = "pool, backend") -> str:
    """The state of each backend as its place in `STATES`, from 1; the worst of what the proxies say."""
    states = [f"{scope.series('backend_state', f'state={quoted(state)}')} * {n}" for n, state in enumerate(STATES, 1)]
    return by(labels, "\nor ".join(states), "max")


def quoted(text: str) -> str:
    """A string as PromQL writes it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

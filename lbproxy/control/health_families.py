"""Metrics of health, weights and rings: what the supervisor knows of every backend, as families for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from lbproxy.control.overrides import WHATS
from lbproxy.control.pool_state import CAUSES
from lbproxy.control.probes import RESULTS
from lbproxy.control.ring_changes import Change
from lbproxy.control.scene import Scene, expected_shares
from lbproxy.control.wellbeing import EJECTION_REASONS, Tally
from lbproxy.core.account import SERVING, Backend
from lbproxy.core.balance import Pool
from lbproxy.core.health import STATES
from lbproxy.core.ledger import BACKEND_IN_FLIGHT
from lbproxy.observe.metrics import Family, Labels

HOT_RANKS: Final = 10

# Every backend with its pool and its labels.
_Backends = Sequence[tuple[Pool, Backend, Labels]]


def health_families(scene: Scene) -> Iterable[Family]:
    """All of them, as they stand now. A label set that is known beforehand is there from the start."""
    everybody = _everybody(scene)
    yield from _states(scene, everybody)
    yield from _weights(scene, everybody)
    yield from _counts(scene, everybody)
    yield from _rings(scene)
    yield from _hot_keys(scene)


def _states(scene: Scene, everybody: _Backends) -> Iterable[Family]:
    words = {(pool, name): word for pool, state in scene.being.pools.items() for name, word in state.words.items()}
    yield _each(everybody, "backend_up", "Whether a backend may be given requests.", lambda _, b: b.state == SERVING)
    samples: list[tuple[Labels, float]] = []
    for pool, backend, labels in everybody:
        word = words[pool.name, backend.name]
        samples += [((*labels, ("state", state)), int(state == word)) for state in STATES]
    yield Family("backend_state", "gauge", "The state of a backend: 1 for the one it is in.", tuple(samples))
    yield _each(
        everybody,
        "ejections_active",
        "Whether a backend is ejected now.",
        lambda p, b: words[p.name, b.name] == "ejected",
    )
    yield _pools(
        scene, "pool_panic", "gauge", "Whether nobody in a pool is eligible.", lambda p: float(not _serving(p))
    )
    yield _pools(
        scene,
        "pool_panics_total",
        "counter",
        "How often nobody in a pool was eligible any more.",
        lambda p: scene.being.panics[p.name],
    )


def _weights(scene: Scene, everybody: _Backends) -> Iterable[Family]:
    overrides = {override.key for override in scene.being.overrides}
    expected = {pool.name: expected_shares(pool) for pool in scene.snapshot.pools.values()}
    yield _each(everybody, "backend_effective_weight", "A backend's weight on the ring now.", lambda _, b: b.weight)
    yield _each(
        everybody,
        "backend_expected_share_ratio",
        "The share of keys that a backend's effective weight asks for.",
        lambda p, b: expected[p.name][b.name],
    )
    samples: list[tuple[Labels, float]] = []
    for pool, backend, labels in everybody:
        for what in WHATS:
            is_set = int((pool.name, backend.name, what) in overrides)
            samples.append(((*labels, ("what", what)), is_set))
    yield Family("backend_override", "gauge", "Whether an operator has decided this at run time.", tuple(samples))
    bounded: list[tuple[Labels, float]] = []
    loads: list[tuple[Labels, float]] = []
    for pool, backend, labels in everybody:
        slots = pool.slots(backend)
        if slots is not None:
            held = scene.totals[scene.rows["backend", pool.name, backend.name] + BACKEND_IN_FLIGHT]
            bounded.append((labels, slots))
            loads.append((labels, held / slots if slots else 0.0))
    yield Family("backend_slots", "gauge", "How many requests a backend may hold now, where bounded.", tuple(bounded))
    yield Family("backend_load_ratio", "gauge", "What a backend holds over its slots; 1 is full.", tuple(loads))


def _counts(scene: Scene, everybody: _Backends) -> Iterable[Family]:
    yield _tallied(
        scene, everybody, "backend_state_changes_total", "Changes of state.", "to", STATES, lambda t: t.changes
    )
    yield _tallied(
        scene, everybody, "health_checks_total", "Checks made, by result.", "result", RESULTS, lambda t: t.checks
    )
    yield _tallied(
        scene,
        everybody,
        "ejections_total",
        "Ejections because of live results.",
        "reason",
        EJECTION_REASONS,
        lambda t: t.ejections,
    )
    yield _each(
        everybody,
        "ejections_spared_total",
        "Ejections that did not take place: max_share was reached, or it was the last one.",
        lambda p, b: scene.being.tallies[p.name, b.name].spared,
        "counter",
    )


def _rings(scene: Scene) -> Iterable[Family]:
    changes = {name: scene.rings.pools.get(name, Change()) for name in scene.snapshot.pools}
    samples: list[tuple[Labels, float]] = []
    for name, change in changes.items():
        samples += [((("pool", name), ("cause", cause)), change.counts[cause]) for cause in CAUSES]
    yield Family("ring_changes_total", "counter", "Changes of a pool's weights and members, by cause.", tuple(samples))
    yield _pools(
        scene,
        "ring_last_change_moved_ratio",
        "gauge",
        "Share of the keys that the last change moved.",
        lambda p: changes[p.name].moved_share,
    )
    yield _pools(
        scene,
        "ring_last_change_timestamp_seconds",
        "gauge",
        "When a pool's weights or members last changed; 0: not yet.",
        lambda p: changes[p.name].at,
    )


def _hot_keys(scene: Scene) -> Iterable[Family]:
    samples: list[tuple[Labels, float]] = []
    for pool in scene.snapshot.pools.values():
        top = pool.account.hot.top
        shares = [row.requests / top.requests if top.requests else 0.0 for row in top.rows[:HOT_RANKS]]
        shares += [0.0] * (HOT_RANKS - len(shares))
        samples += [((("pool", pool.name), ("rank", str(rank))), share) for rank, share in enumerate(shares, start=1)]
    yield Family(
        "hot_key_requests_ratio", "gauge", "Share of the requests of the keys with the most work.", tuple(samples)
    )
    yield _pools(scene, "hot_keys_active", "gauge", "Keys that are judged hot now.", lambda p: len(p.account.hot.hot))


def _serving(pool: Pool) -> list[Backend]:
    return [backend for backend in pool.backends.values() if backend.state == SERVING]


def _everybody(scene: Scene) -> _Backends:
    return [
        (pool, backend, (("pool", pool.name), ("backend", backend.name)))
        for pool in scene.snapshot.pools.values()
        for backend in pool.backends.values()
    ]


def _each(
    everybody: _Backends,
    name: str,
    help: str,
    value: Callable[[Pool, Backend], float],
    kind: Literal["counter", "gauge"] = "gauge",
) -> Family:
    samples = [(labels, value(pool, backend)) for pool, backend, labels in everybody]
    return Family(name, kind, help, tuple(samples))


def _pools(
    scene: Scene, name: str, kind: Literal["counter", "gauge"], help: str, value: Callable[[Pool], float]
) -> Family:
    samples: list[tuple[Labels, float]] = [
        ((("pool", pool.name),), value(pool)) for pool in scene.snapshot.pools.values()
    ]
    return Family(name, kind, help, tuple(samples))


def _tallied(
    scene: Scene,
    everybody: _Backends,
    name: str,
    help: str,
    label: str,
    words: Iterable[str],
    counts: Callable[[Tally], dict[str, int]],
) -> Family:
    samples: list[tuple[Labels, float]] = []
    ends = [(label, word) for word in words]
    for pool, backend, labels in everybody:
        found = counts(scene.being.tallies[pool.name, backend.name])
        samples += [((*labels, end), found.get(end[1], 0)) for end in ends]
    return Family(name, "counter", help, tuple(samples))

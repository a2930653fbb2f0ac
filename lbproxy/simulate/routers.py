"""Traffic through the other algorithms, for the engine: the owner always serves, or jumps at random when it is full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from lbproxy.core.bound import Bound
from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import NO_HASH, hash_key
from lbproxy.core.ledger import NO_KEY, OWNER, SPILL_FULL
from lbproxy.core.spec import PoolSpec, Queue
from lbproxy.simulate.placements import Placement

# After so many jumps per backend the least loaded one is taken.
_PATIENCE: Final = 20


class _Unbounded:
    """What both have: one count of what every backend holds, exact for all workers, and nothing to look after."""

    def __init__(self, spec: PoolSpec) -> None:
        self.names: Sequence[str] = [backend.name for backend in spec.backends]
        whole = sum(backend.weight for backend in spec.backends)
        self.shares: Sequence[float] = [backend.weight / whole for backend in spec.backends]
        self.queue: Queue = spec.queue
        self._held: Final = [0] * len(self.names)

    def admit(self, worker: int, h: int) -> bool:
        return True

    def leave(self, worker: int, backend: int, h: int) -> None:
        self._held[backend] -= 1

    def tick(self, worker: int, now: float) -> None:
        pass

    def _least_loaded(self) -> int:
        candidates = [each for each, share in enumerate(self.shares) if share]
        return min(candidates, key=lambda each: (self._held[each] + 1) / self.shares[each])

    def _take(self, backend: int, decision: int) -> tuple[int, int]:
        self._held[backend] += 1
        return backend, decision


@final
class Plain(_Unbounded):
    """Every key is served by its owner, whatever that holds."""

    def __init__(self, spec: PoolSpec, placement: Placement) -> None:
        super().__init__(spec)
        self._placement: Final = placement
        self._index: Final = {name: index for index, name in enumerate(self.names)}
        self._known: Final[dict[int, int]] = {}

    def owner(self, h: int) -> int:
        owner = self._known.get(h)
        if owner is None:
            owner = self._known[h] = self._index[self._placement.owner(h)]
        return owner

    def seat(self, worker: int, key: bytes, h: int) -> tuple[int, int]:
        if h == NO_HASH:
            return self._take(self._least_loaded(), NO_KEY)
        return self._take(self.owner(h), OWNER)


@final
class RandomJump(_Unbounded):
    """Bounded loads on a vnode ring; a key whose owner is full is hashed anew until it meets one that is not."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self._ring: Final = build_ring([(each.name, each.weight) for each in spec.backends], spec.vnodes)
        self._member_at: Final = [self.names.index(name) for name in self._ring.names]
        bounded = spec.bounded_load
        self._bound: Final = Bound([each.weight for each in spec.backends], bounded.factor, bounded.min_gap)

    def owner(self, h: int) -> int:
        return self._member_at[self._ring.owner(h)]

    def seat(self, worker: int, key: bytes, h: int) -> tuple[int, int]:
        if h == NO_HASH:
            return self._take(self._least_loaded(), NO_KEY)
        total = sum(self._held) + 1
        owner = backend = self.owner(h)
        for jump in range(_PATIENCE * len(self.names)):
            if self._bound.has_room(backend, self._held[backend], total):
                return self._take(backend, OWNER if backend == owner else SPILL_FULL)
            backend = self.owner(hash_key(h.to_bytes(8, "little") + jump.to_bytes(4, "little")))
        return self._take(self._least_loaded(), SPILL_FULL)

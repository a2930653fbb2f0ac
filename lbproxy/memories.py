"""Memories of keys seen, one for each pool with `session_drain`: shared memory that all workers mark and none owns.

The supervisor keeps them, so that a session is still known when the worker that served it has been replaced. A pool
whose window changes gets a new one, because its stamps count parts of the window; what was known is carried over.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final, final

from lbproxy.core.recency import SLOTS, Recency, carry_over
from lbproxy.core.spec import Config
from lbproxy.observe.slabs import memory_file


@final
class Memory:
    """The memory of one pool, as the supervisor holds it."""

    def __init__(self, pool: str, window_s: float) -> None:
        self.window_s: Final = window_s
        self.fd: Final = memory_file(f"lbproxy-keys-{pool[:200]}", SLOTS)
        self.table: Final = map_memory(self.fd)

    def close(self) -> None:
        os.close(self.fd)


def map_memory(fd: int) -> memoryview:
    """The SLOTS octets behind a descriptor."""
    return memoryview(mmap.mmap(fd, SLOTS))


def windows(config: Config) -> dict[str, float]:
    """The pools whose sessions may stay on a draining backend, and for how many seconds."""
    return {pool.name: pool.session_drain for pool in config.pools if pool.session_drain}


@final
class Memories:
    """All memories of a supervisor, by pool."""

    def __init__(self) -> None:
        self._all: dict[str, Memory] = {}

    def make(self, config: Config) -> dict[str, Memory]:
        """The memories that this configuration needs and that are not there yet, by pool. Raises OSError."""
        made: dict[str, Memory] = {}
        try:
            for pool, window_s in windows(config).items():
                known = self._all.get(pool)
                if known is None or known.window_s != window_s:
                    made[pool] = memory = Memory(pool, window_s)
                    if known is not None:
                        carry_over(known.table, known.window_s, memory.table, window_s, time.monotonic())
        except OSError:
            give_back(made)
            raise
        return made

    def follow(self, config: Config, made: Mapping[str, Memory]) -> None:
        """Have what this configuration needs and nothing else; `made` is what `make` has made for it."""
        wanted = windows(config)
        give_back({pool: self._all.pop(pool) for pool in list(self._all) if pool in made or pool not in wanted})
        self._all |= made

    @property
    def pools(self) -> list[str]:
        return list(self._all)

    def fds(self, pools: Sequence[str]) -> list[int]:
        """Their descriptors, in this order."""
        return [self._all[pool].fd for pool in pools]

    def tables(self) -> Mapping[str, memoryview]:
        """What they hold."""
        return {pool: memory.table for pool, memory in self._all.items()}

    def close(self) -> None:
        give_back(self._all)
        self._all = {}


def give_back(memories: Mapping[str, Memory]) -> None:
    """Close them; workers that have them mapped go on with them."""
    for memory in memories.values():
        memory.close()


def remember(
    sessions: Recency | None, table: memoryview | None, window_s: float, is_new: bool, now: float
) -> Recency | None:
    """What a pool's account should remember keys by: what it has, unless the table is another, and none without one."""
    if table is None or not window_s:
        return None
    return Recency(table, window_s, now) if sessions is None or is_new else sessions

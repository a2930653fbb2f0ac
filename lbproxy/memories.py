"""Memories of keys seen, one for each pool with `session_drain`: shared memory that all workers mark and none owns.

The supervisor keeps them, so that a session is still known when the worker that served it has been replaced. A pool
whose window changes gets a new one, because its stamps count parts of the window.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Final, final

from lbproxy.core.recency import SLOTS, Recency
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
        """Give it back; workers that have it mapped go on with it."""
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

    def follow(self, config: Config) -> list[str]:
        """Have what this configuration needs and nothing else; returns the pools whose memory is new."""
        wanted = windows(config)
        for pool in [pool for pool, memory in self._all.items() if wanted.get(pool) != memory.window_s]:
            self._all.pop(pool).close()
        new = [pool for pool in wanted if pool not in self._all]
        for pool in new:
            self._all[pool] = Memory(pool, wanted[pool])
        return new

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
        for memory in self._all.values():
            memory.close()
        self._all.clear()


def remember(
    sessions: Recency | None, table: memoryview | None, window_s: float, is_new: bool, now: float
) -> Recency | None:
    """What a pool's account should remember keys by: what it has, unless the table is another, and none without one."""
    if table is None or not window_s:
        return None
    return Recency(table, window_s, now) if sessions is None or is_new else sessions

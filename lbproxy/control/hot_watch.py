"""Telling when a key becomes hot and when it no longer is. The key itself is never told, only its hash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from lbproxy.core.balance import Pool
from lbproxy.observe.journal import Journal


@final
class HotWatch:
    """Knows which keys were hot when it last looked."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known: dict[str, set[int]] = {}

    def look(self, pools: Mapping[str, Pool]) -> None:
        """Tell what has changed. Called about once a second, after the pools have judged their keys."""
        known, self._known = self._known, {name: set(pool.account.hot.hot) for name, pool in pools.items()}
        for name, pool in pools.items():
            before, now = known.get(name, set()), self._known[name]
            for h in sorted(now - before):
                hot = pool.account.hot.hot[h]
                self._journal.info(
                    "hot key",
                    pool=name,
                    hash=f"0x{h:016x}",
                    is_hot=True,
                    requests_share=round(hot.requests, 4),
                    work_share=round(hot.work, 4),
                    reach=hot.reach,
                )
            for h in sorted(before - now):
                self._journal.info("hot key", pool=name, hash=f"0x{h:016x}", is_hot=False)

"""Memos: what has been worked out is kept for the next time, within limits, for what is asked comes from anyone.

At its limit a memo forgets everything. What is asked for again and again is soon back, and nobody has to keep account
of what is the oldest.
"""

from __future__ import annotations

from typing import Final, TypeVar

# How large a thing from outside may be that is kept. Without that limit, a few megabytes of odd requests would leave a
# gigabyte behind.
LONGEST: Final = 128

K = TypeVar("K")
V = TypeVar("V")


def keep(memo: dict[K, V], limit: int, key: K, value: V) -> None:
    """Keep a value among `limit` at the most."""
    if len(memo) >= limit:
        memo.clear()
    memo[key] = value


def keep_short(memo: dict[bytes, V], limit: int, key: bytes, value: V) -> None:
    """The same, if the key is no longer than LONGEST."""
    if len(key) <= LONGEST:
        keep(memo, limit, key, value)

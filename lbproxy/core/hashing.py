"""Where keys and names land on the circle of 64-bit positions.

Both sides of a look-up meet here, so nothing here may ever change for a given hash version: a new encoding or hash is
a new version beside the old one, and a pool names the version it was built with.

Version 1: xxh3_64 with seed 0. A key is hashed as it is. A token is the hash of the backend's name in UTF-8 followed
by the token's index in four bytes, little-endian. The index has a fixed width, so no two pairs of name and index share
an encoding (text such as "1" + "11" and "11" + "1" would).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from xxhash import xxh3_64_intdigest

HASH_VERSIONS: Final = (1,)
SPACE: Final = 2**64
# What stands in the place of a position where a request has no key.
NO_HASH: Final = -1

# The position of a key. The C function itself: a Python frame around it would cost half of what the hash does.
hash_key: Final[Callable[[bytes], int]] = xxh3_64_intdigest


def token(name: str, index: int, version: int = 1) -> int:
    """The position of backend `name`'s token number `index` (from 0, below 2**32).

    Raises ValueError for an unknown hash version.
    """
    _check(version)
    return xxh3_64_intdigest(name.encode() + index.to_bytes(4, "little"))


def tokens(name: str, stop: int, version: int = 1, start: int = 0) -> list[int]:
    """`token(name, i, version)` for every i from `start` to below `stop`, about four times as fast."""
    _check(version)
    return list(map(xxh3_64_intdigest, map(name.encode().__add__, _indexes(start, stop))))


def _check(version: int) -> None:
    if version not in HASH_VERSIONS:
        raise ValueError(f"unknown hash version {version}, known: {', '.join(map(str, HASH_VERSIONS))}")


@lru_cache(maxsize=8)
def _indexes(start: int, stop: int) -> tuple[bytes, ...]:
    return tuple(index.to_bytes(4, "little") for index in range(start, stop))

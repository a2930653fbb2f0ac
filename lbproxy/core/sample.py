"""A fair sample of the keys seen lately, in fixed memory, for questions such as: how many users would this change move?

A key belongs to the sample when the low bits of its hash are all zero, whoever asks and however often the key came: so
every key has the same chance, a busy one no better than a quiet one, and the samples of several workers agree on which
keys they mean and can be joined. Where a key lies on the ring is decided by the high bits, which know nothing of the
low ones. The number of bits follows the traffic: one more when the sample is full, one less when it has become empty.

The hot path leaves every hash in a list as it is (`hotkeys.Meter.seen`); the tick takes those that count out of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import pack, unpack
from typing import Final, final

WINDOW_S: Final = 300.0
CAPACITY: Final = 8192
_SWEEP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Keys:
    """A sample, one key in 2**bits: `seen` within the window, `held` with a request or a tunnel open now."""

    bits: int = 0
    seen: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()

    def joined(self, other: Keys) -> Keys:
        """Both samples as one, with as many keys as both can vouch for."""
        bits = max(self.bits, other.bits)
        mask = (1 << bits) - 1
        return Keys(bits, _fitting(self.seen | other.seen, mask), _fitting(self.held | other.held, mask))


def _fitting(keys: Iterable[int], mask: int) -> frozenset[int]:
    return frozenset([h for h in keys if not h & mask])


@final
class KeySample:
    """The sample that one worker keeps of a pool's keys. `note` is called on every tick."""

    __slots__ = ("_bits", "_capacity", "_kept", "_swept_at")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity: Final = capacity
        self._bits = 0
        self._kept: dict[int, float] = {}
        self._swept_at = 0.0

    def note(self, hashes: list[int], now: float) -> None:
        """These keys have been seen since the last call."""
        mask = (1 << self._bits) - 1
        kept = self._kept
        kept.update(dict.fromkeys([h for h in hashes if not h & mask] if mask else hashes, now))
        if len(kept) > self._capacity or now - self._swept_at >= _SWEEP_S:
            self._sweep(now)

    def read(self, held: Iterable[int], now: float) -> Keys:
        """The sample as it is now; `held` are all keys with an open request or tunnel."""
        self._sweep(now)
        keys = Keys(self._bits, frozenset(self._kept), _fitting(held, (1 << self._bits) - 1))
        while len(keys.held) > self._capacity:
            keys = keys.joined(Keys(keys.bits + 1))
        return keys

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        self._kept = {h: at for h, at in self._kept.items() if now - at <= WINDOW_S}
        while len(self._kept) > self._capacity:
            self._bits += 1
            mask = (1 << self._bits) - 1
            self._kept = {h: at for h, at in self._kept.items() if not h & mask}
        if self._bits and len(self._kept) < self._capacity // 8:
            self._bits -= 1


def pack_keys(keys: Iterable[int]) -> str:
    """Hashes as text for a message."""
    ordered = sorted(keys)
    return pack(f"<{len(ordered)}Q", *ordered).hex()


def unpack_keys(text: str) -> frozenset[int]:
    """Raises ValueError for what `pack_keys` does not write."""
    octets = bytes.fromhex(text)
    if len(octets) % 8:
        raise ValueError("not a whole number of hashes")
    return frozenset(unpack(f"<{len(octets) // 8}Q", octets))

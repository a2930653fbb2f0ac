"""Which keys were seen lately, in fixed memory: one octet per slot, no key and no list.

A draining backend takes no new keys, but a session that is known to live there may stay until it is idle. So every
keyed request leaves a mark: the slot that its hash names gets the present stamp, a small number that counts the time in
parts of the window. A key was seen lately when its slot's stamp is young. Two keys may share a slot; then a new key can
be taken for a known one (with n known keys in N slots for about n/N of the new ones), and a known one never for new.

All workers share one table: marks are single octets, so nobody waits for anybody, and a user who reconnects to another
worker is still known. Stamps repeat after 255 parts; a sweep over a slice of the table at every tick clears those that
are old before they could look young again.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Final, final

SLOTS: Final = 1 << 22
_PARTS: Final = 100
_STAMPS: Final = 255  # 1 to 255; 0 is never
_SLICE: Final = 1 << 16


@final
class Recency:
    """Keys seen in the last `window_s` seconds. `table` has SLOTS octets, shared by all workers, and starts at zero."""

    __slots__ = ("_at", "_part_s", "_stamp", "_table")

    def __init__(self, table: memoryview | MutableSequence[int], window_s: float, now: float) -> None:
        self._table: Final = table
        self._part_s: Final = window_s / _PARTS
        self._at = 0
        self._stamp = 1
        self.tick(now)

    def mark(self, h: int) -> None:
        """The key with this hash was seen now."""
        self._table[h & (SLOTS - 1)] = self._stamp

    def has_seen(self, h: int) -> bool:
        """Whether the key was seen within the window, as far as slots can tell."""
        stamp = self._table[h & (SLOTS - 1)]
        return stamp != 0 and (self._stamp - stamp) % _STAMPS <= _PARTS

    def tick(self, now: float) -> None:
        """Let time go on, and sweep the next slice. Every slice must come by within 150 parts of the window."""
        self._stamp = int(now / self._part_s) % _STAMPS + 1
        young = bytes(
            [stamp if stamp and (self._stamp - stamp) % _STAMPS <= _PARTS else 0 for stamp in range(_STAMPS + 1)]
        )
        start = self._at
        part = bytes(self._table[start : start + _SLICE])
        if part.count(0) != len(part):
            swept = part.translate(young)
            if swept != part:
                self._table[start : start + _SLICE] = swept
        self._at = (start + _SLICE) % SLOTS

"""Which keys were seen lately, in fixed memory: one octet per slot, no key and no list.

A draining backend takes no new keys, but a session that is known to live there may stay until it is idle. So every
keyed request leaves a mark: the slot that its hash and its backend name together gets the present stamp, a small number
that counts the time in parts of the window. A key was seen lately at a backend when that slot's stamp is young. (What
is called a key below is the two of them: the key's hash, mixed with the backend's.) Two keys may share a slot; then a
new key can be taken for a known one (with n known keys in N slots for about n/N of the new ones), and a known one never
for new.

All workers share one table: marks are single octets, so nobody waits for anybody, and a user who reconnects to another
worker is still known. Their clocks tick apart, so a stamp may be a little ahead of the present one. Stamps repeat after
255 parts; a sweep over a part of the table at every tick clears those that are old before they could look young again.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Final, final

SLOTS: Final = 1 << 22
_PARTS: Final = 100
_STAMPS: Final = 255  # 1 to 255; 0 is never
# By how many parts another worker's clock may be ahead, and within how many the whole table is swept.
_AHEAD: Final = 50
_SWEEP: Final = 50
_SLICE: Final = 1 << 16


@final
class Recency:
    """Keys seen in the last `window_s` seconds. `table` has SLOTS octets, shared by all workers, and starts at zero."""

    __slots__ = ("_at", "_now", "_part_s", "_stamp", "_table")

    def __init__(self, table: memoryview | MutableSequence[int], window_s: float, now: float) -> None:
        self._table: Final = table
        self._part_s: Final = window_s / _PARTS
        self._at = 0
        self._now = now
        self._stamp = 1
        self.tick(now)

    def mark(self, h: int) -> None:
        """The key with this hash was seen now."""
        self._table[h & (SLOTS - 1)] = self._stamp

    def has_seen(self, h: int) -> bool:
        """Whether the key was seen within the window, as far as slots can tell."""
        return self._is_young(self._table[h & (SLOTS - 1)])

    def tick(self, now: float) -> None:
        """Let time go on, and sweep as much as the time since the last tick asks for."""
        elapsed_s, self._now = now - self._now, now
        self._stamp = _stamp(now, self._part_s)
        young = bytes([stamp if self._is_young(stamp) else 0 for stamp in range(_STAMPS + 1)])
        slices = SLOTS // _SLICE
        for _ in range(min(slices, 1 + int(slices * elapsed_s / (_SWEEP * self._part_s)))):
            self._sweep(young)

    def _is_young(self, stamp: int) -> bool:
        return stamp != 0 and (self._stamp - stamp + _AHEAD) % _STAMPS <= _PARTS + _AHEAD

    def _sweep(self, young: bytes) -> None:
        """Clear what is old in the next slice."""
        start = self._at
        part = bytes(self._table[start : start + _SLICE])
        if part.count(0) != len(part):
            swept = part.translate(young)
            if swept != part:
                self._table[start : start + _SLICE] = swept
        self._at = (start + _SLICE) % SLOTS


def carry_over(
    source: memoryview | MutableSequence[int],
    window_s: float,
    target: memoryview | MutableSequence[int],
    target_window_s: float,
    now: float,
) -> None:
    """Let the table of another window know the keys that the `source` knows of its own `window_s`, those that were not
    seen within the new one apart. The `target` is empty."""
    part_s, target_part_s = window_s / _PARTS, target_window_s / _PARTS
    present, target_present = _stamp(now, part_s), _stamp(now, target_part_s)
    stamps = bytearray(_STAMPS + 1)
    for ago in range(-_AHEAD, _PARTS + 1):
        since = int(max(0, ago) * part_s / target_part_s)
        if since <= _PARTS:
            stamps[(present - 1 - ago) % _STAMPS + 1] = (target_present - 1 - since) % _STAMPS + 1
    for start in range(0, SLOTS, _SLICE):
        part = bytes(source[start : start + _SLICE])
        if part.count(0) != len(part):
            target[start : start + _SLICE] = part.translate(stamps)


def _stamp(now: float, part_s: float) -> int:
    return int(now / part_s) % _STAMPS + 1

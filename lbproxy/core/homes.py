"""Where users with an open tunnel are, so that their other requests go there too (`on_move: pin`).

A WebSocket cannot be moved. When its key's owner changes, the user would be in two places: the socket on the old
backend, all else on the new one. So while a tunnel lives, its worker keeps an entry for its key, and every worker looks
there before it asks the ring.

An entry is one cell of the worker's own slab, found by the low bits of the key's hash: the high bits of the hash, to
know it by, and the row of the backend. One writer per slab, one store per entry: nobody can read half of one. When the
few cells in which a key may stand are all taken, the tunnel is not pinned; it goes on as with `on_move: keep`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from lbproxy.core.ledger import HOMES_SLOTS, Cells

_PROBES: Final = 4
_ROW_BITS: Final = 20
_ROW_MASK: Final = (1 << _ROW_BITS) - 1
_SIGN: Final = 1 << 63
_SPAN: Final = 1 << 64


@final
class Homes:
    """The entries of one pool. `row` is where they start in every slab; a cell of 0 is free."""

    __slots__ = ("_cells", "_held", "_peers", "row")

    def __init__(self, cells: Cells, peers: Sequence[Cells], row: int) -> None:
        self._cells: Final = cells
        self._peers: Final = peers
        # How many tunnels of a key go to a backend, and the cell of their entry; -1: there was no room for one.
        self._held: Final[dict[tuple[int, int], list[int]]] = {}
        self.row = row

    def enter(self, h: int, backend_row: int) -> None:
        """A tunnel of the key with hash `h` has been opened to the backend with this row."""
        held = self._held.get((h, backend_row))
        if held is None:
            held = self._held[h, backend_row] = [0, -1]
        held[0] += 1
        if held[1] < 0:
            for at in self._places(h):
                if not self._cells[at]:
                    self._cells[at] = _entry(h, backend_row)
                    held[1] = at
                    return

    def leave(self, h: int, backend_row: int) -> None:
        """A tunnel that was entered has ended."""
        held = self._held[h, backend_row]
        held[0] -= 1
        if not held[0]:
            if held[1] >= 0:
                self._cells[held[1]] = 0
            del self._held[h, backend_row]

    def find(self, h: int) -> int:
        """The row of the backend to which the key has a tunnel, in whatever worker; -1 if none."""
        known = _entry(h, 0)
        for cells in (self._cells, *self._peers):
            for at in self._places(h):
                entry = cells[at]
                if entry and (entry ^ known) >> _ROW_BITS == 0:
                    return entry & _ROW_MASK
        return -1

    def _places(self, h: int) -> list[int]:
        return [self.row + (h + probe) % HOMES_SLOTS for probe in range(_PROBES)]


def _entry(h: int, backend_row: int) -> int:
    entry = (h & ~_ROW_MASK) | backend_row
    return entry - _SPAN if entry & _SIGN else entry

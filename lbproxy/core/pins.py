"""Which pin holds a key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from lbproxy.core.spec import Pin


@final
class PinTable:
    """A pool's pins, prepared to be asked."""

    __slots__ = ("_exact", "_prefixes")

    def __init__(self, pins: Iterable[Pin]) -> None:
        exact: dict[bytes, Pin] = {}
        prefixes: list[tuple[bytes, Pin]] = []
        for pin in pins:
            key = pin.key.encode()
            if pin.is_prefix:
                prefixes.append((key, pin))
            else:
                exact[key] = pin
        prefixes.sort(key=lambda entry: -len(entry[0]))
        self._exact: Final = exact
        self._prefixes: Final = tuple(prefixes)

    def find(self, key: bytes) -> Pin | None:
        """The pin that holds a key, an exact one before the longest prefix."""
        pin = self._exact.get(key)
        if pin is None:
            for prefix, candidate in self._prefixes:
                if key.startswith(prefix):
                    return candidate
        return pin

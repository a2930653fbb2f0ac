"""Asking all workers which keys they have seen lately, and putting what they answer together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from lbproxy.core.sample import Keys, unpack_keys
from lbproxy.observe.journal import Value

_MOST_BITS: Final = 64


@final
class Answers:
    """What workers have said to one question. `ended` of them have said all."""

    def __init__(self) -> None:
        self.pools: dict[str, Keys] = {}
        self.ended = 0

    def take(self, fields: Mapping[str, Value]) -> None:
        """Take the fields of one `keys` report; what is no sample is left out."""
        if not fields:
            self.ended += 1
            return
        try:
            pool, bits = str(fields["pool"]), int(str(fields["bits"]))
            keys = Keys(bits, unpack_keys(str(fields["seen"])), unpack_keys(str(fields["held"])))
        except (KeyError, ValueError):
            return
        if 0 <= bits <= _MOST_BITS:
            self.pools[pool] = self.pools.get(pool, Keys()).joined(keys)

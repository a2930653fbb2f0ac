"""Knowing the hottest keys by name, where `admin.show_keys` allows it: on the worker's side and on the supervisor's.

What measures keys knows them by their hashes alone. So the worker looks which hashes are among the hottest, twice a
second, and takes their names from the next requests of theirs that end. A name that is known is looked for no more:
with the setting on a request that ends costs one look at an empty set, and with it off nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Final, final

from lbproxy.core.exchange import Finished
from lbproxy.core.hashing import hash_key

LOOK_S: Final = 0.5
# So many of each pool's keys are named.
MOST_NAMED: Final = 10
# So many go into one message.
MOST_TOLD: Final = 64
# What is longer is cut.
LONGEST: Final = 256
# The supervisor forgets the oldest beyond so many.
MOST_KEPT: Final = 4096


@final
class NameFinder:
    """Called with every finished exchange in the place of what `told` is, which it calls in turn."""

    def __init__(
        self,
        told: Callable[[Finished], None],
        hottest: Callable[[], Iterable[int]],
        send: Callable[[str], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`hottest` gives the hashes of the keys whose names are wanted, `send` tells the supervisor packed names."""
        self._told = told
        self._hottest = hottest
        self._send = send
        self._loop = loop
        self._wanted: set[int] = set()
        self._known: dict[int, bytes] = {}
        self._news: dict[int, bytes] = {}
        self._timer = loop.call_later(LOOK_S, self._look)

    def __call__(self, x: Finished) -> None:
        self._told(x)
        if self._wanted and x.key is not None:
            self._note(x.key)

    def _note(self, key: bytes) -> None:
        h = hash_key(key)
        if h in self._wanted:
            self._wanted.discard(h)
            self._known[h] = self._news[h] = key[:LONGEST]

    def _look(self) -> None:
        hottest = set(self._hottest())
        self._known = {h: key for h, key in self._known.items() if h in hottest}
        self._wanted = hottest - self._known.keys()
        news, self._news = list(self._news.items()), {}
        for at in range(0, len(news), MOST_TOLD):
            self._send(pack_names(dict(news[at : at + MOST_TOLD])))
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()
        self._wanted = set()


@final
class KeyNames:
    """The names that the supervisor has been told, by hash."""

    def __init__(self) -> None:
        self._names: dict[int, bytes] = {}

    def take(self, text: str) -> None:
        """Take packed names; what is none is left out, for a worker is the process that strangers talk to."""
        for h, key in unpack_names(text).items():
            self._names.pop(h, None)
            self._names[h] = key
        while len(self._names) > MOST_KEPT:
            del self._names[next(iter(self._names))]

    def get(self, h: int) -> str | None:
        """The name as text, octets that are none escaped; None while it is not known."""
        key = self._names.get(h)
        return None if key is None else key.decode("utf-8", "backslashreplace")

    def clear(self) -> None:
        """Forget all of them."""
        self._names.clear()


def pack_names(names: dict[int, bytes]) -> str:
    return json.dumps([[h, key.hex()] for h, key in names.items()])


def unpack_names(text: str) -> dict[int, bytes]:
    """What is no name is left out."""
    found = {}
    try:
        for h, octets in json.loads(text):
            if type(h) is int and 0 <= h < 1 << 64:
                found[h] = bytes.fromhex(octets)[:LONGEST]
    except (ValueError, TypeError, RecursionError):
        pass
    return found

"""Where a configuration comes from: read again at each reload, and watched for changes.

A file is known by what `stat` says of the path, symbolic links followed: device, inode, time and size. So a file that
was written in place, one that was renamed over it, and a link that now leads elsewhere (a Kubernetes ConfigMap) are all
seen. A change counts once the file has stayed the same between two looks: nobody wants the first half of one that is
being written.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from typing import Any, Final, final

from lbproxy.control.build import build
from lbproxy.control.config import examine, read_text, reads
from lbproxy.control.problems import ConfigError, Problem
from lbproxy.control.schema import File
from lbproxy.control.write import resolved
from lbproxy.core.spec import Config

Identity = tuple[int, int, int, int]
# How often to look whether watching has been switched on.
IDLE_S: Final = 1.0
HIDDEN: Final = "(secret)"


def identity(path: str) -> Identity | None:
    """What file the path leads to and in which state; None when there is none, or nothing that could be watched."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


@final
class Source:
    """A file that holds a configuration, or a text that does (which never changes)."""

    def __init__(self, path: str, text: str | None = None) -> None:
        """`path` is the file, or the name of the text."""
        self.path: Final = path
        self.identity: Identity | None = None
        self._text = text
        self._latest: tuple[Config, dict[str, Any]] | None = None

    @property
    def is_file(self) -> bool:
        return self._text is None

    def load(self) -> Config:
        """Read it. Raises ConfigError."""
        return self._taken(self._read)

    def load_to_start(self) -> Config:
        """Read it, and look at the files that it names and that only a start needs. Raises ConfigError."""
        return self._taken(lambda: examine(self.path).usable(is_proxy=True) if self.is_file else self._read())

    def _taken(self, read_it: Callable[[], File]) -> Config:
        self.identity = identity(self.path) if self.is_file else None
        file = read_it()
        config = build(file, source=self.path)
        self._latest = config, without_secrets(resolved(file))
        return config

    def fields(self, config: Config) -> dict[str, Any] | None:
        """The fields of a configuration as the file has them, all defaults filled in, if it is the one read last."""
        if self._latest is not None and self._latest[0] == config:
            return self._latest[1]
        return None

    def read_again(self) -> Config:
        """What a reload would read now, without taking it for read. Raises ConfigError."""
        return build(self._read(), source=self.path)

    def _read(self) -> File:
        if self._text is not None:
            return reads(self._text, self.path)
        text = read_text(self.path)
        if not text and self._latest is not None and self.identity is None:
            why = "is a pipe, which has given its content once: only from a file can it be read again"
            raise ConfigError([Problem(self.path, 0, 0, "", why)])
        return reads(text, self.path)


def without_secrets(value: Any) -> Any:
    """The same with every secret left out, and what the headers of checks say, which may be one."""
    if isinstance(value, dict):
        return {name: _shown(name, item) for name, item in value.items()}
    return [without_secrets(item) for item in value] if isinstance(value, list) else value


def _shown(name: str, value: Any) -> Any:
    """A value under a name, which may also be that of a pool."""
    if name == "secret" and isinstance(value, str) and value:
        return HIDDEN
    if name == "health" and "headers" in value:
        value = value | {"headers": dict.fromkeys(value["headers"], HIDDEN)}
    return without_secrets(value)


@final
class Watcher:
    """Calls `changed` when the file behind a source is another than the one that was read last, or is gone."""

    def __init__(self, source: Source, every_s: Callable[[], float], changed: Callable[[], Awaitable[object]]) -> None:
        """`every_s()` says how often to look; 0 is never."""
        self._source = source
        self._every_s = every_s
        self._changed = changed

    async def run(self) -> None:
        """Watch for ever."""
        seen = self._source.identity
        while True:
            every_s = self._every_s()
            await asyncio.sleep(every_s or IDLE_S)
            if not every_s:
                continue
            before, seen = seen, await asyncio.to_thread(identity, self._source.path)
            if seen == before and seen != self._source.identity:
                await self._changed()

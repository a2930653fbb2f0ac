"""Small files in which what operators have decided outlives the proxy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_OWNER_ONLY: Final = 0o600


class StoreBroken(Exception):
    """A file that something is kept in cannot be read or written: one line that says why."""


@final
class Store(Generic[T]):
    """A small file of JSON with all decisions of one kind, replaced as a whole and readable by its owner only."""

    def __init__(self, path: str, what: str, read: Callable[[dict[str, Any]], T]) -> None:
        """`what` is what the decisions are called. `read` makes one of its fields again; it may raise ValueError,
        TypeError and KeyError."""
        self.path: Final = path
        self.what: Final = what
        self._read = read

    def load(self) -> list[T]:
        """What was kept; nothing when there is no file. Raises StoreBroken; content that is none of ours stays beside
        it for somebody to look at, and does not go with the next `save`."""
        try:
            with open(self.path, "rb") as file:
                return [self._read(fields) for fields in json.load(file)[self.what]]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreBroken(f"cannot read {self.path}: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            why = f"{self.path} does not hold {self.what}: {type(error).__name__}: {error}"
            raise StoreBroken(f"{why}; {self._set_aside()}") from None

    def _set_aside(self) -> str:
        aside = f"{self.path}.broken"
        try:
            os.replace(self.path, aside)
        except OSError as error:
            return f"it cannot be moved to {aside}: {error.strerror}"
        return f"it is {aside} now"

    def save(self, decisions: Iterable[T]) -> None:
        """Keep these instead. Raises StoreBroken."""
        content = {self.what: [asdict(decision) for decision in decisions]}
        try:
            self._replace(f"{json.dumps(content, indent=1)}\n")
        except OSError as error:
            raise StoreBroken(f"cannot write {self.path}: {error.strerror}") from None

    def _replace(self, text: str) -> None:
        """Have the file hold this, or, whatever happens, what it held before."""
        passing = f"{self.path}.new"
        # What stands there was left by a process that was killed, or put there by somebody who would like to be
        # followed: the file is always a new one, and ours.
        with suppress(FileNotFoundError):
            os.unlink(passing)
        descriptor = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(descriptor)  # or the name could outlive a power cut without the content
            os.replace(passing, self.path)
        except OSError:
            with suppress(OSError):
                os.unlink(passing)
            raise

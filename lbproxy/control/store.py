"""Small files in which what operators have decided outlives the proxy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
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
        """What was kept; nothing when there is no file. Raises StoreBroken."""
        try:
            with open(self.path, "rb") as file:
                return [self._read(fields) for fields in json.load(file)[self.what]]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreBroken(f"cannot read {self.path}: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreBroken(f"{self.path} does not hold {self.what}: {type(error).__name__}: {error}") from None

    def save(self, decisions: Iterable[T]) -> None:
        """Keep these instead. Raises StoreBroken."""
        content = {self.what: [asdict(decision) for decision in decisions]}
        passing = f"{self.path}.new"
        try:
            descriptor = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _OWNER_ONLY)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(content, indent=1) + "\n")
            os.replace(passing, self.path)
        except OSError as error:
            raise StoreBroken(f"cannot write {self.path}: {error.strerror}") from None

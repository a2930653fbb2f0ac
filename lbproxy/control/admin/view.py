"""What the admin API asks of the instance that it belongs to, and what it can have it do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Protocol

from lbproxy.core.ring import Ring
from lbproxy.core.spec import Pin

Document = dict[str, Any]


class Rejected(Exception):
    """What was asked for cannot be done: an HTTP status, one sentence, and further members of the problem document."""

    def __init__(self, status: int, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.members = members


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator wants for one backend. `weight`: a number, or None to go by the file again; `is_drained`: to
    drain or not to. What is not to change is `...`."""

    backend: str
    weight: float | EllipsisType | None = ...
    is_drained: bool | EllipsisType = ...


class View(Protocol):
    """Everything here answers from memory, and what is not `async` at once. Raises Rejected (404) for a pool that there
    is not."""

    def readiness(self) -> tuple[bool, str]:
        """Whether traffic should be sent here, and why or why not in a few words."""
        ...

    def metrics(self) -> str:
        """The Prometheus page."""
        ...

    def info(self) -> Document:
        """The instance: version, process, configuration in force."""
        ...

    def pools(self) -> Document:
        """The pools with their backends, rings and counts."""
        ...

    def workers(self) -> Document:
        """The worker slots."""
        ...

    def config(self) -> Document:
        """The configuration in force with every default filled in, without its secrets, and what overrides it."""
        ...

    def hot_keys(self, pool: str) -> Document:
        """The keys with the most work, and which of them are spread."""
        ...

    def pins(self, pool: str) -> Document:
        """The keys that have a place of their own, and who says so."""
        ...

    def ring(self, pool: str) -> Ring | None:
        """The ring in force; None when there is no such pool."""
        ...

    def ring_document(self, pool: str) -> Document:
        """The ring in force, with the owners of evenly spaced places."""
        ...

    def events(self, after: int = 0) -> Sequence[Document]:
        """The events of late whose `id` is above `after`, the newest last."""
        ...

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Have `notify` called right after each event; returns what ends that."""
        ...

    async def explain(self, pool: str, key: bytes, most: int = ...) -> Document:
        """Where a request with this key would go now, and why; `most` is how much of its preference list is told."""
        ...

    async def plan_change(self, pool: str, decisions: Sequence[Decision]) -> Document:
        """What these decisions would move."""
        ...


class Operator(Protocol):
    """What can be done. Everything raises Rejected."""

    async def reload(self) -> Document:
        """Read the configuration again and put it in force."""
        ...

    async def check_text(self, text: bytes) -> Document:
        """What is wrong with a configuration, and with the files that it names."""
        ...

    async def plan_text(self, text: bytes | None) -> Document:
        """What a configuration would change; None: the file as it is now."""
        ...

    async def pin(self, pool: str, pin: Pin, who: str, reason: str) -> Document:
        """Have keys live on a backend, from now on in all workers; returns all pins of the pool."""
        ...

    async def unpin(self, pool: str, key: str, is_prefix: bool, who: str) -> Document:
        """Take back what an operator has pinned; returns the pins that are left."""
        ...

    async def decide(
        self, pool: str, decisions: Sequence[Decision], who: str, ttl_s: float | None, reason: str, is_forced: bool
    ) -> Document:
        """Put decisions in force in all workers; returns the pool as it stands then, and as `not_saved` why that is not
        on disk."""
        ...

    def drain_process(self) -> None:
        """Begin to end the whole proxy in peace."""
        ...


class Instance(View, Operator, Protocol):
    """Both."""

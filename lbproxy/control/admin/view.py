"""What the admin API asks of the instance that it belongs to."""

from __future__ import annotations

from typing import Any, Protocol

Document = dict[str, Any]


class View(Protocol):
    """Everything here answers at once from memory."""

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

"""What the documents of the admin API come to in numbers and words, for all who show it: page, `status` and demo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]


def requests(document: Document) -> int:
    """All requests of a pool, or all that a backend was asked."""
    return sum(document["requests"].values())


def saved_by_retries(pool: Document) -> int:
    """Requests that were answered well though an attempt had failed."""
    return sum(outcomes["success"] for outcomes in pool["retries"].values())


def last_check(result: object, why: object) -> str:
    """What came of a backend's last check."""
    return f"last check: {result}, {why}" if why else f"last check: {result}"

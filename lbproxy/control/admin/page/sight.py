"""What is to be seen of a pool at one moment: everything that its pieces are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lbproxy.control.admin.page.judge import Verdict
from lbproxy.control.admin.page.shares import HotKey
from lbproxy.control.admin.page.source import PoolNow
from lbproxy.control.admin.page.window import Flow, Span


@dataclass(frozen=True, slots=True)
class PoolSight:
    """All that is shown of a pool. `states` are the past states of each backend by name (`window.Past.states`)."""

    number: int
    now: PoolNow
    span: Span
    brisk: Flow
    rates: Sequence[tuple[float, float]]
    keys: Sequence[HotKey]
    verdict: Verdict
    states: Mapping[str, Sequence[tuple[float, str]]]
    wall: float

    @property
    def id(self) -> str:
        return f"p{self.number}"

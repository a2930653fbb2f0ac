"""docs/metrics.md: every metric there is, those of the slabs, of the processes and of health.

python -m lbproxy.control.metrics_reference > docs/metrics.md
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from lbproxy.control.health_families import health_families
from lbproxy.control.ring_changes import RingChanges
from lbproxy.control.scene import Scene, Shares
from lbproxy.control.wellbeing import Mandate, Wellbeing
from lbproxy.core.ledger import RowKey
from lbproxy.core.snapshot import States, build_snapshot
from lbproxy.observe import reference
from lbproxy.observe.journal import Journal
from lbproxy.observe.metrics import Family

_TITLE: Final = "Health, weights and rings"
_ABOUT: Final = (
    "What the supervisor makes of checks and live results, what operators have decided, and what that moved."
)


class _Nobody:
    """Takes orders that there are none of."""

    def tell(self, states: States) -> None:
        """Nobody hears it."""

    def reweigh(self, mandate: Mandate) -> None:
        """Nobody hears it."""


def metrics() -> dict[str, list[reference.Metric]]:
    """All families, in the sections of the page."""
    return {**reference.metrics(), "health": reference.known(_families())}


def names() -> frozenset[str]:
    """The name of every family, with its prefix."""
    return frozenset(metric.name for section in metrics().values() for metric in section)


def markdown() -> str:
    """The reference: a table for each section."""
    return reference.markdown(metrics(), {"health": (_TITLE, _ABOUT)})


def _families() -> Iterable[Family]:
    """The families of a pool with one backend that nothing has happened to."""
    config = reference.example_config()
    journal = Journal(lambda *_: None)
    being = Wellbeing([], _Nobody(), journal, None, lambda: 0.0, lambda: 0.0)
    being.install(being.prepare(config))
    rows: defaultdict[RowKey, int] = defaultdict(int)
    snapshot = build_snapshot(config, 1, rows)
    return health_families(Scene(snapshot, rows, [0] * 1000, being, RingChanges(journal), Shares(), 0.0, 0.0))


if __name__ == "__main__":
    sys.stdout.write(markdown())

"""Not part of lbproxy: put before it by `benchmarks.features`, to measure what counting costs.

The interpreter imports this at its start. It takes the place of the function that settles an exchange, with one that
counts nothing. The metrics of such a proxy say 0.
"""

from __future__ import annotations

import importlib
import pkgutil

from lbproxy import dataplane
from lbproxy.dataplane.relay import Exchange


def settle(exchange: Exchange, now: float) -> None:
    """What `lbproxy.dataplane.settling.settle` does, without the counting."""
    exchange.duration_us = int((now - exchange.started) * 1e6)
    if exchange.held:
        exchange.held.clear()
    if exchange.tried:
        exchange.tried.clear()


for _module in pkgutil.iter_modules(dataplane.__path__, f"{dataplane.__name__}."):
    _loaded = importlib.import_module(_module.name)
    if hasattr(_loaded, "settle"):
        _loaded.settle = settle  # type: ignore[attr-defined]

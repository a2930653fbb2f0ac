"""Which pool a command means."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from lbproxy.exits import BAD, USAGE, Stop


def chosen_pool(names: Collection[str], wanted: str | None, command: str) -> str:
    """The pool that is `wanted`, or the only one. Raises Stop."""
    if wanted is not None:
        check_pool(names, wanted, command)
        return wanted
    if len(names) > 1:
        raise Stop(USAGE, f"lbproxy {command}: there are several pools, name one with --pool: {', '.join(names)}")
    return next(iter(names))


def check_pool(names: Collection[str], wanted: str | None, command: str) -> None:
    """Raises Stop when a pool was named that is none of these."""
    if wanted is not None and wanted not in names:
        close = get_close_matches(wanted, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(names)}"
        raise Stop(BAD, f"lbproxy {command}: there is no pool {wanted}, {hint}")

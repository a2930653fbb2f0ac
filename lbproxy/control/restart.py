"""What a reload cannot put in force."""

from __future__ import annotations

from dataclasses import replace

from lbproxy.control.schema import File
from lbproxy.core.spec import Config


def needs_restart(before: Config, after: Config) -> tuple[str, ...]:
    """The fields of a new configuration that only a restart puts in force."""
    names = []
    if before.workers != after.workers:
        names.append("workers")
    if before.admin != replace(after.admin, show_keys=before.admin.show_keys):
        names.append("admin")
    return tuple(names)


def only_by_restart(file: File) -> tuple[str, ...]:
    """The fields among those of `needs_restart` that a file sets."""
    names = [name for name in ("workers", "admin") if name in file.model_fields_set]
    if "admin" in names and file.admin.model_fields_set <= {"show_keys"}:
        names.remove("admin")
    return tuple(names)

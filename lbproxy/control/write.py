"""A checked file back into text: every field with its value, in a form that loads again to the same configuration."""

from __future__ import annotations

from typing import Any

import yaml

from lbproxy.control.build import usable_cores
from lbproxy.control.schema import File


def resolved(file: File) -> dict[str, Any]:
    """Every field of the file as plain lists, mappings, text and numbers, defaults and backend names filled in."""
    fields: dict[str, Any] = file.model_dump(mode="json")
    if file.workers == "auto":
        fields["workers"] = usable_cores()
    return fields


def to_yaml(fields: dict[str, Any]) -> str:
    """The YAML of `resolved`; dollar signs are doubled, because a single one may stand for a variable."""
    return yaml.safe_dump(_escaped(fields), sort_keys=False, allow_unicode=True, width=1000)


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _escaped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value

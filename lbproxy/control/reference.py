"""What is generated from the schema: the JSON Schema for editors, and docs/configuration.md.

python -m lbproxy.control.reference > docs/configuration.md
"""

from __future__ import annotations

import inspect
import json
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from lbproxy.control.fields import Written
from lbproxy.control.paths import default_of, inner_section
from lbproxy.control.schema import ASIDE, File, Section

_LIMITS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}

_INTRODUCTION: Final = """\
# Configuration

<!-- Written by `python -m lbproxy.control.reference` from lbproxy/control/schema.py; edit that. -->

One YAML file, given with `-c` or found as `./lbproxy.yaml` or `/etc/lbproxy/lbproxy.yaml`. `lbproxy check FILE` says
everything that is wrong with it and with [the files that it names](operations.md#what-check-looks-at) at once,
`lbproxy config --resolved` shows it with every default filled in, `lbproxy schema` prints a JSON Schema for editors.
`config/small.yaml` is a small example, `config/full.yaml` has every field.

## How values are written

- **Durations** have a unit: `250ms`, `5s`, `2m`, `1h`, also `1m30s`; from 1ms to a year.
- **Sizes** have a unit: `512B`, `64KiB`, `1MiB` (powers of 1024), `64KB`, `1MB` (powers of 1000); only `0` needs none.
- **Percentages** have their sign: `20%`.
- **Scalars mean what the field says**, not what they look like. A name may be `on`, `010` or `1.10` without quotes.
  Where a number is wanted only plain decimal is one (`010` and `0x1F` are refused), where a truth value is wanted
  only `true` and `false` are. `null`, `~` or nothing is no value at all.
- **Variables**: `${NAME}` in a value becomes the environment variable, `${NAME:-default}` the default where it is unset
  or empty. What it brings is text for the field, never structure. `$$` is a dollar sign.
- **Anchors, aliases and merge keys** (`<<`) work. A mapping's own fields win over merged ones, and an earlier merged
  mapping over a later one. Outermost fields whose name begins with `x-` are a place for anchors, and nothing else is
  done with them. Tags (`!!str`), a key given twice and a second document are refused.
- The file is UTF-8, of at most 4 MiB and 60,000 values, which is some 12,000 backends with four fields each. Aliases
  may repeat 50,000 values more, and variables bring 4 MiB of text. Of more than 1000 mistakes 1000 are told.
"""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the file as it is written: durations are strings with a pattern, and so on."""
    schema = File.model_json_schema()
    sections = dict(_sections())
    for name, section in {section.__name__: section for section in sections.values()}.items():
        target = schema if section is File else schema["$defs"][name]
        for field_name, field in section.model_fields.items():
            _as_written(target["properties"][field_name], field)
    schema["patternProperties"] = {f"^{ASIDE}": {"description": "A place for anchors; nothing else is done with it."}}
    schema["$defs"] = {name: _tidied(definition) for name, definition in schema["$defs"].items()}
    schema = _tidied(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "lbproxy configuration"}


def _as_written(schema: dict[str, Any], field: FieldInfo) -> None:
    """The default of a field in the form the file has it in; pydantic gives the value inside."""
    if not field.is_required() and field.default_factory is None:
        schema["default"] = default_of(field)


def _tidied(schema: Any) -> Any:
    """Limits under the names that JSON Schema has for them, names of mappings closed, generated titles left out."""
    if isinstance(schema, list):
        return [_tidied(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {key: _tidied(value) for key, value in schema.items() if key not in _LIMITS}
    if schema.get("ge") and "anyOf" in tidy:
        tidy["anyOf"] = [way for way in tidy["anyOf"] if way != {"const": 0}]
    if isinstance(tidy.get("title"), str):
        del tidy["title"]
    if tidy.get("type") in ("integer", "number"):
        tidy |= {_LIMITS[key]: value for key, value in schema.items() if key in _LIMITS}
    if "patternProperties" in tidy:
        tidy["additionalProperties"] = False
    return tidy


def markdown() -> str:
    """The reference: a table of fields for each section."""
    parts = [_INTRODUCTION]
    for path, section in _sections():
        title = f"`{path}`" if path else "The file"
        about = "" if section is File else f"{inspect.cleandoc(section.__doc__ or '')}\n\n"
        rows = [_row(path, name, field) for name, field in section.model_fields.items()]
        table = "\n".join(["| field | value | default | |", "|---|---|---|---|", *rows])
        parts.append(f"## {title}\n\n{about}{table}\n")
    return "\n".join(parts)


def _sections(section: type[Section] = File, path: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Every section with its path, in the order of the file."""
    yield path, section
    for name, field in section.model_fields.items():
        if (inner := inner_section(field.annotation)) is not None:
            yield from _sections(inner[0], f"{path}.{name}{inner[1]}".removeprefix("."))


def _row(path: str, name: str, field: FieldInfo) -> str:
    value, about = _value(field.annotation, field.metadata), field.description or ""
    if (inner := inner_section(field.annotation)) is not None:
        target = f"{path}.{name}{inner[1]}".removeprefix(".")
        value = f"[{value}](#{_anchor(target)})"
        about = about or inspect.cleandoc(inner[0].__doc__ or "").partition("\n")[0]
    return f"| `{name}` | {value} | {_default(field)} | {about} |".replace("|  |", "| |")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = default_of(field)
    if isinstance(default, Section):
        return ""
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default}`" if isinstance(default, str) and default else f"`{json.dumps(default)}`"


def _value(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What is to be written, in words. `metadata` is what the field says about the type besides the annotation."""
    for item in metadata:
        if isinstance(item, Written):
            return _short(item.label) + _range(item, metadata)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _value(arguments[0], (*annotation.__metadata__, *metadata))
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join("`null`" if part is type(None) else _value(part, metadata) for part in arguments)
    if origin is list:
        return "list" if inner_section(arguments[0]) is not None else f"list ({_value(arguments[0])})"
    return "mapping"


def _short(label: str) -> str:
    """`a duration such as 5s` is explained once, at the top; in a table `duration` will do."""
    return label.removeprefix("a ").removeprefix("an ").partition(" such as ")[0]


def _range(how: Written[Any], metadata: Sequence[Any]) -> str:
    bounds = {type(bound): bound for bound in metadata}
    write = how.write or str
    words = []
    if (least := bounds.get(Ge)) is not None:
        words.append(f"from {write(least.ge)}")
    if (above := bounds.get(Gt)) is not None:
        words.append(f"above {write(above.gt)}")
    if (most := bounds.get(Le)) is not None:
        words.append(f"to {write(most.le)}")
    if (below := bounds.get(Lt)) is not None:
        words.append(f"and below {write(below.lt)}")
    return "".join(f" {word}" for word in words)


def _anchor(path: str) -> str:
    """The anchor that a heading with this path gets on the usual renderers of Markdown."""
    return "".join(c for c in path.lower() if c.isalnum() or c in "_-")


if __name__ == "__main__":
    sys.stdout.write(markdown())

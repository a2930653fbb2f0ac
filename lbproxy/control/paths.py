"""Finding one's way in the schema: from a path to the section it leads to, and along all the fields there are."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from lbproxy.control.fields import Written
from lbproxy.control.schema import File, Section

# Stands for a pool's name, or for any other that the file chooses.
NAME: Final = "NAME"


def step_into(annotation: Any, step: str | int) -> Any:
    """The type behind one step (a field, a name, an index) from a value of type `annotation`; None if there is none."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return step_into(arguments[0], step)
    if origin in (Union, types.UnionType):
        found = [step_into(argument, step) for argument in arguments]
        return next((type_ for type_ in found if type_ is not None), None)
    if origin is dict or (origin is list and isinstance(step, int)):
        return arguments[-1]
    section = section_of(annotation)
    field = section.model_fields.get(str(step)) if section is not None else None
    return field.annotation if field is not None else None


def section_of(annotation: Any) -> type[Section] | None:
    """The section that `annotation` is."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def inner_section(annotation: Any) -> tuple[type[Section], str] | None:
    """The section that `annotation` is or holds, and how a path goes on to it ("", "[]" or ".NAME")."""
    if (section := section_of(annotation)) is not None:
        return section, ""
    origin = get_origin(annotation)
    if origin is None or origin is Literal:
        return None
    suffix = {list: "[]", dict: f".{NAME}"}.get(origin, "")
    arguments = get_args(annotation)[:1] if origin is Annotated else get_args(annotation)
    for argument in arguments:
        if (inner := inner_section(argument)) is not None:
            return inner[0], suffix + inner[1]
    return None


def all_fields(section: type[Section] = File, prefix: str = "") -> Iterator[tuple[str, type[Section], FieldInfo]]:
    """Every field of the file with its path, such as `pools.NAME.backends[].url`, and the section it stands in."""
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        yield path, section, field
        if (inner := inner_section(field.annotation)) is not None:
            yield from all_fields(inner[0], f"{path}{inner[1]}.")


def written(field: FieldInfo) -> Written[Any] | None:
    """How the field's value is written, unless it is a section, a list or a word."""
    return _written(field.metadata) or _written_in(field.annotation)


def default_of(field: FieldInfo) -> Any:
    """The field's default as it would be written in the file; only for fields that are not required."""
    default = field.get_default(call_default_factory=True)
    how = written(field)
    return how.write(default) if how is not None and how.write is not None and default is not None else default


def _written(metadata: Any) -> Written[Any] | None:
    return next((item for item in metadata if isinstance(item, Written)), None)


def _written_in(annotation: Any) -> Written[Any] | None:
    if get_origin(annotation) is Annotated:
        return _written(annotation.__metadata__)
    if get_origin(annotation) in (Union, types.UnionType):
        return next((how for part in get_args(annotation) if (how := _written_in(part)) is not None), None)
    return None

"""The types of fields: how `values` and `addresses` become something that a pydantic model can be declared with.

Every type here reads the text of a scalar (the tree keeps scalars as text), says what it expected when it got something
else, writes itself back in the form it was read in, and knows its JSON Schema, in which a duration is a string with a
pattern and a count is an integer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from lbproxy.control import addresses, values
from lbproxy.control.values import BadValue, quote

T = TypeVar("T")

SHORTEST_SECRET: Final = 16

_NAME: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:\[\]@-]{0,99}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def describe(value: object) -> str:
    """How a message names what was found instead."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else quote(str(value))


@dataclass(frozen=True, slots=True, eq=False)
class Written(Generic[T]):
    """Metadata of an annotated type: how its values are written in the file.

    `label` is what a reader is told to write, `read` makes a value of a scalar's text or raises BadValue, `write` is
    its inverse where the value is not written as it is, `schema` its JSON Schema where that is not the type's own.
    """

    label: str
    read: Callable[[str], T]
    write: Callable[[T], str] | None = None
    schema: Mapping[str, Any] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            self._validate,
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(self.write) if self.write else None,
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.schema) if self.schema is not None else handler(schema)

    def _validate(self, value: object) -> T:
        if not isinstance(value, str):
            raise BadValue(f"expected {self.label}, got {describe(value)}")
        try:
            return self.read(value)
        except BadValue as bad:
            bad.hint = bad.hint if self._reads(bad.hint) else ""
            raise

    def _reads(self, text: str) -> bool:
        try:
            self.read(text)
        except BadValue:
            return False
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Shorthand:
    """Metadata of an annotated type: other ways to write its values.

    `expand` turns them into the full form and leaves that as it is; `schema` adds them to the full form's JSON Schema.
    """

    expand: Callable[[object], object]
    schema: Callable[[dict[str, Any]], dict[str, Any]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.expand, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.schema(handler(schema))


def _string(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, **more}


def _integer(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


# Text


def _read_text(text: str) -> str:
    if not text.isprintable():
        raise BadValue(f"{quote(text)} holds a line break or a control character")
    return text


def _read_filled(text: str) -> str:
    if not text.strip():
        raise BadValue("may not be empty")
    return _read_text(text)


def _read_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise BadValue(
            f"{quote(text)} is not a name: letters, digits and . _ : @ - [ ], 100 at the most, first a letter or digit"
        )
    return text


def _read_token(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise BadValue(f"{quote(text)} holds characters that HTTP does not allow there")
    return text


def _read_token_or_nothing(text: str) -> str:
    return _read_token(text) if text else ""


def _read_method(text: str) -> str:
    _read_token(text)
    if text != text.upper():
        raise BadValue(f"{quote(text)} is not in upper case, and methods are told apart by case", text.upper())
    return text


def _read_secret(text: str) -> str:
    if len(text) < SHORTEST_SECRET or not text.isprintable():
        raise BadValue(f"a secret is {SHORTEST_SECRET} printable characters or more")
    return text


Text = Annotated[str, Written("text", _read_text)]
Secret = Annotated[str, Written("a secret", _read_secret, schema={"type": "string", "minLength": SHORTEST_SECRET})]
FilledText = Annotated[str, Written("text", _read_filled, schema={"type": "string", "minLength": 1})]
Name = Annotated[str, Written("a name", _read_name, schema=_string(f"^{_NAME.pattern}$"))]
Token = Annotated[str, Written("a name", _read_token, schema=_string(f"^{_TOKEN.pattern}$"))]
OptionalToken = Annotated[str, Written("a name, or empty", _read_token_or_nothing)]
Method = Annotated[str, Written("a method", _read_method, schema={"type": "string", "minLength": 1})]

# Numbers and truth

Whole = Annotated[int, Written("a whole number", values.read_whole)]
Count = Annotated[Whole, Field(ge=1)]
Natural = Annotated[Whole, Field(ge=0)]
Number = Annotated[float, Written("a number", values.read_number)]
Truth = Annotated[bool, Written("true or false", values.read_truth)]


def _read_port(text: str) -> int:
    port = values.read_whole(text)
    if not 1 <= port <= 65535:
        raise BadValue(f"{quote(text)} is not a port from 1 to 65535")
    return port


Port = Annotated[int, Written("a port", _read_port, schema=_integer(1, 65535))]

# Amounts with units

_DURATION: Final = _string(values.DURATION_PATTERN, examples=["250ms", "5s", "2m", "1h"])
_SPAN: Final = {"anyOf": [_DURATION, {"const": 0}]}
_SIZE: Final = {"anyOf": [_string(values.SIZE_PATTERN, examples=["512B", "64KiB", "1MB"]), {"const": 0}]}
_SHARE: Final = _string(values.SHARE_PATTERN, examples=["20%"])

Duration = Annotated[
    float, Written("a duration such as 5s", values.read_duration, values.write_duration, schema=_DURATION)
]
Span = Annotated[float, Written("a duration such as 5s, or 0", values.read_span, values.write_span, schema=_SPAN)]
Size = Annotated[int, Written("a size such as 64KiB", values.read_size, values.write_size, schema=_SIZE)]
Share = Annotated[float, Written("a percentage such as 20%", values.read_share, values.write_share, schema=_SHARE)]

# What is kept as text, checked here and read again where it is used: places, and what is written in several ways


def _checked(read: Callable[[str], object]) -> Callable[[str], str]:
    def check(text: str) -> str:
        read(text)
        return text

    return check


Pace = Annotated[str, Written("a pace such as 5%/min", _checked(values.read_pace), schema=_string(values.PACE_PATTERN))]


def _absolute_path(text: str) -> str:
    return addresses.read_socket_path(text) if text else ""


def _collector(text: str) -> str:
    return addresses.read_collector_url(text) if text else ""


_URL: Final = _string("^[Hh][Tt][Tt][Pp]://")

Bind = Annotated[str, Written("an address such as 0.0.0.0:8080", _checked(addresses.read_bind))]
TcpBind = Annotated[str, Written("an address such as 127.0.0.1:9901", _checked(addresses.read_tcp_bind))]
BackendUrl = Annotated[
    str, Written("a URL such as http://10.0.0.1:8080", _checked(addresses.read_backend_url), schema=_URL)
]
Network = Annotated[str, Written("a network such as 10.0.0.0/8", addresses.read_network)]
CollectorUrl = Annotated[str, Written("a URL such as http://127.0.0.1:4318, or empty", _collector)]
SocketPath = Annotated[str, Written("an absolute path, or empty", _absolute_path)]
MatchHost = Annotated[str, Written("a host", addresses.read_match_host)]
Target = Annotated[str, Written("a path", addresses.read_target, schema=_string("^/"))]
MatchPath = Annotated[str, Written("a path", addresses.read_match_path, schema=_string("^/"))]

# Statuses


def _read_status(text: str) -> int:
    status = values.read_whole(text)
    if not 400 <= status <= 599:
        raise BadValue(f"{quote(text)} is not an error status from 400 to 599")
    return status


def _read_status_range(text: str) -> str:
    found = re.fullmatch(r"([1-5][0-9][0-9])(?:-([1-5][0-9][0-9]))?", text)
    if found is None:
        raise BadValue(f"{quote(text)} is not a status such as 200 or a range such as 200-399")
    if found[2] is not None and found[2] < found[1]:
        raise BadValue(f"{quote(text)} ends before it begins", f"{found[2]}-{found[1]}")
    return text


_STATUS_RANGE: Final = {"anyOf": [_string("^[1-5][0-9][0-9](-[1-5][0-9][0-9])?$"), _integer(100, 599)]}

ErrorStatus = Annotated[int, Written("a status", _read_status, schema=_integer(400, 599))]
StatusRange = Annotated[str, Written("a status or a range such as 200-399", _read_status_range, schema=_STATUS_RANGE)]

# Words


def _read_workers(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        workers = values.read_whole(text)
    except BadValue as bad:
        raise BadValue(f"{quote(text)} is neither auto nor a whole number", bad.hint) from None
    if not 1 <= workers <= 1024:
        raise BadValue(f"{quote(text)} is not from 1 to 1024")
    return workers


def _read_version(text: str) -> int:
    if text != "1":
        raise BadValue(f"{quote(text)} is not a version of the configuration that this lbproxy reads, it reads 1")
    return 1


def _read_yes(text: str) -> bool:
    if not values.read_truth(text):
        raise BadValue(f"{quote(text)} says nothing, leave the field out instead")
    return True


_WORKERS: Final = {"anyOf": [{"const": "auto"}, _integer(1, 1024)]}

Workers = Annotated[int | Literal["auto"], Written("auto or a whole number", _read_workers, schema=_WORKERS)]
Version = Annotated[Literal[1], Written("1", _read_version)]
Yes = Annotated[Literal[True], Written("true", _read_yes)]


# Other ways to write a section or a list


def _as_list(value: object) -> object:
    return value if isinstance(value, list) or value is None else [value]


def _addresses_as_listeners(value: object) -> object:
    items = _as_list(value)
    if not isinstance(items, list):
        return items
    return [{"bind": item} if isinstance(item, str) else item for item in items]


def _cookie_as_affinity(value: object) -> object:
    return {} if value == "cookie" else value


def _or_item(schema: dict[str, Any]) -> dict[str, Any]:
    ways = schema.get("anyOf", [schema])
    items = [way["items"] for way in ways if way.get("type") == "array"]
    return {"anyOf": [*items, *ways]}


def _or_address(schema: dict[str, Any]) -> dict[str, Any]:
    item = {"anyOf": [{"type": "string"}, schema["items"]]}
    return {"anyOf": [*item["anyOf"], {**schema, "items": item}]}


def _or_cookie(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"const": "cookie"}, *schema["anyOf"]]}


ONE_OR_MORE: Final = Shorthand(_as_list, _or_item)
LISTENERS: Final = Shorthand(_addresses_as_listeners, _or_address)
COOKIE: Final = Shorthand(_cookie_as_affinity, _or_cookie)

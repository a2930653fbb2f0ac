"""Finding the key: the bytes of a request that say whose it is.

A pool lists its sources in order; the first that has a non-empty value gives the key. An empty value counts as a
missing one everywhere, because all requests with an empty header would otherwise share one key and one backend.

* header: the value without the white space around it. Sent on several lines, it is their non-empty values joined by
  ", " in order, which is what RFC 9110 5.3 says such lines mean; so a proxy on the way that combines the lines does
  not move the key.
* cookie: the value of the first cookie of that name (RFC 6265), over all Cookie lines, case-sensitive, as it is.
* query: the first parameter of that name, percent-decoded, "+" meaning a space.
* path_segment: the segment of that index, from 0, percent-decoded. In /users/42 number 1 is 42.
* client_ip: the address as text.

A key is whatever bytes come out: of any length and content, compared octet by octet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import unquote_to_bytes

from lbproxy.core.headers import Shape, Values
from lbproxy.core.spec import KeySource, Sticky

_OWS: Final = b" \t"

# (shape, values, target, client) -> the key, or None when there is none. `values` are its header's values in order,
# `target` the request target as received, `client` the address of the client as text ("" when it has none).
KeyFinder = Callable[[Shape, Values, bytes, str], bytes | None]


def key_finder(sticky: Sticky) -> KeyFinder:
    """The function that finds the key of a request as `sticky` asks for, its look-ups prepared once.

    With `on_missing: client_ip` the client's address is simply the last source.
    """
    sources = sticky.keys
    if sticky.on_missing == "client_ip":
        sources = (*sources, KeySource("client_ip"))
    finders = tuple(_finder(source) for source in sources)
    if len(finders) == 1:
        return finders[0]

    def first_of(shape: Shape, values: Values, target: bytes, client: str) -> bytes | None:
        for find in finders:
            key = find(shape, values, target, client)
            if key is not None:
                return key
        return None

    return first_of


def _finder(source: KeySource) -> KeyFinder:
    if source.kind == "header":
        return _header(source.name.lower().encode())
    if source.kind == "cookie":
        return _cookie(source.name.encode())
    if source.kind == "query":
        return _query(source.name.encode())
    if source.kind == "path_segment":
        return _path_segment(source.index)
    return _client_ip


def _header(name: bytes) -> KeyFinder:
    def find(shape: Shape, values: Values, target: bytes, client: str) -> bytes | None:
        lines = shape.index.get(name)
        if lines is None:
            return None
        if len(lines) == 1:
            value = values[lines[0]]
            if value and value[0] > 32 and value[-1] > 32:  # nearly always, and a tenth of the time
                return value
            return value.strip(_OWS) or None
        stripped = [values[line].strip(_OWS) for line in lines]
        return b", ".join([value for value in stripped if value]) or None

    return find


def _cookie(name: bytes) -> KeyFinder:
    def find(shape: Shape, values: Values, target: bytes, client: str) -> bytes | None:
        for line in shape.index.get(b"cookie", ()):
            for pair in values[line].split(b";"):
                found, equals, value = pair.partition(b"=")
                if equals and found.strip(_OWS) == name:
                    return value.strip(_OWS) or None
        return None

    return find


def _query(name: bytes) -> KeyFinder:
    def find(shape: Shape, values: Values, target: bytes, client: str) -> bytes | None:
        for parameter in target.partition(b"#")[0].partition(b"?")[2].split(b"&"):
            found, _, value = parameter.partition(b"=")
            if found == name or _form_decoded(found) == name:
                return _form_decoded(value) or None
        return None

    return find


def _path_segment(index: int) -> KeyFinder:
    def find(shape: Shape, values: Values, target: bytes, client: str) -> bytes | None:
        segments = _path(target).split(b"/")
        return _decoded(segments[index + 1]) or None if index + 1 < len(segments) else None

    return find


def _client_ip(shape: Shape, values: Values, target: bytes, client: str) -> bytes | None:
    return client.encode() or None


def _form_decoded(text: bytes) -> bytes:
    return _decoded(text.replace(b"+", b" "))


def _decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text) if b"%" in text else text


def _path(target: bytes) -> bytes:
    """The path of a request target in origin-form or absolute-form; of `*` or an authority, nothing."""
    path = target.partition(b"#")[0].partition(b"?")[0]
    if path.startswith(b"/"):
        return path
    _, slash, rest = path.partition(b"://")[2].partition(b"/")
    return slash + rest

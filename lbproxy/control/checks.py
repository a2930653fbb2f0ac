"""What concerns several fields at once: names given twice, routes that shadow each other, limits that cross.

The checks look at the data as it was written and at whatever parts of it are valid in themselves, so that a mistake in
one place does not hide one in another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from lbproxy.control.addresses import is_loopback, read_bind
from lbproxy.control.closest import Finder
from lbproxy.control.schema import (
    Admin,
    Affinity,
    Backend,
    Ejection,
    Headers,
    Health,
    Key,
    Listener,
    ListenerLimits,
    Match,
    Pin,
    RingOptions,
    Section,
    Tracing,
)
from lbproxy.control.tree import Path
from lbproxy.control.values import write_duration, write_size
from lbproxy.core.hashing import HASH_VERSIONS
from lbproxy.core.ring import MAX_TOKENS
from lbproxy.core.spec import Address

S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with the value at `path`, or with its last step itself where `about_key` says so.

    `is_denied`: it is a permission that is missing, and another user may have it.
    """

    path: Path
    message: str
    hint: str = ""
    about_key: bool = False
    is_denied: bool = False


def cross_check(data: object) -> Iterator[Fault]:
    """Everything that the fields cannot see alone. `data` is a file as plain lists, mappings and text."""
    listeners = dict(listeners_in(data))
    yield from _binds(listeners)
    for path, listener in listeners.items():
        yield from _limits(listener.limits, (*path, "limits", "line_bytes"))
    yield from _admin(data, {read_bind(listener.bind) for listener in listeners.values()})
    yield from _routes(data)
    yield from _tracing(data)
    has_zone = isinstance(data, dict) and bool(data.get("zone"))
    for name, pool in mapping_in(data, "pools").items():
        yield from _pool(("pools", name), pool)
        if not has_zone and isinstance(pool, dict) and pool.get("zone") == "prefer_local":
            yield Fault(("pools", name, "zone"), "needs to know where this proxy runs: set `zone` at the top")


# Where requests come in


def listeners_in(data: object) -> Iterator[tuple[Path, Listener]]:
    """The listeners that are valid, each with where it stands."""
    value = data.get("listen") if isinstance(data, dict) else None
    for index, item in enumerate(value if isinstance(value, list) else [value]):
        listener = valid(Listener, {"bind": item} if isinstance(item, str) else item)
        if listener is not None:
            yield ("listen", index), listener


def _binds(listeners: dict[Path, Listener]) -> Iterator[Fault]:
    seen: dict[Address, Path] = {}
    for path, listener in listeners.items():
        address = read_bind(listener.bind)
        if address in seen:  # with port 0, too: listeners are told apart by how they are written
            yield Fault((*path, "bind"), f"{listener.bind} is already listen[{seen[address][-1]}]")
        seen.setdefault(address, path)


def _limits(limits: ListenerLimits, path: Path) -> Iterator[Fault]:
    if limits.line_bytes > limits.head_bytes:
        line, head = write_size(limits.line_bytes), write_size(limits.head_bytes)
        yield Fault(path, f"a line of {line} does not fit into head_bytes, which is {head}")


def _admin(data: object, binds: set[Address]) -> Iterator[Fault]:
    admin = valid(Admin, mapping_in(data, "admin"))
    if admin is None or admin.listen is None:
        return
    address = read_bind(admin.listen)
    if not is_loopback(address) and not admin.token_file:
        yield Fault(("admin", "listen"), f"others can reach {admin.listen}, which needs a token_file beside it")
    if address in binds and address.port:
        yield Fault(("admin", "listen"), f"{admin.listen} already takes requests (listen)")


def _tracing(data: object) -> Iterator[Fault]:
    tracing, headers = valid(Tracing, mapping_in(data, "tracing")), valid(Headers, mapping_in(data, "headers"))
    if tracing is not None and tracing.otlp and headers is not None and headers.traceparent == "pass":
        yield Fault(
            ("headers", "traceparent"), "must be make for tracing, or nothing would join the backends' spans to ours"
        )


# Where they go


def _routes(data: object) -> Iterator[Fault]:
    """Two matches that are the same leave open which pool is meant. A pool without one takes what is left."""
    taken: dict[tuple[str | None, str], str] = {}
    for name, pool in mapping_in(data, "pools").items():
        for path, match in _matches(name, pool):
            route = (match.host, match.path)
            if route not in taken:
                taken[route] = name
            elif path[-1] == name:
                yield Fault(
                    path, f"has no match, and pool {taken[route]} already takes all that is left", about_key=True
                )
            else:
                yield Fault(path, f"{match.host or 'any host'} {match.path} already goes to pool {taken[route]}")


def _matches(name: str, pool: object) -> Iterator[tuple[Path, Match]]:
    if not isinstance(pool, dict):
        return
    value = pool.get("match")
    if value is None:
        yield ("pools", name), Match()
        return
    for index, item in enumerate(value if isinstance(value, list) else [value]):
        if (match := valid(Match, item)) is not None:
            yield ("pools", name, "match", index), match


def _pool(path: Path, pool: object) -> Iterator[Fault]:
    yield from _sticky(path, pool)
    yield from _backends(path, pool)
    health = valid(Health, mapping_in(pool, "health"))
    if health is not None and health.fast_interval is not None and health.fast_interval > health.interval:
        fast, interval = write_duration(health.fast_interval), write_duration(health.interval)
        yield Fault((*path, "health", "fast_interval"), f"{fast} is not faster than interval, which is {interval}")
    ejection = valid(Ejection, mapping_in(pool, "ejection"))
    if ejection is not None and ejection.base > ejection.max:
        base, longest = write_duration(ejection.base), write_duration(ejection.max)
        yield Fault((*path, "ejection", "base"), f"{base} is longer than max, which is {longest}")
    yield from _pins(path, pool)


def _sticky(path: Path, pool: object) -> Iterator[Fault]:
    sticky = mapping_in(pool, "sticky")
    places = [name for name in (*Key.model_fields, "keys") if sticky.get(name) is not None]
    if len(places) > 1:
        yield Fault((*path, "sticky"), f"only one of {', '.join(places)} can hold the key, or `keys` a list of places")
    yield from _affinity((*path, "sticky", "affinity"), sticky)
    for index, key in enumerate(list_in(sticky, "keys")):
        places = [name for name in Key.model_fields if isinstance(key, dict) and key.get(name) is not None]
        if isinstance(key, dict) and len(places) != 1:
            wanted = "header, cookie, query, path_segment and client_ip"
            yield Fault((*path, "sticky", "keys", index), f"needs exactly one of {wanted}")


def _affinity(path: Path, sticky: dict[str, object]) -> Iterator[Fault]:
    affinity = valid(Affinity, sticky.get("affinity"))
    if affinity is not None and affinity.same_site == "None" and not affinity.secure:
        yield Fault((*path, "same_site"), "browsers drop a cookie that is SameSite=None without `secure: true`")


def _backends(path: Path, pool: object) -> Iterator[Fault]:
    items = list_in(pool, "backends")
    backends = {index: backend for index, item in enumerate(items) if (backend := valid(Backend, item)) is not None}
    seen: dict[str, int] = {}
    for index, backend in backends.items():
        before = seen.setdefault(backend.identity, index)
        if before != index:
            field = "url" if backend.name is None else "name"
            message = f"{backend.identity} is already the name of backends[{before}]"
            yield Fault((*path, "backends", index, field), message)
    if backends and len(backends) == len(items) and not any(backend.weight for backend in backends.values()):
        yield Fault((*path, "backends"), "every weight is 0, so nobody would take a new key", about_key=True)
    yield from _ring(path, pool, sum(backend.weight for backend in backends.values()))


def _pins(path: Path, pool: object) -> Iterator[Fault]:
    backends = [valid(Backend, item) for item in list_in(pool, "backends")]
    names = {backend.identity for backend in backends if backend is not None}
    finder = Finder(names)
    has_all = bool(names) and None not in backends
    seen: dict[tuple[str | None, str | None], int] = {}
    for index, item in enumerate(list_in(pool, "pins")):
        pin = valid(Pin, item)
        if pin is None:
            continue
        place = (*path, "pins", index)
        if (pin.key is None) == (pin.prefix is None):
            yield Fault(place, "needs exactly one of key and prefix")
        before = seen.setdefault((pin.key, pin.prefix), index)
        if before != index:
            yield Fault(place, f"pins what pins[{before}] has already pinned")
        if has_all and pin.backend not in names:
            hint = finder.closest(pin.backend)
            yield Fault((*place, "backend"), f"the pool has no backend {pin.backend}", hint)


def _ring(path: Path, pool: object, weight: float) -> Iterator[Fault]:
    ring = valid(RingOptions, mapping_in(pool, "ring"))
    if ring is None:
        return
    if ring.hash_version not in HASH_VERSIONS:
        known = ", ".join(map(str, HASH_VERSIONS))
        yield Fault((*path, "ring", "hash_version"), f"{ring.hash_version} is not known, there is {known}")
    if (tokens := weight * ring.vnodes) > MAX_TOKENS:
        message = f"weights of {weight:g} with {ring.vnodes} vnodes each make {tokens:,.0f} tokens, more than "
        yield Fault((*path, "backends"), f"{message}{MAX_TOKENS:,}: lower the weights or vnodes", about_key=True)


def mapping_in(data: object, name: str) -> dict[str, object]:
    """The mapping of that name in a mapping, or an empty one."""
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}


def list_in(data: object, name: str) -> list[object]:
    """The list of that name in a mapping, or an empty one."""
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, list) else []


def valid(section: type[S], value: object) -> S | None:
    """The section that a value is, or None where anything in it is wrong."""
    try:
        return section.model_validate(value)
    except ValidationError:
        return None

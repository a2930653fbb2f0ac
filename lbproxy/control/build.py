"""A checked `File` into the `Config` that the core understands.

Everything that the file left open is decided here: how many workers `auto` is, a backend's name, in which order routes
are tried. The result is a function of the file and of the number of usable cores.
"""

from __future__ import annotations

import os

from lbproxy.control import schema
from lbproxy.control.addresses import read_backend_url, read_bind
from lbproxy.control.values import read_pace
from lbproxy.core import spec


def build(file: schema.File, source: str = "") -> spec.Config:
    """The configuration that `file` describes. `source` says where it came from."""
    return spec.Config(
        listeners=tuple(map(_listener, file.listen)),
        pools=tuple(_pool(name, pool) for name, pool in file.pools.items()),
        routes=_routes(file),
        workers=usable_cores() if file.workers == "auto" else file.workers,
        headers=spec.HeaderPolicy(
            x_forwarded=file.headers.x_forwarded,
            forwarded=file.headers.forwarded,
            via=file.headers.via,
            request_id=file.headers.request_id,
            traceparent=file.headers.traceparent,
            debug=file.headers.debug_headers,
        ),
        admin=spec.AdminSpec(
            listen=None if file.admin.listen is None else read_bind(file.admin.listen),
            socket=file.admin.socket,
            token_file=file.admin.token_file,
            show_keys=file.admin.show_keys,
        ),
        log=spec.LogSpec(file.log.level, file.log.format, spec.AccessLogSpec(**dict(file.log.access))),
        tracing=spec.TracingSpec(**dict(file.tracing)),
        drain_timeout=file.drain.timeout,
        watch=file.reload.watch,
        zone=file.zone,
        source=source,
    )


def usable_cores() -> int:
    """The cores that this process may run on, which a container or taskset may have made fewer than there are."""
    return len(os.sched_getaffinity(0))


def _listener(listener: schema.Listener) -> spec.ListenerSpec:
    return spec.ListenerSpec(
        name=listener.bind,
        bind=read_bind(listener.bind),
        timeouts=spec.ListenerTimeouts(**dict(listener.timeout)),
        limits=spec.Limits(**dict(listener.limits)),
        trusted_proxies=tuple(listener.trusted_proxies),
    )


def _routes(file: schema.File) -> tuple[spec.Route, ...]:
    """The most particular first: an exact host, then a wildcard (the longer first), then any; then the longest path."""
    routes = [
        spec.Route(name, match.host or "", match.path)
        for name, pool in file.pools.items()
        for match in pool.match or [schema.Match()]
    ]
    return tuple(sorted(routes, key=_precedence))


def _precedence(route: spec.Route) -> tuple[int, int, str, int, str]:
    kind = 2 if not route.host else 1 if route.host.startswith("*.") else 0
    return kind, -len(route.host) if kind == 1 else 0, route.host, -len(route.path), route.path


def _pool(name: str, pool: schema.Pool) -> spec.PoolSpec:
    return spec.PoolSpec(
        name=name,
        backends=tuple(map(_backend, pool.backends)),
        sticky=_sticky(pool.sticky),
        vnodes=pool.ring.vnodes,
        hash_version=pool.ring.hash_version,
        bounded_load=spec.BoundedLoad(**dict(pool.bounded_load)),
        hot_keys=spec.HotKeys(**dict(pool.hot_keys)),
        health=_health(pool.health),
        ejection=spec.Ejection(**dict(pool.ejection)),
        retry=_retry(pool.retry),
        timeout=spec.PoolTimeouts(**dict(pool.timeout)),
        connections=spec.UpstreamConnections(**dict(pool.connections)),
        panic=pool.panic,
        slow_start=pool.slow_start,
        session_drain=pool.session_drain,
        pace=None if pool.pace is None else read_pace(pool.pace),
        on_move=pool.on_move,
        queue=spec.Queue(**dict(pool.queue)),
        pins=tuple(map(_pin, pool.pins)),
        prefer_local=pool.zone == "prefer_local",
    )


def _backend(backend: schema.Backend) -> spec.BackendSpec:
    return spec.BackendSpec(
        name=backend.identity,
        address=read_backend_url(backend.url),
        weight=backend.weight,
        zone=backend.zone,
        max_in_flight=backend.max_in_flight,
        max_connections=backend.max_connections,
    )


def _sticky(sticky: schema.Sticky) -> spec.Sticky:
    keys = [source for key in sticky.keys or [sticky] if (source := _key_source(key)) is not None]
    return spec.Sticky(
        keys=tuple(keys) or spec.Sticky().keys,
        on_missing=sticky.on_missing,
        cookie=None if sticky.affinity is None else _cookie(sticky.affinity),
    )


def _cookie(affinity: schema.Affinity) -> spec.AffinityCookie:
    fields = dict(affinity)
    return spec.AffinityCookie(name=fields.pop("cookie"), **fields)


def _key_source(key: schema.Key) -> spec.KeySource | None:
    if key.header is not None:
        return spec.KeySource("header", key.header)
    if key.cookie is not None:
        return spec.KeySource("cookie", key.cookie)
    if key.query is not None:
        return spec.KeySource("query", key.query)
    if key.path_segment is not None:
        return spec.KeySource("path_segment", index=key.path_segment)
    return spec.KeySource("client_ip") if key.client_ip else None


def _health(health: schema.Health) -> spec.Health:
    fields = dict(health) | {
        "headers": tuple(health.headers.items()),
        "expect_status": tuple(map(_status_range, health.expect_status)),
    }
    return spec.Health(**fields)


def _pin(pin: schema.Pin) -> spec.Pin:
    return spec.Pin(pin.key or pin.prefix or "", pin.backend, pin.prefix is not None, pin.on_down)


def _status_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _retry(retry: schema.Retry) -> spec.Retry:
    return spec.Retry(**dict(retry) | {"statuses": tuple(retry.statuses), "methods": tuple(retry.methods)})

"""The proxies that are compared, in the order in which tables show them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.proxies.base import Backend, BenchmarkError, Proxy, Setting
from benchmarks.proxies.caddy import Caddy
from benchmarks.proxies.envoy import Envoy
from benchmarks.proxies.haproxy import HAProxy
from benchmarks.proxies.lbproxy import DataPlaneAlone, LBProxy
from benchmarks.proxies.nginx import Nginx

__all__ = ["EXTRAS", "PROXIES", "Backend", "BenchmarkError", "Proxy", "Setting", "select"]

PROXIES: tuple[Proxy, ...] = (Nginx(), HAProxy(), HAProxy(4000, ("connections",)), Envoy(), Caddy(), LBProxy())

# Compared only when named.
EXTRAS: tuple[Proxy, ...] = (DataPlaneAlone(),)


def select(names: Sequence[str] | None) -> list[Proxy]:
    """The named proxies, or all of PROXIES that are installed.

    Raises:
        SystemExit: a named one is unknown or not installed.
    """
    if names is None:
        return [proxy for proxy in PROXIES if proxy.binary()]
    known = {proxy.name: proxy for proxy in (*PROXIES, *EXTRAS)}
    for name in names:
        if name not in known:
            raise SystemExit(f"benchmarks: no proxy {name!r}; known: {', '.join(known)}")
        if known[name].binary() is None:
            raise SystemExit(f"benchmarks: {name} is not installed (looked on PATH and beside Python)")
    return [proxy for name, proxy in known.items() if name in names]

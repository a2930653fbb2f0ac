"""HAProxy: `hash-type consistent`, connections to the backends always reused, probes on, no log unless asked for."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from benchmarks.machine import find_binary
from benchmarks.proxies.base import Proxy, Setting

_CONFIG = """\
global
    nbthread {workers}
    maxconn {connections}
    no strict-limits
{global_log}
defaults
    mode http
    timeout connect 5s
    timeout client 300s
    timeout server 300s
    timeout http-keep-alive 300s
    timeout http-request 10s
    option http-keep-alive
    http-reuse always
{log}
frontend in
    bind 127.0.0.1:{port} backlog 4096
    option forwardfor
    default_backend pool
backend pool
    balance hdr(X-User-ID)
    hash-type consistent sdbm avalanche
    option httpchk GET /healthz
{servers}
"""


class HAProxy(Proxy):
    name = "haproxy"
    features = (
        "`balance hdr(X-User-ID)`, `hash-type consistent sdbm avalanche`, `http-reuse always`, X-Forwarded-For "
        "appended, probes every 2 s"
    )

    def __init__(self, most_connections: int | None = None, loads: tuple[str, ...] = ()) -> None:
        """`most_connections` None: as many as there are descriptors for, so that it keeps every connection to a server.
        With fewer it has its own name, and carries the given loads alone."""
        self._most_connections = most_connections
        if most_connections is not None:
            self.name = f"haproxy-{most_connections}"
            self.loads = loads
            self.features = (
                f"the same with `maxconn {most_connections}`, on {', '.join(loads)} alone: HAProxy puts no connection "
                "aside for reuse while a fifth of the descriptors that this allows is in use "
                "(`tune.pool-low-fd-ratio`)"
            )

    def binary(self) -> str | None:
        return find_binary("haproxy")

    def version(self) -> str:
        said = subprocess.run([self.binary() or "haproxy", "-v"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"version (\d+\.\d+\.\d+)", said)
        return found[1] if found else said.splitlines()[0]

    def command(self, setting: Setting) -> Sequence[str]:
        config = setting.folder / "haproxy.cfg"
        config.write_text(
            _CONFIG.format(
                workers=setting.workers,
                connections=self._most_connections or setting.connections,
                port=setting.port,
                global_log="    log stdout format raw local0 info" if setting.log else "",
                log="    log global\n    option httplog" if setting.log else "",
                servers="\n".join(
                    f"    server {backend.name} 127.0.0.1:{backend.port} check inter 2s" for backend in setting.backends
                ),
            )
        )
        return (self.binary() or "haproxy", "-f", str(config), "-db")

"""Caddy: `lb_policy header` (rendezvous hashing), one Go processor per worker, no log unless asked for."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from benchmarks.machine import find_binary
from benchmarks.proxies.base import Proxy, Setting

_CONFIG = """\
{{
    admin off
    auto_https off
    persist_config off
    storage file_system {folder}/storage
    default_bind 127.0.0.1
    log {{
        level ERROR
        exclude http.log.access
    }}
    servers {{
        protocols h1
        timeouts {{
            idle 300s
        }}
    }}
}}
http://:{port} {{
{log}
    reverse_proxy {backends} {{
        lb_policy header X-User-ID
        health_uri /healthz
        health_interval 2s
        transport http {{
            keepalive 300s
            keepalive_idle_conns 4096
            keepalive_idle_conns_per_host 1024
            compression off
        }}
    }}
}}
"""


class Caddy(Proxy):
    name = "caddy"
    features = (
        "`lb_policy header X-User-ID`, 1,024 idle upstream connections a backend, probes every 2 s, HTTP/1.1 only"
    )

    def binary(self) -> str | None:
        return find_binary("caddy")

    def version(self) -> str:
        command = [self.binary() or "caddy", "version"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return said.split()[0].removeprefix("v")

    def command(self, setting: Setting) -> Sequence[str]:
        config = setting.folder / "Caddyfile"
        log = f"    log access {{\n        output file {setting.folder}/access.log\n    }}" if setting.log else ""
        config.write_text(
            _CONFIG.format(
                folder=setting.folder,
                port=setting.port,
                log=log,
                backends=" ".join(f"127.0.0.1:{backend.port}" for backend in setting.backends),
            )
        )
        return (self.binary() or "caddy", "run", "--config", str(config), "--adapter", "caddyfile")

    def environment(self, setting: Setting) -> Mapping[str, str]:
        return {"GOMAXPROCS": str(setting.workers)}

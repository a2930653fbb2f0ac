"""Envoy: `ring_hash` on the header, circuit breakers out of the way, no log unless asked for."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from typing import Any

from benchmarks.machine import find_binary
from benchmarks.proxies.base import Backend, Proxy, Setting

_TYPE = "type.googleapis.com/envoy.extensions"
_UNLIMITED = 1_000_000


class Envoy(Proxy):
    name = "envoy"
    features = "`ring_hash` with default sizes, probes every 2 s, circuit breakers out of the way, no retries"

    def binary(self) -> str | None:
        return find_binary("envoy")

    def version(self) -> str:
        command = [self.binary() or "envoy", "--version"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = re.search(r"/(\d+\.\d+\.\d+)/", said)
        return found[1] if found else said.strip()

    def command(self, setting: Setting) -> Sequence[str]:
        config = setting.folder / "envoy.json"
        config.write_text(
            json.dumps({"static_resources": {"listeners": [_listener(setting)], "clusters": [_cluster(setting)]}})
        )
        return (
            self.binary() or "envoy",
            "--config-path",
            str(config),
            "--concurrency",
            str(setting.workers),
            "--disable-hot-restart",
            "--log-level",
            "error",
        )


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _listener(setting: Setting) -> dict[str, Any]:
    manager: dict[str, Any] = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "use_remote_address": True,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_route()]}]},
        "http_filters": [
            {"name": "router", "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"}},
        ],
    }
    if setting.log:
        logger = {"@type": f"{_TYPE}.access_loggers.file.v3.FileAccessLog", "path": f"{setting.folder}/access.log"}
        manager["access_log"] = [{"name": "file", "typed_config": logger}]
    return {
        "name": "in",
        "address": _address(setting.port),
        "enable_reuse_port": True,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }


def _route() -> dict[str, Any]:
    by_header = {"header": {"header_name": "X-User-ID"}}
    return {"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "0s", "hash_policy": [by_header]}}


def _cluster(setting: Setting) -> dict[str, Any]:
    return {
        "name": "pool",
        "type": "STATIC",
        "connect_timeout": "5s",
        "lb_policy": "RING_HASH",
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": _UNLIMITED,
                    "max_pending_requests": _UNLIMITED,
                    "max_requests": _UNLIMITED,
                }
            ]
        },
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "2s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/healthz"},
            }
        ],
        "load_assignment": {
            "cluster_name": "pool",
            "endpoints": [{"lb_endpoints": [_endpoint(backend) for backend in setting.backends]}],
        },
    }


def _endpoint(backend: Backend) -> dict[str, Any]:
    return {"endpoint": {"address": _address(backend.port)}}

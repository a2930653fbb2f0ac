"""Starts the proxies that the corpus can be run against, each with a small configuration and one backend."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 0;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  map $http_upgrade $connection_option {{ default upgrade; '' ''; }}
  upstream pool {{ server 127.0.0.1:{backend} max_fails=0; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://pool; proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_option;
    }}
  }}
}}
"""

HAPROXY = """
global
  maxconn 4000
  nbthread 1
defaults
  mode http
  timeout connect 2s
  timeout client 20s
  timeout server 20s
  timeout http-request 10s
frontend front
  bind 127.0.0.1:{port}
  default_backend pool
backend pool
  http-reuse safe
  server b1 127.0.0.1:{backend}
"""

CADDY = """
{{
  admin off
  auto_https off
}}
http://:{port} {{
  bind 127.0.0.1
  reverse_proxy 127.0.0.1:{backend}
}}
"""

LBPROXY = """
version: 1
listen: 127.0.0.1:{port}
workers: 1
pools:
  wire:
    ejection: {{consecutive_errors: 0}}
    backends:
      - {{name: b1, url: "http://127.0.0.1:{backend}"}}
admin: {{listen: 127.0.0.1:{admin}}}
log: {{level: warning, access: {{path: ""}}}}
"""

NAMES = ("lbproxy", "nginx", "haproxy", "caddy")


class NotStarted(Exception):
    """The proxy is not installed or did not begin to listen; the text says which, with its last words."""


def _command(name: str, config: Path) -> list[str]:
    if name == "lbproxy":
        return [sys.executable, "-m", "lbproxy", "run", "-c", str(config)]
    program = shutil.which(
        name, path=f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
    )
    if program is None:
        raise NotStarted(f"{name} is not installed")
    return {
        "nginx": [program, "-c", str(config), "-p", str(config.parent)],
        "haproxy": [program, "-f", str(config)],
        "caddy": [program, "run", "--adapter", "caddyfile", "--config", str(config)],
    }[name]


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False


@contextlib.contextmanager
def running(name: str, port: int, backend: int, admin: int, wait_s: float = 15.0) -> Iterator[None]:
    """Run this proxy on `port` of loopback before the backend at `backend`, until the block ends."""
    template = {"nginx": NGINX, "haproxy": HAPROXY, "caddy": CADDY, "lbproxy": LBPROXY}[name]
    with tempfile.TemporaryDirectory(prefix="wire-") as place:
        folder = Path(place)
        folder.chmod(0o755)
        config = folder / ("lbproxy.yaml" if name == "lbproxy" else f"{name}.conf")
        config.write_text(template.format(port=port, backend=backend, admin=admin, folder=folder))
        words = folder / "output"
        with words.open("w") as output:
            process = subprocess.Popen(_command(name, config), stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + wait_s
            while not _is_listening(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise NotStarted(f"{name} does not listen: {words.read_text()[-2000:]}")
                time.sleep(0.05)
            yield
            if process.poll() is not None:
                raise NotStarted(f"{name} ended by itself: {words.read_text()[-2000:]}")
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

"""nginx: `hash ... consistent` (ketama), keep-alive to the backends, no log unless asked for."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

from benchmarks.machine import find_binary
from benchmarks.proxies.base import Proxy, Setting

_CONFIG = """\
daemon off;
{user}
worker_processes {workers};
worker_rlimit_nofile {descriptors};
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections {descriptors}; }}
http {{
    access_log {access};
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/proxied;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    keepalive_timeout 300s;
    keepalive_requests 1000000000;
    client_max_body_size 0;
    client_body_buffer_size 128k;
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    upstream pool {{
        hash $http_x_user_id consistent;
{servers}
        keepalive 2048;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096{reuseport};
        location / {{
            proxy_pass http://pool;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_request_buffering off;
            proxy_buffers 8 64k;
            proxy_buffer_size 16k;
            proxy_busy_buffers_size 128k;
            proxy_max_temp_file_size 0;
        }}
    }}
}}
"""


class Nginx(Proxy):
    name = "nginx"
    features = (
        "`hash $http_x_user_id consistent`, 2,048 idle upstream connections, Host and X-Forwarded-For set, request "
        "bodies streamed, responses buffered in memory (8 x 64 KB) and never on disk"
    )

    def binary(self) -> str | None:
        return find_binary("nginx")

    def version(self) -> str:
        said = subprocess.run([self.binary() or "nginx", "-v"], capture_output=True, text=True, check=True).stderr
        found = re.search(r"nginx/(\S+)", said)
        return found[1] if found else said.strip()

    def command(self, setting: Setting) -> Sequence[str]:
        config = setting.folder / "nginx.conf"
        config.write_text(
            _CONFIG.format(
                user="user root;" if os.geteuid() == 0 else "",
                workers=setting.workers,
                descriptors=setting.connections * 2,
                folder=setting.folder,
                access=f"{setting.folder}/access.log combined buffer=64k flush=1s" if setting.log else "off",
                servers="\n".join(f"        server 127.0.0.1:{backend.port};" for backend in setting.backends),
                port=setting.port,
                reuseport=" reuseport" if setting.workers > 1 else "",
            )
        )
        return (self.binary() or "nginx", "-p", str(setting.folder), "-c", str(config), "-e", "stderr")

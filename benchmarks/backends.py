"""Four fast backends: one nginx with four listeners, so that their cost is small and the same for every proxy.

Each answers with its name in `X-Backend`. `/` gives 100 bytes, `/10k` and `/1m` what they say, and `/_served` the
number of requests served so far. `/upload` gives 200 once the whole body has been read: a plain `return` would answer
before, and proxies differ in what they make of that. What reads it is `mirror`, with a subrequest that does nothing; a
POST to a file is then a 405, which is turned into the answer.
"""

from __future__ import annotations

import http.client
import os
import shutil
from pathlib import Path

from benchmarks.machine import find_binary, free_port
from benchmarks.process import Process
from benchmarks.proxies.base import Backend, await_answer

_CONFIG = """\
daemon off;
{user}
worker_processes {workers};
pid {folder}/backends.pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/proxied;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    default_type text/plain;
    keepalive_timeout 300s;
    keepalive_requests 1000000000;
    client_max_body_size 0;
    client_body_buffer_size 128k;
    sendfile on;
    tcp_nopush on;
    open_file_cache max=16 inactive=1h;
    open_file_cache_valid 1h;
{servers}}}
"""

_SERVER = """\
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        add_header X-Backend {name};
        location = / {{ return 200 "{small}"; }}
        location = /healthz {{ return 200 "ok\\n"; }}
        location = /_served {{ stub_status; }}
        location = /upload {{
            root {folder}/files;
            mirror /nothing;
            error_page 405 =200 @accepted;
        }}
        location = /nothing {{ internal; return 204; }}
        location @accepted {{ return 200 "accepted\n"; }}
        location / {{ root {folder}/files; }}
    }}
"""

SMALL_BYTES = 100
FILES_BYTES = {"10k": 10 * 1024, "1m": 1024 * 1024}


class Backends:
    """The running backends; `members` is what a proxy's pool is made of."""

    def __init__(self, folder: Path, cores: frozenset[int], workers: int) -> None:
        binary = find_binary("nginx")
        if binary is None:
            raise SystemExit("benchmarks: nginx serves as the backends and is not installed")
        self.folder = folder
        folder.mkdir(parents=True)
        self.members = tuple(Backend(f"b{number}", free_port()) for number in range(1, 5))
        _write_files(folder)
        config = folder / "backends.conf"
        config.write_text(_render(folder, self.members, workers))
        command = (binary, "-p", str(folder), "-c", str(config), "-e", "stderr")
        self.process = Process(command, cores, folder / "backends.log")
        try:
            for member in self.members:
                await_answer(self.process, "the backends", member.port)
        except BaseException:
            self.stop()
            raise

    def served(self) -> int:
        """Requests that the backends have answered so far, this question included."""
        connection = http.client.HTTPConnection("127.0.0.1", self.members[0].port, timeout=10)
        try:
            connection.request("GET", "/_served")
            page = connection.getresponse().read().decode()
        finally:
            connection.close()
        return int(page.splitlines()[2].split()[2])

    def stop(self) -> None:
        self.process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _write_files(folder: Path) -> None:
    files = folder / "files"
    files.mkdir()
    (files / "upload").touch()
    for name, size in FILES_BYTES.items():
        (files / name).write_bytes(b"x" * size)


def _render(folder: Path, members: tuple[Backend, ...], workers: int) -> str:
    small = "x" * (SMALL_BYTES - 2) + "\\n\\n"
    servers = "".join(
        _SERVER.format(folder=folder, port=member.port, name=member.name, small=small) for member in members
    )
    user = "user root;" if os.geteuid() == 0 else ""
    return _CONFIG.format(folder=folder, workers=workers, servers=servers, user=user)

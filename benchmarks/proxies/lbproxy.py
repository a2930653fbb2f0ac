"""lbproxy with everything on: access log, metrics, probes, bounded load, hot keys, retries, header policy.

`checkout` runs the package from another directory (a git worktree, say) beside the installed one, under another name:
two versions of lbproxy in the same interleaved rounds.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import benchmarks
from benchmarks.machine import find_binary
from benchmarks.proxies.base import Proxy, Setting

_CONFIG = """\
version: 1
listen: 127.0.0.1:{port}
workers: {workers}
pools:
  bench:
    sticky: {{header: X-User-ID}}
    health: {{path: /healthz, interval: 2s, timeout: 1s}}
    backends:
{backends}
admin: {{listen: "127.0.0.1:{admin_port}"}}
log: {{level: warning, access: {{path: {folder}/access.log, format: json}}}}
"""

_DROPPED = re.compile(r"^lbproxy_access_log_dropped_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class LBProxy(Proxy):
    features = (
        "everything at its default: JSON access log to a file, metrics, probes every 2 s, bounded load 1.25, hot keys, "
        "ejection, retries, deadlines, X-Forwarded-*, Via and X-Request-ID"
    )

    def __init__(
        self, name: str = "lbproxy", checkout: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """`checkout`: a directory that holds the package, put before the installed one; `env`: variables to add."""
        self.name = name
        self._env = dict(env or {})
        if checkout is not None:
            self._env["PYTHONPATH"] = str(checkout.resolve())

    def binary(self) -> str | None:
        return find_binary("lbproxy")

    def version(self) -> str:
        ask = "import lbproxy; print(lbproxy.__version__)"
        env = {**os.environ, **self._env}
        said = subprocess.run([sys.executable, "-P", "-c", ask], capture_output=True, text=True, check=True, env=env)
        return said.stdout.strip()

    def command(self, setting: Setting) -> Sequence[str]:
        config = setting.folder / "lbproxy.yaml"
        config.write_text(render(setting))
        return (self.binary() or "lbproxy", "run", "-c", str(config))

    def environment(self, setting: Setting) -> Mapping[str, str]:
        return self._env

    def complaints(self, setting: Setting) -> list[str]:
        """An access log that was not written, or lines that were dropped: then not everything was on."""
        found = []
        if not (setting.folder / "access.log").stat().st_size:
            found.append(f"{self.name}: the access log is empty")
        dropped = sum(float(value) for value in _DROPPED.findall(_metrics(setting.admin_port)))
        if dropped:
            found.append(f"{self.name}: {dropped:.0f} access log lines were dropped")
        return found


class DataPlaneAlone(LBProxy):
    """The data plane in one process, as `benchmarks/alone.py` runs it; `cprofile` is where its profile goes."""

    features = "lbproxy's data plane in one process, always one: no supervisor, no probes, no metrics page"

    def __init__(self, cprofile: Path | None = None) -> None:
        super().__init__("dataplane")
        self._cprofile = cprofile

    def binary(self) -> str | None:
        return sys.executable

    def command(self, setting: Setting) -> Sequence[str]:
        config = setting.folder / "lbproxy.yaml"
        config.write_text(render(setting))
        profile = ("--cprofile", str(self._cprofile.resolve())) if self._cprofile else ()
        # -P: the program's own folder, with its `profile`, is no place to import from.
        return (sys.executable, "-P", str(Path(benchmarks.__file__).with_name("alone.py")), str(config), *profile)

    def complaints(self, setting: Setting) -> list[str]:
        return []


def render(setting: Setting) -> str:
    """The YAML that `lbproxy run` is given."""
    return _CONFIG.format(
        port=setting.port,
        workers=setting.workers,
        admin_port=setting.admin_port,
        folder=setting.folder,
        backends="\n".join(
            f"      - {{name: {backend.name}, url: 'http://127.0.0.1:{backend.port}'}}" for backend in setting.backends
        ),
    )


def _metrics(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()

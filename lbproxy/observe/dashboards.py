"""The Grafana dashboards and Prometheus rules that ship with lbproxy, and writing them out."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

# Where the build puts grafana/ inside the wheel; in a checkout it stands beside the package.
_PACKAGED: Final = "grafana"
# What is exported: folder there, suffix of its files, folder below the one that was asked for.
_PARTS: Final = (("dashboards", ".json", ""), ("rules", ".yml", "rules"))


def shipped() -> dict[str, str]:
    """Every file by the path it is exported to: the dashboards, and the recording and alerting rules."""
    source = _source()
    return {
        f"{target}/{each.name}".removeprefix("/"): each.read_text("utf-8")
        for folder, suffix, target in _PARTS
        for each in sorted((source / folder).iterdir(), key=lambda entry: entry.name)
        if each.name.endswith(suffix)
    }


def export(folder: Path) -> list[Path]:
    """Write the dashboards into `folder` and the rules into its folder `rules`, over what may be there; returns the
    files. Raises OSError."""
    written = []
    for name, text in shipped().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        written.append(path)
    return written


def _source() -> Traversable:
    package = files("lbproxy")
    packaged = package / _PACKAGED
    return packaged if packaged.is_dir() else Path(str(package)).parent / "grafana"

"""Writes the dashboards: `python -m grafana.build`, from the root of the repository."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from grafana.boards import backend, distribution, overview, workers
from grafana.panels import Json

FOLDER: Final = Path(__file__).parent / "dashboards"
BOARDS: Final = {
    "overview": overview.build,
    "distribution": distribution.build,
    "backend": backend.build,
    "workers": workers.build,
}


def text_of(board: Json) -> str:
    """A dashboard as it stands in its file."""
    return json.dumps(board, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def files() -> Iterator[tuple[Path, str]]:
    """Every dashboard's file and what should stand in it."""
    for name, build in BOARDS.items():
        yield FOLDER / f"{name}.json", text_of(build())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grafana.build", description="Write grafana/dashboards/*.json.")
    parser.add_argument("--check", action="store_true", help="write nothing, say what is out of date")
    only_check = parser.parse_args(argv).check
    stale = [(path, text) for path, text in files() if not path.exists() or path.read_text() != text]
    for path, text in stale:
        if not only_check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        print(f"{path.name}: {'out of date' if only_check else 'written'}", file=sys.stderr)
    return 1 if only_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

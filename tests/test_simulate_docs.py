"""What docs/simulate.md shows is what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lbproxy import cli

DOCUMENT = Path(__file__).parent.parent / "docs" / "simulate.md"


def shown() -> list[tuple[list[str], str]]:
    """The commands of the document with what it says they print, if it does."""
    found = re.findall(r"```console\n\$ lbproxy (.*)\n```\n\n```text\n((?:.*\n)*?)```\n", DOCUMENT.read_text())
    return [(command.split(), output) for command, output in found]


def test_there_are_examples() -> None:
    commands = [arguments[1] for arguments, _ in shown()]
    assert {"seeds", "jump", "hot", "gap"} < set(commands)


@pytest.mark.parametrize(
    ("arguments", "output"), shown(), ids=lambda value: value[1] if isinstance(value, list) else ""
)
def test_the_output_is_as_shown(capsys: pytest.CaptureFixture[str], arguments: list[str], output: str) -> None:
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == output

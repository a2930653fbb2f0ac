"""What docs/simulate.md shows is what the commands print."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from lbproxy import cli, command_line
from lbproxy.simulate import presets_placement

DOCUMENT = Path(__file__).parent.parent / "docs" / "simulate.md"
ROUTING = DOCUMENT.with_name("routing.md")


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


def test_the_defaults_are_as_the_table_says() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+) \S+` \| (\S+) \|", DOCUMENT.read_text(), flags=re.MULTILINE)
    parser, _ = command_line.make_parser()
    (commands,) = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    options = [each for each in commands.choices["simulate"]._actions if each.option_strings]
    helps = {each.option_strings[-1]: (each.help or "").replace("%%", "%") for each in options}
    found = {option: re.search(r"\(default (.+)\)", helps[option]) for option, _ in rows}
    assert dict(rows) == {option: told[1] if told else "none" for option, told in found.items()}
    assert len(rows) == 9


def test_how_even_a_ring_is_is_as_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The table of docs/routing.md, but for what takes seconds: many tokens of many backends."""
    _, _, rest = ROUTING.read_text().partition("| tokens | 4 backends | 10 backends |")
    told = {row.split()[1]: row.split()[3:6:2] for row in rest.splitlines()[2:6]}
    monkeypatch.setattr(presets_placement, "VNODES", (1, 100, 200))
    monkeypatch.setattr(presets_placement, "SIZES", (4, 10))
    assert cli.main(["simulate", "vnodes"]) == 0
    found = {row.split()[0]: row.split()[1:] for row in capsys.readouterr().out.splitlines()[2:]}
    assert found == {tokens: peaks for tokens, peaks in told.items() if tokens != "1000"}

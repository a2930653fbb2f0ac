"""docs/migrating.md names settings that exist, defaults that are so, and examples that mean what they stand beside."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lbproxy.cli import main
from lbproxy.control.paths import all_fields, default_of
from tests.test_docs import Block, blocks, prose, read

PAGE = "docs/migrating.md"
EXAMPLES = blocks(PAGE, "yaml")
FIELDS = {path.removeprefix("pools.NAME.").replace("[]", ""): field for path, _, field in all_fields()}
PROXIES = ("HAProxy", "nginx", "Envoy")


def rows(proxy: str) -> list[list[str]]:
    """The cells of the table for one proxy, without its head."""
    _, _, text = read(PAGE).partition(f"\n## From {proxy}\n")
    table = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


@pytest.mark.parametrize("proxy", PROXIES)
def test_every_setting_in_the_tables_exists(proxy: str) -> None:
    found = rows(proxy)
    assert len(found) > 20
    for cells in found:
        assert len(cells) == 3, cells
        named = [name for name in re.findall(r"`([^`]+)`", cells[1]) if not name.startswith("lbproxy ")]
        assert all(name in FIELDS for name in named), cells


def test_every_setting_in_the_text_exists() -> None:
    sections = {name.partition(".")[0] for name in FIELDS}
    for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", prose(PAGE)):
        assert name in FIELDS or (name.partition(".")[0] not in sections), name


def test_the_defaults_are_those_of_the_code() -> None:
    told = re.findall(r"`([a-z_.]+)` \(([^()]+)\)", prose(PAGE))
    assert len({name for name, _ in told}) > 40
    for name, value in told:
        assert value == shown(default_of(FIELDS[name])), name


def shown(default: Any) -> str:
    """A default as the page has it."""
    if isinstance(default, list):
        return ", ".join(map(shown, default))
    return "none" if default is None else f"{default:g}" if isinstance(default, float) else str(default)


def test_each_proxy_has_its_example() -> None:
    for proxy in PROXIES:
        _, _, text = read(PAGE).partition(f"\n## From {proxy}\n")
        section = text.partition("\n## ")[0]
        assert "```text\n" in section, proxy
        assert "```yaml\n" in section, proxy


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: f"line {block.line}")
def test_every_example_passes_check(block: Block, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lbproxy.yaml"
    file.write_text(block.text)
    assert main(["check", "--no-files", str(file)]) == 0, capsys.readouterr()

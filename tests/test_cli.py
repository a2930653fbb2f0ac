"""The command line: what goes to which stream, and the exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

from lbproxy import __version__, cli
from lbproxy.command_line import make_parser
from lbproxy.control import reach
from lbproxy.control.config import MAX_FILE_BYTES, load, loads
from lbproxy.core.hashing import hash_key
from lbproxy.observe import dashboards
from tests.tools import IS_COMPILED, PACKAGE_HOME

ROOT = Path(__file__).parent.parent
SMALL = str(ROOT / "config" / "small.yaml")
FULL = str(ROOT / "config" / "full.yaml")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty directory, and look for a configuration nowhere else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "CONFIG_PLACES", ("lbproxy.yaml", str(tmp_path / "etc.yaml")))


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text("listen: 127.0.0.1:1\npools:\n  web:\n    stiky: 1\n    backends: [{url: http://a}]\n")
    return str(path)


Output = pytest.CaptureFixture[str]


def one_line(text: str) -> str:
    """The only line of what was said on stderr."""
    [line] = text.splitlines()
    return line


# What is asked about


def test_check_says_ok_on_stdout(capsys: Output) -> None:
    assert cli.main(["check", FULL, "--no-files"]) == 0  # it names /run/lbproxy, which is made by systemd
    out, err = capsys.readouterr()
    restart = "once it runs, only a restart changes workers, admin"
    assert out == f"{FULL}: ok: 2 listeners, 2 pools, 5 backends\n{FULL}: {restart}\n"
    assert err == ""


def test_check_says_what_is_wrong_on_stderr(capsys: Output, bad: str) -> None:
    assert cli.main(["check", bad]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"{bad}:4:5: pools.web.stiky: unknown field, did you mean sticky?\n    stiky: 1\n    ^\n"


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("", []),
        ("workers: 2\n", ["workers"]),
        ("admin: {show_keys: true}\n", []),
        ("admin: {show_keys: true, listen: null}\nworkers: auto\n", ["workers", "admin"]),
        ("admin: {socket: nobody.sock}\n", ["admin"]),
    ],
)
def test_check_names_what_the_file_sets_and_only_a_restart_changes(
    capsys: Output, tmp_path: Path, more: str, names: list[str]
) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("version: 1\nlisten: 127.0.0.1:0\npools: {web: {backends: [{url: http://127.0.0.1:1}]}}\n" + more)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "nobody.sock"))
    path.write_text(path.read_text().replace("nobody.sock", str(tmp_path / "nobody.sock")))
    assert cli.main(["check", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["needs_restart"], said["compared_with"]) == (names, None)


def test_check_cannot_reach_an_instance_that_is_named(capsys: Output, tmp_path: Path) -> None:
    assert cli.main(["check", SMALL, "--admin", f"unix:{tmp_path}/none.sock"]) == 3
    assert "cannot reach the instance" in one_line(capsys.readouterr().err)


def test_check_as_json(capsys: Output, bad: str) -> None:
    assert cli.main(["check", "--json", SMALL]) == 0
    good = json.loads(capsys.readouterr().out)
    assert (good["ok"], good["problems"], good["backends"]) == (True, [], 2)
    assert cli.main(["check", "--json", "-c", bad]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "file": bad,
        "ok": False,
        "problems": [
            {
                "file": bad,
                "line": 4,
                "column": 5,
                "path": "pools.web.stiky",
                "message": "unknown field",
                "hint": "sticky",
                "source": "    stiky: 1",
                "source_start": 0,
            }
        ],
        "warnings": [],
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "ann", "-c"],
        ["config", "-c"],
        ["simulate", "-c"],
        ["diff", "--offline", "-c", SMALL],
        ["diff", "--offline", SMALL, "-c"],
    ],
)
def test_whatever_a_faulty_file_is_for_its_faults_are_told_in_one_form(
    capsys: Output, tmp_path: Path, bad: str, arguments: list[str]
) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"# caf\xe9\n")
    (tmp_path / "huge.yaml").write_bytes(b" " * (MAX_FILE_BYTES + 1))
    for file in (bad, "nowhere.yaml", "latin.yaml", "huge.yaml", str(tmp_path)):
        assert cli.main(["check", "--json", file]) == 1
        as_json = capsys.readouterr()
        assert cli.main([*arguments, file, "--json"]) == 1
        assert capsys.readouterr() == as_json
        assert cli.main(["check", file]) == 1
        as_text = capsys.readouterr()
        assert cli.main([*arguments, file]) == 1
        assert capsys.readouterr() == as_text


@pytest.mark.parametrize("arguments", [["status"], ["reload"], ["drain", "b1"], ["weight", "b1", "2"], ["diff"]])
@pytest.mark.parametrize("text", ["admin: {listen: here}", "- a", "a: [", "admin: {socket: x}\npools: {x: 1}", "\xff"])
def test_a_file_that_does_not_say_where_the_instance_is_is_told_in_that_form(
    capsys: Output, tmp_path: Path, arguments: list[str], text: str
) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(text, encoding="latin-1")
    assert cli.main(["check", "--json", str(path)]) == 1
    checked = json.loads(capsys.readouterr().out)
    assert cli.main([*arguments, "--json", "-c", str(path)]) == 1
    out, err = capsys.readouterr()
    told = json.loads(out)
    of_admin = [problem for problem in checked["problems"] if problem["path"].startswith("admin")]
    assert (told, err) == (checked | {"problems": of_admin or checked["problems"]}, "")
    assert cli.main([*arguments, "-c", str(path)]) == 1
    out, err = capsys.readouterr()
    first = told["problems"][0]
    assert (out, err.startswith(f"{path}:{first['line']}:{first['column']}: ")) == ("", True)


def test_the_configuration_is_looked_for_in_two_places(capsys: Output, tmp_path: Path) -> None:
    assert cli.main(["check"]) == 1
    assert "neither lbproxy.yaml nor" in one_line(capsys.readouterr().err)
    (tmp_path / "etc.yaml").write_text(Path(FULL).read_text())
    assert cli.main(["check", "--no-files"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/etc.yaml: ok")
    (tmp_path / "lbproxy.yaml").write_text(Path(SMALL).read_text())
    assert cli.main(["check"]) == 0
    assert capsys.readouterr().out == "lbproxy.yaml: ok: 1 listener, 1 pool, 2 backends\n"


@pytest.mark.parametrize("command", ["check", "run", "config"])
def test_a_file_that_is_not_there(capsys: Output, command: str) -> None:
    assert cli.main([command, "-c", "nowhere.yaml"]) == 1
    assert one_line(capsys.readouterr().err) == "nowhere.yaml: there is no such file"


def test_explain_agrees_with_the_hash_and_the_file(capsys: Output) -> None:
    assert cli.main(["explain", "alice", "-c", SMALL]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"0x{hash_key(b'alice'):016x}" in out
    assert cli.main(["explain", "alice", "-c", SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {found["owner"]["name"], *(step["name"] for step in found["successors"])} == {"b1", "b2"}
    assert found["owner"]["name"] in out.split("owner")[1].splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["\udcff\udcfe"], b"\xff\xfe"),  # as Python gives us bytes of argv that are not UTF-8
        (["--hex", "ff00"], b"\xff\x00"),
        (["--hex", "c3 bc"], "ü".encode()),
        (["ü"], "ü".encode()),
        (["--", "-x"], b"-x"),
        ([" "], b" "),
    ],
)
def test_a_key_is_bytes(capsys: Output, arguments: list[str], key: bytes) -> None:
    assert cli.main(["explain", "--json", "-c", SMALL, *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["key_hex"] == key.hex()


def test_of_several_pools_one_must_be_named(capsys: Output) -> None:
    assert cli.main(["explain", "alice", "-c", FULL]) == 2
    assert one_line(capsys.readouterr().err).endswith("name one with --pool: api, web")
    for command in (["explain", "alice"], ["simulate"]):
        assert cli.main([*command, "-c", FULL, "--pool", "wev"]) == 1
        told = one_line(capsys.readouterr().err)
        assert told == f"lbproxy {command[0]}: there is no pool wev, did you mean web?"
        assert cli.main([*command, "-c", FULL, "--pool", "xyz"]) == 1
        told = one_line(capsys.readouterr().err)
        assert told == f"lbproxy {command[0]}: there is no pool xyz, there is api, web"
    assert cli.main(["explain", "alice", "-c", FULL, "--pool", "web"]) == 0
    assert capsys.readouterr().out.startswith("pool      web, ")


def test_the_resolved_configuration_loads_again_to_the_same(capsys: Output) -> None:
    assert cli.main(["config", "--resolved", "-c", FULL]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert loads(out, environ={}) == load(FULL)
    assert cli.main(["config", "--json", "-c", SMALL]) == 0
    assert json.loads(capsys.readouterr().out)["pools"]["web"]["backends"][1]["weight"] == 2


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_secrets_can_be_hidden(capsys: Output, monkeypatch: pytest.MonkeyPatch, form: list[str]) -> None:
    """Those from variables too."""
    monkeypatch.setenv("LBPROXY_COOKIE_SECRET", "from a variable, 1234")
    assert cli.main(["config", "--resolved", "-c", FULL, *form]) == 0
    assert "from a variable, 1234" in capsys.readouterr().out
    assert cli.main(["config", "--resolved", "--hide-secrets", "-c", FULL, *form]) == 0
    out = capsys.readouterr().out
    assert "from a variable" not in out
    assert "(secret)" in out
    assert "max_age" in out


def test_schema(capsys: Output) -> None:
    assert cli.main(["schema"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["properties"].keys() >= {"listen", "pools", "admin"}


def test_version(capsys: Output) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"lbproxy {__version__}"
    assert cli.main(["version", "--json"]) == 0
    versions = json.loads(capsys.readouterr().out)
    assert list(versions) == ["lbproxy", "dataplane", "python", "uvloop", "httptools", "xxhash"]
    assert all(versions.values())
    assert versions["dataplane"] == ("compiled" if IS_COMPILED else "interpreted")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"lbproxy {__version__}\n"


def test_help_shows_every_command(capsys: Output) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in ("run", "demo", "check", "explain", "config", "schema", "version"):
        assert f"\n    {command} " in out
        assert cli.main([command, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: lbproxy {command} ")
    assert "examples:" in out


def test_every_command_but_those_that_carry_traffic_takes_json() -> None:
    parser, commands = make_parser()
    for command in commands:
        arguments = {"explain": ["k"], "drain": ["b"], "undrain": ["b"], "weight": ["b", "1"]}.get(command, [])
        if command == "dashboards":
            arguments = ["export", "folder"]
        if command not in ("run", "demo"):
            assert parser.parse_args([command, *arguments, "--json"]).json, command


@pytest.mark.parametrize(
    "arguments",
    [["schema"], ["version"], ["check", SMALL], ["explain", "ann", "-c", SMALL], ["config", "-c", SMALL], ["simulate"]],
)
def test_json_is_one_document_and_nothing_else(capsys: Output, arguments: list[str]) -> None:
    assert cli.main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert (isinstance(json.loads(out), dict), err) == (True, "")


# Wrong usage

DEMO = "lbproxy demo: argument {}: {} (see lbproxy demo --help)"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["chek"], "lbproxy: there is no command chek, did you mean check?"),
        (["xyzzy"], "lbproxy: there is no command xyzzy (see lbproxy --help)"),
        (["check", "a", "-c", "b"], "lbproxy check: name the file once, as FILE or with -c"),
        (["-c", SMALL, "check"], "lbproxy: name the command before -c (see lbproxy --help)"),
        (["check", "--jsn"], "lbproxy: unrecognized arguments: --jsn (see lbproxy --help)"),
        (["explain"], "lbproxy explain: the following arguments are required: KEY (see lbproxy explain --help)"),
        (["explain", "", "-c", SMALL], "lbproxy explain: the key is empty, and an empty key counts as a missing one"),
        (["explain", "--hex", "xy", "-c", SMALL], "lbproxy explain: xy is not hexadecimal"),
        (["demo", "--backends", "0"], DEMO.format("--backends", "0 is not a whole number from 1 to 1000")),
        (["demo", "--seconds", "-1"], DEMO.format("--seconds", "-1 is not a number above 0")),
        (["demo", "--port", "99999"], DEMO.format("--port", "99999 is not a whole number from 0 to 65535")),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_2(capsys: Output, arguments: list[str], says: str) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert one_line(err) == says


def test_without_a_command_the_help_is_shown_on_stderr(capsys: Output) -> None:
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: lbproxy ")


def test_who_asks_where_there_is_no_configuration_is_told_how_to_name_the_instance(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "DEFAULT_ADMIN", "127.0.0.1:1")
    assert cli.main(["status"]) == 3
    assert one_line(capsys.readouterr().err) == (
        "lbproxy: cannot reach the instance at 127.0.0.1:1: Connection refused; without a configuration this is the "
        "default: name one with -c FILE, or the instance with --admin"
    )


# Commands that call others


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Stands in for the server and the demo, and notes how they were called."""
    noted: list[object] = []
    server, app = types.ModuleType("lbproxy.server"), types.ModuleType("lbproxy.demo.app")

    def run_server(path: str) -> int:
        noted.append(path)
        if path == "interrupted.yaml":
            raise KeyboardInterrupt
        if path == "bug.yaml":
            raise LookupError("one\ntwo")
        if path == "taken.yaml":
            raise OSError(98, "Address already in use")
        return load(path).workers if path.endswith("bad.yaml") else 7

    def run_demo(*arguments: object) -> int:
        noted.append(arguments)
        return 0

    server.run, app.run = run_server, run_demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lbproxy.server", server)
    monkeypatch.setitem(sys.modules, "lbproxy.demo.app", app)
    return noted


def test_run_returns_what_the_server_returns(calls: list[object]) -> None:
    assert cli.main(["run", "-c", SMALL]) == 7
    assert calls == [SMALL]


def test_run_with_a_bad_file(calls: list[object], capsys: Output, bad: str) -> None:
    assert cli.main(["run", "-c", bad]) == 1
    assert capsys.readouterr().err.startswith(f"{bad}:4:5: pools.web.stiky: ")


def test_demo_hands_on_its_options(calls: list[object]) -> None:
    assert cli.main(["demo"]) == 0
    assert cli.main(["demo", "--seconds", "1.5", "--backends", "4", "--port", "8080", "--calm"]) == 0
    assert calls == [(None, 3, None, False), (1.5, 4, 8080, True)]


def test_dashboards_are_written_out_and_named(capsys: Output, tmp_path: Path) -> None:
    assert cli.main(["dashboards", "export", "some/folder"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    folder = tmp_path / "some" / "folder"
    assert out.splitlines() == [f"some/folder/{name}" for name in dashboards.shipped()]
    assert {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.*")} == dashboards.shipped()
    assert cli.main(["dashboards", "export", "--json", "some/folder"]) == 0
    assert json.loads(capsys.readouterr().out) == {"files": out.splitlines()}


def test_dashboards_that_cannot_be_written_are_one_line(capsys: Output, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["dashboards", "export", "file"]) == 1
    assert one_line(capsys.readouterr().err).startswith("lbproxy: ")
    assert cli.main(["dashboards"]) == 2
    assert "the following arguments are required: ACTION" in one_line(capsys.readouterr().err)


def test_an_interrupt_says_nothing(calls: list[object], capsys: Output) -> None:
    assert cli.main(["run", "-c", "interrupted.yaml"]) == 130
    assert capsys.readouterr() == ("", "")


def test_an_error_of_the_system_is_one_line(calls: list[object], capsys: Output) -> None:
    assert cli.main(["run", "-c", "taken.yaml"]) == 1
    assert one_line(capsys.readouterr().err) == "lbproxy: Address already in use"


def test_a_bug_is_one_line_too(calls: list[object], capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LBPROXY_TRACEBACK", raising=False)
    assert cli.main(["run", "-c", "bug.yaml"]) == 1
    assert one_line(capsys.readouterr().err).startswith("lbproxy: this is a bug: LookupError: one two")
    monkeypatch.setenv("LBPROXY_TRACEBACK", "1")
    with pytest.raises(LookupError):
        cli.main(["run", "-c", "bug.yaml"])


# As a process


def lbproxy(*arguments: str, **more: object) -> subprocess.CompletedProcess[bytes]:
    environ = {**os.environ, "PYTHONPATH": PACKAGE_HOME}
    options = {"env": environ, "capture_output": True, "timeout": 30, **more}
    return subprocess.run([sys.executable, "-m", "lbproxy", *arguments], check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_exit_codes_and_streams_of_the_process(bad: str) -> None:
    good = lbproxy("check", SMALL)
    assert (good.returncode, good.stderr) == (0, b"")
    assert good.stdout.endswith(b": ok: 1 listener, 1 pool, 2 backends\n")
    wrong = lbproxy("check", bad)
    assert (wrong.returncode, wrong.stdout) == (1, b"")
    assert wrong.stderr.count(b"\n") == 3
    assert lbproxy("chek").returncode == 2


def test_the_configuration_from_stdin() -> None:
    found = lbproxy("check", "-", input=Path(SMALL).read_bytes())
    assert found.stdout == b"/dev/stdin: ok: 1 listener, 1 pool, 2 backends\n"
    wrong = lbproxy("check", "-", input=b"listen: x\n")
    assert wrong.stderr.startswith(b"/dev/stdin:1:1: pools: missing\nlisten: x\n^\n")


@pytest.mark.parametrize("options", [[], ["--offline"], ["--admin", "127.0.0.1:1"]])
def test_a_configuration_that_can_be_read_once_is_read_once(tmp_path: Path, options: list[str]) -> None:
    text = Path(SMALL).read_text()
    socketless = text + "admin: {listen: '127.0.0.1:1'}\n"  # nobody is there
    after = tmp_path / "after.yaml"
    after.write_text(socketless.replace("weight: 2", "weight: 3"))
    found = lbproxy("diff", "-c", "-", str(after), *options, input=socketless.encode())
    assert (found.returncode, b"is empty" in found.stderr) == (0, False), found.stderr
    assert found.stdout == lbproxy("diff", "--offline", "-c", "-", str(after), input=socketless.encode()).stdout
    assert found.stdout == lbproxy("diff", "--offline", "-c", _written(tmp_path, socketless), str(after)).stdout


@pytest.mark.parametrize(
    "words",
    [
        ["diff", "-", "-c", "-"],
        ["diff", "--offline", "-", "-c", "/dev/stdin"],
        ["simulate", "-c", "-", "--from-log", "-"],
    ],
)
def test_stdin_is_one_file_and_not_two(words: list[str]) -> None:
    found = lbproxy(*words, input=Path(SMALL).read_bytes())
    assert (found.returncode, found.stdout) == (2, b"")
    assert found.stderr.decode() == f"lbproxy {words[0]}: stdin can be only one of the two files, name the other\n"


def _written(folder: Path, text: str) -> str:
    path = folder / "before.yaml"
    path.write_text(text)
    return str(path)


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        found = lbproxy("schema", stdout=writer, capture_output=False, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (found.returncode, found.stderr) == (141, b"")


@pytest.mark.parametrize("word", ["schema", "--help", "--version"])
def test_a_full_disk_is_one_line(word: str) -> None:
    with open("/dev/full", "wb") as full:
        found = lbproxy(word, stdout=full, capture_output=False, stderr=subprocess.PIPE)
    assert (found.returncode, found.stderr) == (1, b"lbproxy: No space left on device\n")


def test_an_interrupt_ends_the_process_without_a_traceback(tmp_path: Path) -> None:
    """The file is a pipe that nobody writes to, so that `check` waits for as long as it takes."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = [sys.executable, "-m", "lbproxy", "check", str(fifo)]
    environ = {**os.environ, "PYTHONPATH": PACKAGE_HOME}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with open(fifo, "wb"):  # returns once the other end is open, which is when `check` has begun to read
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize("module", ["argparse", "lbproxy.cli", "lbproxy.command_line"])
def test_so_does_one_while_the_program_is_still_being_loaded(tmp_path: Path, module: str) -> None:
    """Python says that it has found a module by the event `import`; the signal comes just then."""
    hook = (
        "import os, signal, sys\n"
        f"def hook(event, args):\n    if event == 'import' and args[0] == {module!r}:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.addaudithook(hook)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hook)
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE_HOME}"}
    command = [sys.executable, "-m", "lbproxy", "version"]
    found = subprocess.run(command, env=environ, capture_output=True, check=False, timeout=30)
    assert (found.returncode, found.stdout, found.stderr) == (130, b"", b"")


def test_the_command_begins_where_an_interrupt_is_quiet() -> None:
    """The installed command is written by pip: it imports what is named here, and calls it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"lbproxy": "lbproxy.__main__:main"}


def test_what_a_terminal_cannot_show_is_escaped() -> None:
    environ = {**os.environ, "PYTHONPATH": PACKAGE_HOME, "PYTHONIOENCODING": "ascii"}
    found = lbproxy("explain", "ü", "-c", SMALL, env=environ)
    assert found.returncode == 0
    assert b'"\\xfc" (2 bytes)' in found.stdout


def test_version_loads_neither_the_event_loop_nor_the_schema() -> None:
    code = (
        "import sys; from lbproxy.cli import main; main(['version']); "
        "print([name for name in ('pydantic', 'yaml', 'asyncio', 'uvloop', 'aiohttp') if name in sys.modules])"
    )
    environ = {**os.environ, "PYTHONPATH": PACKAGE_HOME}
    found = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=True, timeout=30)
    assert found.stdout.splitlines()[-1] == b"[]"


def test_check_loads_nothing_that_carries_traffic() -> None:
    code = (
        f"import sys; from lbproxy.cli import main; main(['check', {SMALL!r}]); "
        "print([name for name in ('asyncio', 'uvloop', 'aiohttp', 'httptools') if name in sys.modules])"
    )
    environ = {**os.environ, "PYTHONPATH": PACKAGE_HOME}
    found = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=True, timeout=30)
    assert found.stdout.splitlines()[-1] == b"[]"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_trouble(closed: str) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m lbproxy version {closed}"
    assert subprocess.run(["sh", "-c", command], timeout=30).returncode == 0


def test_a_closed_stdin_is_an_empty_one() -> None:
    for words, says in (
        ("simulate --from-log -", b"lbproxy simulate: the log: there is no line of a JSON access log in it\n"),
        ("check -", b"/dev/stdin: is empty\n"),
    ):
        command = f"exec {shlex.quote(sys.executable)} -m lbproxy {words} <&-"
        environ = {**os.environ, "PYTHONPATH": PACKAGE_HOME}
        done = subprocess.run(["sh", "-c", command], capture_output=True, env=environ, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (1, b"", says)

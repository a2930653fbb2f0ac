"""The files that a configuration names, as `check` and the start look at them."""

from __future__ import annotations

import json
import os
import pwd
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lbproxy import cli
from lbproxy.control import named_files
from lbproxy.control.named_files import judge_log, judge_socket, judge_token
from lbproxy.observe.access_log import open_sink
from lbproxy.server import run
from tests.running import until

Output = pytest.CaptureFixture[str]

POOLS = "pools: {web: {backends: [{url: http://127.0.0.1:1}]}}\n"
NOBODY = 65534


def said(wrong: named_files.Wrong | None) -> str | None:
    return None if wrong is None else wrong.what


def listing(folder: Path) -> list[tuple[str, int, int, int]]:
    """Everything below a directory, as a look must leave it."""
    found = [(str(path), path.lstat()) for path in sorted(folder.rglob("*"))]
    return [(path, at.st_mode, at.st_size, at.st_mtime_ns) for path, at in found]


def bound(path: Path) -> None:
    """A socket that nobody listens on."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


@pytest.fixture
def things(tmp_path: Path) -> Path:
    """A directory that holds one of each."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("some\n")
    (tmp_path / "empty").write_text(" \n")
    os.mkfifo(tmp_path / "fifo")
    bound(tmp_path / "socket")
    (tmp_path / "to-file").symlink_to("file")
    (tmp_path / "to-new").symlink_to("folder/new")
    (tmp_path / "to-nowhere").symlink_to("missing/new")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


LOGS: dict[str, str | None] = {
    "file": None,
    "new": None,
    "folder/new": None,
    "to-file": None,
    "to-new": None,
    "missing/new": "there is no directory {}/missing: make it, for the user that lbproxy runs as",
    "missing/more/new": "there is no directory {}/missing/more: make it, for the user that lbproxy runs as",
    "to-nowhere": "there is no directory {}/missing: make it, for the user that lbproxy runs as",
    "folder": "{0}/folder is a directory: name a file in it",
    "new/": "{}/new/ names a directory: name a file in it",
    "file/new": "there can be no file {}/file/new (Not a directory): name another path",
    "loop": "there can be no file {}/loop (Too many levels of symbolic links): name another path",
    "socket": "{}/socket is a socket, which cannot be appended to: name a file, or - for stdout",
}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_judged_as_opening_it_will_turn_out(things: Path, name: str) -> None:
    before = listing(things)
    found = judge_log(f"{things}/{name}")
    assert listing(things) == before
    assert said(found) == (None if (expected := LOGS[name]) is None else expected.format(things))
    try:
        os.close(open_sink(f"{things}/{name}"))
    except OSError:
        assert found is not None
    else:
        assert found is None


def test_a_log_may_stand_in_the_working_directory(things: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(things / "folder")
    assert judge_log("new.log") is None
    why = f"there is no directory {things}/folder/logs: make it, for the user that lbproxy runs as"
    assert said(judge_log("logs/new.log")) == why


@pytest.mark.parametrize("name", ["fifo", "/dev/null"])
def test_a_pipe_or_a_device_will_do_for_a_log_and_is_not_opened(things: Path, name: str) -> None:
    assert judge_log(os.path.join(things, name)) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("file", None),
        ("to-file", None),
        ("new", "the token file cannot be read: No such file or directory: write a token into {}/new"),
        ("empty", "the token file is empty: write a token into {}/empty"),
        ("folder", "the token file cannot be read: Is a directory: write a token into {}/folder"),
        ("fifo", "the token file is no regular file: write a token into {}/fifo"),
    ],
)
def test_a_token_file_must_hold_a_token(things: Path, name: str, why: str | None) -> None:
    before = listing(things)
    assert said(judge_token(f"{things}/{name}")) == (why and why.format(things))
    assert listing(things) == before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("new", None),
        ("socket", None),
        ("file", "{}/file is there and is no socket: remove it, or name another path"),
        ("folder", "{}/folder is there and is no socket: remove it, or name another path"),
        ("to-new", "{}/to-new is there and is no socket: remove it, or name another path"),
        ("missing/new", "there is no directory {}/missing: make it, for the user that lbproxy runs as"),
        ("file/new", "there can be no file {}/file/new (Not a directory): name another path"),
    ],
)
def test_a_socket_needs_a_directory_and_a_free_name(things: Path, name: str, why: str | None) -> None:
    before = listing(things)
    assert said(judge_socket(f"{things}/{name}")) == (why and why.format(things))
    assert listing(things) == before


# What is only a matter of permission


@pytest.fixture
def closed() -> Iterator[Path]:
    """A directory with a log and a token that may not be used, nor anything be made in it; root becomes nobody."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "closed"
        folder.mkdir()
        for file in ("token", "access.log"):
            (folder / file).write_text("some\n")
            (folder / file).chmod(0)
        folder.chmod(0o555)
        Path(name).chmod(0o755)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
            folder.chmod(0o755)


def me() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def test_a_permission_that_is_missing_is_told_from_what_is_wrong(closed: Path) -> None:
    its_user = "see that the user that lbproxy runs as may"
    found = [
        judge_log(f"{closed}/access.log"),
        judge_log(f"{closed}/new.log"),
        judge_token(f"{closed}/token"),
        judge_socket(f"{closed}/admin.sock"),
    ]
    assert [each is not None and (each.what, each.is_denied) for each in found] == [
        (f"{me()} may not write to {closed}/access.log: {its_user}", True),
        (f"{me()} may not make files in {closed}: {its_user}", True),
        (f"{me()} may not read {closed}/token: {its_user}", True),
        (f"{me()} may not make files in {closed}: {its_user}", True),
    ]


@pytest.mark.usefixtures("closed")
def test_what_cannot_even_be_looked_at_is_a_matter_of_permission() -> None:
    inner = Path(tempfile.mkdtemp())
    inner.chmod(0)
    try:
        for judge in (judge_log, judge_socket):
            found = judge(f"{inner}/some/file")
            assert found is not None
            assert found.is_denied
            assert found.what.startswith(f"{me()} may not look at {inner}/")
    finally:
        inner.chmod(0o700)
        inner.rmdir()


def test_a_read_only_file_system_is_wrong_for_everybody(things: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ReadOnly:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda _: ReadOnly)
    monkeypatch.setattr(named_files, "_may", lambda *_: False)
    found = judge_log(f"{things}/new")
    assert found is not None
    assert not found.is_denied
    assert found.what == f"{things} is on a file system that nobody can write to: name a place on another"


def test_a_user_without_a_name_has_a_number(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert str(said(judge_token(f"{closed}/token"))).startswith(f"uid {os.geteuid()} may not read")


# As they are told


def bad(folder: Path) -> Path:
    """A file with a mistake of its own and four in the files that it names."""
    path = folder / "bad.yaml"
    path.write_text(
        f"listen: ['127.0.0.1:0', 'unix:{folder}/file']\n"
        "admin:\n"
        "  listen: 127.0.0.1:0\n"
        f"  socket: {folder}/missing/admin.sock\n"
        f"  token_file: {folder}/empty\n"
        "  show_key: true\n"
        f"log: {{access: {{path: {folder}/folder, formt: json}}}}\n" + POOLS
    )
    return path


def expected(folder: Path) -> list[str]:
    path = f"{folder}/bad.yaml"
    log = f"log: {{access: {{path: {folder}/folder, formt: json}}}}"
    return [
        f"{path}:1:25: listen[1]: {folder}/file is there and is no socket: remove it, or name another path",
        f"listen: ['127.0.0.1:0', 'unix:{folder}/file']",
        " " * 24 + "^",
        f"{path}:4:11: admin.socket: {said(judge_socket(f'{folder}/missing/admin.sock'))}",
        f"  socket: {folder}/missing/admin.sock",
        " " * 10 + "^",
        f"{path}:5:15: admin.token_file: {said(judge_token(f'{folder}/empty'))}",
        f"  token_file: {folder}/empty",
        " " * 14 + "^",
        f"{path}:6:3: admin.show_key: unknown field, did you mean show_keys?",
        "  show_key: true",
        "  ^",
        f"{path}:7:22: log.access.path: {folder}/folder is a directory: name a file in it",
        log,
        " " * 21 + "^",
        f"{path}:7:{log.index('formt') + 1}: log.access.formt: unknown field, did you mean format?",
        log,
        " " * log.index("formt") + "^",
    ]


def test_check_tells_them_with_all_other_mistakes_at_once(capsys: Output, things: Path) -> None:
    assert cli.main(["check", str(bad(things))]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [*expected(things), "lbproxy: with --no-files what concerns this machine is left out"]


def test_check_leaves_them_out(capsys: Output, things: Path) -> None:
    assert cli.main(["check", "--no-files", str(bad(things))]) == 1
    assert [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()[::3]] == [
        "admin.show_key: unknown field, did you mean show_keys?",
        "log.access.formt: unknown field, did you mean format?",
    ]


def test_run_says_what_check_says_before_anything_is_made(things: Path) -> None:
    path = bad(things)
    before = listing(things)
    done = subprocess.run([sys.executable, "-m", "lbproxy", "run", "-c", path], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (1, "", expected(things))
    assert listing(things) == before


def test_check_tells_them_as_json(capsys: Output, things: Path) -> None:
    assert cli.main(["check", "--json", str(bad(things))]) == 1
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["warnings"]) == (False, [])
    assert [(each["line"], each["path"]) for each in told["problems"]] == [
        (1, "listen[1]"),
        (4, "admin.socket"),
        (5, "admin.token_file"),
        (6, "admin.show_key"),
        (7, "log.access.path"),
        (7, "log.access.formt"),
    ]


def test_what_another_user_may_do_is_a_warning_of_check(capsys: Output, closed: Path) -> None:
    path = f"{tempfile.gettempdir()}/lbproxy-{os.getpid()}.yaml"
    try:
        Path(path).write_text(f"listen: 127.0.0.1:0\n{POOLS}log: {{access: {{path: {closed}/new.log}}}}\n")
        told = f"log.access.path: {said(judge_log(f'{closed}/new.log'))}"
        source = f"log: {{access: {{path: {closed}/new.log}}}}\n{' ' * 21}^\n"
        assert cli.main(["check", path]) == 0
        out, err = capsys.readouterr()
        assert out == f"{path}: ok: 1 listener, 1 pool, 1 backend\n"
        assert err == f"{path}:3:22: warning: {told}\n{source}"
        assert cli.main(["check", "--json", path]) == 0
        as_json = json.loads(capsys.readouterr().out)
        assert (as_json["ok"], as_json["problems"]) == (True, [])
        assert [each["path"] for each in as_json["warnings"]] == ["log.access.path"]
        assert cli.main(["check", "--no-files", path]) == 0
        assert capsys.readouterr().err == ""
        # Whoever runs it is that user.
        assert run(path) == 1
        assert capsys.readouterr().err == f"{path}:3:22: {told}\n{source}"
    finally:
        os.unlink(path)


def test_a_variable_that_is_not_set_is_told_once(capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(f"listen: 127.0.0.1:0\n{POOLS}admin: {{token_file: '/${{LBPROXY_NO_SUCH_VARIABLE}}/token'}}\n")
    assert cli.main(["check", str(path)]) == 1
    [line, _, _] = capsys.readouterr().err.splitlines()
    assert "LBPROXY_NO_SUCH_VARIABLE" in line


def test_a_file_that_is_no_configuration_is_told_as_ever(capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    for text, why in [("", "is empty"), ("- a\n", "expected fields"), ("a: [\n", ":2:1: ")]:
        path.write_text(text)
        assert cli.main(["check", str(path)]) == 1
        assert why in capsys.readouterr().err
    assert cli.main(["check", str(tmp_path / "none.yaml")]) == 1
    assert "there is no such file" in capsys.readouterr().err


def test_the_socket_of_a_running_instance_is_no_hindrance(capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(
        f"listen: 'unix:{tmp_path}/in.sock'\n{POOLS}admin: {{socket: {tmp_path}/admin.sock, listen: null}}\n"
    )
    command = [sys.executable, "-m", "lbproxy", "run", "-c", str(path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as proxy:
        try:
            until(lambda: (tmp_path / "in.sock").exists() and (tmp_path / "admin.sock").exists())
            assert stat.S_ISSOCK((tmp_path / "admin.sock").stat().st_mode)
            assert cli.main(["check", str(path)]) == 0
            assert capsys.readouterr().err == ""
        finally:
            proxy.terminate()

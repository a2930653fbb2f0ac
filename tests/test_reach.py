"""Reaching an instance: what is no address, what is no token, and who else may answer there."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lbproxy import cli
from lbproxy.control import reach
from lbproxy.control.reach import Admin, named
from lbproxy.exits import BAD, UNREACHABLE, USAGE, Stop

Output = pytest.CaptureFixture[str]
Answering = Callable[[bytes], str]

CONFIG = "listen: 127.0.0.1:0\npools: {web: {backends: [{name: b1, url: http://127.0.0.1:1}]}}\n"
COMMANDS = [
    ["status"],
    ["status", "--watch"],
    ["status", "--json"],
    ["healthcheck"],
    ["healthcheck", "--json"],
    ["reload"],
    ["reload", "--json"],
    ["drain", "b1"],
    ["undrain", "b1"],
    ["weight", "b1", "2"],
    ["diff"],
    ["check", "some.yaml"],
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.yaml").write_text(CONFIG)


@pytest.fixture
def answering() -> Iterator[Answering]:
    """Somebody who answers every connection with the same; called with that, it tells the address."""
    servers = []

    def serve(listening: socket.socket, answer: bytes) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    def answer_with(answer: bytes) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=serve, args=(listening, answer))
        thread.start()
        servers.append((listening, thread))
        return f"127.0.0.1:{listening.getsockname()[1]}"

    yield answer_with
    for listening, thread in servers:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def http(status: str, kind: str, body: str, server: str = "another") -> bytes:
    head = f"HTTP/1.1 {status}\r\nServer: {server}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n{body}".encode()


@pytest.mark.parametrize(
    "answer",
    [
        http("200 OK", "text/html", "hello"),
        http("200 OK", "application/json", '{"pools": []}'),
        http("200 OK", "application/json", "[" * 100_000),
        http("302 Found", "text/plain", ""),
        http("404 Not Found", "text/html", "<html>\n<body>\n"),
        http("409 Conflict", "application/json", "null"),
        http("422 No", "application/json", '{"problems": [1]}'),
        b"SSH-2.0-OpenSSH_9\r\n",
    ],
)
def test_whoever_else_answers_is_not_taken_for_an_instance(capsys: Output, answering: Answering, answer: bytes) -> None:
    address = answering(answer)
    for words in COMMANDS:
        assert cli.main([*words, "--admin", address]) == UNREACHABLE, words
        assert capsys.readouterr() == ("", f"lbproxy: what answers at {address} is no admin API of lbproxy\n")


def test_an_instance_that_is_not_ready_says_why(capsys: Output, answering: Answering) -> None:
    address = answering(http("503 Service Unavailable", "text/plain", "1 of 2 workers ready\n", "lbproxy"))
    assert cli.main(["healthcheck", "--admin", address]) == BAD
    assert capsys.readouterr().err == "lbproxy: 1 of 2 workers ready\n"
    assert cli.main(["healthcheck", "--admin", address, "--json"]) == BAD
    assert json.loads(capsys.readouterr().out) == {"ready": False, "detail": "1 of 2 workers ready"}


@pytest.mark.parametrize(("words", "what"), [(["status"], ""), (["reload"], "; what was asked for may still be done")])
def test_an_instance_that_is_slow_to_answer_is_not_said_to_be_out_of_reach(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, words: list[str], what: str
) -> None:
    monkeypatch.setattr(reach, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(reach, "WORK_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert cli.main([*words, "--admin", address]) == UNREACHABLE
        seconds = "0.2" if what else "0.1"
        told = f"lbproxy: the instance at {address} has not answered within {seconds} s{what}\n"
        assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nServer: lbproxy\r\nContent-Length: 100\r\n\r\n{"])
def test_an_answer_that_is_cut_off_is_none(capsys: Output, answering: Answering, answer: bytes) -> None:
    address = answering(answer)
    for words in COMMANDS:
        assert cli.main([*words, "--admin", address]) == UNREACHABLE, words
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"lbproxy: cannot reach the instance at {address}: ")


@pytest.mark.parametrize(
    "text",
    ["", ":1", "host:", "h:99999", "a b:1", "a\nb:1", "a..b:1", ".:1", "x" * 300, "user@host:1", "x/y:1", "https://h:1",
     "127.0.0.1:1/path", "\udcff:1", "::", "unix:", "unix://"],
)  # fmt: skip
def test_what_is_no_address_is_wrong_usage(capsys: Output, text: str) -> None:
    assert cli.main(["status", "--admin", text]) == USAGE
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), "is no admin address" in err) == ("", 1, True)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", "localhost:9901"),
        ("http://127.0.0.1:80/", "127.0.0.1:80"),
        ("[::1]", "[::1]:9901"),
        ("http://[::1]:80", "[::1]:80"),
        ("unix:/run/admin.sock", "unix:/run/admin.sock"),
        ("unix:///run/admin.sock", "unix:/run/admin.sock"),
        ("unix:admin.sock", "unix:admin.sock"),
    ],
)
def test_an_address_in_all_its_forms(text: str, address: str) -> None:
    assert str(named(text, None)) == address


def test_an_address_without_brackets_is_shown_with_them(capsys: Output) -> None:
    assert cli.main(["status", "--admin", "::1"]) == USAGE
    assert capsys.readouterr().err == 'lbproxy: "::1" is no admin address, did you mean [::1]?\n'


def test_a_port_that_the_system_chooses_is_asked_for_and_not_asked(capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(CONFIG + "admin: {listen: 127.0.0.1:0}\n")
    assert cli.main(["status", "-c", str(path)]) == UNREACHABLE
    says = f"lbproxy: {path} leaves the port of admin.listen to the system; name it with --admin\n"
    assert capsys.readouterr() == ("", says)
    path.write_text(CONFIG + f"admin: {{listen: 127.0.0.1:0, socket: {tmp_path}/none}}\n")
    assert cli.main(["status", "-c", str(path)]) == UNREACHABLE
    says = f"lbproxy: cannot reach the instance at unix:{tmp_path}/none: No such file or directory\n"
    assert capsys.readouterr() == ("", says)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file or directory"),
        (b" \n", "is empty"),
        (b"one\ntwo\n", "holds what no header can, such as a second line"),
        (b"a\0b", "holds what no header can, such as a second line"),
    ],
)
def test_a_token_file_without_a_token(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    admin = named("127.0.0.1:1", str(path))
    assert (admin.token, admin.lack) == ("", f"the token file {path} {why}")


def test_what_is_no_file_is_no_token_file_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero"):
        assert named("127.0.0.1:1", str(path)).lack == f"the token file {path} is no regular file"
    assert "Is a directory" in named("127.0.0.1:1", str(tmp_path)).lack


def test_a_token_is_sent_octet_by_octet(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes("schlüssel\n".encode())
    listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        admin = named(f"127.0.0.1:{listening.getsockname()[1]}", str(tmp_path / "token"))
        asking = threading.Thread(target=_ask, args=(admin,))
        asking.start()
        connection, _ = listening.accept()
        with connection:
            assert "Authorization: Bearer schlüssel\r\n".encode() in connection.recv(65536)
        asking.join()


def _ask(admin: Admin) -> None:
    with pytest.raises(Stop):
        admin.ask("GET", "/")

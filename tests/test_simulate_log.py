"""Recorded traffic: what `observe/lines.py` writes, `lbproxy simulate --from-log` reads."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lbproxy import cli
from lbproxy.core import ledger
from lbproxy.core.exchange import Finished
from lbproxy.core.hashing import hash_key
from lbproxy.observe.lines import CombinedLines, JsonLines
from lbproxy.simulate.record import LONGEST_LINE, Recording, Unusable, lines_of, read
from lbproxy.simulate.traffic import NO_KEY, Arrival
from tests.exchanges import ended
from tests.tools import PACKAGE_HOME

BEGAN_NS = 1_796_040_000_000_000_000
Output = pytest.CaptureFixture[str]


class Request(NamedTuple):
    """One that ended at `ended_ns`, in nanoseconds since 1970."""

    ended_ns: int
    x: Finished


def request(at_s: float, duration_s: float, key: bytes | None, **changes: Any) -> Request:
    """One that came `at_s` seconds after the first one and took `duration_s`."""
    ended_ns = BEGAN_NS + round((at_s + duration_s) * 1e9)
    own = {"duration_us": round(duration_s * 1e6), "request_id": b"%x" % ended_ns, "key": key}
    return Request(ended_ns, ended(**{**own, **changes}))


def log(*requests: Request, with_key: bool = True) -> list[str]:
    """Their lines, in the order in which they ended."""
    now_ns = 0
    lines = JsonLines(with_key, lambda: now_ns)
    written = []
    for request in sorted(requests, key=lambda request: request.ended_ns):
        now_ns = request.ended_ns
        written.append(lines.line(request.x).decode())
    return written


def some_traffic(requests: int = 400, users: int = 50, **changes: Any) -> Iterator[Request]:
    """A request every 10 ms, each 50 ms long."""
    for number in range(requests):
        backend = f"b{number % 3 + 1}"
        user = b"user-%d" % (number * 7 % users)
        yield request(number / 100, 0.05, user, **{"backend_name": backend, **changes})


def arrivals(recording: Recording) -> list[tuple[float, bytes | None, float]]:
    keys = recording.traffic.keys
    return [
        (round(each.at_s, 3), keys[each.key] if each.key != NO_KEY else None, each.duration_s)
        for each in recording.traffic.recorded
    ]


def test_what_was_written_is_read() -> None:
    """Requests come back in the order in which they came, not in that of their ends."""
    recording = read(
        log(
            request(0.0, 2.0, b"ann"),
            request(0.5, 0.1, b"bob", backend_name="b2"),
            request(1.0, 0.25, None, decision=ledger.NO_KEY),
            request(1.25, 0.1, 'zoë\n"x"'.encode()),
            request(1.5, 0.1, b"ann", backend_name="b3"),
        )
    )
    assert arrivals(recording) == [
        (0.0, b"ann", 2.0),
        (0.5, b"bob", 0.1),
        (1.0, None, 0.25),
        (1.25, 'zoë\n"x"'.encode(), 0.1),
        (1.5, b"ann", 0.1),
    ]
    assert recording.key_field == "key"
    assert recording.backends == ("b1", "b2", "b3")
    assert recording.seconds == pytest.approx(2.0, abs=0.002)
    assert recording.traffic.shares == (0.5, 0.25, 0.25)
    assert recording.traffic.hashes[0] == hash_key(b"ann")


def test_faster_than_it_came() -> None:
    recording = read(log(request(0, 0.1, b"a"), request(4, 0.1, b"b")), speed=4)
    assert recording.traffic.recorded[1] == Arrival(pytest.approx(1.0, abs=0.001), 1, 0.1)  # type: ignore[arg-type]


def test_without_keys_clients_stand_for_users() -> None:
    lines = log(
        request(0, 0.1, b"a", client="192.0.2.1"),
        request(1, 0.1, b"b", client="192.0.2.2"),
        request(2, 0.1, b"c", client="192.0.2.1"),
        with_key=False,
    )
    recording = read(lines)
    assert recording.key_field == "client"
    assert recording.traffic.keys == (b"192.0.2.1", b"192.0.2.2")


def test_of_a_single_client_every_request_is_a_user() -> None:
    recording = read(log(*some_traffic(20), with_key=False))
    assert recording.key_field == "request_id"
    assert len(recording.traffic.keys) == 20


def test_what_is_no_request_is_left_out() -> None:
    lines = log(
        request(0, 0.1, b"a"),
        request(0, 900, b"a", upgraded=True),
        request(0, 0.1, None, pool_name="", backend_name="", decision=-1, reason="bad_request"),
    )
    lines += ["\n", "no json\n", "[1, 2]\n", '{"time": "yesterday", "duration_us": 1, "pool": "api", "backend": "b"}\n']
    recording = read(lines)
    assert (len(recording.traffic.recorded), recording.upgraded, recording.skipped) == (1, 1, 3)


def test_one_pool_of_several() -> None:
    lines = log(*some_traffic(10), *some_traffic(5, pool_name="shop"))
    with pytest.raises(Unusable, match="several pools, name one with --pool: api, shop"):
        read(lines)
    assert len(read(lines, "shop").traffic.recorded) == 5
    with pytest.raises(Unusable, match="no requests of the pool rest, only of api, shop"):
        read(lines, "rest")


def test_a_combined_log_is_none() -> None:
    with pytest.raises(Unusable, match="no line of a JSON access log"):
        read([CombinedLines().line(ended()).decode()])


def simulated(capsys: Output, *arguments: str) -> dict[str, Any]:
    assert cli.main(["simulate", "--json", *arguments]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_log_is_simulated(capsys: Output, tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    file.write_text("".join(log(*some_traffic())))
    document = simulated(capsys, "--from-log", str(file), "--warm-up", "0", "--add", "b4", "--workers", "2")
    assert document["settings"]["backends"] == {"b1": 1.0, "b2": 1.0, "b3": 1.0}
    [outcome] = document["tables"]["outcome"]
    assert outcome["requests"] == 400
    assert sum(row["served"] for row in document["tables"]["backends"]) == pytest.approx(1)
    assert document["tables"]["moves"][0]["needless"] == 0
    assert not any("no keys" in note for note in document["notes"])
    assert simulated(capsys, "--from-log", str(file), "--backends", "5")["settings"]["backends"]["b5"] == 1.0


def test_one_request_at_a_time_is_no_peak(capsys: Output, tmp_path: Path) -> None:
    """Where next to nothing is in flight, one request is hundreds of times what a backend holds on average."""
    path = tmp_path / "access.log"
    requests = [request(number, 0.01, b"user-%d" % number, backend_name=f"b{number % 3 + 1}") for number in range(300)]
    path.write_text("".join(log(*requests)))
    found = simulated(capsys, "--from-log", str(path))
    [row] = found["tables"]["outcome"]
    assert row["peak"] == 1.0
    assert [each["peak"] for each in found["tables"]["backends"]] == [1.0] * 3
    assert sum(each["mean"] for each in found["tables"]["backends"]) == pytest.approx(3)


def test_a_log_without_keys_says_who_stands_for_the_users(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(log(*some_traffic(30), with_key=False)) + "garbage\n"))
    assert cli.main(["simulate", "--from-log", "-"]) == 0
    out, err = capsys.readouterr()
    assert "The log has no keys (log.access.key is off): the request id stands for the user." in out
    assert "1 lines were no access log lines and were left out." in out
    assert err == ""


def test_requests_without_a_key_go_to_the_least_loaded(capsys: Output, tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    file.write_text("".join(log(*some_traffic(300), request(0.001, 0.05, None), request(1.001, 0.05, None))))
    [outcome] = simulated(capsys, "--from-log", str(file), "--warm-up", "0")["tables"]["outcome"]
    assert outcome["no_key"] == pytest.approx(2 / 302)


@pytest.mark.parametrize(
    ("text", "code", "complaint"),
    [
        ("", 1, "there is no line of a JSON access log in it"),
        ("{}\n", 1, "there is no line of a JSON access log in it"),
        (None, 1, "No such file"),
    ],
)
def test_a_log_that_cannot_be_used_is_one_line(
    capsys: Output, tmp_path: Path, text: str | None, code: int, complaint: str
) -> None:
    file = tmp_path / "access.log"
    if text is not None:
        file.write_text(text)
    assert cli.main(["simulate", "--from-log", str(file)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    assert complaint in line
    assert str(file) in line


def test_upgraded_connections_alone_are_no_traffic() -> None:
    with pytest.raises(Unusable, match="only upgraded connections"):
        read(log(request(0, 10, b"a", upgraded=True)))


@pytest.mark.parametrize(
    "change",
    [
        {"pool": ["api"]},
        {"pool": 5},
        {"backend": {"b1": 1}},
        {"backend": 5},
        {"duration_us": "5"},
        {"duration_us": float("inf")},
        {"duration_us": float("nan")},
        {"duration_us": 10**400},
        {"duration_us": 1e18},
        {"time": "9999-99-99"},
        {"time": 5},
    ],
)
def test_lines_that_only_look_like_those_of_a_log_are_left_out(change: dict[str, Any]) -> None:
    [good] = log(request(0, 0.05, b"ann", backend_name="b1"))
    bad = json.dumps(json.loads(good) | change)
    recording = read([good, bad, good])
    assert (len(recording.traffic.recorded), recording.skipped, recording.backends) == (2, 1, ("b1",))


def test_what_stands_for_users_may_be_anything() -> None:
    [good] = log(request(0, 0.05, None), with_key=False)
    fields = json.loads(good)
    lines = [json.dumps(fields | {"client": client}) for client in ([1], {"a": 1}, None, "10.0.0.1", "10.0.0.2")]
    recording = read(lines)
    assert (recording.key_field, len(recording.traffic.keys), recording.skipped) == ("client", 2, 0)


def test_what_is_no_log_is_read_in_little_memory_and_called_none(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "deep.log"
    for content in ("[" * 200_000, "x" * (3 << 20), "\0" * (3 << 20)):
        path.write_text(content)
        assert cli.main(["simulate", "--from-log", str(path)]) == 1
        assert capsys.readouterr().err == f"lbproxy simulate: {path}: there is no line of a JSON access log in it\n"
    lines = list(lines_of(io.StringIO("a" * (LONGEST_LINE + 5) + "\nb\n")))
    assert [len(line) for line in lines] == [LONGEST_LINE, 6, 2]


def test_stdin_may_hold_what_is_no_text() -> None:
    command = [sys.executable, "-m", "lbproxy", "simulate", "--from-log", "-"]
    environ = {**os.environ, "PYTHONPATH": PACKAGE_HOME}
    done = subprocess.run(command, input=b"\xff\xfe\n\x80", capture_output=True, env=environ, timeout=60)
    says = b"lbproxy simulate: the log: there is no line of a JSON access log in it\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", says)

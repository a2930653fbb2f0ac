"""Operating a running lbproxy from the command line and the admin API: what is decided, shown, kept and foreseen."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from lbproxy import exits
from lbproxy.cli import main
from lbproxy.control import reach
from tests.running import Backends, Proxy, Traffic, backend_list, get, in_thread, until

USERS = [f"user-{number}" for number in range(200)]
# Nothing but the ring decides, so that every move is one that a change has made.
CALM: dict[str, Any] = {"bounded_load": {"factor": None}, "hot_keys": {"mode": "off"}, "ring": {"vnodes": 256}}


@pytest.fixture
async def backends() -> AsyncIterator[Backends]:
    async with Backends("b1", "b2", "b3", "b4") as started:
        yield started


def proxied(folder: Path, backends: Backends, **pool: Any) -> Proxy:
    """A proxy with a Unix socket for its admin, and three of the backends."""
    admin = {"listen": "127.0.0.1:0", "socket": str(folder / "admin.sock")}
    listed = backend_list(backends.ports)[:3]
    return Proxy(folder, {}, admin=admin, pools={"api": {**CALM, **pool, "backends": listed}})


async def homes(proxy: Proxy, users: list[str] = USERS) -> dict[str, str]:
    found: dict[str, str] = {}
    for start in range(0, len(users), 50):
        part = users[start : start + 50]
        answers = await asyncio.gather(*(get(proxy.port, user=user) for user in part))
        assert {status for status, _ in answers} == {200}
        found |= {user: text for user, (_, text) in zip(part, answers, strict=True)}
    return found


async def cli(proxy: Proxy, *words: str) -> tuple[int, str, str]:
    """One command against the proxy: exit code, stdout, stderr. In a thread, for there are many; see `program`."""

    def command() -> tuple[int, str, str]:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            return main([words[0], "-c", str(proxy.file), *words[1:]]), out.getvalue(), err.getvalue()

    return await asyncio.to_thread(command)


async def program(proxy: Proxy, *words: str) -> tuple[int, str, str]:
    """The same as a process of its own, as people have it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lbproxy", words[0], "-c", str(proxy.file), *words[1:]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def ask(proxy: Proxy, path: str) -> dict[str, Any]:
    return await asyncio.to_thread(proxy.document, path)


async def backend(proxy: Proxy, name: str) -> dict[str, Any]:
    return await ask(proxy, f"/v1/pools/api/backends/{name}")


async def test_weights_drains_and_their_end(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends) as proxy:
        before = await homes(proxy)
        code, out, _ = await cli(proxy, "drain", "b1", "--reason", "repair")
        assert code == 0
        assert out.startswith("b1: draining, weight 1, 0 in flight  [empty, can be stopped; drain by ")
        table = (await cli(proxy, "status"))[1].splitlines()[-3:]
        assert [line.split()[:5] for line in table] == [
            ["b1", "draining", "1", "0.00", "%"],
            ["b2", "up", "1", "50.00", "%"],
            ["b3", "up", "1", "50.00", "%"],
        ]
        during = await homes(proxy)
        assert "b1" not in during.values()
        assert {user for user in USERS if during[user] != before[user]} == {u for u in USERS if before[u] == "b1"}
        drained = await backend(proxy, "b1")
        assert (drained["state"], drained["override"]["state"], drained["override"]["reason"]) == (
            "draining",
            "drain",
            "repair",
        )
        assert drained["override"]["by"] not in ("", "unknown")
        assert (await cli(proxy, "drain", "b1", "--wait", "10s"))[0] == 0
        assert (await backend(proxy, "b1"))["empty"]
        assert (await cli(proxy, "undrain", "b1"))[0] == 0
        assert await homes(proxy) == before

        assert (await cli(proxy, "weight", "b2", "3", "--for", "1h"))[0] == 0
        after = await homes(proxy)
        assert all(after[user] == "b2" for user in USERS if after[user] != before[user])
        assert sum(home == "b2" for home in after.values()) > sum(home == "b2" for home in before.values())
        second = await backend(proxy, "b2")
        assert (second["weight"], second["effective_weight"], second["expected_share"]) == (1, 3, 0.6)
        assert "weight 3 (file 1)" in (await cli(proxy, "weight", "b2", "3"))[1]
        code, out, _ = await cli(proxy, "status")
        assert (code, "3 (file 1)" in out, "generation" in out) == (0, True, True)
        assert await asyncio.to_thread(proxy.metric, "backend_configured_weight", backend="b2") == 1
        assert await asyncio.to_thread(proxy.metric, "backend_effective_weight", backend="b2") == 3
        assert await asyncio.to_thread(proxy.metric, "backend_override", backend="b2", what="weight") == 1
        assert await asyncio.to_thread(proxy.metric, "ring_changes_total", cause="override") == 1
        assert 0.1 < await asyncio.to_thread(proxy.metric, "ring_last_change_moved_ratio") < 0.4
        assert (await cli(proxy, "weight", "b2", "file"))[0] == 0
        assert await homes(proxy) == before

        # What an override says for a time ends with the time. It may be over before a busy machine has asked for all
        # users, but whom a weight sends away has been seen above.
        changes = await asyncio.to_thread(proxy.metric, "ring_changes_total", cause="override")
        code, out, _ = await cli(proxy, "weight", "b3", "0", "--for", "500ms")
        assert (code, "weight 0 (file 1)" in out) == (0, True), out
        await asyncio.to_thread(until, lambda: proxy.metric("backend_override", backend="b3", what="weight") == 0)
        assert await homes(proxy) == before
        assert await asyncio.to_thread(proxy.metric, "ring_changes_total", cause="override") == changes + 2
        assert [event["why"] for event in proxy.named("override ended")][-1] == "its time is over"


async def test_everything_can_be_had_as_json(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends) as proxy:
        for words in (
            ("status",),
            ("healthcheck",),
            ("check",),
            ("diff",),
            ("explain", "ann", "--live"),
            ("reload",),
            ("drain", "b1"),
            ("undrain", "b1"),
            ("weight", "b2", "3", "--for", "1h"),
            ("weight", "b2", "file"),
        ):
            code, out, err = await program(proxy, *words, "--json")
            assert (code, isinstance(json.loads(out), dict), err) == (0, True, ""), words


async def test_the_socket_is_for_its_owner_alone(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends):
        assert stat.S_IMODE((tmp_path / "admin.sock").stat().st_mode) == 0o600


async def test_overrides_survive_reloads_workers_and_restarts_and_the_file_has_the_last_word(
    tmp_path: Path, backends: Backends
) -> None:
    proxy = proxied(tmp_path, backends)
    with proxy:
        await cli(proxy, "weight", "b1", "0.5")
        await cli(proxy, "drain", "b2")
        before = await homes(proxy)
        proxy.config["pools"]["api"]["backends"] = backend_list(backends.ports)
        proxy.write_config()
        assert (await cli(proxy, "reload"))[0] == 0
        assert ((await backend(proxy, "b1"))["effective_weight"], (await backend(proxy, "b2"))["state"]) == (
            0.5,
            "draining",
        )
        for pid in await asyncio.to_thread(proxy.worker_pids):
            os.kill(pid, signal.SIGKILL)
        await in_thread(proxy, "worker ready", 4)
        with_b4 = await homes(proxy)
        assert "b2" not in with_b4.values()
        assert all(with_b4[user] in (before[user], "b4") for user in USERS)
        proxy.config["pools"]["api"]["backends"] = backend_list(backends.ports)[:3]
    with proxied(tmp_path, backends) as again:
        assert ((await backend(again, "b1"))["effective_weight"], (await backend(again, "b2"))["state"]) == (
            0.5,
            "draining",
        )
        assert await homes(again) == before
        again.config["pools"]["api"]["backends"][0]["weight"] = 2
        again.config["pools"]["api"]["backends"][1]["weight"] = 2
        again.write_config()
        again.signal(signal.SIGHUP)
        await in_thread(again, "configuration applied")
        assert (await backend(again, "b1"))["effective_weight"] == 2
        assert (await backend(again, "b2"))["state"] == "draining"
        assert [event["why"] for event in again.named("override ended")] == ["the file gives it another weight"]
        assert [each["backend"] for each in (await ask(again, "/v1/info"))["overrides"]] == ["b2"]


async def test_a_decision_that_cannot_be_written_is_in_force_and_said_to_be_lost_by_a_restart(
    tmp_path: Path, backends: Backends
) -> None:
    with proxied(tmp_path, backends) as proxy:
        in_the_way = tmp_path / "admin.sock.overrides.new"
        in_the_way.mkdir()
        code, out, err = await cli(proxy, "drain", "b1")
        assert (code, out.startswith("b1: draining")) == (0, True)
        why = f"cannot write {tmp_path}/admin.sock.overrides: Is a directory"
        assert err == f"lbproxy: in force, but it would not outlive a restart: {why}\n"
        code, out, err = await cli(proxy, "weight", "b2", "2", "--json")
        assert (json.loads(out)["not_saved"], why in err) == (why, True)
        assert f"what has been decided would not outlive a restart: {why}" in (await cli(proxy, "status"))[1]
        in_the_way.rmdir()
        assert (await cli(proxy, "undrain", "b1"))[2] == ""
        assert "outlive" not in (await cli(proxy, "status"))[1]


async def test_nobody_is_left_only_when_that_is_meant(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends) as proxy:
        for name in ("b1", "b2"):
            assert (await cli(proxy, "drain", name))[0] == 0
        code, _, err = await cli(proxy, "drain", "b3")
        told = "nobody in api would be left to serve; if that is meant, say so (--force, or `force` in the API)"
        assert (code, err) == (1, f"lbproxy: {told}\n")
        assert set((await homes(proxy, USERS[:20])).values()) == {"b3"}
        assert (await cli(proxy, "weight", "b3", "0", "--force"))[0] == 0
        assert (await get(proxy.port))[0] == 503
        assert await asyncio.to_thread(proxy.metric, "pool_panic", pool="api") == 1
        assert proxy.named("no backend is eligible")


async def test_what_is_said_of_a_key_is_what_happens_to_it(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends, pins=[{"key": "vip", "backend": "b3"}]) as proxy:
        for words in (("status",), ("drain", "b1"), ("weight", "b2", "0.25"), ("undrain", "b1")):
            assert (await cli(proxy, *words))[0] == 0
            for user in [*USERS[:25], "vip"]:
                said = await ask(proxy, f"/v1/pools/api/explain?key={user}")
                assert said["decision"]["backend"] == (await get(proxy.port, user=user))[1]
                serving = [each["backend"] for each in said["preference"] if each["may_serve"]]
                assert user == "vip" or serving[0] == said["decision"]["backend"]


@pytest.mark.parametrize(("trusted", "is_told"), [(["127.0.0.1"], True), (["10.0.0.0/8"], False)])
async def test_decisions_stand_on_answers_for_trusted_clients_alone(
    tmp_path: Path, backends: Backends, trusted: list[str], is_told: bool
) -> None:
    proxy = proxied(tmp_path, backends)
    proxy.config["listen"] = {"bind": "127.0.0.1:0", "trusted_proxies": trusted}
    proxy.config["headers"] = {"debug_headers": True}
    with proxy:
        async with (
            aiohttp.ClientSession(headers={"X-User-ID": "ann"}) as client,
            client.get(f"http://127.0.0.1:{proxy.port}/") as answer,
        ):
            told = {name: value for name, value in answer.headers.items() if name.lower().startswith("x-lb-")}
            home = await answer.text()
    assert told == ({"X-LB-Backend": home, "X-LB-Decision": "owner"} if is_told else {})


async def test_status_says_what_retries_saved(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends) as proxy:
        assert "b1" in (await homes(proxy)).values()
        assert "saved by retries" not in (await cli(proxy, "status"))[1]
        await backends.stop("b1")
        assert "b1" not in (await homes(proxy)).values()  # all are answered with 200
        [pool] = (await ask(proxy, "/v1/pools"))["pools"]
        saved = sum(outcomes["success"] for outcomes in pool["retries"].values())
        assert saved > 0
        assert f", {saved} saved by retries, " in (await cli(proxy, "status"))[1]


async def test_a_worker_that_hangs_is_seen_before_it_is_replaced(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends) as proxy:
        said = "worker 1 has been silent for "
        assert said not in (await cli(proxy, "status"))[1]
        hung = (await asyncio.to_thread(proxy.worker_pids))[1]
        os.kill(hung, signal.SIGSTOP)
        await asyncio.to_thread(lambda: until(lambda: _silent(proxy)))
        assert said in (await cli(proxy, "status"))[1]
        ready = await cli(proxy, "healthcheck")
        assert (ready[0], ready[1].startswith(f"2 of 2 workers ready, {said}")) == (0, True), ready
        assert await asyncio.to_thread(lambda: proxy.metric("worker_silent_seconds", worker="1")) >= 3
        assert await asyncio.to_thread(lambda: proxy.metric("worker_silent_seconds", worker="0")) < 3
        os.kill(hung, signal.SIGCONT)
        await asyncio.to_thread(lambda: until(lambda: not _silent(proxy)))
        assert said not in (await cli(proxy, "status"))[1]
        assert (await asyncio.to_thread(proxy.worker_pids))[1] == hung


def _silent(proxy: Proxy) -> list[int]:
    return [each["worker"] for each in proxy.document("/v1/info")["silent_workers"]]


async def test_status_watches_what_goes_where(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends) as proxy:
        traffic = Traffic(proxy.port, 8)
        await traffic.until_answered(200)
        tables = await _watched(proxy, "pool api")
        documents = [json.loads(line) for line in (await _watched(proxy, "{", "--json"))]
        await traffic.stop()
    first, second = (
        [line.split() for line in "".join(tables).split("lbproxy ")[number].splitlines()] for number in (1, 2)
    )
    assert first[3][:2] == second[3][:2] == ["backend", "state"]
    assert first[3][-5:] == second[3][-5:] == ["observed", "req/s", "in", "flight", "errors"]
    assert [row[-4:-2] for row in first[4:7]] == [["-", "-"]] * 3, "a rate takes two looks"
    assert sum(float(row[-3].replace(",", "")) for row in second[4:7]) > 10
    assert sum(float(row[-5]) for row in second[4:7]) == pytest.approx(100, abs=0.1)
    assert [set(document) for document in documents] == [{"info", "pools"}] * len(documents)


SIZES = [(80, 24, "b3"), (40, 24, "b3"), (80, 6, "… 3 more lines")]


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], list[str]]:
    """What terminals of these sizes show, at the same time."""
    folder = tmp_path_factory.mktemp("watched")
    admin = {"listen": "127.0.0.1:0", "socket": str(folder / "admin.sock")}
    with Proxy(folder, {"b1": 1, "b2": 2, "b3": 3}, admin=admin) as proxy, ThreadPoolExecutor() as threads:
        sizes = [(columns, rows) for columns, rows, _ in SIZES]
        return dict(zip(sizes, threads.map(lambda size: _screen(proxy, *size), sizes), strict=True))


@pytest.mark.parametrize(("columns", "rows", "last"), SIZES)
def test_status_watches_within_the_terminal(
    screens: dict[tuple[int, int], list[str]], columns: int, rows: int, last: str
) -> None:
    screen = screens[columns, rows]
    assert len(screen) <= rows
    assert max(map(len, screen)) <= columns
    assert screen[0].startswith("lbproxy ")
    assert screen[0].endswith("…")
    assert screen[-1].strip().startswith(last)
    assert columns < 80 or screen[3].endswith("  in flight  errors"), "what has short names fits into 80 columns"


def _screen(proxy: Proxy, columns: int, rows: int) -> list[str]:
    """The second picture that `status --watch` draws on a terminal of that size."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "lbproxy", "status", "--watch", "-c", str(proxy.file)]
    with subprocess.Popen(command, stdout=theirs, env=environ) as process:
        os.close(theirs)
        said = b""
        while said.count(b"\x1b[H\x1b[J") < 3:
            said += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
    os.close(ours)
    return said.decode().split("\x1b[H\x1b[J")[2].splitlines()


async def _watched(proxy: Proxy, head: str, *words: str) -> list[str]:
    """What `status --watch` says in its first two looks."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lbproxy", "status", "--watch", "-c", str(proxy.file), *words),
        stdout=subprocess.PIPE,
        limit=1 << 20,
    )
    assert process.stdout is not None
    said: list[str] = []
    while sum(line.startswith(head) for line in said) < 3:
        said.append((await process.stdout.readline()).decode())
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130
    return said[:-1]


async def test_explain_live_knows_what_the_file_does_not(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends) as proxy:
        _, offline, _ = await cli(proxy, "explain", "ann")
        owner = offline.split("owner     ")[1].partition(",")[0]
        code, out, _ = await cli(proxy, "explain", "ann", "--live")
        assert (code, f"now       {owner} (owner): {owner} owns the key" in out) == (0, True)
        await cli(proxy, "drain", owner)
        code, out, _ = await cli(proxy, "explain", "ann", "--live")
        after = out.split("now       ")[1].partition(" ")[0]
        assert (code, f"now       {after} (failover): {owner} owns the key and may not be asked" in out) == (0, True)
        assert after == (await get(proxy.port, user="ann"))[1] != owner
        assert f"ring      {owner}, " in out and " draining, 0" in out  # noqa: PT018
        code, out, _ = await cli(proxy, "explain", "ann", "--live", "--json")
        assert json.loads(out)["decision"]["backend"] == after
        code, out, _ = await cli(proxy, "explain", "--admin", f"127.0.0.1:{proxy.admin_port}", "--hex", "616e6e")
        assert (code, 'key       "ann", hash 0x' in out) == (0, True)
        code, _, err = await cli(proxy, "explain", "ann", "--live", "--pool", "web")
        assert (code, err) == (1, "lbproxy explain: there is no pool web, there is api\n")


async def test_of_ten_thousand_keys_none_goes_elsewhere_than_was_said(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends) as proxy:
        keys = [f"{number} ü{'x' * (number % 40)}" for number in range(10_000)]
        limited = asyncio.Semaphore(32)
        async with aiohttp.ClientSession() as client:

            async def is_true(key: str) -> bool:
                async with limited:
                    said = await _answer(client, f"http://127.0.0.1:{proxy.admin_port}/v1/pools/api/explain", key)
                    headers = {"X-User-ID": key}
                    async with client.get(f"http://127.0.0.1:{proxy.port}/", headers=headers) as answer:
                        return bool(await answer.text() == said["decision"]["backend"])

            assert all(await asyncio.gather(*map(is_true, keys)))
        assert sum(backends.seen.values()) == len(keys)
        assert min(backends.seen[name] for name in ("b1", "b2", "b3")) > 2000


async def _answer(client: aiohttp.ClientSession, url: str, key: str) -> dict[str, Any]:
    async with client.post(url, json={"key": key, "steps": 1}) as answer:
        document: dict[str, Any] = await answer.json()
        return document


async def test_check_names_what_needs_a_restart(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends) as proxy:
        socket = proxy.config["admin"]["socket"]
        other = tmp_path / "other.yaml"
        config = json.loads(json.dumps(proxy.config))
        config["workers"] = 3
        other.write_text(yaml.safe_dump(config))
        code, out, err = await cli(proxy, "diff", str(other))
        assert (code, err) == (0, "")
        assert out.startswith("only a restart changes: workers\n")
        for where in (["--admin", f"unix:{socket}"], []):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "lbproxy", "check", str(other), *where), stdout=subprocess.PIPE
            )
            text = (await process.communicate())[0].decode()
            assert process.returncode == 0
            assert f"{other}: only a restart of the instance at unix:{socket} changes workers\n" in text
        config["workers"] = proxy.config["workers"]
        other.write_text(yaml.safe_dump(config))
        code, out, _ = await cli(proxy, "check", "--json")
        assert (code, json.loads(out)["needs_restart"], json.loads(out)["compared_with"]) == (0, [], f"unix:{socket}")


async def test_the_api_checks_what_the_command_checks(tmp_path: Path, backends: Backends) -> None:
    """And what it finds is what a reload of the same text would be refused for, or a start would fail for."""
    with proxied(tmp_path, backends) as proxy:
        good, socket = json.loads(json.dumps(proxy.config)), proxy.config["admin"]["socket"]
        (tmp_path / "empty").write_text("")
        log, token, missing = (str(tmp_path / name) for name in ("", "empty", "missing/socket"))
        for changes, paths, waiting, is_refused in (
            ({}, [], [], False),
            ({"log": {"access": {"path": log}}}, ["log.access.path"], [], True),
            ({"listen": f"unix:{missing}"}, ["listen"], [], True),
            ({"admin": good["admin"] | {"token_file": token}}, ["admin.token_file"], ["admin"], False),
            (
                {"admin": good["admin"] | {"socket": missing}, "workers": 3},
                ["admin.socket"],
                ["workers", "admin"],
                False,
            ),
            ({"workers": 0, "log": {"access": {"path": log}}}, ["log.access.path", "workers"], None, True),
        ):
            text = yaml.safe_dump(good | changes)
            proxy.file.write_text(text)
            checked = json.loads((await cli(proxy, "check", "--json"))[1])
            told = await asyncio.to_thread(_checked, socket, text)
            for problem in checked["problems"]:
                problem["file"] = "<request>"
            assert (told["ok"], told["problems"]) == (checked["ok"], checked["problems"])
            assert (sorted(each["path"] for each in told["problems"]), told["needs_restart"]) == (paths, waiting)
            code, _, err = await cli(proxy, "reload", "--admin", f"unix:{socket}")
            assert code == (4 if is_refused else 0), err


def _checked(socket: str, text: str) -> dict[str, Any]:
    document: dict[str, Any] = reach.Admin(path=socket).ask("POST", "/v1/check", text.encode())
    return document


async def test_a_plan_predicts_what_then_happens(tmp_path: Path, backends: Backends) -> None:
    users = [f"user-{number}" for number in range(2000)]
    with proxied(tmp_path, backends) as proxy:
        before = await homes(proxy, users)
        other = tmp_path / "other.yaml"
        config = json.loads(json.dumps(proxy.config))
        config["pools"]["api"]["backends"] = backend_list(backends.ports)
        config["pools"]["api"]["backends"][0]["weight"] = 0.5
        config["workers"] = 3
        other.write_text(yaml.safe_dump(config))
        code, out, _ = await cli(proxy, "diff", str(other), "--json")
        assert code == 0
        planned = json.loads(out)
        (api,) = planned["pools"]
        assert planned["needs_restart"] == ["workers"]
        assert (api["needless_share"], api["keys"]["sampled"]) == (0.0, len(users))
        assert {each["name"]: each["change"] for each in api["backends"]} == {
            "b1": "changed", "b2": "", "b3": "", "b4": "added",
        }  # fmt: skip
        assert (await ask(proxy, "/v1/info"))["generation"] == 1
        proxy.config["pools"] = config["pools"]
        proxy.write_config()
        assert (await cli(proxy, "reload"))[0] == 0
        after = await homes(proxy, users)
        moved = [user for user in users if before[user] != after[user]]
        # Of these very users the plan knew; of the whole hash space they are a sample.
        assert len(moved) == api["keys"]["moved"]
        assert api["moved_share"] == pytest.approx(len(moved) / len(users), abs=0.03)
        assert {(before[user], after[user]) for user in moved} <= {(each["from"], each["to"]) for each in api["flows"]}
        assert await asyncio.to_thread(proxy.metric, "ring_last_change_moved_ratio") == pytest.approx(
            api["moved_share"]
        )
        code, out, _ = await cli(proxy, "diff")
        assert (code, out) == (0, "nothing changes\n")
        asked = json.dumps({"pool": "api", "backends": {"b4": {"state": "drain"}}}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{proxy.admin_port}/v1/plan", asked, {"Content-Type": "application/json"}
        )
        drained = json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(request).read()))
        assert {each["from"] for each in drained["flows"]} == {"b4"}
        assert drained["keys"]["moved"] == sum(home == "b4" for home in after.values())


async def test_a_refused_reload_is_said_on_every_channel_and_changes_nothing(
    tmp_path: Path, backends: Backends
) -> None:
    with proxied(tmp_path, backends) as proxy:
        before = await homes(proxy)
        good = proxy.file.read_text()
        assert (await cli(proxy, "reload"))[1].startswith("unchanged: generation 1,")
        proxy.file.write_text(good.replace("backends:", "bakends:"))
        code, out, err = await cli(proxy, "reload")
        assert (code, out) == (4, "")
        assert "bakends: unknown field, did you mean backends?" in err
        assert err.endswith("lbproxy: the configuration is refused, the one before it stays in force\n")
        await in_thread(proxy, "configuration refused")
        assert await asyncio.to_thread(proxy.metric, "config_last_reload_success") == 0
        info = await ask(proxy, "/v1/info")
        assert (info["generation"], info["reload"]["result"]) == (1, "refused")
        assert "pools.api" in info["reload"]["problem"]
        assert "the last reload was refused" in (await cli(proxy, "status"))[1]
        assert "did you mean backends?" in (await cli(proxy, "check"))[2]
        for form in ([], ["--json"]):
            checked = await cli(proxy, "check", *form)
            assert checked[0] == 1
            for words in (("diff",), ("diff", str(proxy.file))):  # the instance reads it, and the command does
                assert await cli(proxy, *words, *form) == checked
        assert (await homes(proxy)) == before
        # One that can be read, and cannot be put in force, is not what is in force either.
        shown = (await ask(proxy, "/v1/config"))["config"]
        proxy.config["log"]["access"]["path"] = str(tmp_path / "nowhere" / "access.log")
        proxy.write_config()
        assert (await cli(proxy, "reload"))[0] == 4
        assert shown is not None
        assert (await ask(proxy, "/v1/config"))["config"] == shown
        proxy.file.write_text(good)
        assert (await cli(proxy, "reload"))[0] == 0


async def test_a_changed_file_is_taken_up_by_itself(tmp_path: Path, backends: Backends) -> None:
    proxy = proxied(tmp_path, backends)
    proxy.config["reload"] = {"watch": "50ms"}
    with proxy:
        proxy.config["pools"]["api"]["backends"] = backend_list(backends.ports)
        changed = tmp_path / "changed.yaml"
        changed.write_text(yaml.safe_dump(proxy.config))
        changed.rename(proxy.file)
        await in_thread(proxy, "configuration applied")
        assert (await backend(proxy, "b4"))["state"] == "up"
        changed.write_text("nonsense\n")
        changed.rename(proxy.file)
        await in_thread(proxy, "configuration refused")
        changed.write_text(yaml.safe_dump(proxy.config))
        changed.rename(proxy.file)
        await in_thread(proxy, "configuration unchanged")
        assert (await ask(proxy, "/v1/info"))["generation"] == 2
        # Nothing has changed since, so nothing is read again.
        count = await asyncio.to_thread(proxy.metric, "config_reloads_total")
        await asyncio.sleep(0.3)
        assert await asyncio.to_thread(proxy.metric, "config_reloads_total") == count == 3


async def test_the_process_can_be_drained_over_its_socket(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends) as proxy:
        assert (await cli(proxy, "healthcheck")) == (0, "2 of 2 workers ready\n", "")
        code, out, _ = await cli(proxy, "healthcheck", "--json")
        assert (code, json.loads(out)) == (0, {"ready": True, "detail": "2 of 2 workers ready"})
        command = [
            "curl",
            "-sS",
            "--unix-socket",
            str(tmp_path / "admin.sock"),
            "-X",
            "POST",
            "http://lbproxy/v1/drain",
        ]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert json.loads(done.stdout) == {"draining": True}
        assert await asyncio.to_thread(proxy.wait) == 0
        code, _, err = await cli(proxy, "healthcheck")
        assert (code, err.startswith("lbproxy: cannot reach the instance at ")) == (3, True)


async def test_wrong_words_are_told_apart(tmp_path: Path, backends: Backends) -> None:
    with proxied(tmp_path, backends) as proxy:
        for words, code, part in (
            (("drain", "b"), 1, "there is no backend b, did you mean b"),
            (("drain", "b1", "--pool", "web"), 1, "there is no pool web, there is api"),
            (("weight", "b1", "much"), 2, "is not a number, or `file`"),
            (("weight", "b1", "-1"), 2, ""),
            (("weight", "b1", "2", "--for", "10"), 2, "has no unit"),
            (("drain", "b1", "--wait", "10"), 2, "has no unit"),
            (("weight", "b1", "2e9"), 1, "weight must be a number from 0"),
            (("status", "--pool", "web"), 1, "lbproxy status: there is no pool web, there is api"),
            (("status", "--pool", "apo"), 1, "lbproxy status: there is no pool apo, did you mean api?"),
            (("status", "--admin", "nonsense:port"), 2, "is no admin address"),
            (("status", "--admin", "127.0.0.1:1"), 3, "cannot reach the instance at 127.0.0.1:1"),
            (("reload", "--admin", f"127.0.0.1:{proxy.admin_port}"), 1, "admin.token_file"),
            (("drain", "b1", "--admin", f"127.0.0.1:{proxy.admin_port}"), 1, "a Unix socket, admin.socket, takes"),
        ):
            found, _, err = await cli(proxy, *words)
            assert (found, part in err) == (code, True), (words, err)
        assert (await ask(proxy, "/v1/info"))["generation"] == 1
        assert (await backend(proxy, "b1"))["overrides"] == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whom a command asks, of whom nobody answers."""
    found: list[str] = []

    def ask(admin: reach.Admin, *_: object) -> None:
        found.append(str(admin))
        raise exits.Stop(exits.UNREACHABLE, "nobody is there")

    monkeypatch.setattr(reach.Admin, "ask", ask)
    return found


@pytest.mark.parametrize("text", ["pools:\n\t- x\nadmin: {listen: 127.0.0.1:1}\n", "- a\n- list\n", "words", "\0"])
def test_a_file_that_does_not_say_where_the_instance_is_sends_nobody_to_another(
    tmp_path: Path, text: str, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What is unreadable may name any address; at the one that is the default there may be somebody else's."""
    broken = tmp_path / "broken.yaml"
    broken.write_text(text)
    for words in (["status"], ["drain", "b1"], ["weight", "b1", "2"], ["reload"]):
        assert main([*words, "-c", str(broken)]) == 1
        assert capsys.readouterr().err.endswith("name the instance with --admin\n")
    assert asked == []
    assert main(["healthcheck", "-c", str(broken)]) == 3  # which does not become unhealthy by an edit
    assert main(["status", "-c", str(broken), "--admin", "127.0.0.1:2"]) == 3
    assert asked == ["127.0.0.1:9901", "127.0.0.1:2"]


@pytest.mark.parametrize(
    "text", ["admin: {listen: 127.0.0.1:1}\npools:\n\t- x\n", "admin: {listen: 127.0.0.1:1}\nfoo: 1"]
)
def test_of_a_broken_file_the_admin_section_is_enough(tmp_path: Path, text: str, asked: list[str]) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(text)
    assert main(["status", "-c", str(broken)]) == 3
    assert asked == ["127.0.0.1:1"]


def test_a_file_without_an_admin_section_means_the_default(tmp_path: Path, asked: list[str]) -> None:
    for text in ("", "pools: {}\n"):
        (tmp_path / "plain.yaml").write_text(text)
        assert main(["status", "-c", str(tmp_path / "plain.yaml")]) == 3
    assert asked == ["127.0.0.1:9901"] * 2


async def test_why_there_are_no_rights_is_told(tmp_path: Path, backends: Backends) -> None:
    """Without the token or the socket another way in is tried; where that is shut, they are named."""
    token = tmp_path / "token"
    token.write_text("correct horse\n")
    with Proxy(tmp_path, backends.ports, admin={"listen": "127.0.0.1:0", "token_file": str(token)}) as proxy:
        file, missing = tmp_path / "for-the-client.yaml", tmp_path / "missing"
        for section, why in (
            ({"token_file": str(missing)}, f"the token file {missing} cannot be read: No such file or directory"),
            ({"socket": str(missing)}, f"the socket {missing} is not there"),
        ):
            admin = {"listen": f"127.0.0.1:{proxy.admin_port}"} | section
            file.write_text(yaml.safe_dump(proxy.config | {"admin": admin}))
            code, _, err = await cli(proxy, "drain", "b1", "-c", str(file))
            assert (code, err) == (1, f"lbproxy: the token is missing or wrong, see admin.token_file; {why}\n")
            assert (await cli(proxy, "status", "-c", str(file)))[0] == 0


async def test_over_tcp_with_a_token(tmp_path: Path, backends: Backends) -> None:
    token = tmp_path / "token"
    token.write_text("correct horse\n")
    admin = {"listen": "127.0.0.1:0", "token_file": str(token)}
    with Proxy(tmp_path, backends.ports, admin=admin) as proxy:
        address = f"http://127.0.0.1:{proxy.admin_port}"
        code, _, err = await cli(proxy, "drain", "b1", "--admin", address)
        why = "the token is missing or wrong, see admin.token_file; name the file it is in with --token-file"
        assert (code, err) == (1, f"lbproxy: {why}\n")
        other = tmp_path / "other"
        other.write_text("wrong horse\n")
        code, _, err = await cli(proxy, "drain", "b1", "--admin", address, "--token-file", str(other))
        assert (code, err) == (1, "lbproxy: the token is missing or wrong, see admin.token_file\n")
        assert (await cli(proxy, "drain", "b1", "--admin", address, "--token-file", str(token)))[0] == 0
        assert (await backend(proxy, "b1"))["override"]["by"] == "token from 127.0.0.1"
        assert (await ask(proxy, "/v1/info"))["writes"] == "token"


def test_files_alone_can_be_compared(tmp_path: Path) -> None:
    one = tmp_path / "one.yaml"
    one.write_text(yaml.safe_dump({"listen": "127.0.0.1:2", "admin": {"listen": "127.0.0.1:1"}, "pools": {"api": {
        "backends": backend_list({"b1": 1, "b2": 2})}}}))  # fmt: skip
    other = tmp_path / "other.yaml"
    other.write_text(one.read_text().replace("name: b2", "name: b3"))
    began = time.monotonic()
    command = [sys.executable, "-m", "lbproxy", "diff", "-c", str(one), str(other)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.startswith("lbproxy: cannot reach the instance at 127.0.0.1:1")
    assert "b2      -> b3 " in done.stdout
    quiet = subprocess.run([*command, "--offline"], capture_output=True, text=True)
    assert (quiet.returncode, quiet.stderr, quiet.stdout) == (0, "", done.stdout)
    assert time.monotonic() - began < 20

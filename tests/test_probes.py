"""Active checks against real sockets: what each kind of backend comes to, and that nothing it does gets out."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lbproxy.control.probes import BODY_BYTES, RESULTS, Prober, Target, check
from lbproxy.core.spec import Address, BackendSpec, Config, Health, PoolSpec

HTTP = Health(kind="http", timeout=2.0)


class Backend:
    """Answers each request head with what `answer` gives, and keeps the heads and the number of connections."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.connections = 0
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                if self.answer is None:
                    await reader.read()
                    return
                writer.write(self.answer)
                await writer.drain()
                if b"Content-Length" not in self.answer:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self, path: str = "") -> AsyncIterator[Target]:
        if path:
            server = await asyncio.start_unix_server(self.handle, path)
            address = Address("", 0, path)
        else:
            server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            address = Address("127.0.0.1", self.port)
        try:
            yield Target("api", "b1", address, HTTP)
        finally:
            server.close()


def answer(status: str = "200 OK", body: bytes = b"fine", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status.encode(), len(body), headers, body)


@pytest.mark.parametrize(
    ("sent", "health", "result"),
    [
        (answer(), HTTP, "ok"),
        (answer("204 No Content", b""), HTTP, "ok"),
        (answer("302 Found", b"", b"Location: /elsewhere\r\n"), HTTP, "ok"),
        (answer("404 Not Found"), HTTP, "status"),
        (answer("503 Service Unavailable"), HTTP, "status"),
        (answer("503 Service Unavailable"), replace(HTTP, expect_status=((200, 299), (503, 503))), "ok"),
        (answer(body=b"all is well"), replace(HTTP, expect_body="is w"), "ok"),
        (answer(body=b"all is lost"), replace(HTTP, expect_body="well"), "body"),
        (answer(body=b"x" * BODY_BYTES + b"well"), replace(HTTP, expect_body="well"), "body"),
        (answer(headers=b"Content-Encoding: gzip\r\n"), replace(HTTP, expect_body="fine"), "ok"),
        (b"HTTP/1.1 200 OK\r\n\r\nno length, but well", replace(HTTP, expect_body="well"), "ok"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", HTTP, "protocol"),
        (b"HTTP/1.1 200 OK\r\nbroken\x00: \r\n\r\n", HTTP, "protocol"),
        (b"", HTTP, "protocol"),
        (None, replace(HTTP, timeout=0.2), "timeout"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nwell",
            replace(HTTP, expect_body="end", timeout=0.2),
            "timeout",
        ),
        (None, replace(HTTP, kind="tcp"), "ok"),
    ],
)
async def test_what_a_check_comes_to(sent: bytes | None, health: Health, result: str) -> None:
    async with Backend(sent).running() as target:
        assert (await check(replace(target, health=health))).result == result
    assert result in RESULTS
    # A prober's checks share a session, and each comes to the same, on a connection of its own.
    backend, results = Backend(sent), Results()
    async with backend.running() as target:
        results.prober.follow(config(target, "b1", health=replace(health, interval=0.01)))
        await results.until("b1", 3)
        await results.prober.close()
    assert set(results.of["b1"]) == {result}
    assert 3 <= backend.connections <= results.count("b1") + 1


class Cutting:
    """Takes requests and cuts them off instead of answering: with a FIN or a RST, all of them or every other one."""

    def __init__(self, is_reset: bool, every: int) -> None:
        self.is_reset = is_reset
        self.every = every
        self.asked = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        if self.asked % self.every:
            writer.write(answer())
        elif self.is_reset:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_check_that_is_cut_off_is_not_sent_twice(tmp_path: Path, method: str, is_reset: bool) -> None:
    health = replace(HTTP, method=method)
    for path in ("", str(tmp_path / "socket")):
        cutting = Cutting(is_reset and not path, every=1)
        server = (
            await asyncio.start_unix_server(cutting.handle, path)
            if path
            else await asyncio.start_server(cutting.handle, "127.0.0.1", 0)
        )
        address = Address("", 0, path) if path else Address(*server.sockets[0].getsockname())
        assert (await check(Target("api", "b1", address, health))).result == "protocol"
        assert cutting.asked == 1
        server.close()


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_backend_that_cuts_every_other_check_off_does_not_look_well(is_reset: bool) -> None:
    cutting, results = Cutting(is_reset, every=2), Results()
    server = await asyncio.start_server(cutting.handle, "127.0.0.1", 0)
    target = Target("api", "b1", Address(*server.sockets[0].getsockname()), HTTP)
    results.prober.follow(config(target, "b1", health=replace(HTTP, interval=0.01)))
    await results.until("b1", 4)
    await results.prober.close()
    server.close()
    assert results.of["b1"][:4] == ["ok", "protocol", "ok", "protocol"]


async def test_nobody_there() -> None:
    async with Backend(answer()).running() as target:
        pass
    assert (await check(target)).result == "connect"
    assert (await check(replace(target, health=replace(HTTP, kind="tcp")))).result == "connect"
    assert (await check(replace(target, address=Address("", 0, "/nonexistent/socket")))).result == "connect"
    nowhere = Address("host.invalid", 80)
    assert (await check(replace(target, address=nowhere, health=replace(HTTP, timeout=10.0)))).result == "connect"


async def test_what_more_is_said_of_a_check() -> None:
    """What somebody needs who asks why a backend is down: the status of the answer, or the system's reason."""
    async with Backend(answer("404 Not Found")).running() as target:
        assert await check(target) == ("status", "404")
    assert await check(target) == ("connect", "Connection refused")
    assert await check(replace(target, health=replace(HTTP, kind="tcp"))) == ("connect", "Connection refused")
    nobody = replace(target, address=Address("", 0, "/nonexistent/socket"))
    assert await check(nobody) == ("connect", "No such file or directory")
    for kind in ("http", "tcp"):
        nowhere = replace(target, address=Address("host.invalid", 80), health=replace(HTTP, kind=kind, timeout=10.0))
        result, why = await check(nowhere)
        assert (result, why[:29]) == ("connect", "the name is not known here (N")


async def test_what_is_asked() -> None:
    backend = Backend(answer(body=b""))
    health = replace(HTTP, path="/a%2Fb?deep=1", method="HEAD", headers=(("Host", "api.example"), ("X-Probe", "yes")))
    async with backend.running() as target:
        for _ in range(3):
            assert (await check(replace(target, health=health))).result == "ok"
        other = Target("api", "b1", Address("127.0.0.1", 1), replace(health, port=backend.port))
        assert (await check(other)).result == "ok"
    assert backend.connections == 4
    head = backend.heads[0].decode()
    assert head.startswith("HEAD /a%2Fb?deep=1 HTTP/1.1\r\n")
    assert "\r\nHost: api.example\r\n" in head
    assert "\r\nX-Probe: yes\r\n" in head
    assert "(health check)" in head


async def test_over_a_unix_socket(tmp_path: Path) -> None:
    async with Backend(answer()).running(str(tmp_path / "b1.sock")) as target:
        assert (await check(target)).result == "ok"
        assert (await check(replace(target, health=replace(HTTP, kind="tcp")))).result == "ok"


def config(target: Target, *names: str, health: Health = HTTP) -> Config:
    backends = tuple(BackendSpec(name, target.address) for name in names)
    return Config((), (PoolSpec("api", backends, health=health),), ())


class Results:
    """What a prober observed, by backend."""

    def __init__(self) -> None:
        self.of: dict[str, list[str]] = {}
        self.flipping: set[str] = set()
        self.prober = Prober(
            lambda pool, backend, result, why: self.of.setdefault(backend, []).append(result),
            lambda pool, backend: backend in self.flipping,
            random.Random(1),
        )

    def count(self, name: str) -> int:
        return len(self.of.get(name, []))

    async def until(self, name: str, count: int) -> None:
        async with asyncio.timeout(10):
            while self.count(name) < count:  # noqa: ASYNC110  # what is waited for has no event
                await asyncio.sleep(0.005)


async def test_checks_go_on_at_their_interval_and_faster_while_flipping() -> None:
    results = Results()
    health = replace(HTTP, interval=3600.0, fast_interval=0.02)
    async with Backend(answer()).running() as target:
        results.flipping.add("b2")
        results.prober.follow(config(target, "b1", "b2", health=health))
        await results.until("b2", 10)
        assert results.of["b1"] == ["ok"]
        await results.prober.close()
    assert set(results.of["b2"]) == {"ok"}


async def test_following_a_new_configuration_leaves_what_did_not_change_alone() -> None:
    results = Results()
    health = replace(HTTP, interval=3600.0)
    async with Backend(answer()).running() as target:
        results.prober.follow(config(target, "b1", "b2", health=health))
        await results.until("b1", 1)
        await results.until("b2", 1)
        results.prober.follow(config(target, "b2", "b3", health=health))
        await results.until("b3", 1)
        assert (results.count("b1"), results.count("b2")) == (1, 1)
        results.prober.follow(config(target, "b2", "b3", health=replace(health, path="/other")))
        await results.until("b2", 2)
        await results.until("b3", 2)
        results.prober.follow(config(target, "b2", health=replace(health, kind="none")))
        await results.prober.close()
        assert results.count("b1") == 1


async def test_what_goes_wrong_with_a_result_does_not_end_the_checks() -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context.get("exception")))

    def fail(pool: str, backend: str, result: str, why: str) -> None:
        raise ZeroDivisionError

    prober = Prober(fail, lambda pool, backend: False)
    async with Backend(answer()).running() as target:
        prober.follow(config(target, "b1", health=replace(HTTP, interval=0.01)))
        async with asyncio.timeout(5):
            while len(errors) < 3:  # noqa: ASYNC110  # an error that nobody caught has no event
                await asyncio.sleep(0.001)
        await prober.close()
    assert {type(each) for each in errors} == {ZeroDivisionError}

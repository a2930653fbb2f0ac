"""With few open files some clients are refused, and whoever is accepted is served: a descriptor stands by for each."""

from __future__ import annotations

import asyncio
import resource
import signal
from pathlib import Path

from tests.running import PATIENCE_S, Backends, Proxy, in_thread, ports

CLIENTS = 100


async def _ask(port: int, everybody: asyncio.Barrier) -> bytes:
    """The head of the answer to one request, b"" when the connection was closed without a word. It is kept open until
    everybody has got the one or the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX-User-ID: kim\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    except (asyncio.IncompleteReadError, ConnectionError):
        head = b""
    try:
        await asyncio.wait_for(everybody.wait(), PATIENCE_S)
    finally:
        writer.close()
    return head


async def test_whoever_is_accepted_is_served_however_few_files_may_be_open(tmp_path: Path) -> None:
    async with Backends("b1") as backends:
        proxy = Proxy(tmp_path, backends.ports, workers=2)
        try:
            proxy.start()
            assert proxy.process is not None
            resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, (80, 80))
            port, _ = ports(await in_thread(proxy, "serving"))
            everybody = asyncio.Barrier(CLIENTS)
            answers = await asyncio.gather(*(_ask(port, everybody) for _ in range(CLIENTS)))
        finally:
            await asyncio.to_thread(proxy.end)
    assert {answer.split(b" ")[1] for answer in answers if answer} == {b"200"}
    assert 10 <= sum(map(bool, answers)) <= 48
    [told] = proxy.named("open files are limited")  # and not once for each worker
    assert (told["allowed"], told["clients"], told["wanted"]) == (80, 24, 24_128)
    assert "LimitNOFILE=24128" in told["how"]


async def test_the_supervisor_takes_as_many_files_as_it_may_have(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    proxy = Proxy(tmp_path, {"b1": 1}, workers=1, listen=[f"unix:{tmp_path}/{number}" for number in range(70)])
    try:
        proxy.start()
        assert proxy.process is not None
        resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, (64, hard))
        await in_thread(proxy, "serving")
    finally:
        await asyncio.to_thread(proxy.end)


async def test_a_reload_that_allows_more_clients_than_files_is_told_of_once(tmp_path: Path) -> None:
    async with Backends("b1") as backends:
        listen = {"bind": "127.0.0.1:0", "limits": {"connections": 10}}
        proxy = Proxy(tmp_path, backends.ports, workers=2, listen=listen)
        try:
            proxy.start()
            assert proxy.process is not None
            resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, (80, 80))
            await in_thread(proxy, "serving")
            assert not proxy.named("open files are limited")
            listen["limits"] = {"connections": 1000}
            for reloads, timeout in enumerate(("6s", "7s"), start=1):  # the second changes nothing of it
                proxy.config["drain"] = {"timeout": timeout}
                proxy.write_config()
                proxy.signal(signal.SIGHUP)
                await in_thread(proxy, "configuration applied", reloads)
        finally:
            await asyncio.to_thread(proxy.end)
    assert [event["clients"] for event in proxy.named("open files are limited")] == [24]

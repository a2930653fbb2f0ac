"""What connections leave behind: nothing that only the garbage collector could free."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest
import uvloop

from tests.dataplane.harness import answer, backend, pool_of, read_head, request, running

_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nT: v\r\n\r\n"
_UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nx"

_WAYS = {
    "plain": (request(), answer()),
    "kept": (request(close=False) + request(), answer()),
    "chunked": (request("POST", extra=b"Transfer-Encoding: chunked\r\n") + b"1\r\nx\r\n0\r\nT: v\r\n\r\n", _CHUNKED),
    "length": (request("POST", body=b"x"), answer(b"x" * 70_000)),
    "upgraded": (request(extra=b"Connection: Upgrade\r\nUpgrade: x\r\n", close=False), _UPGRADED),
    "refused": (b"GET / HTTP/1.1\r\n\r\n", b""),
    "nonsense from the backend": (request(), b"nonsense\r\n\r\n"),
    "cut": (request(), answer(b"hello")[:-2]),
}


@pytest.mark.parametrize("way", _WAYS)
def test_a_connection_is_free_when_it_has_ended(way: str) -> None:
    octets, said = _WAYS[way]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await read_head(reader):
                if b"chunked" in head:
                    await reader.readuntil(b"\r\n0\r\n")
                    await reader.readuntil(b"\r\n\r\n")
                elif b"POST" in head:
                    await reader.readexactly(1)
                writer.write(said)
                if not said.endswith((b"\r\n\r\n", b"x")) or said == _UPGRADED:
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    async def main() -> Counter[str]:
        async with backend(talk) as served, running(pool_of(served.port)) as plane:
            await plane.ask(octets)
            gc.collect()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                for _ in range(10):
                    await plane.ask(octets)
                await plane.settled(lambda: not plane.plane.open_connections())
                await asyncio.sleep(0)
                gc.collect()
            finally:
                gc.set_debug(0)
            return Counter(type(each).__module__ for each in gc.garbage)

    gc.disable()
    try:
        found = uvloop.run(main())
    finally:
        gc.enable()
        gc.garbage.clear()
    assert not [module for module in found if module.startswith(("lbproxy", "httptools"))], found

"""What an attacker would try, at random and on purpose: cuts in every phase, segments of every size, odd words.

Everything here is about what must never happen, whoever talks: a seat that nobody gives back, an answer that reaches
the wrong client, a message that means something else because TCP cut it elsewhere, an exception in the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import random
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httptools
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lbproxy.control.admin.guard import Guard
from lbproxy.control.admin.view import Rejected
from lbproxy.control.probes import UNABLE, Target, check
from lbproxy.core import ledger
from lbproxy.core.headers import BadMessage
from lbproxy.core.spec import Address, Health, Limits, ListenerTimeouts, PoolTimeouts, Queue, Retry
from lbproxy.dataplane.chunked import ChunkedDecoder
from lbproxy.dataplane.wire import RequestParser, ResponseParser
from tests.dataplane.harness import Plane, answer, answering, backend, pool_of, read_head, request, running
from tests.loops import on_uvloop

_RESET = struct.pack("ii", 1, 0)


@contextmanager
def no_exceptions() -> Iterator[None]:
    """Fail when anything has been raised where nobody could catch it."""
    seen: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: seen.append(context))
    try:
        yield
    finally:
        loop.set_exception_handler(None)
    assert not seen


def is_quiet(plane: Plane, *names: str) -> bool:
    """Whether nothing is held any more: no seat, no client, no connection to a backend but idle ones."""
    return not (
        any(plane.backend_cell(name, ledger.BACKEND_IN_FLIGHT) for name in names)
        or any(plane.backend_cell(name, ledger.BACKEND_ACTIVE) for name in names)
        or plane.pool_cell(ledger.POOL_UPGRADED_OPEN)
        or plane.cell("listener", "l", column=ledger.LISTENER_OPEN)
    )


# One connection, many requests.


@pytest.mark.parametrize("size", [200_000, 2_000_000])
@on_uvloop
async def test_a_pipelined_upload_is_read_to_its_end(size: int) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            if length:
                await reader.readexactly(int(length[1]))
            else:
                await asyncio.sleep(0.1)
            writer.write(answer())

    timeouts = ListenerTimeouts(body_idle=1.0)
    async with backend(talk) as served, running(pool_of(served.port), timeouts=timeouts) as plane:
        upload = request("POST", "/second", body=b"x" * size)
        answers = await plane.ask(request("GET", "/first", close=False) + upload)
        assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200"]


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A chunked body, without its framing and trailers."""
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return body


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: random.Random) -> None:
    """Answer with the request line and a digest of the body, framed and cut in many ways."""
    while True:
        head = await read_head(reader)
        body = b""
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if length:
            body = await reader.readexactly(int(length[1]))
        elif b"chunked" in head:
            body = await _read_chunks(reader)
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 0.005)
        said = head.partition(b"\r\n")[0] + b" " + hashlib.sha256(body).hexdigest().encode()
        said += b" " * chance.choice([0, 0, 0, 40_000, 400_000])
        if chance.random() < 0.4:
            cut = chance.randrange(1, len(said))
            parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in (said[:cut], said[cut:])]
            octets = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(parts) + b"0\r\n\r\n"
        else:
            octets = answer(said)
        cut = chance.randrange(1, len(octets)) if chance.random() < 0.3 else 0
        writer.write(octets[:cut])
        if cut:
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.write(octets[cut:])
        await writer.drain()


def _random_request(chance: random.Random, path: bytes) -> tuple[bytes, bytes]:
    """A request with a body of some kind, and the beginning of the answer to it."""
    body = chance.randbytes(chance.choice([0, 1, 10, 3_000, 60_000]))
    if chance.random() < 0.5:
        method, body, rest = b"GET", b"", b"\r\n"
    elif chance.random() < 0.6:
        method, rest = b"PUT", b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    else:
        method, rest = b"POST", b"Transfer-Encoding: chunked\r\n\r\n"
        at = 0
        while at < len(body):
            part = body[at : at + chance.randrange(1, 9_000)]
            rest += b"%x%b\r\n%b\r\n" % (len(part), chance.choice([b"", b";a=b"]), part)
            at += len(part)
        rest += b"0\r\n" + chance.choice([b"", b"X-T: v\r\n"]) + b"\r\n"
    said = b"%b %b HTTP/1.1 %b" % (method, path, hashlib.sha256(body).hexdigest().encode())
    return b"%b %b HTTP/1.1\r\nHost: a\r\n%b" % (method, path, rest), said


async def _read_body(reader: asyncio.StreamReader) -> bytes:
    head = await read_head(reader)
    length = re.search(rb"Content-Length: (\d+)", head)
    if length:
        return await reader.readexactly(int(length[1]))
    return await _read_chunks(reader)


@pytest.mark.parametrize("seed", range(2))
@on_uvloop
async def test_pipelined_requests_of_every_kind_stay_whole_and_in_order(seed: int) -> None:
    chance = random.Random(seed)

    async def client(plane: Plane, number: int) -> None:
        pairs = [_random_request(chance, b"/%d/%d" % (number, turn)) for turn in range(chance.randrange(1, 25))]
        octets = b"".join([sent for sent, _ in pairs])
        reader, writer = await plane.connect()
        step = (
            chance.choice([7, 1_000, 30_000, len(octets)]) if len(octets) < 50_000 else chance.choice([9_000, 300_000])
        )

        async def send() -> None:
            for at in range(0, len(octets), step):
                writer.write(octets[at : at + step])
                await writer.drain()
                await asyncio.sleep(chance.choice([0, 0, 0.001]))

        sending = asyncio.create_task(send())
        for _, said in pairs:
            assert (await _read_body(reader)).startswith(said)
        await sending
        writer.close()

    timeouts = ListenerTimeouts(body_idle=2.0)
    async with backend(lambda reader, writer: _echo(reader, writer, chance)) as served:
        spec = replace(pool_of(served.port), queue=Queue(size=1000, timeout=20.0))
        spec = replace(spec, backends=(replace(spec.backends[0], max_in_flight=6),))
        async with running(spec, timeouts=timeouts) as plane:
            with no_exceptions():
                async with asyncio.timeout(25):
                    await asyncio.gather(*(client(plane, number) for number in range(25)))
                await plane.settled(lambda: is_quiet(plane, "b0"))


# Cuts in every phase, on both sides.


def _leave(writer: asyncio.StreamWriter, is_reset: bool) -> None:
    """Close, with a reset or as one should, what the other side may have closed already."""
    with suppress(OSError, RuntimeError, ValueError):
        sock = writer.get_extra_info("socket")
        if is_reset and sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        writer.close()


async def _unreliable(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: random.Random) -> None:
    """A backend that may end, break or talk nonsense wherever it is."""

    def leave() -> None:
        _leave(writer, chance.random() < 0.5)

    while True:
        head = await read_head(reader)
        name = re.search(rb"X-Name: (\S+)", head)
        assert name is not None
        if chance.random() < 0.04:
            return leave()
        is_early = chance.random() < 0.06
        if is_early:
            writer.write(answer(name[1], chance.choice(["200 OK", "413 Content Too Large"])))
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if length:
            await reader.readexactly(int(length[1]))
        elif b"chunked" in head:
            await _read_chunks(reader)
        if is_early:
            continue
        if b"Upgrade: x" in head and chance.random() < 0.8:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
            for _ in range(chance.randrange(4)):
                writer.write(await reader.read(100))
            return leave()
        await asyncio.sleep(chance.choice([0, 0, 0.003]))
        body = name[1] * chance.choice([1, 20, 5_000])
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(body), body)
        octets = chance.choice(
            [
                *[answer(body)] * 6,
                answer(body, "503 Service Unavailable"),
                b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer(body),
                chunked + b"0\r\n\r\n",
                chunked + b"0\r\nT: v\r\n\r\n",
                chunked,
                chunked + b"nonsense\r\n",
                b"HTTP/1.1 200 OK\r\n\r\n" + body,
                b"nonsense\r\n\r\n",
                b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n" + body,
            ]
        )
        if chance.random() < 0.1:
            writer.write(octets[: chance.randrange(len(octets))])
            return leave()
        writer.write(octets)
        await writer.drain()
        is_complete = octets.endswith((body, b"0\r\n\r\n", b"T: v\r\n\r\n")) and b"5000000" not in octets
        if not is_complete or octets.startswith(b"HTTP/1.1 200 OK\r\n\r\n") or chance.random() < 0.05:
            return leave()


async def _rude(plane: Plane, chance: random.Random, number: int) -> None:
    """A client that may end wherever it is; it checks that what it gets is its own."""
    reader, writer = await plane.connect()
    try:
        for turn in range(chance.randrange(1, 5)):
            name = b"%d.%d." % (number, turn)
            minor = chance.choice([1, 1, 1, 1, 0])
            method = chance.choice([b"GET", b"GET", b"PUT", b"POST"])
            rest = b"\r\n"
            if method != b"GET":
                body = b"b" * chance.choice([1, 300, 90_000])
                rest = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                if chance.random() < 0.4 and minor:
                    rest = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            elif chance.random() < 0.2:
                rest = b"Connection: Upgrade\r\nUpgrade: x\r\n\r\n"
            lines = b"X-User-ID: %d\r\nX-Name: %b\r\n" % (chance.randrange(12), name)
            octets = b"%b / HTTP/1.%d\r\nHost: a\r\n%b%b" % (method, minor, lines, rest)
            fate = chance.random()
            if fate < 0.1:
                octets = octets[: chance.randrange(1, len(octets))]
            elif fate < 0.15:
                octets += b"nonsense\r\n\r\n"
            cut = chance.randrange(len(octets)) if chance.random() < 0.4 else 0
            writer.write(octets[:cut])
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.01]))
            writer.write(octets[cut:])
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.01]))
            if fate < 0.25:
                if chance.random() < 0.3:
                    writer.write_eof()
                    await reader.read()
                _leave(writer, chance.random() < 0.5)
                return
            got = await _read_body_of_any(reader)
            assert got is None or not got.strip(name) or got in (b"ping", b"") or got.startswith((b"4", b"5")), (
                name,
                got,
            )
            if got is None:
                return
    except (OSError, RuntimeError, asyncio.IncompleteReadError):
        pass  # closed by the other side, at whatever moment
    finally:
        _leave(writer, False)


async def _read_body_of_any(reader: asyncio.StreamReader) -> bytes | None:
    """The body of the next answer, whatever frames it; None when nothing can come after it."""
    head = await read_head(reader)
    while re.match(rb"HTTP/1.1 1(?!01)", head):
        head = await read_head(reader)
    length = re.search(rb"Content-Length: (\d+)", head)
    if head.startswith(b"HTTP/1.1 101") or (not length and b"chunked" not in head):
        await reader.read()
        return None
    body = await (reader.readexactly(int(length[1])) if length else _read_chunks(reader))
    if b"Connection: close" in head:
        return None
    return body


@pytest.mark.parametrize("seed", range(4))
@on_uvloop
async def test_whoever_leaves_when_nothing_stays_held_and_everything_is_counted_once(seed: int) -> None:
    chance = random.Random(seed)

    def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
        return _unreliable(reader, writer, chance)

    timeouts = ListenerTimeouts(request_head=1.0, body_idle=1.0, keep_alive=1.0)
    async with backend(talk) as one, backend(talk) as two:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            dead = taken.getsockname()[1]
        spec = pool_of(one.port, two.port, dead)
        spec = replace(
            spec,
            backends=tuple([replace(each, max_in_flight=3) for each in spec.backends]),
            queue=Queue(size=10, timeout=0.3),
            retry=Retry(statuses=(503,), per_try=0.2),
            timeout=PoolTimeouts(first_byte=0.7, idle=0.7, tunnel=0.7),
        )
        limits = Limits(body_bytes=80_000)
        async with running(spec, timeouts=timeouts, limits=limits) as plane:
            some = asyncio.Semaphore(40)

            async def come(number: int) -> None:
                async with some:
                    await _rude(plane, chance, number)

            with no_exceptions():
                async with asyncio.timeout(25):
                    await asyncio.gather(*map(come, range(240)))
                await plane.settled(lambda: is_quiet(plane, "b0", "b1", "b2"))
            codes = range(len(ledger.CODE_CLASSES))
            answered = sum(plane.pool_cell(ledger.POOL_REQUESTS + code) for code in codes)
            assert answered == sum(1 for line in plane.lines if line.pool and line.status)
            aborts = sum(1 for line in plane.lines if line.pool and line.reason == "client_abort" and not line.upgraded)
            assert plane.pool_cell(ledger.POOL_ABORTS) == aborts


# Segments, and parsers that all connections share.

_REQUEST_LINES = (b"GET / HTTP/1.1", b"POST / HTTP/1.1", b"HEAD /a b HTTP/1.1", b"PRI * HTTP/1.1", b"GET / HTTP/1.2",
                  b"GET / HTTP/2.0", b"FOO http://h/x HTTP/1.1", b"G / HTTP/1.0", b"CONNECT h:1 HTTP/1.1")  # fmt: skip
_FIELDS = (b"Content-Length: 5", b"Content-Length: +5", b"Transfer-Encoding: chunked", b"Transfer-Encoding:\tchunked\t",
           b"Connection: close", b"Connection: Upgrade", b"Upgrade: h2c", b"Expect: 100-continue", b"A : b", b"A:", b"",
           b"Proxy-Connection: close", b"Proxy-Connection: keep-alive", b"Keep-Alive: 5", b"TE: trailers", b" folded",
           b"X: \x80", b"X: \x00", b"Host: b", b"Trailer: x", b"Connection: close, keep-alive")  # fmt: skip
_STATUS_LINES = (b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 No", b"HTTP/1.1 304 Not",
                 b"HTTP/1.1 101 S", b"HTTP/1.1 100 C", b"HTTP/1.1 999 X", b"HTTP/2 200", b"ICY 200 OK")  # fmt: skip
_BODIES = (
    b"",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;x\r\nhello\r\n0\r\nT: v\r\n\r\n",
    b"0\r\nContent-Length: 5\r\n\r\n",
)


def _random_message(chance: random.Random, lines: tuple[bytes, ...]) -> bytes:
    fields = [chance.choice(_FIELDS) for _ in range(chance.randrange(5))]
    ends = [chance.choice([b"\r\n"] * 30 + [b"\n", b"\r"]) for _ in range(len(fields) + 2)]
    parts = [chance.choice(lines), b"Host: a", *fields]
    return b"".join(part + end for part, end in zip(parts, ends, strict=True)) + b"\r\n"


@pytest.mark.parametrize("seed", range(2))
def test_no_head_leaves_anything_in_the_parser_that_all_share(seed: int) -> None:
    chance = random.Random(seed)
    requests, responses = RequestParser(), ResponseParser()
    for _ in range(4_000):
        head = _random_message(chance, _REQUEST_LINES)
        try:
            requests.parse(head, 100)
            requests.is_clean = not re.search(rb"(?i)content-length|transfer-encoding|upgrade", head)
        except BadMessage:
            pass
        requests.parse(b"GET /next HTTP/1.1\r\nHost: next\r\n\r\n", 100)
        assert (requests.target, requests.values) == (b"/next", (b"next",)), head

        head = _random_message(chance, _STATUS_LINES) + b"Content-Length: 5\r\n\r\n"
        try:
            responses.parse(head)
            if (
                re.search(rb"HTTP/1.1 [29]", head)
                and b"204" not in head
                and not re.search(rb"(?i)transfer-e|\r\n\r\n.", head)
            ):
                responses.skip(b"hello")
        except (BadMessage, httptools.HttpParserError):
            continue
        responses.parse(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
        assert (responses.status, responses.values) == (200, (b"4",)), head


@pytest.mark.parametrize("is_request", [True, False])
def test_a_chunked_body_is_the_same_however_it_is_cut(is_request: bool) -> None:
    def take(pieces: list[bytes]) -> tuple[object, ...]:
        decoder = ChunkedDecoder(is_request)
        payload, seen = b"", 0
        for piece in pieces:
            try:
                body, used = decoder.feed(piece)
            except BadMessage:
                return ("refused",)
            payload += b"".join(body)
            if used >= 0:
                return payload, seen + used, tuple(decoder.trailers)
            seen += len(piece)
        return (payload,)

    chance = random.Random(5)
    for _ in range(3_000):
        octets = b"".join(
            chance.choice(
                [
                    b"5\r\nhello\r\n",
                    b"4\r\n\r\n\r\n\r\n",
                    b"1;a=b\r\nx\r\n",
                    b"00a\r\n0123456789\r\n",
                    b"2\r\nxx",
                    b"zz\r\n",
                ]
            )
            for _ in range(chance.randrange(4))
        )
        octets += chance.choice(
            [b"0\r\n\r\n", b"0\r\nT: v\r\n\r\n", b"0\r\nA: b\r\nContent-Length: 5\r\n\r\n", b"0\r\n x\r\n\r\n"]
        )
        octets += chance.choice([b"", b"GET /next HTTP/1.1\r\n"])
        cut = chance.randrange(1, len(octets))
        whole = take([octets])
        assert take([octets[:cut], octets[cut:]]) == whole, octets
        assert take([octets[at : at + 1] for at in range(len(octets))]) == whole, octets


async def _say(plane: Plane, pieces: list[bytes]) -> bytes:
    """Send these pieces, each in a segment of its own, then the end; what comes back."""
    reader, writer = await plane.connect()
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.01)
        writer.write_eof()
    except OSError:
        pass  # it has been refused already
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("seed", range(2))
@on_uvloop
async def test_a_request_means_the_same_however_tcp_cuts_it(seed: int) -> None:
    chance = random.Random(seed)
    async with backend(answering(answer())) as served, running(pool_of(served.port)) as plane:
        cases: list[tuple[bytes, int]] = []
        for _ in range(60):
            octets = _random_message(chance, _REQUEST_LINES) + chance.choice(_BODIES)
            octets += b"GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            cases.append((octets, chance.randrange(1, len(octets))))

        async def statuses(pieces: list[bytes]) -> list[bytes]:
            return re.findall(rb"HTTP/1.1 (\d)", await _say(plane, pieces))

        for at in range(0, len(cases), 5):  # few at a time, so that pieces do not meet while they wait to be read
            some = cases[at : at + 5]
            wholes = [statuses([octets]) for octets, _ in some]
            parts = [statuses([octets[:cut], octets[cut:]]) for octets, cut in some]
            said = await asyncio.gather(*wholes, *parts)
            for (octets, _), whole, parted in zip(some, said[:5], said[5:], strict=True):
                assert parted == whole, octets


# What is short here is nobody else's fault.


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL])
async def test_a_check_that_we_could_not_make_says_nothing_of_the_backend(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async def no_descriptor(*_: object) -> None:
        raise OSError(number, "out of it")

    monkeypatch.setattr(asyncio, "open_connection", no_descriptor)
    outcome = await check(Target("p", "b", Address("127.0.0.1", 9), Health(kind="tcp")))
    assert outcome.result == UNABLE


async def test_a_token_of_any_octets_is_only_wrong(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a token that nobody guesses")
    guard = Guard(token_file=str(file))

    async def handle(asked: web.Request) -> web.Response:
        with pytest.raises(Rejected) as rejected:
            guard.check_write(asked)
        return web.Response(status=rejected.value.status)

    app = web.Application()
    app.router.add_patch("/", handle)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"PATCH / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
        assert (await read_head(reader)).startswith(b"HTTP/1.1 401")
        writer.close()

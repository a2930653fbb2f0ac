"""Further attempts: what they are counted as, and that they take no more than they may."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest

from lbproxy.core import ledger
from lbproxy.core.account import CROWD, DRAINING, OUT, SERVING
from lbproxy.core.retry import REFUSALS
from lbproxy.core.spec import Queue, Retry, Route
from tests.dataplane.harness import (
    PATIENCE_S,
    Plane,
    answer,
    answering,
    backend,
    pool_of,
    read_head,
    reload,
    request,
    running,
    status,
    waiting_for,
)


def counted(proxy: Plane) -> int:
    """Further attempts, whatever made them necessary, but for those that only replace a kept connection."""
    return sum(
        proxy.retries(reason, outcome)
        for reason in ledger.RETRY_REASONS
        for outcome in ledger.RETRY_OUTCOMES
        if reason != "stale"
    )


async def answers_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A backend that keeps its connections until their second request, and closes them at that."""
    await read_head(reader)
    writer.write(answer())
    await read_head(reader)


async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A backend that takes connections and closes them."""


async def test_an_attempt_on_a_closed_connection_that_may_not_be_made_again_is_one() -> None:
    async with backend(answers_once) as b0, running(pool_of(b0.port)) as proxy:
        assert status(await proxy.ask(request())) == 200
        assert status(await proxy.ask(request("POST", body=b"pay"))) == 502
        line = proxy.lines[1]
        assert (line.attempts, line.backend, line.reason) == (1, "b0", "bad_gateway")
        assert line.attempt_us >= 0


async def test_a_retry_on_a_closed_connection_that_may_not_be_made_again_is_a_further_attempt() -> None:
    async with backend(answers_once) as b0, running(pool_of(b0.port, 1)) as proxy:
        assert status(await proxy.ask(request(key=proxy.key_of("b0")))) == 200
        assert status(await proxy.ask(request("POST", body=b"pay", key=proxy.key_of("b1")))) == 502
        assert [line.attempts for line in proxy.lines] == [1, 2]
        assert counted(proxy) == 1


async def test_a_new_connection_for_a_closed_one_takes_no_seat_that_somebody_waits_for() -> None:
    gate = asyncio.Event()
    held = most = connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal held, most, connections
        connections += 1
        if connections == 1:
            await answers_once(reader, writer)
            return
        while True:
            await read_head(reader)
            held += 1
            most = max(most, held)
            await gate.wait()
            held -= 1
            writer.write(answer())

    async with backend(talk) as b0:
        pool = pool_of(b0.port)
        one_seat = replace(pool.backends[0], max_in_flight=1)
        async with running(replace(pool, backends=(one_seat,), queue=Queue(timeout=PATIENCE_S))) as proxy:
            account = proxy.pool.account
            assert status(await proxy.ask(request())) == 200
            reader, writer = await proxy.connect()
            reader_behind, writer_behind = await proxy.connect()
            writer.write(request())
            writer_behind.write(request())
            await proxy.settled(lambda: proxy.retries("stale", "success") + held >= 1)
            assert (proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT), len(account.waiting)) == (1, 1)
            gate.set()
            assert status(await reader.read()) == status(await reader_behind.read()) == 200
            assert (most, proxy.retries("stale", "success")) == (1, 1)
            writer.close()
            writer_behind.close()


async def test_a_kept_connection_on_which_an_interim_answer_came_had_not_been_closed() -> None:
    """The backend has had the request, and has failed at it: that is a further attempt, of another one."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(answer())
        await read_head(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        await writer.drain()

    async with (
        backend(talk) as b0,
        backend(answering(answer(b"other"))) as b1,
        running(pool_of(b0.port, b1.port)) as proxy,
    ):
        key = proxy.key_of("b0")
        assert status(await proxy.ask(request(key=key))) == 200
        said = await proxy.ask(request(key=key))
        assert status(said) == 103
        assert said.endswith(b"other")
        assert (proxy.retries("stale", "success"), proxy.retries("reset", "success")) == (0, 1)
        assert proxy.backend_cell("b0", ledger.BACKEND_ERRORS + ledger.UPSTREAM_ERRORS.index("closed_early")) == 1
        assert [(line.attempts, line.backend) for line in proxy.lines] == [(1, "b0"), (2, "b1")]


def has_part_of_a_head(proxy: Plane) -> bool:
    """Whether anybody waits for the rest of an answer's head."""
    under_way = [each.exchange.upstream for each in proxy.plane._listeners["l"].connections]
    return any(upstream is not None and upstream.has_received for upstream in under_way)


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_head_that_breaks_off_is_no_answer(is_kept: bool, is_reset: bool) -> None:
    """Nothing of it has been passed on: another backend is asked, and the client sees one answer, if that may be."""
    began = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if is_kept and b" /first " in head:
            writer.write(answer())
            await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
        await writer.drain()
        await asyncio.wait_for(began.wait(), PATIENCE_S)  # a reset takes with it what has not been read
        if is_reset:
            writer.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        writer.transport.abort()

    async with (
        backend(talk) as b0,
        backend(answering(answer(b"other"))) as b1,
        running(pool_of(b0.port, b1.port)) as proxy,
    ):
        key = proxy.key_of("b0")
        if is_kept:
            assert status(await proxy.ask(request(target="/first", key=key))) == 200
        for method, code in (("GET", 200), ("POST", 502)):
            began.clear()
            reader, writer = await proxy.connect()
            writer.write(request(method, key=key))
            await proxy.settled(lambda: has_part_of_a_head(proxy))
            began.set()
            said = await asyncio.wait_for(reader.read(), PATIENCE_S)
            writer.close()
            assert (status(said), said.count(b"HTTP/1.1 ")) == (code, 1)
        reason = "reset" if is_reset else "closed_early"
        assert proxy.backend_cell("b0", ledger.BACKEND_ERRORS + ledger.UPSTREAM_ERRORS.index(reason)) == 2
        assert (proxy.retries("stale", "success"), proxy.retries("reset", "success")) == (0, 1)
        assert proxy.pool_cell(ledger.POOL_RETRIES_REFUSED + REFUSALS.index("not_idempotent")) == 1
        assert [(line.attempts, line.backend) for line in proxy.lines[-2:]] == [(2, "b1"), (1, "b0")]


async def test_who_closes_before_anything_is_sent_to_him_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        backend(answering(answer())) as b0,
        backend(closing) as b1,
        running(pool_of(b0.port, b1.port)) as proxy,
    ):
        loop = proxy.plane._plane.loop
        connect = loop.create_connection

        async def connect_slowly(protocol: Callable[[], Any], host: str, port: int) -> Any:
            """As uvloop does, which reads from a new connection before it says that there is one."""
            made = await connect(protocol, host, port)
            while port == b1.port and not made[0].is_closing():  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.001)
            return made

        reader, writer = await proxy.connect()
        monkeypatch.setattr(loop, "create_connection", connect_slowly)
        writer.write(request("POST", body=b"pay", key=proxy.key_of("b1")))
        assert status(await reader.read()) == 200
        writer.close()
        (line,) = proxy.lines
        assert (line.attempts, line.backend, line.decision) == (2, "b0", "retry")
        assert proxy.retries("reset", "success") == 1
        assert proxy.backend_cell("b1", ledger.BACKEND_ERRORS + 4) == 1
        backends = proxy.pool.backends
        assert (backends["b1"].connections, backends["b1"].in_flight) == (0, 0)


async def test_a_free_seat_is_not_kept_from_one_by_another_who_cannot_use_it() -> None:
    gates = {b"/long": asyncio.Event(), b"/short": asyncio.Event()}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            target = (await read_head(reader)).split(b" ")[1]
            if target in gates:
                await gates[target].wait()
            writer.write(answer(target))

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await talk(reader, writer)
        writer.close()

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        async with backend(talk) as b1:
            pool = pool_of(deaf.getsockname()[1], b1.port)
            seats = tuple(replace(each, max_in_flight=1) for each in pool.backends)
            async with running(replace(pool, backends=seats, queue=Queue(timeout=PATIENCE_S))) as proxy:
                account = proxy.pool.account
                of_b0, of_b1 = proxy.key_of("b0"), proxy.key_of("b1")
                long = asyncio.create_task(proxy.ask(request(target="/long", key=of_b1)))
                await proxy.settled(lambda: proxy.backend_cell("b1", ledger.BACKEND_IN_FLIGHT) == 1)
                tried = asyncio.create_task(proxy.ask(request(target="/tried", key=of_b0)))
                await proxy.settled(lambda: len(account.waiting) == 1)
                async with await asyncio.start_server(accept, sock=deaf):
                    short = asyncio.create_task(proxy.ask(request(target="/short", key=of_b0)))
                    await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
                    behind = asyncio.create_task(proxy.ask(request(target="/behind", key=of_b0)))
                    await proxy.settled(lambda: len(account.waiting) == 2)
                    gates[b"/short"].set()
                    assert status(await short) == status(await asyncio.wait_for(behind, PATIENCE_S)) == 200
                    assert len(account.waiting) == 1
                    gates[b"/long"].set()
                    assert status(await long) == status(await tried) == 200
                    assert [line.backend for line in proxy.lines] == ["b0", "b0", "b1", "b1"]


async def test_the_time_for_a_first_byte_begins_when_the_request_has_ended() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await reader.readexactly(2)
        await asyncio.sleep(0.6)
        writer.write(answer())
        await reader.read()

    async with backend(talk) as b0:
        pool = replace(pool_of(b0.port), retry=Retry(per_try=0.2))
        pool = replace(pool, timeout=replace(pool.timeout, first_byte=1.5))
        async with running(pool) as proxy:
            reader, writer = await proxy.connect()
            writer.write(request("POST", "/", b"Content-Length: 2\r\n") + b"a")
            await asyncio.sleep(1.5)
            writer.write(b"b")
            assert status(await asyncio.wait_for(reader.read(), PATIENCE_S)) == 200
            writer.close()


async def test_a_kept_connection_is_looked_at_again_when_a_request_has_waited_for_the_end_of_the_turn() -> None:
    gate = asyncio.Event()
    kept: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            if b" /held " in head:
                await gate.wait()
            else:
                kept.append(writer)
            writer.write(answer())

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        assert status(await proxy.ask(request())) == 200
        held = [asyncio.create_task(proxy.ask(request(target="/held"))) for _ in range(CROWD)]
        await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == CROWD)
        assert status(await proxy.ask(request())) == 200  # on a connection that is now the only idle one
        known = set(proxy.plane._listeners["l"].connections)
        reader, writer = await proxy.connect()
        await proxy.settled(lambda: len(set(proxy.plane._listeners["l"].connections) - known) == 1)
        (client,) = set(proxy.plane._listeners["l"].connections) - known
        # In the middle of a turn: the request has come, and nothing is sent before the turn ends.
        client.data_received(request("POST", key=b"pay"))
        kept[-1].transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
        assert status(await asyncio.wait_for(reader.read(), PATIENCE_S)) == 200
        assert b0.octets.count(b"POST / ") == 1
        assert proxy.retries("stale", "success") == 1
        assert [(line.attempts, line.reason) for line in proxy.lines if line.method == b"POST"] == [(1, "")]
        gate.set()
        assert {status(each) for each in await asyncio.gather(*held)} == {200}
        writer.close()


async def takes_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A backend that takes the beginning of a request, and closes."""
    await read_head(reader)


@pytest.mark.parametrize("budget", [Retry(), Retry(budget=0.0, min_budget=0)])
@pytest.mark.parametrize(("method", "is_repeated"), [("GET", True), ("PUT", True), ("POST", False)])
async def test_who_may_be_repeated_waits_for_a_seat_at_the_next_backend(
    method: str, is_repeated: bool, budget: Retry
) -> None:
    """The backend has had the request and failed at it; the other one is only full just now."""
    gate = asyncio.Event()
    bodies: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            bodies.append(await reader.readexactly(6 if b"Content-Length: 6" in head else 0))
            await gate.wait()
            writer.write(answer())

    async with backend(talk) as b0, backend(takes_one) as b1:
        pool = pool_of(b0.port, b1.port)
        seats = (replace(pool.backends[0], max_in_flight=1), pool.backends[1])
        queue = Queue(size=1, timeout=PATIENCE_S)
        async with running(replace(pool, backends=seats, queue=queue, retry=budget)) as proxy:
            account = proxy.pool.account
            first = asyncio.create_task(proxy.ask(request(key=proxy.key_of("b0"))))
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
            reader, writer = await proxy.connect()
            extra, begun, rest = (b"", b"", b"") if method == "GET" else (b"Content-Length: 6\r\n", b"abc", b"def")
            writer.write(request(method, extra=extra, key=proxy.key_of("b1")) + begun)
            is_allowed = is_repeated and budget.min_budget > 0
            if is_allowed:
                await proxy.settled(lambda: len(account.waiting) == 1)
                writer.write(rest)
            else:
                await proxy.settled(lambda: len(proxy.lines) == 1)
            gate.set()
            assert status(await asyncio.wait_for(reader.read(), PATIENCE_S)) == (200 if is_allowed else 502)
            assert status(await first) == 200
            writer.close()
            (line,) = [each for each in proxy.lines if each.key == proxy.key_of("b1")]
            assert (line.attempts, line.backend) == ((2, "b0") if is_allowed else (1, "b1"))
            assert (counted(proxy), proxy.retries("reset", "success")) == (is_allowed, is_allowed)
            refused = [proxy.pool_cell(ledger.POOL_RETRIES_REFUSED + each) for each in range(len(REFUSALS))]
            reason = "" if is_allowed else "budget" if is_repeated else "not_idempotent"
            assert refused == [int(each == reason) for each in REFUSALS]
            assert bodies == ([b"", begun + rest] if is_allowed else [b""])
            assert (account.in_flight, len(account.waiting)) == (0, 0)


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_further_attempt_without_a_key_is_one_whether_or_not_it_had_to_wait(is_busy: bool) -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0, backend(takes_one) as b1:
        pool = replace(pool_of(b0.port, b1.port), queue=Queue(timeout=PATIENCE_S))
        seats = (replace(pool.backends[0], max_in_flight=1), replace(pool.backends[1], weight=9.0))
        async with running(replace(pool, backends=seats)) as proxy:
            asking = [asyncio.create_task(proxy.ask(request(key=proxy.key_of("b0"))))] if is_busy else []
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == is_busy)
            proxy.pool.backends["b0"].served = 1.0  # b1 comes first
            asking.append(asyncio.create_task(proxy.ask(request(key=b""))))
            await proxy.settled(lambda: len(proxy.pool.account.waiting) == is_busy and bool(b1.received))
            gate.set()
            assert [status(octets) for octets in await asyncio.gather(*asking)] == [200] * len(asking)
            (line,) = [line for line in proxy.lines if line.key is None]
            assert (line.backend, line.attempts, line.decision) == ("b0", 2, "retry")
            assert proxy.pool_cell(ledger.POOL_DECISIONS + ledger.NO_KEY) == 0


@pytest.mark.parametrize("end", ["queue_timeout", "queue_full", "no_backend", "client_abort"])
async def test_an_attempt_for_which_no_seat_was_found_is_none(end: str) -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0:
        pool = pool_of(b0.port, 1)
        seats = (replace(pool.backends[0], max_in_flight=1), pool.backends[1])
        queue = Queue(size=0 if end == "queue_full" else 9, timeout=0.1 if end == "queue_timeout" else PATIENCE_S)
        async with running(replace(pool, backends=seats, queue=queue)) as proxy:
            account = proxy.pool.account
            first = asyncio.create_task(proxy.ask(request(key=proxy.key_of("b0"))))
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
            _, writer = await proxy.connect()
            writer.write(request(key=proxy.key_of("b1")))
            await proxy.settled(lambda: len(account.waiting) + len(proxy.lines) == 1)
            if end == "no_backend":
                proxy.plane.adopt({"p": {"b0": OUT}})
            if end == "client_abort":
                writer.close()
            await proxy.settled(lambda: len(proxy.lines) == 1)
            assert (proxy.lines[0].reason, proxy.lines[0].attempts) == (end, 1)
            assert counted(proxy) == 0
            gate.set()
            await first
            writer.close()


@pytest.mark.parametrize("code", [404, 429, 500, 599])
async def test_every_status_that_may_be_configured_is_worth_another_attempt(code: int) -> None:
    async with (
        backend(answering(answer(b"bad", f"{code} Bad"))) as b0,
        backend(answering(answer())) as b1,
        running(replace(pool_of(b0.port, b1.port), retry=Retry(statuses=(code,)))) as proxy,
    ):
        assert status(await proxy.ask(request(key=proxy.key_of("b0")))) == 200
        assert (proxy.lines[0].backend, proxy.lines[0].attempts) == ("b1", 2)
        assert proxy.retries("status", "success") == 1
        assert proxy.backend_cell("b0", ledger.BACKEND_REQUESTS + code // 100 - 1) == 1
        # That a client may not or asks too much is no failure of the backend's.
        assert proxy.pool.backends["b0"].errors == (code >= 500)


@pytest.mark.parametrize("code", [404, 429, 500, 599])
async def test_a_further_attempt_with_an_answer_that_is_no_better_has_saved_nothing(code: int) -> None:
    bad = answering(answer(b"bad", f"{code} Bad"))
    async with (
        backend(bad) as b0,
        backend(bad) as b1,
        running(replace(pool_of(b0.port, b1.port), retry=Retry(statuses=(code,)))) as proxy,
    ):
        assert status(await proxy.ask(request(key=proxy.key_of("b0")))) == code
        assert (proxy.lines[0].backend, proxy.lines[0].attempts) == ("b1", 2)
        assert (proxy.retries("status", "success"), proxy.retries("status", "failure")) == (0, 1)


@pytest.mark.parametrize(
    ("bad", "is_kept"),
    [
        (answer(b"bad", "429 Slow"), True),
        (answer(b"bad", "503 Full"), True),
        (answer(b"", "503 Full"), True),
        (answer(b"bad", "503 Full", b"Connection: close\r\n"), False),
        (answer(b"bad", "503 Full") + b"and more", False),
        (answer(b"bad", "503 Full")[:-1], False),
        (b"HTTP/1.1 503 Full\r\nTransfer-Encoding: chunked\r\n\r\n", False),
    ],
)
async def test_a_connection_whose_answer_is_passed_over_is_kept_if_it_is_at_its_end(bad: bytes, is_kept: bool) -> None:
    async with (
        backend(answering(bad)) as b0,
        backend(answering(answer())) as b1,
        running(replace(pool_of(b0.port, b1.port), retry=Retry(statuses=(429, 503)))) as proxy,
    ):
        for number in range(1, 4):
            assert status(await proxy.ask(request(key=proxy.key_of("b0")))) == 200
            assert (proxy.lines[-1].backend, proxy.lines[-1].attempts) == ("b1", 2)
            assert len(b0.received) == (1 if is_kept else number)
            assert proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 0
        assert proxy.retries("stale", "success") == 0


async def test_a_connection_that_still_takes_the_request_is_not_kept_when_another_backend_is_asked() -> None:
    early = answer(b"bad", "503 Full")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(early)
        await reader.read()

    async with (
        backend(talk) as b0,
        backend(answering(answer())) as b1,
        running(replace(pool_of(b0.port, b1.port), retry=Retry(statuses=(503,)))) as proxy,
    ):
        reader, writer = await proxy.connect()
        octets = request("PUT", key=proxy.key_of("b0"), extra=b"Content-Length: 2\r\n")
        writer.write(octets + b"x")
        await proxy.settled(lambda: len(b1.received) == 1)
        assert not proxy.pool.backends["b0"].idle
        writer.write(b"y")
        assert (await read_head(reader)).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_the_seat_of_a_further_attempt_is_not_given_away_by_the_one_before_it() -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0, backend(waiting_for(gate)) as b1:
        pool = pool_of(b0.port, b1.port)
        one_each = tuple(replace(each, max_in_flight=1) for each in pool.backends)
        patient = replace(pool, queue=Queue(timeout=PATIENCE_S), retry=Retry(per_try=PATIENCE_S))
        async with running(replace(patient, backends=one_each)) as proxy:
            of_b0, of_b1 = proxy.key_of("b0"), proxy.key_of("b1")
            asking = [asyncio.create_task(proxy.ask(request(key=of_b1)))]
            await proxy.settled(lambda: proxy.backend_cell("b1", ledger.BACKEND_IN_FLIGHT) == 1)
            known = set(proxy.plane._listeners["l"].connections)
            asking.append(asyncio.create_task(proxy.ask(request(key=of_b0))))
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
            (slow,) = set(proxy.plane._listeners["l"].connections) - known
            asking.append(asyncio.create_task(proxy.ask(request(key=of_b1))))
            await proxy.settled(lambda: len(proxy.pool.account.waiting) == 1)
            # There is one more seat, and before anybody has been told of it the time of a try is over.
            two_seats = (one_each[0], replace(one_each[1], max_in_flight=2))
            reload(proxy, replace(proxy.config, pools=(replace(patient, backends=two_seats),)))
            slow.pass_deadline()
            held = [proxy.backend_cell(name, ledger.BACKEND_IN_FLIGHT) for name in ("b0", "b1")]
            assert (held, len(proxy.pool.account.waiting)) == ([1, 2], 0)
            gate.set()
            assert [status(octets) for octets in await asyncio.gather(*asking)] == [200, 200, 200]


async def test_who_waited_while_its_key_moved_is_counted_at_the_new_owner() -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0, backend(waiting_for(gate)) as b1:
        pool = replace(pool_of(b0.port, b1.port), queue=Queue(timeout=PATIENCE_S))
        first, second = pool.backends
        before = (replace(first, max_in_flight=1), replace(second, weight=0.0))
        after = (replace(first, max_in_flight=1, weight=0.0), second)
        async with running(replace(pool, backends=before)) as proxy:
            asking = [asyncio.create_task(proxy.ask(request())) for _ in range(2)]
            await proxy.settled(lambda: len(proxy.pool.account.waiting) == 1)
            reload(proxy, replace(proxy.config, pools=(replace(pool, backends=after),)))
            await proxy.settled(lambda: proxy.backend_cell("b1", ledger.BACKEND_IN_FLIGHT) == 1)
            gate.set()
            await asyncio.gather(*asking)
            assert sorted((line.backend, line.decision) for line in proxy.lines) == [("b0", "owner"), ("b1", "owner")]
            assert [proxy.backend_cell(name, ledger.BACKEND_OWNED) for name in ("b0", "b1")] == [1, 1]
            spills = range(ledger.BACKEND_SPILLS, ledger.BACKEND_SPILLS_RECEIVED + 1)
            assert [proxy.backend_cell(name, column) for name in ("b0", "b1") for column in spills] == [0] * 10


async def test_who_waits_in_a_pool_that_is_removed_is_served_by_the_backends_that_it_had_last() -> None:
    """Backends are numbered anew with every configuration; the pool of an exchange may be older than the last one."""
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0:
        last = replace(pool_of(b0.port, b0.port, b0.port), queue=Queue(timeout=PATIENCE_S))
        first = replace(last, backends=(replace(last.backends[2], max_in_flight=1),))
        other = replace(pool_of(b0.port), name="q")
        async with running(last, other) as proxy:
            reload(proxy, replace(proxy.config, pools=(first, other)))
            asking = asyncio.create_task(proxy.ask(request()))
            await proxy.settled(lambda: proxy.backend_cell("b2", ledger.BACKEND_IN_FLIGHT) == 1)
            account = proxy.pool.account
            waiting = [asyncio.create_task(proxy.ask(request())) for _ in range(3)]
            await proxy.settled(lambda: len(account.waiting) == 3)
            reload(proxy, replace(proxy.config, pools=(last, other)), 3)
            reload(proxy, replace(proxy.config, pools=(other,), routes=(Route("q"),)), 4)
            gate.set()
            assert [status(await each) for each in (asking, *waiting)] == [200] * 4
            assert [line.reason for line in proxy.lines] == [""] * 4
            assert account.in_flight == 0


@pytest.mark.parametrize("key", [b"kim", b""])
async def test_a_further_attempt_goes_to_a_backend_that_the_pool_has_by_then(key: bytes) -> None:
    asked = asyncio.Event()
    leave = asyncio.Event()

    async def leaves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        asked.set()
        await leave.wait()

    async with backend(leaves) as bad, backend(answering(answer())) as good:
        pool = replace(pool_of(good.port, good.port, bad.port, bad.port), prefer_local=True)
        at_home = tuple(replace(each, zone="here") for each in pool.backends)
        before = replace(pool, backends=at_home[2:])
        after = replace(pool, backends=(*at_home[:2], replace(at_home[2], weight=0.0)))
        async with running(pool) as proxy:
            config = replace(proxy.config, zone="here")
            reload(proxy, replace(config, pools=(before,)))
            asking = asyncio.create_task(proxy.ask(request(key=key)))
            await asked.wait()
            reload(proxy, replace(config, pools=(after,)), 3)
            leave.set()
            assert status(await asking) == 200
            assert proxy.lines[0].backend in ("b0", "b1")
            assert proxy.lines[0].attempts == 2


@pytest.mark.parametrize("ending", ["is closed", "is answered with a status of those"])
@pytest.mark.parametrize(
    ("retry", "method", "reason"),
    [
        (Retry(), "POST", "not_idempotent"),
        (Retry(attempts=1), "GET", "attempts"),
        (Retry(budget=0.0, min_budget=0), "GET", "budget"),
        (Retry(buffer=1), "PUT", "buffer"),
    ],
)
async def test_a_further_attempt_is_refused_once_whether_for_its_time_or_for_what_comes_then(
    retry: Retry, method: str, reason: str, ending: str
) -> None:
    has_refused = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await has_refused.wait()
        if ending != "is closed":
            writer.write(answer(status="503 Busy"))

    async with backend(slow) as b0, backend(slow) as b1:
        retry = replace(retry, per_try=0.1, statuses=(503,))
        async with running(replace(pool_of(b0.port, b1.port), retry=retry)) as proxy:

            def refused() -> dict[str, int]:
                counts = {name: proxy.pool_cell(ledger.POOL_RETRIES_REFUSED + at) for at, name in enumerate(REFUSALS)}
                return {name: count for name, count in counts.items() if count}

            body = b"" if method == "GET" else b"xy"
            asking = asyncio.create_task(proxy.ask(request(method, body=body)))
            await proxy.settled(lambda: bool(refused()))
            has_refused.set()
            assert status(await asking) == (502 if ending == "is closed" else 503)
            assert refused() == {reason: 1}
            assert proxy.lines[0].attempts == 1


# A backend that is taken out while requests hang there.


async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A backend that takes requests and never answers."""
    await reader.read()


async def until_held(proxy: Plane, name: str, count: int = 1) -> None:
    await proxy.settled(lambda: proxy.backend_cell(name, ledger.BACKEND_IN_FLIGHT) == count)


async def test_an_answer_is_passed_on_when_the_others_are_full_just_then() -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0, backend(answering(answer(status="503 Busy"))) as b1:
        pool = replace(pool_of(b0.port, b1.port), retry=Retry(statuses=(503,)), queue=Queue(timeout=PATIENCE_S))
        seats = (replace(pool.backends[0], max_in_flight=1), pool.backends[1])
        async with running(replace(pool, backends=seats)) as proxy:
            first = asyncio.create_task(proxy.ask(request(key=proxy.key_of("b0"))))
            await until_held(proxy, "b0")
            assert (await proxy.ask(request(key=proxy.key_of("b1")))).startswith(b"HTTP/1.1 503 Busy\r\n")
            assert (counted(proxy), proxy.lines[0].attempts) == (0, 1)
            gate.set()
            assert status(await first) == 200


@pytest.mark.parametrize("key", [b"kim", b""])
@pytest.mark.parametrize(("method", "body"), [("GET", b""), ("PUT", b"xy")])
async def test_a_request_that_may_be_repeated_leaves_a_backend_that_is_out(
    method: str, body: bytes, key: bytes
) -> None:
    async with (
        backend(hangs) as b0,
        backend(answering(answer())) as b1,
        running(pool_of(b0.port, b1.port)) as proxy,
    ):
        proxy.plane.adopt({"p": {"b1": OUT}})
        asking = asyncio.create_task(proxy.ask(request(method, body=body, key=key)))
        await proxy.settled(lambda: b0.octets.endswith(b"\r\n\r\n" + body))
        proxy.plane.adopt({"p": {"b0": OUT, "b1": SERVING}})
        assert status(await asking) == 200
        assert [(line.backend, line.decision, line.attempts) for line in proxy.lines] == [("b1", "retry", 2)]
        assert (proxy.retries("out", "success"), counted(proxy)) == (1, 1)
        assert proxy.pool.account.in_flight == 0
        errors = range(ledger.BACKEND_ERRORS, ledger.BACKEND_ERRORS + len(ledger.UPSTREAM_ERRORS))
        assert not any(proxy.backend_cell("b0", column) for column in errors)


@pytest.mark.parametrize(
    ("retry", "method", "refused"),
    [
        (Retry(), "POST", "not_idempotent"),
        (Retry(attempts=1), "GET", "attempts"),
        (Retry(budget=0.0, min_budget=0), "GET", "budget"),
    ],
)
async def test_a_request_that_may_not_be_repeated_is_still_answered_by_a_backend_that_is_out(
    retry: Retry, method: str, refused: str
) -> None:
    gate = asyncio.Event()
    async with (
        backend(waiting_for(gate)) as b0,
        backend(waiting_for(gate)) as b1,
        running(replace(pool_of(b0.port, b1.port), retry=retry)) as proxy,
    ):
        key = proxy.key_of("b0")
        asking = asyncio.create_task(proxy.ask(request(method, key=key)))
        await proxy.settled(lambda: b0.octets.endswith(b"\r\n\r\n"))  # before that, whoever is first may have it
        for state in (OUT, SERVING, OUT):
            proxy.plane.adopt({"p": {"b0": state}})
        assert proxy.pool_cell(ledger.POOL_RETRIES_REFUSED + REFUSALS.index(refused)) == 1
        gate.set()
        assert status(await asking) == 200
        assert [(line.backend, line.attempts) for line in proxy.lines] == [("b0", 1)]


async def test_a_request_stays_where_an_answer_has_begun_or_nobody_else_may_be_asked() -> None:
    gate = asyncio.Event()

    async def begins(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        octets = answer()
        size = 0 if b"/nothing" in head else 10 if b"/head" in head else len(octets) - 1
        writer.write((b"HTTP/1.1 103 Early Hints\r\n\r\n" if b"/hints" in head else b"") + octets[:size])
        await gate.wait()
        writer.write(octets[size:])

    async with (
        backend(begins) as b0,
        backend(answering(answer())) as b1,
        running(pool_of(b0.port, b1.port)) as proxy,
    ):
        key = proxy.key_of("b0")
        asking = [
            asyncio.create_task(proxy.ask(request(target=target, key=key))) for target in ("/head", "/body", "/hints")
        ]
        await until_held(proxy, "b0", 3)
        await proxy.settled(lambda: all(len(part) > 20 for part in b0.received))
        proxy.plane.adopt({"p": {"b1": OUT}})
        asking.append(asyncio.create_task(proxy.ask(request(target="/nothing", key=key))))
        await until_held(proxy, "b0", 4)
        await asyncio.sleep(0.05)  # what has been sent has arrived
        proxy.plane.adopt({"p": {"b0": OUT}})
        gate.set()
        for octets in await asyncio.gather(*asking):
            assert octets.startswith((b"HTTP/1.1 200", b"HTTP/1.1 103"))
        assert {line.backend for line in proxy.lines} == {"b0"}
        assert counted(proxy) == 0


async def test_with_panic_nobody_leaves_a_backend_that_is_asked_all_the_same() -> None:
    gate = asyncio.Event()
    async with (
        backend(waiting_for(gate)) as b0,
        backend(waiting_for(gate)) as b1,
        running(replace(pool_of(b0.port, b1.port), panic="serve_all")) as proxy,
    ):
        asking = asyncio.create_task(proxy.ask(request(key=proxy.key_of("b0"))))
        await until_held(proxy, "b0")
        proxy.plane.adopt({"p": {"b0": OUT, "b1": OUT}})
        gate.set()
        assert status(await asking) == 200
        assert [(line.backend, line.attempts) for line in proxy.lines] == [("b0", 1)]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_nobody_is_sent_over_a_connection_from_before_its_backend_was_out(method: str) -> None:
    """A machine that was cut off does not remember them, and of a POST nobody could know whether it has arrived."""
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        assert status(await proxy.ask(request())) == 200
        await proxy.settled(lambda: bool(proxy.pool.backends["b0"].idle))
        proxy.plane.adopt({"p": {"b0": OUT}})
        assert not proxy.pool.backends["b0"].idle
        proxy.plane.adopt({"p": {"b0": SERVING}})
        assert status(await proxy.ask(request(method))) == 200
        assert len(b0.received) == 2
        proxy.plane.adopt({"p": {"b0": SERVING}})
        assert status(await proxy.ask(request(method))) == 200
        assert len(b0.received) == 2


@pytest.mark.parametrize("panic", ["off", "serve_all"])
async def test_a_request_leaves_a_backend_that_is_out_as_soon_as_there_is_another_one(
    panic: Literal["off", "serve_all"],
) -> None:
    async with (
        backend(hangs) as b0,
        backend(answering(answer())) as b1,
        running(replace(pool_of(b0.port, b1.port), panic=panic)) as proxy,
    ):
        proxy.plane.adopt({"p": {"b1": OUT}})
        asking = asyncio.create_task(proxy.ask(request()))
        await proxy.settled(lambda: b0.octets.endswith(b"\r\n\r\n"))
        proxy.plane.adopt({"p": {"b0": OUT}})
        assert proxy.lines == []
        proxy.plane.adopt({"p": {"b1": SERVING}})
        assert status(await asking) == 200
        assert [(line.backend, line.decision, line.attempts) for line in proxy.lines] == [("b1", "retry", 2)]
        assert (proxy.retries("out", "success"), counted(proxy)) == (1, 1)


async def test_a_request_leaves_a_backend_that_is_out_as_soon_as_another_one_has_a_seat() -> None:
    gate = asyncio.Event()
    async with backend(hangs) as b0, backend(waiting_for(gate)) as b1:
        pool = pool_of(b0.port, b1.port)
        one_seat = replace(pool, backends=(pool.backends[0], replace(pool.backends[1], max_in_flight=1)))
        async with running(one_seat) as proxy:
            asking = [asyncio.create_task(proxy.ask(request(key=proxy.key_of(name)))) for name in ("b0", "b1")]
            await until_held(proxy, "b0")
            await until_held(proxy, "b1")
            await proxy.settled(lambda: b0.octets.endswith(b"\r\n\r\n"))
            proxy.plane.adopt({"p": {"b0": OUT}})
            gate.set()
            assert [status(octets) for octets in await asyncio.gather(*asking)] == [200, 200]
            assert [(line.backend, line.attempts) for line in proxy.lines] == [("b1", 1), ("b1", 2)]
            assert (proxy.retries("out", "success"), counted(proxy)) == (1, 1)


@pytest.mark.parametrize(("key", "code"), [(b"kim", 502), (b"", 502), (b"kim", 503)])
async def test_in_panic_nobody_waits_for_a_backend_of_no_weight(key: bytes, code: int) -> None:
    async with backend(closing) as b0:
        pool = replace(pool_of(b0.port, b0.port), panic="serve_all", queue=Queue(timeout=PATIENCE_S))
        weights = (0.0 if code == 503 else 1.0, 0.0)
        backends = tuple(replace(each, weight=weight) for each, weight in zip(pool.backends, weights, strict=True))
        async with running(replace(pool, backends=backends)) as proxy:
            proxy.plane.adopt({"p": {"b0": DRAINING if code == 503 else OUT, "b1": DRAINING}})
            assert status(await proxy.ask(request(key=key))) == code
            assert [line.reason for line in proxy.lines] == ["no_backend" if code == 503 else "bad_gateway"]
            assert proxy.pool_cell(ledger.POOL_RETRIES_REFUSED) == 0

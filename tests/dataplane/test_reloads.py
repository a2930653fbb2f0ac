"""What a reload changes in a running data plane at once, and what goes on across it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace
from typing import Any, Literal

import pytest

from lbproxy.core import ledger
from lbproxy.core.account import OUT, SERVING
from lbproxy.core.hashing import hash_key
from lbproxy.core.spec import (
    AffinityCookie,
    Ejection,
    HeaderPolicy,
    HotKeys,
    KeySource,
    Limits,
    ListenerTimeouts,
    Pin,
    PoolSpec,
    PoolTimeouts,
    Queue,
    Retry,
    Route,
    Sticky,
    TracingSpec,
    UpstreamConnections,
)
from lbproxy.dataplane.deadlines import DUE_BODY, DUE_HEAD, DUE_KEEP_ALIVE, DUE_UPSTREAM
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
    waiting_for,
)
from tests.dataplane.test_tunnel import echo, tunnel


def under(proxy: Plane, pool: PoolSpec) -> None:
    """Reload with this pool alone."""
    reload(proxy, replace(proxy.config, pools=(pool,)))


async def ask_and_keep(proxy: Plane) -> None:
    """A request whose connection to the backend is kept afterwards."""
    assert b" 200 " in await proxy.ask(request())
    await proxy.settled(lambda: bool(proxy.pool.backends["b0"].idle))


# Counters.


async def test_requests_are_counted_on_when_a_pool_has_gone() -> None:
    async with backend(answering(answer())) as b0:
        first, second = pool_of(b0.port), replace(pool_of(b0.port), name="q")
        routes = (Route("p", path="/p"), Route("q"))
        async with running(first, second, routes=routes) as proxy:

            def counted() -> int:
                return proxy.cell("worker", column=ledger.WORKER_REQUESTS)

            for _ in range(5):
                await proxy.ask(request(target="/p"))
            await proxy.settled(lambda: counted() == 5)
            reload(proxy, replace(proxy.config, pools=(second,), routes=(Route("q"),)))
            await proxy.ask(request())
            await proxy.settled(lambda: counted() == 6)
            reload(proxy, proxy.config, 3)  # with the counts that it had
            await proxy.ask(request(target="/p"))
            await proxy.ask(b"nonsense\r\n\r\n")
            await proxy.settled(lambda: counted() >= 8)
            ticks = proxy.cell("worker", column=ledger.WORKER_TICKS)
            await proxy.settled(lambda: proxy.cell("worker", column=ledger.WORKER_TICKS) > ticks + 1)
            assert counted() == 8


# Backends.


async def test_what_failed_at_another_address_is_not_held_against_a_new_machine() -> None:
    told: list[str] = []
    fine, broken = answer(), answer(status="500 Oops")
    async with backend(answering(broken)) as old, backend(answering(broken)) as new, backend(answering(fine)) as other:
        pool = replace(pool_of(old.port, other.port), ejection=Ejection(consecutive_errors=2))
        async with running(pool, report=lambda _pool, name, _reason: told.append(name)) as proxy:
            key = proxy.key_of("b0")
            await proxy.ask(request(key=key))
            under(proxy, replace(pool_of(new.port, other.port), ejection=pool.ejection))
            await proxy.ask(request(key=key))
            assert told == []
            await proxy.ask(request(key=key))
            assert told == ["b0"]


# Idle connections.


@pytest.mark.parametrize("changed", [UpstreamConnections(idle_timeout=0.05), UpstreamConnections(max_age=0.05)])
async def test_an_idle_connection_is_kept_no_longer_than_the_new_configuration_has_it(
    changed: UpstreamConnections,
) -> None:
    async with backend(answering(answer())) as b0:
        pool = pool_of(b0.port)
        async with running(pool) as proxy:
            await ask_and_keep(proxy)
            under(proxy, replace(pool, connections=changed))
            await proxy.settled(lambda: not proxy.pool.backends["b0"].idle)


async def test_an_idle_connection_is_kept_longer_if_the_new_configuration_has_it_so() -> None:
    async with backend(answering(answer())) as b0:
        pool = replace(pool_of(b0.port), connections=UpstreamConnections(idle_timeout=0.5, max_age=0.5))
        async with running(pool) as proxy:
            await ask_and_keep(proxy)
            under(proxy, pool_of(b0.port))
            await asyncio.sleep(1.0)
            await ask_and_keep(proxy)
            assert len(b0.received) == 1


async def test_an_idle_connection_is_in_use_again_after_a_reload_that_does_not_concern_it() -> None:
    async with backend(answering(answer())) as b0:
        pool = pool_of(b0.port)
        async with running(pool) as proxy:
            await ask_and_keep(proxy)
            under(proxy, replace(pool, retry=replace(pool.retry, attempts=2)))
            await ask_and_keep(proxy)
            assert len(b0.received) == 1


# Tunnels.


async def test_a_tunnel_stays_when_its_key_would_move_to_a_backend_that_may_not_be_asked_yet() -> None:
    async with backend(echo) as served:
        pool = replace(pool_of(served.port), on_move="close")
        async with running(pool_of(served.port, served.port)) as proxy:  # for the rows of both
            key = proxy.key_of("b1")
            under(proxy, pool)
            open_one = await tunnel(proxy, key)
            both = replace(pool_of(served.port, served.port), on_move="close")
            reload(proxy, replace(proxy.config, pools=(both,)), states={"p": {"b0": SERVING, "b1": OUT}})
            assert await open_one.is_alive()
            proxy.plane.adopt({"p": {"b0": SERVING, "b1": SERVING}})
            assert await asyncio.wait_for(open_one.reader.read(), PATIENCE_S) == b""
            open_one.writer.close()


@pytest.mark.parametrize("before", ["keep", "close"])
async def test_requests_follow_tunnels_that_were_open_before_they_were_to(before: Literal["keep", "close"]) -> None:
    async with backend(echo) as served:
        pool = replace(pool_of(served.port, served.port), on_move="pin")
        async with running(pool) as proxy:  # with rows for the entries
            key = proxy.key_of("b0")
            h = hash_key(key)
            under(proxy, replace(pool, on_move=before))
            assert proxy.pool.home(h) is None
            open_one = await tunnel(proxy, key)
            under(proxy, pool)
            assert proxy.pool.home(h) is proxy.pool.backends["b0"]
            under(proxy, replace(pool, on_move=before))
            homes = proxy.rows["homes", "p"]
            assert not any(proxy.cells[homes : homes + ledger.HOMES_SLOTS])  # which may be another pool's next
            under(proxy, pool)
            await open_one.end()
            assert proxy.pool.home(h) is None


# Every option that decides about a request is asked for with each one, on connections that were there before too.


async def says_its_name(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A backend that answers with the head that it got."""
    while True:
        head = await read_head(reader)
        writer.write(answer(head.replace(b"\r\n", b"\n")))


class Kept:
    """A client's connection that outlives reloads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def ask(self, octets: bytes) -> bytes:
        """The answer's head, and its body if it says how long that is."""
        self.writer.write(octets)
        head = await asyncio.wait_for(read_head(self._reader), PATIENCE_S)
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head + await self._reader.readexactly(length)


KEYLESS = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
SHORT: dict[str, bytes] = {"GET": request(close=False), "POST": request("POST", body=b"xy", close=False)}


@pytest.mark.parametrize(
    ("limits", "octets", "status"),
    [
        (Limits(head_bytes=1024, line_bytes=512), request(extra=b"A: %b\r\n" % (b"a" * 400) * 3, close=False), b"431"),
        (Limits(header_count=2), request(extra=b"A: a\r\n", close=False), b"431"),
        (Limits(line_bytes=256), request(target=f"/{'a' * 300}", close=False), b"414"),
        (Limits(body_bytes=1), SHORT["POST"], b"413"),
    ],
)
async def test_limits_of_a_request(limits: Limits, octets: bytes, status: bytes) -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        kept = Kept(*await proxy.connect())
        assert (await kept.ask(octets))[9:12] == b"200"
        listener = replace(proxy.config.listeners[0], limits=limits)
        reload(proxy, replace(proxy.config, listeners=(listener,)))
        assert (await kept.ask(octets))[9:12] == status
        kept.writer.close()


async def test_the_limit_of_connections_and_the_time_that_one_may_wait() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        first = Kept(*await proxy.connect())
        await first.ask(SHORT["GET"])
        listener = replace(
            proxy.config.listeners[0], limits=Limits(connections=1), timeouts=ListenerTimeouts(keep_alive=0.1)
        )
        reload(proxy, replace(proxy.config, listeners=(listener,)))
        assert await proxy.ask(b"") == b""
        assert proxy.cell("listener", "l", column=ledger.LISTENER_REFUSED) == 1
        await first.ask(SHORT["GET"])
        await proxy.settled(lambda: not proxy.plane.open_connections())
        first.writer.close()


@pytest.mark.parametrize(
    ("policy", "before", "after"),
    [
        (HeaderPolicy(x_forwarded="off"), b"X-Forwarded-For: 127.0.0.1\n", None),
        (HeaderPolicy(x_forwarded="pass"), b"X-Forwarded-For: 127.0.0.1\n", b"X-Forwarded-For: 9.9.9.9\n"),
        (HeaderPolicy(forwarded=True), None, b"Forwarded: for=127.0.0.1;"),
        (HeaderPolicy(via="other"), b"Via: 1.1 lbproxy\n", b"Via: 1.1 other\n"),
        (HeaderPolicy(request_id="off"), b"X-Request-ID: ", None),
        (HeaderPolicy(traceparent="pass"), b"traceparent: ", None),
    ],
)
async def test_what_is_added_to_a_request(policy: HeaderPolicy, before: bytes | None, after: bytes | None) -> None:
    async with backend(says_its_name) as b0, running(pool_of(b0.port)) as proxy:
        kept = Kept(*await proxy.connect())
        octets = request(extra=b"X-Forwarded-For: 9.9.9.9\r\n", close=False)
        said = [await kept.ask(octets)]
        reload(proxy, replace(proxy.config, headers=policy))
        said.append(await kept.ask(octets))
        kept.writer.close()
        for expected, other, got in ((before, after, said[0]), (after, before, said[1])):
            assert expected is None or expected in got
            assert other is None or other not in got


async def test_who_is_trusted_and_told_of_decisions() -> None:
    async with backend(says_its_name) as b0, running(pool_of(b0.port)) as proxy:
        kept = Kept(*await proxy.connect())
        octets = request(extra=b"X-Forwarded-For: 9.9.9.9\r\n", close=False)
        said = await kept.ask(octets)
        assert b"X-LB-Backend" not in said
        assert b"9.9.9.9" not in said
        listener = replace(proxy.config.listeners[0], trusted_proxies=("127.0.0.0/8",))
        reload(proxy, replace(proxy.config, listeners=(listener,), headers=HeaderPolicy(debug=True)))
        said = await kept.ask(octets)
        assert b"X-LB-Backend: b0" in said
        assert b"X-Forwarded-For: 9.9.9.9, 127.0.0.1\n" in said
        kept.writer.close()


@pytest.mark.parametrize(
    ("changes", "octets", "statuses"),
    [
        ({"sticky": Sticky(on_missing="reject")}, KEYLESS, (b"200", b"400")),
        ({"sticky": Sticky((KeySource("cookie", "u"),), "reject")}, SHORT["GET"], (b"200", b"400")),
        ({"hot_keys": HotKeys(max_in_flight=1)}, SHORT["GET"], (b"200", b"429")),
        ({"retry": Retry(statuses=(503,))}, request(target="/busy", close=False), (b"503", b"200")),
        ({"retry": Retry(statuses=(503,), attempts=1)}, request(target="/busy", close=False), (b"503", b"503")),
        ({"retry": Retry(per_try=0.1)}, request(target="/slow", close=False), (b"504", b"200")),
        ({"retry": Retry(methods=("POST",))}, request("POST", "/cut", close=False), (b"502", b"200")),
        (
            {"retry": Retry(methods=("POST",), budget=0.0, min_budget=0)},
            request("POST", "/cut", close=False),
            (b"502",) * 2,
        ),
        ({"timeout": PoolTimeouts(first_byte=1.5)}, request(target="/slow", close=False), (b"504", b"200")),
        ({"pins": (Pin("kim", "b1"),)}, request(target="/busy", close=False), (b"503", b"200")),
    ],
)
async def test_where_a_request_goes_and_how_often(
    changes: dict[str, Any], octets: bytes, statuses: tuple[bytes, ...]
) -> None:
    """The owner of the key answers each path in its own way, and the other backend always well. One request is held."""

    async def owner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            target = (await read_head(reader)).split(b" ", 2)[1]
            if target == b"/held":
                await asyncio.Event().wait()
            elif target == b"/slow":
                await asyncio.sleep(0.6)
            elif target == b"/cut":
                return
            writer.write(answer(status="503 Busy" if target == b"/busy" else "200 OK"))

    async with backend(owner) as b0, backend(answering(answer())) as b1:
        pool = replace(pool_of(b0.port, b1.port), timeout=PoolTimeouts(first_byte=0.3))
        async with running(pool) as proxy:
            key = proxy.key_of("b0")
            octets = octets.replace(b"kim", key)
            if "pins" in changes:
                changes = {"pins": (Pin(key.decode(), "b1"),)}
            kept, holder = Kept(*await proxy.connect()), await proxy.connect()
            said = [(await kept.ask(octets))[9:12]]
            under(proxy, replace(pool, timeout=PoolTimeouts()))
            holder[1].write(request(target="/held", key=key, close=False))
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
            under(proxy, replace(pool, **({"timeout": PoolTimeouts()} | changes)))
            said.append((await kept.ask(octets))[9:12])
            assert tuple(said) == statuses
            kept.writer.close()
            holder[1].close()


@pytest.mark.parametrize("field", ["max_in_flight", "max_connections"])
async def test_a_lower_limit_of_a_backend_counts_what_it_holds_and_a_higher_one_lets_those_go_who_wait(
    field: str,
) -> None:
    gate = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            if b" /held " in await read_head(reader):
                await gate.wait()
            writer.write(answer())

    async with backend(talk) as b0:
        pool = pool_of(b0.port)
        narrow = replace(pool, backends=(replace(pool.backends[0], **{field: 1}),))  # type: ignore[arg-type]
        async with running(pool) as proxy:
            held = asyncio.create_task(proxy.ask(request(target="/held")))
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
            under(proxy, replace(narrow, queue=Queue(size=0)))
            assert (await proxy.ask(request()))[9:12] == b"503"
            under(proxy, replace(narrow, queue=Queue(timeout=PATIENCE_S)))
            waits = asyncio.create_task(proxy.ask(request()))
            await proxy.settled(lambda: bool(proxy.pool.account.waiting))
            under(proxy, pool)
            assert (await waits)[9:12] == b"200"
            gate.set()
            assert (await held)[9:12] == b"200"


@pytest.mark.parametrize("is_gone", [False, True])
async def test_who_waits_has_the_seat_that_another_worker_gives_back_though_the_pool_may_be_gone(is_gone: bool) -> None:
    async with backend(answering(answer())) as b0:
        pool = pool_of(b0.port)
        pool = replace(pool, backends=(replace(pool.backends[0], max_in_flight=1),), queue=Queue(timeout=PATIENCE_S))
        other = replace(pool, name="q")
        routes = (Route("p", path="/p"), Route("q"))
        async with running(pool, other, routes=routes, has_peer=True) as proxy:
            seats = proxy.rows["backend", "p", "b0"] + ledger.BACKEND_IN_FLIGHT
            proxy.peer[seats] = 1
            account = proxy.pool.account
            waits = asyncio.create_task(proxy.ask(request(target="/p")))
            await proxy.settled(lambda: bool(account.waiting))
            if is_gone:
                reload(proxy, replace(proxy.config, pools=(other,), routes=(Route("q"),)))
            proxy.peer[seats] = 0
            await proxy.settled(lambda: not account.waiting)
            assert (await waits)[9:12] == b"200"


async def test_what_is_done_when_nobody_is_eligible() -> None:
    async with backend(answering(answer())) as b0, running(pool_of(b0.port)) as proxy:
        proxy.plane.adopt({"p": {"b0": OUT}})
        assert (await proxy.ask(request()))[9:12] == b"503"
        under(proxy, replace(proxy.pool.spec, panic="serve_all"))
        assert (await proxy.ask(request()))[9:12] == b"200"
        under(proxy, replace(proxy.pool.spec, panic="off"))
        assert (await proxy.ask(request()))[9:12] == b"503"


# What is under way.


@pytest.mark.parametrize("is_shorter", [True, False])
@pytest.mark.parametrize(
    ("field", "octets", "rest", "end"),
    [
        ("keep_alive", b"", SHORT["GET"], b""),
        ("request_head", SHORT["GET"][:20], SHORT["GET"][20:], b"408"),
        ("body_idle", SHORT["POST"][:-1], SHORT["POST"][-1:], b"408"),
    ],
)
async def test_the_times_of_clients_act_on_what_they_take_just_then(
    field: str, octets: bytes, rest: bytes, end: bytes, is_shorter: bool
) -> None:
    async with backend(answering(answer())) as b0:
        short, long = (ListenerTimeouts(**{field: seconds}) for seconds in (0.4, 60.0))
        async with running(pool_of(b0.port), timeouts=long if is_shorter else short) as proxy:
            reader, writer = await proxy.connect()
            kept = Kept(reader, writer)
            assert (await kept.ask(SHORT["GET"]))[9:12] == b"200"
            writer.write(octets)
            (connection,) = proxy.plane._listeners["l"].connections
            due = {"keep_alive": DUE_KEEP_ALIVE, "request_head": DUE_HEAD, "body_idle": DUE_BODY}[field]
            await proxy.settled(lambda: connection.due == due)
            listener = replace(proxy.config.listeners[0], timeouts=short if is_shorter else long)
            reload(proxy, replace(proxy.config, listeners=(listener,)))
            if is_shorter:
                assert (await asyncio.wait_for(reader.read(), PATIENCE_S))[9:12] == end
            else:
                await asyncio.sleep(1.0)
                assert (await kept.ask(rest))[9:12] == b"200"
            writer.close()


@pytest.mark.parametrize(
    ("changes", "octets", "expected"),
    [
        ({"retry": Retry(attempts=1)}, request(target="/close"), [(200, "b1"), (502, "b0")]),
        ({"retry": Retry(buffer=0)}, request("PUT", "/close", body=b"xy"), [(200, "b1"), (502, "b0")]),
        ({"retry": Retry(methods=("POST",))}, request("POST", "/close"), [(502, "b0"), (200, "b1")]),
        ({"retry": Retry(statuses=(503,))}, request(target="/busy"), [(503, "b0"), (200, "b1")]),
        ({"retry": Retry(per_try=0.1)}, request(target="/slow"), [(200, "b0"), (200, "b1")]),
        ({"timeout": PoolTimeouts(first_byte=0.2)}, request(target="/slow"), [(200, "b0"), (504, "b0")]),
    ],
)
async def test_a_request_ends_under_the_rules_that_it_began_with(
    changes: dict[str, Any], octets: bytes, expected: list[tuple[int, str]]
) -> None:
    gates = [asyncio.Event(), asyncio.Event()]

    async def owner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await read_head(reader)).split(b" ", 2)[1]
        await gates[len(owned.received) > 1].wait()
        if target != b"/close":
            writer.write(answer(status="503 Busy" if target == b"/busy" else "200 OK"))

    async with backend(owner) as owned, backend(answering(answer())) as b1:
        pool = replace(pool_of(owned.port, b1.port), connections=UpstreamConnections(max_idle=0))
        async with running(pool) as proxy:
            octets = octets.replace(b"kim", proxy.key_of("b0"))
            began = asyncio.create_task(proxy.ask(octets))
            await proxy.settled(lambda: owned.octets.endswith(octets[-4:]))
            under(proxy, replace(pool, **changes))
            if b"/slow" in octets:
                await asyncio.sleep(0.8)  # longer than the new rules have it
            else:
                gates[1].set()
            gates[0].set()
            answers = [await began, await proxy.ask(octets)]
            assert [int(each[9:12]) for each in answers] == [status for status, _ in expected]
            assert [(line.status, line.backend) for line in proxy.lines] == expected


async def test_an_answer_that_has_begun_may_pause_as_long_as_when_its_request_began() -> None:
    gate = asyncio.Event()

    async def pauses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(answer()[:-1])
        await gate.wait()
        writer.write(answer()[-1:])

    async with backend(pauses) as b0:
        pool = pool_of(b0.port)
        async with running(pool) as proxy:
            began = asyncio.create_task(proxy.ask(request()))
            await proxy.settled(lambda: any(c.due == DUE_UPSTREAM for c in proxy.plane._listeners["l"].connections))
            under(proxy, replace(pool, timeout=PoolTimeouts(idle=0.2)))
            cut = await proxy.ask(request())
            assert not gate.is_set()
            gate.set()
            assert cut == (await began)[:-1]
            assert [(line.status, line.reason) for line in proxy.lines] == [(200, "idle_timeout"), (200, "")]


async def test_who_waits_for_a_seat_waits_as_long_as_when_that_began() -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0:
        pool = pool_of(b0.port)
        pool = replace(pool, backends=(replace(pool.backends[0], max_in_flight=1),), queue=Queue(timeout=PATIENCE_S))
        async with running(pool) as proxy:
            asking = [asyncio.create_task(proxy.ask(request())) for _ in range(2)]
            await proxy.settled(lambda: len(proxy.pool.account.waiting) == 1)
            under(proxy, replace(pool, queue=Queue(timeout=0.1)))
            assert (await proxy.ask(request()))[9:12] == b"503"
            assert len(proxy.pool.account.waiting) == 1
            gate.set()
            assert {(await each)[9:12] for each in asking} == {b"200"}


async def test_the_retry_budget_is_the_pools_and_not_a_requests() -> None:
    gate = asyncio.Event()

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await gate.wait()

    async with backend(closes) as b0, backend(answering(answer())) as b1:
        pool = pool_of(b0.port, b1.port)
        async with running(pool) as proxy:
            key = proxy.key_of("b0")
            asking = [asyncio.create_task(proxy.ask(request(key=key))) for _ in range(3)]
            await proxy.settled(lambda: len(b0.received) == 3)
            under(proxy, replace(pool, retry=Retry(budget=0.0, min_budget=2)))
            gate.set()
            assert sorted([(await each)[9:12] for each in asking]) == [b"200", b"200", b"502"]


async def test_a_connection_is_waited_for_as_long_as_the_configuration_says() -> None:
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # the kernel takes no more than one or two, and nobody accepts them
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        pool = replace(pool_of(deaf.getsockname()[1]), timeout=PoolTimeouts(connect=60.0))
        async with running(pool) as proxy:
            began = asyncio.create_task(proxy.ask(request()))
            await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
            under(proxy, replace(pool, timeout=PoolTimeouts(connect=0.1)))
            assert (await proxy.ask(request()))[9:12] == b"504"
            assert proxy.backend_cell("b0", ledger.BACKEND_ERRORS + ledger.CONNECT_TIMEOUT) == 1
            assert not began.done()
            began.cancel()


async def test_a_tunnel_may_be_silent_as_long_as_when_it_was_opened() -> None:
    async with backend(echo) as b0:
        pool = pool_of(b0.port)
        async with running(pool) as proxy:
            before = await tunnel(proxy)
            under(proxy, replace(pool, timeout=PoolTimeouts(tunnel=0.2)))
            after = await tunnel(proxy)
            assert await asyncio.wait_for(after.reader.read(), PATIENCE_S) == b""
            assert await before.is_alive()
            for each in (before, after):
                each.writer.close()


async def test_which_traces_are_sampled() -> None:
    gate = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            await gate.wait()
            writer.write(answer(head.replace(b"\r\n", b"\n")))

    def is_sampled(said: bytes) -> bool:
        (line,) = [line for line in said.split(b"\n") if line.startswith(b"traceparent: ")]
        return line.endswith(b"-01")

    async with backend(talk) as b0, running(pool_of(b0.port)) as proxy:
        kept = Kept(*await proxy.connect())
        began = asyncio.create_task(kept.ask(SHORT["GET"]))
        await proxy.settled(lambda: proxy.backend_cell("b0", ledger.BACKEND_IN_FLIGHT) == 1)
        for generation, tracing in enumerate((TracingSpec("http://127.0.0.1:1", 1.0), TracingSpec()), start=2):
            reload(proxy, replace(proxy.config, tracing=tracing), generation)
            gate.set()
            if not began.done():
                assert not is_sampled(await began)
            assert is_sampled(await kept.ask(SHORT["GET"])) == bool(tracing.otlp)
        kept.writer.close()


# Affinity cookies.

HUSH = AffinityCookie(secret="hush")


def set_cookie(answered: bytes) -> tuple[bytes, set[bytes]]:
    """The cookie that an answer sets, and its attributes."""
    line = answered.partition(b"Set-Cookie: ")[2].partition(b"\r\n")[0]
    cookie, *attributes = line.split(b"; ")
    return cookie, set(attributes)


@pytest.mark.parametrize(
    ("changed", "attributes"),
    [
        (replace(HUSH, path="/x"), {b"Path=/x", b"HttpOnly", b"SameSite=Lax"}),
        (replace(HUSH, secure=True, same_site="None"), {b"Path=/", b"HttpOnly", b"SameSite=None", b"Secure"}),
        (replace(HUSH, http_only=False, same_site=""), {b"Path=/"}),
        (replace(HUSH, max_age=60.0), {b"Path=/", b"HttpOnly", b"SameSite=Lax", b"Max-Age=60"}),
    ],
)
async def test_a_cookies_attributes(changed: AffinityCookie, attributes: set[bytes]) -> None:
    async with backend(answering(answer())) as b0:
        pool = replace(pool_of(b0.port), sticky=Sticky(cookie=HUSH))
        async with running(pool) as proxy:
            kept = Kept(*await proxy.connect())
            cookie, told = set_cookie(await kept.ask(SHORT["GET"]))
            assert told == {b"Path=/", b"HttpOnly", b"SameSite=Lax"}
            under(proxy, replace(pool, sticky=Sticky(cookie=changed)))
            assert set_cookie(await kept.ask(SHORT["GET"]))[1] == attributes
            # Who has one from before keeps it.
            assert set_cookie(await kept.ask(request(extra=b"Cookie: %b\r\n" % cookie, close=False))) == (b"", set())
            kept.writer.close()


@pytest.mark.parametrize("changed", [replace(HUSH, secret="hush!"), replace(HUSH, name="other"), None])
async def test_a_cookie_that_is_not_known_any_more_says_nothing(changed: AffinityCookie | None) -> None:
    gate = asyncio.Event()
    async with backend(waiting_for(gate)) as b0, backend(answering(answer())) as b1:
        pool = replace(pool_of(b0.port, b1.port), sticky=Sticky(cookie=HUSH))
        async with running(pool) as proxy:
            of_b0, of_b1 = proxy.key_of("b0"), proxy.key_of("b1")
            kept = Kept(*await proxy.connect())
            cookie, _ = set_cookie(await kept.ask(request(key=of_b1, close=False)))
            octets = request(key=of_b0, extra=b"Cookie: %b\r\n" % cookie, close=False)
            assert set_cookie(await kept.ask(octets)) == (b"", set())
            under(proxy, replace(pool, sticky=Sticky(cookie=changed)))
            gate.set()
            new, _ = set_cookie(await kept.ask(octets))
            kept.writer.close()
            assert [line.backend for line in proxy.lines] == ["b1", "b1", "b0"]
            assert new.partition(b"=")[0] == (changed.name.encode() if changed is not None else b"")

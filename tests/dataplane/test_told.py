"""What `debug_headers` tell a trusted client on answers that the proxy itself makes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lbproxy.core import ledger
from lbproxy.core.account import OUT
from lbproxy.core.spec import HeaderPolicy, PoolSpec, Queue, Sticky
from tests.dataplane.harness import answer, answering, backend, pool_of, refusing, request, running

TELLING = HeaderPolicy(debug=True)
HERE = ("127.0.0.0/8",)


def told(response: bytes) -> dict[str, str]:
    """The status and what the proxy says in the fields of its own."""
    status, *lines = response.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    fields = [line.split(": ", 1) for line in lines if line.startswith("X-LB-")]
    assert len(dict(fields)) == len(fields)
    return {"status": status.split()[1], **dict(fields)}


async def told_of(pool: PoolSpec, octets: bytes, policy: HeaderPolicy = TELLING) -> dict[str, str]:
    async with running(pool, headers=policy, trusted=HERE) as proxy:
        return told(await proxy.ask(octets))


async def test_the_backend_that_failed_is_named() -> None:
    with refusing() as port:
        found = await told_of(pool_of(port), request())
    assert found == {
        "status": "502",
        "X-LB-Backend": "b0",
        "X-LB-Decision": "owner",
        "X-LB-Reason": "connect_failed",
    }


async def test_of_several_that_failed_the_last_is_named() -> None:
    with refusing() as one, refusing() as two, refusing() as three:
        pool = pool_of(one, two, three)
        async with running(pool, headers=TELLING, trusted=HERE) as proxy:
            found = told(await proxy.ask(request()))
            last = proxy.lines[0].backend
    assert found == {
        "status": "502",
        "X-LB-Backend": last,
        "X-LB-Decision": "retry:2",
        "X-LB-Reason": "connect_failed",
    }


async def test_a_request_that_may_not_be_repeated_says_where_it_ended() -> None:
    async with backend(answering(b"", close=True)) as b0:
        found = await told_of(pool_of(b0.port), request("POST", body=b"x"))
    assert found == {"status": "502", "X-LB-Backend": "b0", "X-LB-Decision": "owner", "X-LB-Reason": "bad_gateway"}


async def test_a_request_that_reached_nobody_has_a_reason_alone() -> None:
    with refusing() as port:
        needs_key = replace(pool_of(port), sticky=Sticky(on_missing="reject"))
        unkeyed = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        assert await told_of(needs_key, unkeyed) == {"status": "400", "X-LB-Reason": "no_key"}
        assert await told_of(pool_of(port), b"GET /\r\n\r\n") == {"status": "400", "X-LB-Reason": "bad_request"}


async def test_no_backend_has_a_reason_alone() -> None:
    with refusing() as port:
        async with running(pool_of(port), headers=TELLING, trusted=HERE) as proxy:
            proxy.plane.adopt({"p": {"b0": OUT}})
            assert told(await proxy.ask(request())) == {"status": "503", "X-LB-Reason": "no_backend"}


async def test_a_retry_that_waited_for_a_seat_in_vain_is_a_retry() -> None:
    """The owner refuses, and the other one is full: the request waits to be tried there, and is not."""
    silent = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()

    with refusing() as port:
        async with backend(talk) as full:
            pool = replace(pool_of(port, full.port), queue=Queue(10, 0.2))
            pool = replace(pool, backends=(pool.backends[0], replace(pool.backends[1], max_in_flight=1)))
            async with running(pool, headers=TELLING, trusted=HERE) as proxy:
                _, writer = await proxy.connect()
                writer.write(request(key=proxy.key_of("b1")))
                await proxy.settled(lambda: proxy.backend_cell("b1", ledger.BACKEND_IN_FLIGHT) == 1)
                found = told(await proxy.ask(request(key=proxy.key_of("b0"))))
                writer.close()
                silent.set()
    assert found == {
        "status": "503",
        "X-LB-Backend": "b0",
        "X-LB-Decision": "retry:1",
        "X-LB-Reason": "queue_timeout",
    }


async def test_the_next_answer_on_the_connection_says_nothing_of_the_last() -> None:
    with refusing() as port:
        pool = replace(pool_of(port), sticky=Sticky(on_missing="reject"))
        async with running(pool, headers=TELLING, trusted=HERE) as proxy:
            answers = await proxy.ask(request(close=False) + b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    first, second = answers.split(b"HTTP/1.1 ")[1:]
    assert told(b"HTTP/1.1 " + first)["X-LB-Backend"] == "b0"
    assert told(b"HTTP/1.1 " + second) == {"status": "400", "X-LB-Reason": "no_key"}


async def test_an_answer_of_a_backend_has_no_reason() -> None:
    async with backend(answering(answer())) as b0:
        found = await told_of(pool_of(b0.port), request())
    assert found == {"status": "200", "X-LB-Backend": "b0", "X-LB-Decision": "owner"}


@pytest.mark.parametrize(("policy", "trusted"), [(HeaderPolicy(), HERE), (TELLING, ()), (TELLING, ("10.0.0.0/8",))])
async def test_others_are_told_nothing(policy: HeaderPolicy, trusted: tuple[str, ...]) -> None:
    with refusing() as port:
        async with running(pool_of(port), headers=policy, trusted=trusted) as proxy:
            for octets in (request(), b"GET /\r\n\r\n"):
                assert b"X-LB-" not in await proxy.ask(octets)

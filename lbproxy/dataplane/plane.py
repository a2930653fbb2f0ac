"""What all connections of a worker share: the snapshot, the cells, the parsers, the clock."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from email.utils import formatdate
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Final, cast, final

from lbproxy.core.account import Backend
from lbproxy.core.balance import Pool
from lbproxy.core.exchange import Finished
from lbproxy.core.headers import (
    FORWARDED,
    FORWARDED_BY_OTHERS,
    FORWARDING,
    X_FORWARDED,
    RequestShapes,
    ResponseShapes,
    with_hyphens,
)
from lbproxy.core.ledger import Cells
from lbproxy.core.memo import keep
from lbproxy.core.snapshot import Snapshot
from lbproxy.core.spec import ListenerSpec
from lbproxy.dataplane.ids import Ids
from lbproxy.dataplane.placement import is_choosy, take_seat
from lbproxy.dataplane.turn import Turn
from lbproxy.dataplane.wire import RequestParser, ResponseParser

if TYPE_CHECKING:
    from lbproxy.dataplane.relay import Exchange

monotonic: Final = time.monotonic

_PEER_MEMO_LIMIT: Final = 65536
# An IPv6 address in full, its zone included, which is an interface's name (RFC 4007 11.2).
_LONGEST_ADDRESS: Final = 64
# Proxies one behind the other that are looked through.
_MOST_PROXIES: Final = 32


@final
class Plane:
    """The context of a worker's data plane. `now` is the time of the last coarse tick; durations use `monotonic`."""

    __slots__ = (
        "adds_forwarded",
        "cells",
        "clients",
        "date_line",
        "date_second",
        "draining",
        "ended",
        "host_names",
        "ids",
        "is_over",
        "key_fields",
        "key_names",
        "loop",
        "log",
        "most_clients",
        "not_in_connection",
        "now",
        "report",
        "requests",
        "responses",
        "response_shapes",
        "snapshot",
        "tasks",
        "turn",
        "unix_time",
        "trusted_shapes",
        "untrusted_shapes",
        "via_lines",
        "via_name",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        snapshot: Snapshot,
        cells: Cells,
        log: Callable[[Finished], None] | None,
        report: Callable[[str, str, str], None] | None = None,
        most_clients: int = sys.maxsize,
    ) -> None:
        """`report(pool, backend, reason)` is told when a backend has failed too often in a row. Of downstream
        connections, those beyond `most_clients` are refused."""
        self.clients = 0
        self.most_clients: Final = most_clients
        self.report: Final = report
        self.loop: Final = loop
        self.cells: Final = cells
        self.log = log
        self.turn: Final = Turn(loop, cells)
        self.requests: Final = RequestParser()
        self.responses: Final = ResponseParser()
        self.tasks: Final[set[asyncio.Task[None]]] = set()
        self.draining = False
        # Whether draining has taken too long, and what still runs is cut off.
        self.is_over = False
        # Some exchange that has ended, with a client that is gone.
        self.ended: Exchange | None = None
        # Host values that have been found valid, and the name in them.
        self.host_names: Final[dict[bytes, bytes]] = {}
        self.ids: Final = Ids(snapshot.headers, snapshot.tracing)
        self.date_second = 0
        self.date_line = b""
        self.tick()
        self.use(snapshot)

    def use(self, snapshot: Snapshot) -> None:
        """Read this snapshot from now on."""
        self.turn.count()
        policy = snapshot.headers
        untrusted = FORWARDED if policy.x_forwarded == "pass" else FORWARDING | FORWARDED_BY_OTHERS
        trusted = X_FORWARDED if policy.x_forwarded == "off" else frozenset()
        made = frozenset((b"x-request-id",)) if policy.request_id == "make" else frozenset()
        keeps_traces = policy.traceparent == "make"
        self.snapshot = snapshot
        self.adds_forwarded = policy.forwarded
        self.ids.follow(policy, snapshot.tracing)
        # The fields that requests are routed by, in lower case; with hyphens, as trailers are held against them; and
        # together with others that a proxy before us may have written, for the backend and not for us alone.
        self.key_fields = frozenset(
            [
                source.name.lower().encode()
                for pool in snapshot.pools.values()
                for source in pool.spec.sticky.keys
                if source.kind == "header"
            ]
        )
        self.key_names = frozenset([with_hyphens(name) for name in self.key_fields])
        self.not_in_connection = self.key_fields | FORWARDING | FORWARDED_BY_OTHERS
        self.untrusted_shapes = RequestShapes(untrusted | made, keeps_traces, self.key_fields)
        self.trusted_shapes = RequestShapes(trusted | made, keeps_traces, self.key_fields)
        self.response_shapes = ResponseShapes()
        via = policy.via.encode()
        self.via_name = via.lower()
        # The Via line for a request received as HTTP/1.0 and as HTTP/1.1 (RFC 9110 7.6.3).
        self.via_lines = (b"Via: 1.0 %b\r\n" % via, b"Via: 1.1 %b\r\n" % via) if via else (b"", b"")

    def tick(self) -> None:
        """Bring `now`, the Date line and the counts up to date."""
        self.turn.count()
        self.now = monotonic()
        self.unix_time = time.time()
        second = int(self.unix_time)
        if second != self.date_second:
            self.date_second = second
            self.date_line = b"Date: " + formatdate(second, usegmt=True).encode() + b"\r\n"

    def note_failure(self, pool: Pool, backend: Backend, reason: str) -> None:
        """A live result that speaks against a backend. What is done about it is decided for all workers together."""
        backend.errors += 1
        limit = pool.spec.ejection.consecutive_errors
        if limit and backend.errors >= limit and self.report is not None:
            backend.errors = 0
            self.report(pool.name, backend.name, reason)

    def latest(self, pool: Pool) -> Pool:
        """The pool of that name as the configuration has it now, or had it last. Ask that one where a request goes: an
        older one, which an exchange may have begun with, knows neither who has come and gone since nor the numbers of
        those who stayed."""
        snapshot = self.snapshot
        return snapshot.pools.get(pool.name) or snapshot.leaving.get(pool.name, pool)

    def fill_seats(self, pool: Pool) -> None:
        """Let those who wait for a seat have it, in the order in which they came, until all seats are taken again. Who
        has been to some backends already may find no seat where others find one."""
        waiting = pool.account.waiting
        current = self.latest(pool)
        still_waiting: list[Exchange] = []
        while waiting:
            exchange = cast("Exchange", waiting.popleft())
            try:
                has_seat = take_seat(exchange, current)
            except Exception as error:
                exchange.is_waiting = False
                exchange.downstream.fail("a request that waited could not have its seat", error)
                continue
            if not has_seat:
                still_waiting.append(exchange)
                if not is_choosy(exchange, current):
                    break
        waiting.extendleft(reversed(still_waiting))

    def spawn(self, task: asyncio.Task[None]) -> None:
        """Hold a task until it has ended, for the loop alone would let it be collected."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


def _without_port(text: str) -> str:
    """The address in an element of X-Forwarded-For, to which some proxies add the client's port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


@final
class Trust:
    """Which peers of a listener are proxies whose forwarding fields are believed."""

    __slots__ = ("_memo", "_networks")

    def __init__(self, spec: ListenerSpec) -> None:
        self._networks = tuple([ip_network(network, strict=False) for network in spec.trusted_proxies])
        self._memo: dict[str, bool] = {}

    def trusts(self, peer: str) -> bool:
        """Whether the peer with this address ("" over a Unix socket) is trusted; over a Unix socket it is when any
        network is, for whoever may open the socket stands on this machine."""
        if not self._networks:
            return False
        known = self._memo.get(peer)
        if known is None:
            known = self._find(peer)
            keep(self._memo, _PEER_MEMO_LIMIT, peer, known)
        return known

    def _find(self, peer: str) -> bool:
        if not peer:
            return True
        address = _address(peer)
        return address is not None and any(address in network for network in self._networks)

    def client_of(self, forwarded_for: bytes, peer: str) -> str:
        """The client's address, as it is usually written: the last one in X-Forwarded-For that is not itself a trusted
        proxy. Proxies spell one address in several ways, and a client must not be another one behind each."""
        client = peer
        for part in reversed(forwarded_for.rsplit(b",", _MOST_PROXIES)[-_MOST_PROXIES:]):
            text = _without_port(part.strip(b" \t").decode("latin-1"))
            if len(text) > _LONGEST_ADDRESS:
                return client
            address = _address(text)
            if address is None:
                return client
            client = str(address)
            if not self.trusts(client):
                return client
        return client


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """The address that a text is, and that of IPv4 where it is one of IPv6 only to hold such a one (RFC 4291 2.5.5.2);
    None: it is no address."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address

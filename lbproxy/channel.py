"""The control channel between the supervisor and one worker: whole messages, and open sockets along with them.

It is one end of a Unix stream socket pair that the worker inherits. A message is a length, a number of descriptors and
its bytes. Orders go down as pickles of frozen dataclasses; reports come up as JSON, because a worker is the process
that strangers talk to, and nothing it says may be able to make the supervisor run code. When either end closes, the
other knows that its peer is gone.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import pickle
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lbproxy.core.ledger import RowKey
from lbproxy.core.snapshot import States, Weights
from lbproxy.core.spec import Config

HEADER: Final = struct.Struct("!IH")
READ_BYTES: Final = 65536
MAX_DESCRIPTORS: Final = 250  # the kernel passes at most 253 with one message
MAX_REPORT_BYTES: Final = 1 << 20
_RIGHTS_BYTES: Final = socket.CMSG_SPACE(MAX_DESCRIPTORS * array("i").itemsize)


@dataclass(frozen=True, slots=True)
class Sockets:
    """Listening sockets for the generation that follows: one descriptor per listener name, in this order."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tables:
    """Memories of keys seen (`core.recency`), for the generation that follows: one descriptor per pool."""

    pools: tuple[str, ...]


def without_comers(states: States, known: States) -> dict[str, dict[str, int]]:
    """These states, but nobody is asked for more than is known: only who leaves, leaves. A backend that is not known
    has the state that it is given."""
    return {
        pool: {name: max(state, known.get(pool, {}).get(name, state)) for name, state in of_pool.items()}
        for pool, of_pool in states.items()
    }


@dataclass(frozen=True, slots=True)
class Adopt:
    """These pools' backends are SERVING, DRAINING or OUT (`core.account`) from now on."""

    number: int
    states: States


@dataclass(frozen=True, slots=True)
class Generation:
    """Read this configuration from now on; `rows` says where each row of the slab starts. `weights` are the effective
    ones, by pool and backend, where they are not the configuration's; `adopt` takes effect together with them."""

    number: int
    config: Config
    rows: Mapping[RowKey, int]
    weights: Weights = field(default_factory=dict)
    adopt: Adopt = field(default_factory=lambda: Adopt(0, {}))


@dataclass(frozen=True, slots=True)
class TellKeys:
    """Say which keys were seen lately (`core.sample`): one report per pool, and one without a pool at the end."""

    number: int


@dataclass(frozen=True, slots=True)
class ReopenLogs:
    """The access log has been renamed; open it anew."""


Order = Sockets | Tables | Generation | Adopt | TellKeys | ReopenLogs


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says. `kind`:

    applied   it now reads the generation `number`
    adopted   it now goes by the states `number`
    failing   `fields` name a backend that has failed too often in a row: pool, backend, error
    names     of hot keys (`observe.names`), where they may be shown
    spans     of sampled requests (`observe.spans`), after `number` of them had to be left out
    keys      for the request `number`, `fields` are one pool's sample: pool, bits, seen, held; none of them at the end
    event     a line for the journal: `level`, `event`, `fields`
    """

    kind: str
    number: int = 0
    level: str = "info"
    event: str = ""
    fields: Mapping[str, str | int | float | bool | None] | None = None


class _Packer(pickle.Pickler):
    """Pickles a dataclass as a call of its class, which is six times as fast to undo as what dataclasses do."""

    def reducer_override(self, item: object) -> Any:
        names = getattr(type(item), "__dataclass_fields__", None)
        return NotImplemented if names is None else (type(item), tuple([getattr(item, name) for name in names]))


def pack_order(order: Order) -> bytes:
    buffer = io.BytesIO()
    _Packer(buffer, pickle.HIGHEST_PROTOCOL).dump(order)
    return buffer.getvalue()


def unpack_order(payload: bytes) -> Order:
    """Only for what the supervisor sent over the inherited socket pair."""
    order = pickle.loads(payload)  # noqa: S301  # the sender is our parent and more privileged than we are
    if not isinstance(order, Order):
        raise ValueError(f"{type(order).__name__} is no order")
    return order


def pack_report(report: Report) -> bytes:
    members = (report.kind, report.number, report.level, report.event, dict(report.fields or {}))
    return json.dumps(members).encode()


def unpack_report(payload: bytes) -> Report:
    """Raises ValueError for anything that is not a report."""
    try:
        kind, number, level, event, fields = json.loads(payload)
    except (TypeError, RecursionError) as error:
        raise ValueError("not a report") from error
    if not (isinstance(kind, str) and isinstance(number, int) and isinstance(level, str)):
        raise ValueError("not a report")
    if not (isinstance(event, str) and isinstance(fields, dict)):
        raise ValueError("not a report")
    if not all(value is None or isinstance(value, str | int | float) for value in fields.values()):
        raise ValueError("not a report")
    return Report(kind, number, level, event, fields)


class ChannelBroken(Exception):
    """The peer sent what no peer of ours sends."""


class Channel:
    """One end. `receive(payload, descriptors)` is called for every whole message, `closed()` once at the end.

    The receiver owns the descriptors. Sending never waits: what the socket does not take is kept and sent later.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        receive: Callable[[bytes, list[int]], None],
        closed: Callable[[], None],
        longest: int | None = None,
    ) -> None:
        """`longest` caps an incoming message: beyond it the peer is taken for broken and the channel closed."""
        sock.setblocking(False)
        self._socket = sock
        self._loop = loop
        self._receive = receive
        self._closed = closed
        self._longest = longest
        self._in = bytearray()
        self._descriptors: deque[int] = deque()
        self._out: deque[tuple[memoryview, Sequence[int]]] = deque()
        # Our own copies of descriptors in messages that wait, whose owner may close them meanwhile.
        self._copies: set[int] = set()
        self.is_open = True
        loop.add_reader(sock.fileno(), self._on_readable)

    def send(self, payload: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message. The descriptors may be closed when this returns. Does nothing when closed."""
        if len(descriptors) > MAX_DESCRIPTORS:
            raise ValueError(f"{len(descriptors)} descriptors are more than one message takes")
        if not self.is_open:
            return
        self._out.append((memoryview(HEADER.pack(len(payload), len(descriptors)) + payload), descriptors))
        if len(self._out) == 1:
            self._on_writable()
        if self._out and self._out[-1][1]:
            self._keep(*self._out.pop())

    def _keep(self, view: memoryview, descriptors: Sequence[int]) -> None:
        """Let a message wait, with descriptors of its own."""
        try:
            copies = []
            for descriptor in descriptors:
                copies.append(os.dup(descriptor))
                self._copies.add(copies[-1])
        except OSError:  # no more open files: without them the peer could not follow
            self._end()
        else:
            self._out.append((view, copies))

    @property
    def is_clear(self) -> bool:
        """Whether the peer, or the socket on the way to it, has taken all that was sent."""
        return not self._out

    def close(self) -> None:
        """Close this end without being told about it."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for descriptor in (*self._descriptors, *self._copies):
            os.close(descriptor)
        self._descriptors.clear()
        self._copies.clear()

    def finish(self) -> None:
        """Take in what a peer that has ended still said, then close, without being told about it."""
        self._closed = _nothing
        while self.is_open and self._on_readable():
            pass
        self.close()

    def _on_writable(self) -> None:
        try:
            while self._out:
                view, descriptors = self._out[0]
                sent = self._socket.sendmsg([view], _rights(descriptors), socket.MSG_NOSIGNAL)
                # Descriptors travel with the first byte.
                self._out[0] = (view[sent:], ())
                for descriptor in self._copies.intersection(descriptors):
                    os.close(descriptor)
                    self._copies.discard(descriptor)
                if sent == len(view):
                    self._out.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._socket.fileno(), self._on_writable)
        except OSError:
            self._end()
        else:
            self._loop.remove_writer(self._socket.fileno())

    def _on_readable(self) -> bool:
        """Take in what is there; whether anything was."""
        try:
            # socket.recv_fds would not pass the flag on.
            data, ancillary, flags, _ = self._socket.recvmsg(READ_BYTES, _RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError:
            self._end()
            return False
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors = array("i")
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
                self._descriptors.extend(descriptors)
        if not data or flags & socket.MSG_CTRUNC:
            self._end()
            return False
        self._in += data
        try:
            self._deliver()
        except ChannelBroken:
            self._end()
        return True

    def _deliver(self) -> None:
        while self.is_open and len(self._in) >= HEADER.size:
            length, count = HEADER.unpack_from(self._in)
            if self._longest is not None and (length > self._longest or count):
                raise ChannelBroken
            if len(self._in) < HEADER.size + length:
                return
            payload = bytes(self._in[HEADER.size : HEADER.size + length])
            del self._in[: HEADER.size + length]
            self._receive(payload, [self._descriptors.popleft() for _ in range(count)])

    def _end(self) -> None:
        if self.is_open:
            self.close()
            self._closed()


def _nothing() -> None:
    """Nobody wants to know."""


def _rights(descriptors: Sequence[int]) -> list[tuple[int, int, array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []

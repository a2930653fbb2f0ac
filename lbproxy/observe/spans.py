"""What a worker notes of a sampled request for tracing, and how it tells the supervisor, who makes spans of it.

A worker loads no tracing library and opens no connection to a collector: it writes one record per sampled request and
sends them a few at a time. What would be too much is dropped and counted, traffic never waits for it.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, get_type_hints

from lbproxy.core.exchange import Finished
from lbproxy.core.ledger import DECISIONS
from lbproxy.core.trace import Trace

FLUSH_INTERVAL_S: Final = 0.25
# Requests per worker that are told within an interval.
MOST_PER_FLUSH: Final = 125
FLUSH_BYTES: Final = 65536
# Values beyond this are cut; a tracestate beyond its own limit is left out (section 3.3.1.1 of the recommendation).
LONGEST: Final = 1024
LONGEST_STATE: Final = 512


class SpanRecord(NamedTuple):
    """One sampled request. Ids are hexadecimal, `end_ns` is wall time, `path` is without the query; all else is as in
    `core.exchange.Finished`."""

    trace_id: str
    parent_id: str
    server_id: str
    client_id: str
    state: str
    end_ns: int
    duration_us: int
    attempt_us: int
    first_byte_us: int
    attempts: int
    method: str
    host: str
    path: str
    minor: int
    status: int
    reason: str
    decision: str
    pool: str
    backend: str
    client: str
    peer: str
    agent: str
    request_id: str
    request_bytes: int
    response_bytes: int


_KINDS: Final = list(get_type_hints(SpanRecord).values())
_IDS: Final = re.compile(
    r"(?!0{32})[0-9a-f]{32}-(?:(?!0{16})[0-9a-f]{16})?-(?!0{16})[0-9a-f]{16}-(?!0{16})[0-9a-f]{16}"
)


def record_of(x: Finished, trace: Trace, end_ns: int) -> SpanRecord:
    """What is told of an exchange that ended at `end_ns`."""
    state = x.field(b"tracestate")
    return SpanRecord(
        trace.id.decode(),
        trace.parent.decode(),
        trace.server.decode(),
        trace.client.decode(),
        _text(state) if len(state) <= LONGEST_STATE else "",
        end_ns,
        x.duration_us,
        x.attempt_us,
        x.first_byte_us,
        x.attempts,
        _text(x.method),
        _text(x.host),
        _text(x.path.partition(b"?")[0]),
        x.minor,
        x.status,
        x.reason,
        DECISIONS[x.decision] if x.decision >= 0 else "",
        x.pool_name,
        x.backend_name,
        x.client,
        x.peer,
        _text(x.field(b"user-agent")),
        _text(x.request_id),
        x.request_bytes,
        x.response_bytes,
    )


def _text(value: bytes) -> str:
    return value[:LONGEST].decode("utf-8", "backslashreplace")


def pack(records: list[SpanRecord]) -> str:
    return json.dumps(records, ensure_ascii=False, separators=(",", ":"))


def unpack(text: str) -> list[SpanRecord]:
    """The records that a worker sent; what is none is left out, for a worker is the process that strangers talk to."""
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [SpanRecord(*item) for item in items if _is_record(item)] if isinstance(items, list) else []


def _is_record(item: Any) -> bool:
    return isinstance(item, list) and list(map(type, item)) == _KINDS and bool(_IDS.fullmatch("-".join(item[:4])))


class SpanLog:
    """Called with every finished exchange in the place of the access log, which it calls in turn."""

    def __init__(
        self,
        log: Callable[[Finished], None],
        send: Callable[[str, int], bool],
        loop: asyncio.AbstractEventLoop,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`send(text, dropped)` tells the supervisor packed records, and how many requests were dropped before them;
        False when it takes nothing now."""
        self._log = log
        self._send = send
        self._loop = loop
        self._wall_ns = wall_ns
        self._records: list[SpanRecord] = []
        self._size = 0
        self._noted = 0
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, x: Finished) -> None:
        self._log(x)
        trace = x.trace
        if trace is not None:
            self._note(x, trace)

    def _note(self, x: Finished, trace: Trace) -> None:
        if self._timer is None:
            self._noted = 0
            self._timer = self._loop.call_later(FLUSH_INTERVAL_S, self._on_timer)
        self._noted += 1
        if self._noted > MOST_PER_FLUSH:
            self._dropped += 1
            return
        record = record_of(x, trace, self._wall_ns())
        self._records.append(record)
        self._size += len(record.path) + len(record.agent) + len(record.host) + len(record.method) + LONGEST
        if self._size >= FLUSH_BYTES:
            self.flush()

    def _on_timer(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Tell what there is; drop it if that is not possible now."""
        records, self._records = self._records, []
        self._size = 0
        if records or self._dropped:
            if self._send(pack(records), self._dropped):
                self._dropped = 0
            else:
                self._dropped += len(records)

    def close(self) -> None:
        """Tell what there is; nothing will come any more."""
        if self._timer is not None:
            self._timer.cancel()
        self.flush()

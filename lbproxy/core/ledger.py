"""The ledger: which cells a worker counts into, and the words for what is counted.

A slab is a flat array of signed 64-bit cells in shared memory, one per worker, written by that worker alone. It is
cut into rows: one for the worker itself, one per listener, pool and backend. This file says what the cells of each
kind of row mean, and nothing else does: the data plane adds to `cells[row + COLUMN]`, the metrics page reads the same
tables. Times are summed in microseconds. A plain cell costs 46-90 ns to add to, a metric object 1400-2000 ns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from lbproxy.core.retry import REFUSALS
from lbproxy.core.sketch import TABLE_CELLS

Cells = MutableSequence[int]
Kind = Literal["counter", "gauge", "histogram"]

CODE_CLASSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")

DECISIONS: Final = ("owner", "spill:hot", "spill:full", "failover", "retry", "pinned", "no_key")
OWNER: Final = 0
SPILL_HOT: Final = 1
SPILL_FULL: Final = 2
FAILOVER: Final = 3
RETRY: Final = 4
PINNED: Final = 5
NO_KEY: Final = 6

# Why a request got its answer from the proxy itself and not from a backend.
REJECTIONS: Final = (
    "bad_request",
    "head_too_large",
    "uri_too_long",
    "body_too_large",
    "unsupported",
    "request_timeout",
    "no_route",
    "no_key",
    "no_backend",
    "bad_gateway",
    "connect_failed",
    "first_byte_timeout",
    "body_timeout",
    "queue_full",
    "queue_timeout",
    "key_limit",
    "pin_down",
    "no_resources",
    "loop",
)
# Why another backend than the owner served.
SPILL_REASONS: Final = ("hot", "full", "failover", "pinned")
# Why an exchange ended before its answer had, when it is none of those below and no rejection: the client went away.
CLIENT_ABORT: Final = "client_abort"
# The same, when it was the proxy that would not wait any longer.
DRAIN_TIMEOUT: Final = "drain_timeout"
# What went wrong between the proxy and a backend.
UPSTREAM_ERRORS: Final = (
    "connect_refused",
    "connect_timeout",
    "connect_failed",
    "reset",
    "closed_early",
    "protocol",
    "first_byte_timeout",
    "idle_timeout",
)
CONNECT_REFUSED: Final = 0
CONNECT_TIMEOUT: Final = 1
CONNECT_FAILED: Final = 2
RESET: Final = 3
CLOSED_EARLY: Final = 4
PROTOCOL: Final = 5
FIRST_BYTE_TIMEOUT: Final = 6
IDLE_TIMEOUT: Final = 7
# What made a further attempt necessary.
RETRY_REASONS: Final = ("connect", "stale", "reset", "status", "timeout", "out")
RETRY_CONNECT: Final = 0
RETRY_STALE: Final = 1
RETRY_RESET: Final = 2
RETRY_STATUS: Final = 3
RETRY_TIMEOUT: Final = 4
RETRY_OUT: Final = 5
# What became of a further attempt: a better answer began, below 500 and none of `retry.statuses`; it failed, or its
# answer was no better; or it was given up, because the client left or sent no more, or the proxy itself could not make
# it.
RETRY_OUTCOMES: Final = ("success", "failure", "abandoned")
RETRY_SUCCEEDED: Final = 0
RETRY_FAILED: Final = 1
RETRY_ABANDONED: Final = 2

# Upper bounds of the latency histograms, in microseconds.
DURATION_BOUNDS: Final = (
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
)


@dataclass(frozen=True, slots=True)
class Column:
    """One cell of a row, or for a histogram a run of them: one per bound, one for +Inf, one for the sum. `labels` are
    those it has besides its row's, each with its value; the columns of one metric have the same."""

    metric: str
    kind: Kind
    help: str
    labels: tuple[tuple[str, str], ...] = ()
    bounds: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        return len(self.bounds) + 2 if self.kind == "histogram" else 1


def _family(metric: str, help: str, label: str, values: Sequence[str], kind: Kind = "counter") -> tuple[Column, ...]:
    return tuple(Column(metric, kind, help, ((label, value),)) for value in values)


LISTENER_COLUMNS: Final[tuple[Column, ...]] = (
    Column("connections_open", "gauge", "Downstream connections now open."),
    Column("connections_total", "counter", "Downstream connections accepted."),
    Column("connections_refused_total", "counter", "Downstream connections closed at once: the limit was reached."),
)
LISTENER_OPEN: Final = 0
LISTENER_ACCEPTED: Final = 1
LISTENER_REFUSED: Final = 2

WORKER_COLUMNS: Final[tuple[Column, ...]] = (
    Column("worker_requests_total", "counter", "Requests answered by this worker."),
    Column("access_log_dropped_total", "counter", "Access log lines dropped because the sink could not keep up."),
    Column("worker_event_loop_lag_microseconds", "gauge", "How late the last coarse tick came."),
    Column("worker_generation", "gauge", "Generation of the snapshot that this worker reads."),
    Column("worker_ticks_total", "counter", "Coarse ticks of this worker's event loop, ten a second unless it hangs."),
    *_family("early_rejections_total", "Requests refused before a pool was known.", "reason", REJECTIONS),
)
WORKER_REQUESTS: Final = 0
WORKER_LOG_DROPPED: Final = 1
WORKER_LAG: Final = 2
WORKER_GENERATION: Final = 3
WORKER_TICKS: Final = 4
WORKER_REJECTED: Final = 5  # + index into REJECTIONS

POOL_COLUMNS: Final[tuple[Column, ...]] = (
    *_family(
        "requests_total", "Requests answered, by class of the final status; tunnels at their end.", "code", CODE_CLASSES
    ),
    Column("requests_in_flight", "gauge", "Requests that backends now hold, and what tunnels count as."),
    Column("client_aborts_total", "counter", "Requests whose client went away before the answer had ended."),
    Column("upgraded_connections_open", "gauge", "WebSockets and other tunnels now open."),
    Column("upgraded_connections_total", "counter", "WebSockets and other tunnels opened."),
    Column("request_bytes_total", "counter", "Bytes of request bodies received."),
    Column("response_bytes_total", "counter", "Bytes of response bodies sent."),
    *_family("requests_rejected_total", "Requests answered by the proxy itself.", "reason", REJECTIONS),
    *_family("route_decisions_total", "Requests by how their backend was chosen.", "decision", DECISIONS),
    *(
        Column(
            "retries_total",
            "counter",
            "Further attempts, by what made them necessary and what became of them.",
            (("reason", reason), ("outcome", outcome)),
        )
        for reason in RETRY_REASONS
        for outcome in RETRY_OUTCOMES
    ),
    *_family(
        "retries_refused_total",
        "Further attempts that were possible but not allowed.",
        "reason",
        REFUSALS,
    ),
    Column(
        "request_duration_seconds",
        "histogram",
        "From the request's head to the last byte of the answer; not of tunnels.",
        bounds=DURATION_BOUNDS,
    ),
    Column(
        "upstream_first_byte_seconds",
        "histogram",
        "From sending the request to the head of the answer; not of tunnels.",
        bounds=DURATION_BOUNDS,
    ),
    Column(
        "upstream_connect_duration_seconds", "histogram", "Opening a connection to a backend.", bounds=DURATION_BOUNDS
    ),
)
POOL_REQUESTS: Final = 0  # + code class - 1
POOL_IN_FLIGHT: Final = 5
POOL_ABORTS: Final = 6
POOL_UPGRADED_OPEN: Final = 7
POOL_UPGRADED: Final = 8
POOL_REQUEST_BYTES: Final = 9
POOL_RESPONSE_BYTES: Final = 10
POOL_REJECTED: Final = 11  # + index into REJECTIONS
POOL_DECISIONS: Final = POOL_REJECTED + len(REJECTIONS)  # + decision
POOL_RETRIES: Final = POOL_DECISIONS + len(DECISIONS)  # + len(RETRY_OUTCOMES) * reason + outcome
POOL_RETRIES_REFUSED: Final = POOL_RETRIES + len(RETRY_REASONS) * len(RETRY_OUTCOMES)  # + index into REFUSALS
POOL_DURATION: Final = POOL_RETRIES_REFUSED + len(REFUSALS)
POOL_FIRST_BYTE: Final = POOL_DURATION + len(DURATION_BOUNDS) + 2
POOL_CONNECT: Final = POOL_FIRST_BYTE + len(DURATION_BOUNDS) + 2

BACKEND_COLUMNS: Final[tuple[Column, ...]] = (
    *_family(
        "upstream_requests_total", "Answers received from the backend, by class of the status.", "code", CODE_CLASSES
    ),
    Column("upstream_requests_in_flight", "gauge", "Requests the backend now holds, and what its tunnels count as."),
    *_family(
        "upstream_connections",
        "Connections to the backend, in use or kept for reuse.",
        "state",
        ("active", "idle"),
        "gauge",
    ),
    Column("upstream_connections_opened_total", "counter", "Connections opened to the backend."),
    Column("upstream_upgraded_connections_open", "gauge", "WebSockets and other tunnels to the backend now open."),
    Column(
        "route_owned_requests_total",
        "counter",
        "Requests answered whose key the backend owns, wherever they were served.",
    ),
    *_family("route_spills_total", "Requests of the backend's keys served elsewhere.", "reason", SPILL_REASONS),
    Column("route_spills_received_total", "counter", "Requests of others' keys served here."),
    Column(
        "upstream_loops_total",
        "counter",
        "Answers with 508: the request goes round in a circle. Ejection does not count them as failures.",
    ),
    *_family("upstream_errors_total", "Failures between the proxy and the backend.", "reason", UPSTREAM_ERRORS),
    Column(
        "upstream_request_duration_seconds",
        "histogram",
        "From sending the request to the last byte of the answer; not of tunnels.",
        bounds=DURATION_BOUNDS,
    ),
)
BACKEND_REQUESTS: Final = 0  # + code class - 1
BACKEND_IN_FLIGHT: Final = 5
BACKEND_ACTIVE: Final = 6
BACKEND_IDLE: Final = 7
BACKEND_OPENED: Final = 8
BACKEND_UPGRADED_OPEN: Final = 9
BACKEND_OWNED: Final = 10
BACKEND_SPILLS: Final = 11  # + index into SPILL_REASONS
BACKEND_SPILLS_RECEIVED: Final = 15
BACKEND_LOOPS: Final = 16
BACKEND_ERRORS: Final = 17  # + index into UPSTREAM_ERRORS
BACKEND_DURATION: Final = BACKEND_ERRORS + len(UPSTREAM_ERRORS)

# Where a histogram's sum stands, counted from its first cell: behind its buckets.
DURATION_SUM: Final = len(DURATION_BOUNDS) + 1

HOMES_SLOTS: Final = 4096
RowKind = Literal["worker", "listener", "pool", "backend", "sketch", "homes"]
# Two kinds of row are no metrics but what workers tell each other: the table of a pool's hottest keys
# (`core/sketch.py`), and where users with an open tunnel are (`core/homes.py`).
TABLES: Final[dict[RowKind, tuple[Column, ...]]] = {
    "worker": WORKER_COLUMNS,
    "listener": LISTENER_COLUMNS,
    "pool": POOL_COLUMNS,
    "backend": BACKEND_COLUMNS,
    "sketch": (),
    "homes": (),
}
# A row's key: its kind and whose it is. ("worker",), ("listener", name), ("pool", pool), ("backend", pool, backend),
# ("sketch", pool) or ("homes", pool).
RowKey = tuple[str, ...]


def kind_of(key: RowKey) -> RowKind:
    """Which of `TABLES` describes this row."""
    return cast(RowKind, key[0])


def row_width(kind: RowKind) -> int:
    """Cells in a row of this kind."""
    if kind == "sketch":
        return TABLE_CELLS
    if kind == "homes":
        return HOMES_SLOTS
    return sum(column.width for column in TABLES[kind])


# The bucket of a duration of so many times `_STEP`, rounded up, which divides every bound: a search takes ten times as
# long as to look it up here.
_STEP: Final = 500
_BUCKETS: Final = bytes(bisect_left(DURATION_BOUNDS, steps * _STEP) for steps in range(256))


def duration_bucket(microseconds: int) -> int:
    """Which bucket of a histogram a duration belongs to: the first one whose bound it does not exceed."""
    steps = (microseconds + _STEP - 1) // _STEP
    return _BUCKETS[steps] if steps < len(_BUCKETS) else bisect_left(DURATION_BOUNDS, microseconds)


def count_duration(cells: Cells, start: int, microseconds: int) -> None:
    """Count one duration into the histogram whose first cell is `start`."""
    cells[start + duration_bucket(microseconds)] += 1
    cells[start + DURATION_SUM] += microseconds

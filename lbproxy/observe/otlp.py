"""OpenTelemetry spans of the requests that workers have sampled, for the supervisor to send over OTLP/HTTP.

Of a request there is a SERVER span, and if a backend was asked, a CLIENT span of the last attempt, whose id the backend
was sent as its parent. Names and attributes follow the semantic conventions for HTTP
(https://opentelemetry.io/docs/specs/semconv/http/http-spans/), with what only a load balancer knows as `lbproxy.*`.

Only here is the library imported, and only when a configuration asks for spans: it is the extra `otel`.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from lbproxy import __version__
from lbproxy.core.hosts import is_address
from lbproxy.core.ledger import CLIENT_ABORT, DRAIN_TIMEOUT, UPSTREAM_ERRORS
from lbproxy.core.spec import Address, TracingSpec
from lbproxy.observe.spans import SpanRecord

# Where OTLP/HTTP takes traces, below the collector's address.
TRACES_PATH: Final = "/v1/traces"

_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"))
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
# Reasons for which an answer that had begun was cut.
_CUT_SHORT: Final = frozenset((*UPSTREAM_ERRORS, CLIENT_ABORT, DRAIN_TIMEOUT))

Attributes = dict[str, str | int]


class _GivenIds(IdGenerator):
    """Hands out the ids that requests already have."""

    def __init__(self) -> None:
        self.trace_id = 0
        self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class Exporter:
    """Makes spans of records and has them sent in batches, by a thread of the library's. To be used in one thread."""

    def __init__(self, spec: TracingSpec, address_of: Callable[[str, str], Address | None]) -> None:
        """`address_of(pool, backend)` is where a backend is."""
        self._address_of = address_of
        self._ids = _GivenIds()
        resource = Resource.create(
            {
                "service.name": spec.service,
                "service.version": __version__,
                "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            }
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        exporter = OTLPSpanExporter(endpoint=spec.otlp.rstrip("/") + TRACES_PATH)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("lbproxy", __version__)

    def tell(self, record: SpanRecord) -> None:
        """Make the request's spans and queue them."""
        self._ids.trace_id = int(record.trace_id, 16)
        parent = _context(record, record.parent_id, is_remote=True) if record.parent_id else None
        self._span(record, record.server_id, SpanKind.SERVER, parent, record.duration_us, server_attributes(record))
        if record.attempts > 0 and record.backend:
            attributes = client_attributes(record, self._address_of(record.pool, record.backend))
            parent = _context(record, record.server_id, is_remote=False)
            self._span(record, record.client_id, SpanKind.CLIENT, parent, record.attempt_us, attributes)

    def _span(
        self,
        record: SpanRecord,
        span_id: str,
        kind: SpanKind,
        parent: SpanContext | None,
        duration_us: int,
        attributes: Attributes,
    ) -> None:
        self._ids.span_id = int(span_id, 16)
        context = Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())
        name = record.method if record.method in _METHODS else "HTTP"
        start_ns = record.end_ns - duration_us * 1000
        span = self._tracer.start_span(name, context, kind, attributes, start_time=start_ns)
        if "error.type" in attributes and record.reason != CLIENT_ABORT:
            span.set_status(Status(StatusCode.ERROR))
        span.end(record.end_ns)

    def close(self, bound_s: float) -> bool:
        """Send what is queued; False when that takes longer, and the rest is lost. Waits, so not in an event loop."""
        ending = threading.Thread(target=self._provider.shutdown, name="tracing-end", daemon=True)
        ending.start()
        ending.join(bound_s)
        return not ending.is_alive()


def _context(record: SpanRecord, span_id: str, is_remote: bool) -> SpanContext:
    state = TraceState.from_header([record.state]) if record.state else None
    return SpanContext(int(record.trace_id, 16), int(span_id, 16), is_remote, _SAMPLED, state)


def _request_attributes(record: SpanRecord) -> Attributes:
    """What both spans say."""
    attributes: Attributes = {"network.protocol.version": f"1.{record.minor}"}
    if record.method in _METHODS:
        attributes["http.request.method"] = record.method
    else:
        attributes |= {"http.request.method": "_OTHER", "http.request.method_original": record.method}
    if record.pool:
        attributes["lbproxy.pool"] = record.pool
    if record.backend:
        attributes["lbproxy.backend"] = record.backend
    return attributes


def server_attributes(record: SpanRecord) -> Attributes:
    """What the span of the request here says: how the client sees it, and what was decided."""
    attributes = _request_attributes(record) | {
        "url.scheme": "http",
        "url.path": record.path,
        "lbproxy.request_id": record.request_id,
        "http.request.body.size": record.request_bytes,
        "http.response.body.size": record.response_bytes,
    }
    optional = {
        "server.address": record.host,
        "client.address": record.client,
        "network.peer.address": record.peer,
        "user_agent.original": record.agent,
        "lbproxy.decision": record.decision,
        "lbproxy.reason": record.reason,
    }
    attributes |= {name: value for name, value in optional.items() if value}
    if record.status:
        attributes["http.response.status_code"] = record.status
    if record.status >= 500 or record.reason in _CUT_SHORT:
        attributes["error.type"] = record.reason or str(record.status)
    return attributes


def client_attributes(record: SpanRecord, address: Address | None) -> Attributes:
    """What the span of the last attempt says: how the backend was seen."""
    attributes = _request_attributes(record)
    if address is not None:
        attributes |= _place(address)
        attributes["url.full"] = f"http://{address}{record.path}"
    if record.attempts > 1:
        attributes["http.request.resend_count"] = record.attempts - 1
    is_answered = record.first_byte_us >= 0
    if is_answered:
        attributes["http.response.status_code"] = record.status
    if not is_answered or record.reason in _CUT_SHORT:
        attributes["error.type"] = record.reason or "_OTHER"
    elif record.status >= 400:
        attributes["error.type"] = str(record.status)
    return attributes


def _place(address: Address) -> Attributes:
    if address.path:
        return {"server.address": address.path, "network.transport": "unix", "network.peer.address": address.path}
    place: Attributes = {"server.address": address.host, "server.port": address.port}
    if is_address(address.host):
        place |= {"network.peer.address": address.host, "network.peer.port": address.port}
    return place

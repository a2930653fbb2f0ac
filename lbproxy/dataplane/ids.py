"""The ids of requests and of their traces.

Both are random per worker, and then counted or drawn: a `uuid4` costs nine times as much. A trace that begins here has
its lower half drawn anew for each request, because that is the half by which samplers decide.
"""

from __future__ import annotations

import os
from random import getrandbits
from typing import TYPE_CHECKING, Final, final

from lbproxy.core.spec import HeaderPolicy, TracingSpec
from lbproxy.core.trace import Trace, ids_of, is_sampled, sampled_below

if TYPE_CHECKING:
    from lbproxy.dataplane.relay import Exchange

# Requests under one prefix: what eight hexadecimal digits can count, less what comes between two looks at it.
_MOST_PER_PREFIX: Final = 0xF000_0000


@final
class Ids:
    """Makes the ids, and the lines that tell a backend of them.

    `lines(exchange)` gives a request that brought neither id both of them, as far as the policy has it. Where spans are
    told to nobody, an exchange's `trace` is never set, and never looked at.
    """

    __slots__ = (
        "_count",
        "_line",
        "_lines",
        "_prefix",
        "_sampled_below",
        "_span_prefix",
        "_tells",
        "_trace_prefix",
        "lines",
    )

    def __init__(self, headers: HeaderPolicy, tracing: TracingSpec) -> None:
        self._start()
        self.follow(headers, tracing)

    def follow(self, headers: HeaderPolicy, tracing: TracingSpec) -> None:
        """Go by this policy from now on. Which ids `lines` makes is decided here, and not for each request anew."""
        self._line = b"X-Request-ID: %b\r\n" if headers.request_id != "off" else b"%.0b"
        self._lines = self._line + b"traceparent: 00-%b%016x-%b%b-00\r\n"
        self._tells = bool(tracing.otlp)
        self._sampled_below = sampled_below(tracing.sample) if self._tells else 0
        if headers.traceparent != "make":
            self.lines = self.request_line
        elif self._tells:
            self.lines = self._both_lines_sampled
        else:
            self.lines = self._both_lines

    def tick(self) -> None:
        """Begin again under other prefixes before the numbers get longer."""
        if self._count > _MOST_PER_PREFIX:
            self._start()

    def _start(self) -> None:
        digits = os.urandom(20).hex().encode()
        self._count = 0
        self._prefix = digits[:16]
        self._trace_prefix = digits[16:32]
        # Counted from 1, so that no span's id is all zeros; a trace's is not either, whatever is drawn.
        self._span_prefix = digits[32:]
        if self._trace_prefix == b"0" * 16:
            self._trace_prefix = b"1" * 16

    def request_id(self) -> bytes:
        """A new id for a request."""
        self._count += 1
        return b"%b%08x" % (self._prefix, self._count)

    def request_line(self, exchange: Exchange) -> bytes:
        """Give a request an id of its own; the line for it, if it is told."""
        request_id = exchange.request_id = self.request_id()
        return self._line % request_id

    def _both_lines(self, exchange: Exchange) -> bytes:
        self._count = count = self._count + 1
        tail = b"%08x" % count
        request_id = exchange.request_id = self._prefix + tail
        return self._lines % (request_id, self._trace_prefix, getrandbits(64), self._span_prefix, tail)

    def _both_lines_sampled(self, exchange: Exchange) -> bytes:
        lower = getrandbits(64)
        if lower < self._sampled_below:
            return self.request_line(exchange) + self._sampled_line(exchange, lower)
        exchange.trace = None
        self._count = count = self._count + 1
        tail = b"%08x" % count
        request_id = exchange.request_id = self._prefix + tail
        return self._lines % (request_id, self._trace_prefix, lower, self._span_prefix, tail)

    def trace_line(self, exchange: Exchange) -> bytes:
        """Begin a trace; the line for it."""
        lower = getrandbits(64)
        if lower < self._sampled_below:
            return self._sampled_line(exchange, lower)
        exchange.trace = None
        self._count += 1
        return b"traceparent: 00-%b%016x-%b%08x-00\r\n" % (self._trace_prefix, lower, self._span_prefix, self._count)

    def _sampled_line(self, exchange: Exchange, lower: int) -> bytes:
        trace = exchange.trace = Trace(b"%b%016x" % (self._trace_prefix, lower), b"", _span_id(), _span_id())
        return b"traceparent: %b\r\n" % trace.traceparent

    def onward(self, exchange: Exchange, traceparent: bytes) -> bytes:
        """What goes on of a valid traceparent that came: the same, unless the request's spans are told."""
        if not self._tells or not is_sampled(traceparent):
            exchange.trace = None
            return traceparent
        trace_id, parent = ids_of(traceparent)
        trace = exchange.trace = Trace(trace_id, parent, _span_id(), _span_id())
        return trace.traceparent


def _span_id() -> bytes:
    return b"%016x" % (getrandbits(64) or 1)

"""The ids of requests and of their traces: hexadecimal digits of random octets, drawn for hundreds of requests at a
time. A `uuid4` for each costs twenty times as much.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, final

from lbproxy.core.spec import HeaderPolicy, TracingSpec
from lbproxy.core.trace import Trace, ids_of, is_sampled, sampled_below

if TYPE_CHECKING:
    from lbproxy.dataplane.relay import Exchange

# Digits of a request's id, of a trace's and of a span's.
_REQUEST: Final = 24
_TRACE: Final = 32
_SPAN: Final = 16
# What one request takes at the most, and how many requests are provided for at a time.
_MOST: Final = _REQUEST + _TRACE + 2 * _SPAN
_PROVISION: Final = 256


@final
class Ids:
    """Makes the ids, and the lines that tell a backend of them.

    `lines(exchange)` gives a request that brought neither id both of them, as far as the policy has it. Where spans are
    told to nobody, an exchange's `trace` is never set, and never looked at.
    """

    __slots__ = ("_at", "_digits", "_is_told", "_sampled_below", "_tells", "lines")

    def __init__(self, headers: HeaderPolicy, tracing: TracingSpec) -> None:
        self._digits = b""
        self._at = 0
        self.follow(headers, tracing)

    def follow(self, headers: HeaderPolicy, tracing: TracingSpec) -> None:
        """Go by this policy from now on. Which ids `lines` makes is decided here, and not for each request anew."""
        self._is_told = headers.request_id != "off"
        self._tells = bool(tracing.otlp)
        self._sampled_below = sampled_below(tracing.sample) if self._tells else 0
        if headers.traceparent != "make":
            self.lines = self.request_line
        elif self._tells:
            self.lines = self._both_lines_sampled
        else:
            self.lines = self._both_lines

    def _take(self, count: int) -> int:
        """Where as many digits stand that nobody has had."""
        at = self._at
        if at + count > len(self._digits):
            self._digits = os.urandom(_PROVISION * _MOST // 2).hex().encode()
            at = 0
        self._at = at + count
        return at

    def _id(self, count: int) -> bytes:
        at = self._take(count)
        return self._digits[at : at + count]

    def request_id(self) -> bytes:
        """A new id for a request."""
        return self._id(_REQUEST)

    def request_line(self, exchange: Exchange) -> bytes:
        """Give a request an id of its own; the line for it, if it is told."""
        request_id = exchange.request_id = self._id(_REQUEST)
        return b"X-Request-ID: %b\r\n" % request_id if self._is_told else b""

    def _both_lines(self, exchange: Exchange) -> bytes:
        at = self._take(_REQUEST + _TRACE)
        digits = self._digits
        request_id = exchange.request_id = digits[at : at + _REQUEST]
        trace_id = exchange.trace_id = digits[at + _REQUEST : at + _REQUEST + _TRACE]
        if not self._is_told:
            return b"traceparent: 00-%b-%b-00\r\n" % (trace_id, request_id[:_SPAN])
        return b"X-Request-ID: %b\r\ntraceparent: 00-%b-%b-00\r\n" % (request_id, trace_id, request_id[:_SPAN])

    def _both_lines_sampled(self, exchange: Exchange) -> bytes:
        return self.request_line(exchange) + self.trace_line(exchange)

    def trace_line(self, exchange: Exchange) -> bytes:
        """Begin a trace; the line for it."""
        trace_id = exchange.trace_id = self._id(_TRACE)
        if self._sampled_below and int(trace_id[-16:], 16) < self._sampled_below:
            trace = exchange.trace = Trace(trace_id, b"", self._id(_SPAN), self._id(_SPAN))
            return b"traceparent: %b\r\n" % trace.traceparent
        exchange.trace = None
        return b"traceparent: 00-%b-%b-00\r\n" % (trace_id, self._id(_SPAN))

    def onward(self, exchange: Exchange, traceparent: bytes) -> bytes:
        """What goes on of a valid traceparent that came: the same, unless the request's spans are told."""
        exchange.trace_id = traceparent[3:35]
        if not self._tells or not is_sampled(traceparent):
            exchange.trace = None
            return traceparent
        trace_id, parent = ids_of(traceparent)
        trace = exchange.trace = Trace(trace_id, parent, self._id(_SPAN), self._id(_SPAN))
        return trace.traceparent

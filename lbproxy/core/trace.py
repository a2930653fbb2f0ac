"""W3C trace context: which trace a request belongs to, as its `traceparent` says (https://www.w3.org/TR/trace-context/).

00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
version, id of the trace, id of the span that asks, flags (the last bit: whether whoever asks has sampled it)
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

TRACE_FIELDS: Final = frozenset((b"traceparent", b"tracestate"))
# Beyond the largest number that 64 bits hold.
_END: Final = 1 << 64

_IDS: Final = rb"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_FIRST_VERSION: Final = re.compile(rb"00-" + _IDS)
# Later versions begin alike and may go on behind a further hyphen (section 3.2.4 of the recommendation).
_LATER_VERSION: Final = re.compile(rb"(?!00|ff)[0-9a-f]{2}-" + _IDS + rb"(?:-.*)?")
_SAMPLED: Final = b"13579bdf"


class Trace(NamedTuple):
    """The ids of a request whose spans are told, in the digits in which they are sent.

    `parent` is the span of whoever asked, b"" when the trace begins here; `server` the span of the request here;
    `client` that of its last attempt, which the backend sees as its parent.
    """

    id: bytes
    parent: bytes
    server: bytes
    client: bytes

    @property
    def traceparent(self) -> bytes:
        """What the backend is told."""
        return b"00-%b-%b-01" % (self.id, self.client)


def is_traceparent(value: bytes) -> bool:
    """Whether the value names a trace; if not, the trace begins anew."""
    return _FIRST_VERSION.fullmatch(value) is not None or _LATER_VERSION.fullmatch(value) is not None


def is_sampled(traceparent: bytes) -> bool:
    """Whether the span that asks is told to somebody. Only for what `is_traceparent`."""
    return traceparent[54] in _SAMPLED


def ids_of(traceparent: bytes) -> tuple[bytes, bytes]:
    """The trace and the span that asks. Only for what `is_traceparent`."""
    return traceparent[3:35], traceparent[36:52]


def sampled_below(share: float) -> int:
    """Which traces are sampled when this share of them is: those whose id, taken as a number, has lower 64 bits below
    this. OpenTelemetry's TraceIdRatioBased decides alike, so that services with the same share sample the same ones."""
    return round(share * _END)

"""Request heads: the checks that a whole head must pass, and the head that is sent on in its place.

A head is made new, never passed on: request line, the fields that go on, the body's framing, and what this hop has to
add. Most requests have no field whose value decides anything; for them that is one `%`. The others take the second,
longer way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lbproxy.core import exchange as states
from lbproxy.core.headers import (
    CHUNKED_LINE,
    FORWARDED,
    NO_CONNECTION,
    ODD_IN_TARGETS,
    X_FORWARDED,
    BadMessage,
    Connection,
    RequestShape,
    Values,
    connection_of,
    content_length,
    forwarded_element,
    hops_in_via,
    is_chunked,
    is_request_id,
    is_valid_target,
    split_absolute,
    split_authority,
    upgrade_protocols,
    with_value,
)
from lbproxy.core.memo import keep_short
from lbproxy.core.trace import TRACE_FIELDS, is_traceparent
from lbproxy.dataplane.chunked import ChunkedDecoder
from lbproxy.dataplane.wire import as_known_version, with_plain_spaces

if TYPE_CHECKING:
    from lbproxy.dataplane.downstream import Downstream

_HOSTS_LIMIT: Final = 4096
# How often a request may have passed a proxy of our name, before it is said to go round in a circle. Proxies may well
# stand one behind the other under the same name, and then it is nobody's name alone; but not so many.
_MOST_HOPS: Final = 8
_EXPECT: Final = frozenset((b"expect",))
_REQUEST_ID: Final = frozenset((b"x-request-id",))
_MAX_FORWARDS: Final = frozenset((b"max-forwards",))
_LENGTH_FIELD: Final = frozenset((b"content-length",))
_HOST: Final = frozenset((b"host",))


def take_head(downstream: Downstream, head: bytes, is_parsed: bool) -> None:
    """Check a complete head and describe its request to the exchange. Raises `BadMessage`. `is_parsed`: the plane's
    parser has just been shown it."""
    plane = downstream.plane
    if downstream.snapshot is not plane.snapshot:
        downstream.adopt_policy()
    parser = plane.requests
    exchange = downstream.exchange
    exchange.reset()
    if not is_parsed:
        most = downstream.listener.header_count
        try:
            parser.parse(head, most)
        except BadMessage:
            exchange.is_head = head.startswith(b"HEAD ")
            known = with_plain_spaces(as_known_version(head))
            if known == head:
                raise
            parser.parse(known, most)
    shape = exchange.shape  # the last request's, and nearly always this one's: to look 20 names up takes 0.2 us more
    if shape.names != parser.names:
        shapes = plane.trusted_shapes if downstream.is_trusted else plane.untrusted_shapes
        shape = exchange.shape = shapes.known.get(parser.names) or shapes.learn(parser.names)
    parser.is_clean = shape.content_length < 0 and shape.transfer_encoding < 0 and not shape.upgrade
    values = parser.values
    minor = exchange.minor = parser.minor
    method = exchange.method = parser.method
    target = exchange.target = exchange.path = parser.target
    exchange.values = values
    if shape.is_introduced:
        exchange.agent = shape.joined(b"user-agent", values)
        exchange.referer = shape.joined(b"referer", values)
    elif exchange.agent or exchange.referer:
        exchange.agent = exchange.referer = b""
    exchange.is_head = method == b"HEAD"
    exchange.upgrade = b""
    exchange.is_chunked = False
    exchange.down = states.DONE
    exchange.host = b""
    exchange.client = _client(downstream, shape, values) if shape.forwarding else exchange.peer
    downstream.left = 0
    if shape.problem:
        raise BadMessage(400, "bad_request", shape.problem)
    if shape.host >= 0:
        host = values[shape.host]
        name = plane.host_names.get(host) or _host_name(downstream, host)
    elif minor:
        raise BadMessage(400, "bad_request", "Host is missing")
    else:
        host = name = b""
    absolute = b""
    if target.translate(ODD_IN_TARGETS) != target and not is_valid_target(target):
        raise BadMessage(400, "bad_request", "invalid request target")
    if target[0] != 47:  # "/"
        absolute = _read_target(downstream, method, target)
        if absolute:
            host = absolute
            name = _host_name(downstream, host)
    exchange.host = name
    connection = connection_of(shape, values) if shape.connection else NO_CONNECTION
    exchange.keep_alive = not connection.close and (minor == 1 or connection.keep_alive)
    if shape.special or absolute or not host or connection.named:
        if shape.via:
            _look_for_loop(shape.joined(b"via", values), plane.via_name)
        traceparent = values[shape.traceparent] if shape.traceparent >= 0 else None
        is_odd = absolute or not host or connection.named or not shape.is_simple
        if is_odd or (traceparent is not None and not is_traceparent(traceparent)):
            _take_special_head(downstream, method, minor, shape, values, host, absolute, connection)
            return
        if shape.content_length >= 0:
            values = with_value(
                values, shape.content_length, b"%d" % _take_length(downstream, values[shape.content_length])
            )
        if traceparent is not None:
            ids = plane.ids.request_line(exchange)
            values = with_value(values, shape.traceparent, plane.ids.onward(exchange, traceparent))
        else:
            ids = plane.ids.lines(exchange)
    else:
        ids = plane.ids.lines(exchange)
    forwarding = downstream.forwarding
    exchange.head = b"%b %b HTTP/1.1\r\n%b%b%b%b\r\n" % (
        method,
        target,
        shape.template % values,
        forwarding and b"%b%b\r\n" % (forwarding, host),
        plane.via_lines[minor],
        ids,
    )
    if plane.adds_forwarded:
        _append_forwarded(downstream, host)


def _look_for_loop(via: bytes, name: bytes) -> None:
    """Raises `BadMessage` if the request has been here too often."""
    if name and len(via) > _MOST_HOPS * len(name) and hops_in_via(via, name) > _MOST_HOPS:
        raise BadMessage(508, "loop", f"Via names this proxy more than {_MOST_HOPS} times")


def _client(downstream: Downstream, shape: RequestShape, values: Values) -> str:
    """The client's address, by the word of trusted proxies alone."""
    chain = shape.joined(b"x-forwarded-for", values) if downstream.is_trusted else b""
    peer = downstream.exchange.peer
    return downstream.listener.trust.client_of(chain, peer) if chain else peer


def _append_forwarded(downstream: Downstream, host: bytes) -> None:
    exchange = downstream.exchange
    element = forwarded_element(exchange.peer, host, b"http")
    exchange.head = exchange.head[:-2] + b"Forwarded: " + element + b"\r\n\r\n"


def _host_name(downstream: Downstream, host: bytes) -> bytes:
    """The host, in lower case and without its port, of a Host value. Raises `BadMessage`."""
    names = downstream.plane.host_names
    name = names.get(host)
    if name is None:
        found = split_authority(host.strip(b" \t"))
        if found is None:
            raise BadMessage(400, "bad_request", "invalid Host")
        name = found[0]
        keep_short(names, _HOSTS_LIMIT, host, name)
    return name


def _read_target(downstream: Downstream, method: bytes, target: bytes) -> bytes:
    """Read a target that is not in origin-form; returns the authority if it is in absolute-form."""
    exchange = downstream.exchange
    if target == b"*":
        if method != b"OPTIONS":
            raise BadMessage(400, "bad_request", "the target * is for OPTIONS only")
        return b""
    found = split_absolute(target)
    if found is None:
        raise BadMessage(400, "bad_request", "invalid request target")
    authority, path = found
    if method == b"OPTIONS" and path == b"/" and not target.endswith(b"/"):
        path = b"*"  # RFC 9112 3.2.4
    exchange.path = path
    return authority


def _take_special_head(
    downstream: Downstream,
    method: bytes,
    minor: int,
    shape: RequestShape,
    values: Values,
    host: bytes,
    absolute: bytes,
    connection: Connection,
) -> None:
    """The part of `take_head` for requests in which a value decides something."""
    plane = downstream.plane
    exchange = downstream.exchange
    policy = plane.snapshot.headers
    without: frozenset[bytes] = connection.named
    if without and not without.isdisjoint(plane.not_in_connection):
        # A proxy before us may pass on what a client has there, and has written these fields itself.
        raise BadMessage(400, "bad_request", "Connection names a field that is meant for the backend")
    extra = _body_lines(downstream, shape, values, minor)
    if shape.content_length >= 0:
        without |= _LENGTH_FIELD
    if shape.upgrade and connection.upgrade and minor and exchange.down == states.DONE:
        offered = shape.joined(b"upgrade", values)
        if b"h2c" not in upgrade_protocols(offered):  # else what went through would be requests that nobody has routed
            exchange.upgrade = offered
            extra += b"Connection: Upgrade\r\nUpgrade: " + offered + b"\r\n"
    if shape.expect and not minor:
        without |= _EXPECT
    if shape.max_forwards and method in (b"TRACE", b"OPTIONS"):
        extra += _max_forwards(downstream, shape, values)
        without |= _MAX_FORWARDS
    if shape.request_id >= 0 and policy.request_id == "keep" and is_request_id(values[shape.request_id]):
        exchange.request_id = values[shape.request_id]
        if len(shape.index[b"x-request-id"]) > 1:
            without |= _REQUEST_ID
            extra += b"X-Request-ID: %b\r\n" % exchange.request_id
    else:
        extra += plane.ids.request_line(exchange)
        if policy.request_id != "off":
            without |= _REQUEST_ID
    if shape.traceparent >= 0 and is_traceparent(values[shape.traceparent]):
        values = with_value(values, shape.traceparent, plane.ids.onward(exchange, values[shape.traceparent]))
    elif policy.traceparent == "make":
        without |= TRACE_FIELDS
        extra += plane.ids.trace_line(exchange)
    lines = b""
    if absolute or not host:
        without |= _HOST
        lines = b"Host: %b\r\n" % (host or b"localhost")
    if policy.x_forwarded == "append":
        extra += _forwarding_lines(downstream, shape, values, host)
        without |= X_FORWARDED
    if policy.forwarded:
        sent = shape.joined(b"forwarded", values) if downstream.is_trusted else b""
        extra += b"Forwarded: %b\r\n" % b", ".join(
            [element for element in (sent, forwarded_element(exchange.peer, host, b"http")) if element]
        )
        without |= FORWARDED
    exchange.head = b"%b %b HTTP/1.1\r\n%b%b%b%b\r\n" % (
        method,
        exchange.path,
        lines,
        shape.lines(values, without),
        extra,
        plane.via_lines[minor],
    )


def _body_lines(downstream: Downstream, shape: RequestShape, values: Values, minor: int) -> bytes:
    """Decide how the request's body is delimited (RFC 9112 6.3), and the line that says so. Raises `BadMessage`."""
    exchange = downstream.exchange
    if shape.transfer_encoding >= 0:
        if not minor:
            raise BadMessage(400, "bad_request", "Transfer-Encoding in HTTP/1.0")
        if not is_chunked(values[shape.transfer_encoding]):
            raise BadMessage(501, "unsupported", "transfer coding")
        exchange.is_chunked = True
        # Nor do trailers say once more what requests are routed by (RFC 9110 6.5.1): a backend may take them for the
        # head's.
        exchange.request_named = downstream.plane.key_names | connection_of(shape, values).named
        exchange.down = states.BODY
        downstream.decoder = ChunkedDecoder(is_request=True)
        return CHUNKED_LINE
    if shape.content_length < 0:
        return b""
    return b"Content-Length: %d\r\n" % _take_length(downstream, values[shape.content_length])


def _take_length(downstream: Downstream, value: bytes) -> int:
    """Take a request's body to be as long as its Content-Length says. Raises `BadMessage`."""
    length = content_length(value)
    if length < 0:
        raise BadMessage(400, "bad_request", "Content-Length is not a number")
    most = downstream.listener.spec.limits.body_bytes
    if most is not None and length > most:
        raise BadMessage(413, "body_too_large", "the body is too long")
    if length:
        downstream.exchange.down = states.BODY
        downstream.left = length
    return length


def _max_forwards(downstream: Downstream, shape: RequestShape, values: Values) -> bytes:
    """Count Max-Forwards down (RFC 9110 7.6.2). Raises `BadMessage` when the request ends here."""
    left = content_length(shape.joined(b"max-forwards", values))
    if left < 0:
        raise BadMessage(400, "bad_request", "Max-Forwards is not a number")
    if left == 0:
        if downstream.exchange.method == b"OPTIONS":
            raise BadMessage(200, "unsupported", "OPTIONS with Max-Forwards 0")
        raise BadMessage(501, "unsupported", "TRACE with Max-Forwards 0")
    return b"Max-Forwards: %d\r\n" % (left - 1)


def _forwarding_lines(downstream: Downstream, shape: RequestShape, values: Values, host: bytes) -> bytes:
    """X-Forwarded-*: what a trusted proxy said, with this hop appended; anyone else's word does not count."""
    peer = downstream.exchange.peer.encode() or b"unknown"
    proto = b"http"
    if downstream.is_trusted:
        chain = shape.joined(b"x-forwarded-for", values)
        if chain:
            peer = chain + b", " + peer
        proto = shape.joined(b"x-forwarded-proto", values) or proto
        host = shape.joined(b"x-forwarded-host", values) or host
    lines = b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\n" % (peer, proto)
    return lines + b"X-Forwarded-Host: %b\r\n" % host if host else lines

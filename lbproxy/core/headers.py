"""Header sections: what HTTP demands of an intermediary, decided once per shape and not once per request.

Clients and servers say the same field names in the same order again and again; only the values differ. So everything
that follows from the names alone is worked out once per distinct tuple of names, a *shape*: which lines are forwarded,
where the length and the key stand, whether `Host` is there exactly once. What remains per message is one dictionary
look-up and one `template % values`, however many lines there are. Values that decide something (`Connection`,
`Content-Length`, `Transfer-Encoding`, `Host`) are looked at where the shape says that they exist.

A line that must not go on keeps its place in the template as `%.0b`, which formats any value to nothing; so the values
need not be copied to leave one out.

Sources: RFC 9110 sections 5 (fields), 6.6.1 (Date), 7.2 (Host), 7.6 (forwarding), 8.6 (Content-Length), 10.1.1
(Expect); RFC 9112 sections 3.2 (target), 6 (framing), 9.6 (Connection); RFC 7239 (Forwarded).
"""

from __future__ import annotations

import re
from typing import Final

from lbproxy.core.memo import keep, keep_short
from lbproxy.core.trace import TRACE_FIELDS

Names = tuple[bytes, ...]
Values = tuple[bytes, ...]

# Fields that belong to one connection only, whether or not Connection names them (RFC 9110 7.6.1).
HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"transfer-encoding", b"upgrade")
)
# Fields that Connection must not be able to take away: they carry the message's framing, or are ours to send.
PROTECTED: Final = frozenset((b"host", b"content-length", b"date", b"x-request-id")) | TRACE_FIELDS
# Others in which proxies say how a request came to them, and from where. They are not written here, and no more to be
# believed from a stranger than those that are: frameworks make addresses, links, schemes and certificates of them.
FORWARDED_BY_OTHERS: Final = frozenset(
    # whose request it is, to applications and to the libraries that they ask ...
    (b"client-ip", b"forwarded-for", b"proxy-client-ip", b"true-client-ip", b"wl-proxy-client-ip", b"x-client-ip",
     b"x-cluster-client-ip", b"x-envoy-external-address", b"x-forwarded", b"x-original-forwarded-for",
     b"x-proxyuser-ip", b"x-real-ip", b"x-remote-addr", b"x-remote-ip",
     # ... where it came through one of the large networks ...
     b"cf-connecting-ip", b"cf-connecting-ipv6", b"cf-pseudo-ipv4", b"cloudfront-viewer-address",
     b"do-connecting-ip", b"fastly-client-ip", b"fly-client-ip", b"incap-client-ip", b"x-appengine-user-ip",
     b"x-azure-clientip", b"x-azure-socketip", b"x-nf-client-connection-ip", b"x-vercel-forwarded-for",
     # ... and how it came
     b"x-forwarded-by", b"x-forwarded-client-cert", b"x-forwarded-method", b"x-forwarded-path", b"x-forwarded-port",
     b"x-forwarded-prefix", b"x-forwarded-protocol", b"x-forwarded-scheme", b"x-forwarded-server", b"x-forwarded-ssl",
     b"x-forwarded-tls-client-cert", b"x-forwarded-tls-client-cert-info", b"x-forwarded-uri")
)  # fmt: skip
# Fields a trailer section must not carry on: framing, routing, authentication, and what the head has decided
# (RFC 9110 6.5.1).
NOT_IN_TRAILERS: Final = HOP_BY_HOP | frozenset(
    (b"content-length", b"host", b"content-encoding", b"content-type", b"content-range", b"trailer", b"authorization",
     b"proxy-authorization", b"proxy-authenticate", b"www-authenticate", b"cookie", b"set-cookie", b"cache-control",
     b"expect", b"max-forwards", b"range", b"age", b"date", b"expires", b"location", b"retry-after", b"vary",
     b"warning", b"pragma", b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"if-range",
     b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded", b"via", b"x-request-id",
     b"traceparent", b"tracestate")
) | FORWARDED_BY_OTHERS  # fmt: skip
X_FORWARDED: Final = frozenset((b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"))
FORWARDED: Final = frozenset((b"forwarded",))
FORWARDING: Final = X_FORWARDED | FORWARDED
# Fields whose names with underscores in place of hyphens are not sent on: frameworks that follow CGI (RFC 3875 4.1.18)
# take the two for one, so a stranger could say in the one what is replaced in the other.
_NOT_IN_DISGUISE: Final = HOP_BY_HOP | FORWARDING | PROTECTED

CHUNKED_LINE: Final = b"Transfer-Encoding: chunked\r\n"
CLOSE_LINE: Final = b"Connection: close\r\n"
KEEP_ALIVE_LINE: Final = b"Connection: keep-alive\r\n"

# How a body is delimited.
NO_BODY: Final = 0
LENGTH: Final = 1
CHUNKED: Final = 2
UNTIL_CLOSE: Final = 3

# Memos: entries at the most, and how large a section may be whose shape is kept.
_MEMO_LIMIT: Final = 2048
_SHAPE_LINES: Final = 64
_SHAPE_BYTES: Final = 1024
_DIGITS: Final = re.compile(rb"[0-9]{1,18}", re.ASCII)
_REG_NAME: Final = rb"(?:[A-Za-z0-9\-._~!$&'()*+;=]|%[0-9A-Fa-f]{2})+"
_IP_LITERAL: Final = rb"\[[0-9A-Fa-f:.]+\]|\[v[0-9A-Fa-f]+\.[A-Za-z0-9\-._~!$&'()*+,;=:]+\]"
_AUTHORITY: Final = re.compile(rb"(" + _REG_NAME + rb"|" + _IP_LITERAL + rb")(?::([0-9]{0,5}))?")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9\-._~+/=:@]{1,128}")
# What makes a target worth a second look, and what translates it to something else.
_ODD: Final = b'"#%<>\\^`{|}'
ODD_IN_TARGETS: Final = bytes.maketrans(_ODD, b" " * len(_ODD))
_ODD_IN_PATH: Final = re.compile(rb'["<>\\^`{|}]|%(?![0-9A-Fa-f]{2})')
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class BadMessage(Exception):
    """A message that is refused: `status` for the client, `reason` one of `ledger.REJECTIONS`, `detail` for the log."""

    def __init__(self, status: int, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail


class Shape:
    """What the field names of a section say by themselves.

    `index` maps a lower-case name to the positions of its lines. `keep` says per line whether it is forwarded.
    `template` takes all values and yields the forwarded lines. The positions are -1 where there is no such line.
    `special` is true when a value must be looked at before the template may be used as it is.
    """

    __slots__ = (
        "connection", "content_length", "date", "index", "keep", "lower", "names", "problem", "special", "template",
        "transfer_encoding",
    )  # fmt: skip

    names: Names
    lower: Names
    index: dict[bytes, tuple[int, ...]]
    keep: tuple[bool, ...]
    template: bytes
    connection: tuple[int, ...]
    content_length: int
    transfer_encoding: int
    date: bool
    special: bool
    problem: str

    def __init__(self, names: Names, dropped: frozenset[bytes]) -> None:
        lower = tuple([name.lower() for name in names])
        positions: dict[bytes, list[int]] = {}
        for position, name in enumerate(lower):
            positions.setdefault(name, []).append(position)
        index = {name: tuple(found) for name, found in positions.items()}
        self.names = names
        self.lower = lower
        self.index = index
        self.keep = tuple([name not in dropped for name in lower])
        self.template = _template(names, self.keep)
        self.connection = index.get(b"connection", ())
        self.content_length = index.get(b"content-length", (-1,))[0]
        self.transfer_encoding = index.get(b"transfer-encoding", (-1,))[0]
        self.date = b"date" in index
        self.special = self.content_length >= 0 or self.transfer_encoding >= 0
        self.problem = ""
        if len(index.get(b"content-length", ())) > 1:
            self.problem = "Content-Length is there more than once"
        elif self.content_length >= 0 and self.transfer_encoding >= 0:
            self.problem = "Content-Length and Transfer-Encoding are both there"
        elif len(index.get(b"transfer-encoding", ())) > 1:
            self.problem = "Transfer-Encoding is there more than once"

    def lines(self, values: Values, without: frozenset[bytes] = frozenset()) -> bytes:
        """The forwarded lines, and none whose lower-case name is in `without`."""
        if not without:
            return self.template % values
        return b"".join(
            [
                b"%b: %b\r\n" % (self.names[i], values[i])
                for i in range(len(self.names))
                if self.keep[i] and self.lower[i] not in without
            ]
        )

    def joined(self, name: bytes, values: Values) -> bytes:
        """All lines of a name as one list value (RFC 9110 5.3); b"" when there is none."""
        positions = self.index.get(name)
        if positions is None:
            return b""
        if len(positions) == 1:
            return values[positions[0]]
        return b", ".join([values[i] for i in positions])


class RequestShape(Shape):
    """A request's shape: adds where `Host`, `Expect`, `Upgrade`, the request id, the trace and the forwarding fields
    stand. `is_simple`: `traceparent`, `Content-Length` and `Via` are all that may make it special. `is_introduced`:
    there is a `User-Agent` or a `Referer`, which are only logged. `is_large`: it should not outlive its request."""

    __slots__ = (
        "expect", "forwarding", "host", "is_introduced", "is_large", "is_simple", "max_forwards", "request_id",
        "traceparent", "upgrade", "via",
    )  # fmt: skip

    def __init__(
        self,
        names: Names,
        dropped: frozenset[bytes],
        keeps_traces: bool = False,
        keys: frozenset[bytes] = frozenset(),
    ) -> None:
        """`keeps_traces`: a single `traceparent` is kept, with its `tracestate`; anything else of the kind is not.
        `keys` are the fields that requests are routed by, in lower case; what may be taken for one of them is not kept.
        """
        lower = [name.lower() for name in names]
        traceparents = lower.count(b"traceparent")
        if keeps_traces and traceparents != 1:
            dropped |= TRACE_FIELDS
        undisguised = _NOT_IN_DISGUISE | dropped
        like_keys = frozenset([with_hyphens(key) for key in keys])
        disguised = [
            name
            for name in lower
            if (b"_" in name and with_hyphens(name) in undisguised)
            or (name not in keys and with_hyphens(name) in like_keys)
        ]
        if disguised:
            dropped |= frozenset(disguised)
        super().__init__(names, dropped)
        index = self.index
        hosts = index.get(b"host", ())
        if len(hosts) > 1 and not self.problem:
            self.problem = "Host is there more than once"
        self.host: int = hosts[0] if hosts else -1
        self.expect: bool = b"expect" in index
        self.upgrade: bool = b"upgrade" in index
        self.max_forwards: bool = b"max-forwards" in index
        self.via: bool = b"via" in index
        self.request_id: int = index.get(b"x-request-id", (-1,))[0]
        self.is_introduced: bool = b"user-agent" in index or b"referer" in index
        self.forwarding: bool = any(name in index for name in FORWARDING)
        self.is_large: bool = not _is_worth_keeping(names)
        self.traceparent: int = index[b"traceparent"][0] if keeps_traces and traceparents == 1 else -1
        is_odd = self.expect or self.upgrade or self.max_forwards or self.request_id >= 0 or self.forwarding
        self.is_simple: bool = not is_odd and self.transfer_encoding < 0
        self.special = self.special or is_odd or self.traceparent >= 0 or self.via


class RequestShapes:
    """The memo of request shapes under one policy; bounded, since names come from anyone."""

    __slots__ = ("_dropped", "_keeps_traces", "_keys", "known")

    def __init__(
        self,
        dropped: frozenset[bytes] = frozenset(),
        keeps_traces: bool = False,
        keys: frozenset[bytes] = frozenset(),
    ) -> None:
        self._dropped = HOP_BY_HOP | dropped
        self._keeps_traces = keeps_traces
        self._keys = keys
        self.known: Final[dict[Names, RequestShape]] = {}

    def learn(self, names: Names) -> RequestShape:
        """The shape of these names; the hot path looks into `known` first."""
        shape = RequestShape(names, self._dropped, self._keeps_traces, self._keys)
        if not shape.is_large:
            keep(self.known, _MEMO_LIMIT, names, shape)
        return shape


class ResponseShapes:
    """The memo of response shapes."""

    __slots__ = ("_dropped", "known")

    def __init__(self, dropped: frozenset[bytes] = frozenset()) -> None:
        self._dropped = HOP_BY_HOP | dropped
        self.known: Final[dict[Names, Shape]] = {}

    def learn(self, names: Names) -> Shape:
        """The shape of these names; the hot path looks into `known` first."""
        shape = Shape(names, self._dropped)
        if _is_worth_keeping(names):
            keep(self.known, _MEMO_LIMIT, names, shape)
        return shape


def _is_worth_keeping(names: Names) -> bool:
    """Whether a section is of a size that people send. What a memo holds is bounded in octets and not in entries only,
    or a few megabytes of odd requests would leave a gigabyte behind."""
    return len(names) <= _SHAPE_LINES and sum(map(len, names)) <= _SHAPE_BYTES


def _template(names: Names, keep: tuple[bool, ...]) -> bytes:
    parts = []
    for name, kept in zip(names, keep, strict=True):
        parts.append(name.replace(b"%", b"%%") + b": %b\r\n" if kept else b"%.0b")
    return b"".join(parts)


class Connection:
    """A Connection field, read once per distinct value: its options, and the end-to-end fields that it names."""

    __slots__ = ("close", "keep_alive", "named", "upgrade")

    def __init__(self, value: bytes) -> None:
        options = frozenset([option.strip(b" \t").lower() for option in value.split(b",")]) - {b""}
        self.close = b"close" in options
        self.keep_alive = b"keep-alive" in options
        self.upgrade = b"upgrade" in options
        self.named = options - {b"close"} - HOP_BY_HOP - PROTECTED


_connections: dict[bytes, Connection] = {}
_lengths: dict[bytes, int] = {}
NO_CONNECTION: Final = Connection(b"")


def connection_of(shape: Shape, values: Values) -> Connection:
    """What the section's Connection lines say together (RFC 9110 7.6.1)."""
    positions = shape.connection
    if not positions:
        return NO_CONNECTION
    value = values[positions[0]] if len(positions) == 1 else shape.joined(b"connection", values)
    known = _connections.get(value)
    if known is None:
        known = Connection(value)
        keep_short(_connections, _MEMO_LIMIT, value, known)
    return known


def content_length(value: bytes) -> int:
    """The octets that a Content-Length announces, or -1 when it is not 1*DIGIT or beyond 18 digits (RFC 9110 8.6)."""
    length = _lengths.get(value)
    if length is None:
        digits = value.strip(b" \t")
        length = int(digits) if _DIGITS.fullmatch(digits) else -1
        keep_short(_lengths, _MEMO_LIMIT, value, length)
    return length


def with_value(values: Values, at: int, value: bytes) -> Values:
    """The values with this one at that place; the same ones if it stands there already."""
    return values if values[at] == value else (*values[:at], value, *values[at + 1 :])


def is_chunked(value: bytes) -> bool:
    """Whether the only transfer coding is `chunked`; it is compared without regard to case (RFC 9112 7)."""
    return value.strip(b" \t").lower() == b"chunked"


def response_framing(shape: Shape, values: Values, status: int, is_head: bool) -> tuple[int, int]:
    """How a response's body is delimited, and its length if known (RFC 9112 6.3).

    Raises `BadMessage` when the answer cannot be trusted to end where it says.
    """
    if shape.problem:
        raise BadMessage(502, "bad_gateway", shape.problem)
    has_body = not (is_head or status == 304 or status == 204 or status < 200)
    at = shape.content_length
    if at >= 0:
        length = _lengths.get(values[at], -1)
        if length < 0:
            length = content_length(values[at])
        if length < 0:
            raise BadMessage(502, "bad_gateway", "Content-Length is not a number")
        return (LENGTH, length) if has_body else (NO_BODY, 0)
    at = shape.transfer_encoding
    if at >= 0 and not is_chunked(values[at]):
        raise BadMessage(502, "bad_gateway", "Transfer-Encoding is not chunked")
    if not has_body:
        return NO_BODY, 0
    return (CHUNKED, -1) if at >= 0 else (UNTIL_CLOSE, -1)


def is_request_id(value: bytes) -> bool:
    """Whether a request id from outside may be kept: short, and of characters that are safe in any log."""
    return _REQUEST_ID.fullmatch(value) is not None


def is_valid_target(target: bytes) -> bool:
    """Whether a target that ODD_IN_TARGETS changes is to be taken (RFC 9112 3.2, RFC 3986 2): never with a fragment,
    and in the path no characters that a URI does not have and no broken percent-encoding. Queries are taken as they
    are, for browsers send them so."""
    path = target.partition(b"?")[0]
    return b"#" not in target and _ODD_IN_PATH.search(path) is None


def with_hyphens(name: bytes) -> bytes:
    """The field name that frameworks which follow CGI take for the same one."""
    return name.replace(b"_", b"-")


def is_token(value: bytes) -> bool:
    """Whether the octets are an RFC 9110 5.6.2 token."""
    return _TOKEN.fullmatch(value) is not None


def upgrade_protocols(value: bytes) -> frozenset[bytes]:
    """The protocol names of an Upgrade field, in lower case, without versions (RFC 9110 7.8)."""
    return frozenset([part.strip(b" \t").partition(b"/")[0].lower() for part in value.split(b",")])


def split_authority(authority: bytes) -> tuple[bytes, bytes] | None:
    """Host in lower case and port (b"" if none) of a Host value or an authority without userinfo; None if invalid."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return None
    port = found[2] or b""
    if port and int(port) > 65535:
        return None
    return found[1].lower(), port


def split_absolute(target: bytes) -> tuple[bytes, bytes] | None:
    """Authority and origin-form of an absolute-form target (RFC 9112 3.2.2); None if it is none or has a fragment."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None or not found[1]:
        return None
    rest: bytes = found[2]
    return found[1], rest if rest.startswith(b"/") else b"/" + rest


def forwarded_element(client: str, host: bytes, scheme: bytes) -> bytes:
    """One element of the Forwarded field (RFC 7239 4); an IPv6 address is bracketed and quoted (section 6). Without a
    host, as HTTP/1.0 allows it, none is named."""
    node = b'"[' + client.encode() + b']"' if ":" in client else client.encode() or b"unknown"
    return b'for=%b;host="%b";proto=%b' % (node, host, scheme) if host else b"for=%b;proto=%b" % (node, scheme)


def hops_in_via(via: bytes, name: bytes) -> int:
    """How often a Via field says that the request was received by `name`, which is in lower case (RFC 9110 7.6.3)."""
    hops = 0
    for element in via.lower().split(b","):
        words = element.split(None, 2)
        if len(words) > 1 and words[1] == name:
            hops += 1
    return hops


def trailer_lines(fields: list[tuple[bytes, bytes]], named: frozenset[bytes] = frozenset()) -> bytes:
    """The trailer fields that may be forwarded, as lines; not those that the head's Connection, or we, have `named`, in
    lower case and with hyphens or as they are."""
    lines = []
    for name, value in fields:
        lower = name.lower()
        plain = with_hyphens(lower)
        if lower not in named and plain not in named and plain not in NOT_IN_TRAILERS:
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)

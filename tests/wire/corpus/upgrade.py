"""Upgrade and 101: accepted, refused, ignored (RFC 9110 section 7.8)."""

from __future__ import annotations

from tests.wire.case import (
    MUST,
    PROBE,
    SHOULD,
    AwaitBody,
    AwaitEof,
    AwaitFinals,
    AwaitHeads,
    AwaitTunnel,
    Close,
    Echo,
    HalfClose,
    Pause,
    Reset,
    Tunnel,
    case,
    framed,
    get,
    ok,
    raw,
)
from tests.wire.expect import (
    Seen,
    all_of,
    answers,
    backend_tunnel,
    body,
    closed,
    either,
    forwarded,
    got_field,
    had,
    holds,
    interim,
    lacked,
    relayed,
    status,
    tunnelled,
)

# The handshake of RFC 6455 section 1.3, right in every part, since some proxies check it.
KEY = ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
ASK = ("Connection: Upgrade", "Upgrade: websocket", *KEY)
SWITCH = raw(
    "HTTP/1.1 101 Switching Protocols",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
)
ECHO = (Tunnel(), SWITCH, Echo(), HalfClose())


BINARY = bytes(range(256)) + b"GET / HTTP/1.1\r\n\r\n"


def _says_upgrade(seen: Seen) -> str:
    members = seen.forwarded[0].members(b"connection") if seen.forwarded else []
    return "" if b"upgrade" in members else f"it says {members}"


def _answer_says_upgrade(seen: Seen) -> str:
    members = seen.finals[0].members(b"connection") if seen.finals else []
    return "" if b"upgrade" in members else f"it says {members}"


ACCEPTED = [
    case(
        "upgrade-echo",
        "9110 7.8",
        MUST,
        (get(*ASK), AwaitHeads(1), b"hello", AwaitTunnel(5)),
        status(101),
        got_field("Upgrade", b"websocket"),
        tunnelled(b"hello"),
        backend_tunnel(b"hello"),
        answer=ECHO,
    ),
    case(
        "upgrade-forwarded",
        "9110 7.8",
        MUST,
        (get(*ASK), AwaitHeads(1)),
        had("Upgrade", b"websocket"),
        had("Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
        holds("Connection says upgrade", _says_upgrade),
        answer=ECHO,
    ),
    case(
        "upgrade-answer-fields",
        "9110 7.8",
        MUST,
        (get(*ASK), AwaitHeads(1)),
        status(101),
        got_field("Upgrade", b"websocket"),
        holds("Connection says upgrade", _answer_says_upgrade),
        answer=ECHO,
    ),
    *(
        case(
            f"upgrade-{name}",
            "9110 7.8",
            MUST,
            (get(*lines, *KEY), AwaitHeads(1), b"hello", AwaitTunnel(5)),
            status(101),
            tunnelled(b"hello"),
            answer=ECHO,
        )
        for name, lines in {
            "lower-case": ("connection: upgrade", "upgrade: websocket"),
            "upper-case": ("CONNECTION: UPGRADE", "UPGRADE: WebSocket"),
            "with-keep-alive": ("Connection: keep-alive, Upgrade", "Upgrade: websocket"),
            "two-lines": ("Connection: keep-alive", "Connection: Upgrade", "Upgrade: websocket"),
        }.items()
    ),
    case(
        "upgrade-other-protocol",
        "9110 7.8",
        SHOULD,
        (get("Connection: Upgrade", "Upgrade: foo/2"), AwaitHeads(1), b"hello", AwaitTunnel(5)),
        status(101),
        tunnelled(b"hello"),
        answer=(
            Tunnel(),
            raw("HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: foo/2"),
            Echo(),
            HalfClose(),
        ),
    ),
    case(
        "upgrade-binary",
        "9110 7.8",
        MUST,
        (get(*ASK), AwaitHeads(1), BINARY, AwaitTunnel(len(BINARY))),
        tunnelled(BINARY),
        backend_tunnel(BINARY),
        answer=ECHO,
        why="nothing in a tunnel is HTTP",
    ),
    case(
        "upgrade-large",
        "9110 7.8",
        MUST,
        (get(*ASK), AwaitHeads(1), BINARY * 1000, AwaitTunnel(len(BINARY) * 1000)),
        tunnelled(BINARY * 1000),
        answer=ECHO,
        patience=5,
    ),
    case(
        "upgrade-octets-with-101",
        "9110 7.8",
        MUST,
        (get(*ASK), AwaitTunnel(5), b"ok", Pause(0.05)),
        tunnelled(b"hello"),
        backend_tunnel(b"ok"),
        answer=(Tunnel(), SWITCH + b"hello", AwaitTunnel(2), AwaitEof()),
        why="the first octets of the new protocol may come with the 101",
    ),
    case(
        "upgrade-backend-first",
        "9110 7.8",
        MUST,
        (get(*ASK), AwaitTunnel(10), Pause(0.05)),
        tunnelled(b"helloworld"),
        answer=(Tunnel(), SWITCH, Pause(0.05), b"hello", Pause(0.05), b"world", AwaitEof()),
    ),
    case(
        "upgrade-backend-closes",
        "9110 7.8",
        MUST,
        (get(*ASK), AwaitTunnel(5)),
        tunnelled(b"hello"),
        closed,
        answer=(Tunnel(), SWITCH, b"hello", Close()),
    ),
    case(
        "upgrade-backend-resets",
        "9110 7.8",
        MUST,
        (get(*ASK), AwaitTunnel(5)),
        closed,
        answer=(Tunnel(), SWITCH, b"hello", Pause(0.05), Reset()),
    ),
    case(
        "upgrade-client-half-closes",
        "9110 7.8",
        SHOULD,
        (get(*ASK), AwaitHeads(1), b"hello", HalfClose(), AwaitTunnel(5)),
        tunnelled(b"hello" + b"bye"),
        closed,
        answer=(Tunnel(), SWITCH, AwaitTunnel(5), AwaitEof(), b"hello", Pause(0.05), b"bye", Close()),
        why="one direction ends before the other",
    ),
    case(
        "upgrade-backend-half-closes",
        "9110 7.8",
        SHOULD,
        (get(*ASK), AwaitTunnel(5), Pause(0.05), b"answer", Pause(0.1)),
        tunnelled(b"hello"),
        backend_tunnel(b"answer"),
        answer=(Tunnel(), SWITCH, b"hello", HalfClose(), AwaitTunnel(6)),
    ),
    case(
        "upgrade-after-103",
        "9110 15.2",
        MUST,
        (get(*ASK), AwaitHeads(2), b"hello", AwaitTunnel(5)),
        interim(103),
        tunnelled(b"hello"),
        answer=(Tunnel(), raw("HTTP/1.1 103 Early Hints", "X: 1") + SWITCH, Echo(), HalfClose()),
    ),
    case(
        "upgrade-with-body",
        "9110 7.8",
        MUST,
        (framed(b"hello", *ASK, "Content-Length: 5"), AwaitFinals(1), b"tunnel", Pause(0.1)),
        either(
            all_of(relayed(body=b"hello", code=None), status(101), tunnelled(b"tunnel")),
            all_of(forwarded(1), status(2)),
            status(4, 501, 502),
        ),
        answer=(AwaitBody(), Tunnel(), SWITCH, Echo(), HalfClose()),
        methods="POST",
    ),
]


REFUSED = [
    *(
        case(
            f"upgrade-refused-{code}",
            "9110 7.8",
            MUST,
            (get(*ASK), AwaitFinals(1), PROBE),
            answers(code, 200),
            body(b"no"),
            answer={"": ok(b"no", status=f"{code} Word")},
            methods="GET GET",
            why="without 101 all stays HTTP",
        )
        for code in (200, 403, 426, 501)
    ),
    case(
        "upgrade-pipelined-refused",
        "9110 7.8",
        MUST,
        get(*ASK) + get(path="/~~/second"),
        either(all_of(answers(200, 200), forwarded(2)), all_of(answers(200), closed)),
        methods="GET GET",
        why="a request sent behind the wish to switch is a request if the wish is refused",
    ),
    case(
        "upgrade-pipelined-accepted",
        "9110 7.8",
        MUST,
        get(*ASK) + b"early",
        either(
            all_of(status(101), backend_tunnel(b"early")),
            status(4, 5),
        ),
        answer=(Tunnel(), SWITCH, Echo(), HalfClose()),
        why="octets sent before the 101 are the new protocol's once it has come",
    ),
]


def _no_101(seen: Seen) -> str:
    return "it does" if any(message.status == 101 for message in seen.stream.messages) else ""


NOT_ASKED = [
    case(
        "upgrade-1.0",
        "9110 7.8",
        MUST,
        get(*ASK, version="1.0"),
        relayed(),
        lacked("Upgrade"),
        why="in an HTTP/1.0 request Upgrade is ignored",
    ),
    case(
        "upgrade-not-named",
        "9110 7.6.1",
        SHOULD,
        get("Upgrade: websocket"),
        relayed(),
        lacked("Upgrade"),
        why="without the option in Connection the field was forwarded by mistake",
    ),
    case(
        "upgrade-option-only",
        "9110 7.8",
        MUST,
        get("Connection: Upgrade"),
        relayed(),
    ),
    *(
        case(
            f"upgrade-101-{name}",
            "9110 7.8",
            MUST,
            (request, AwaitFinals(1), PROBE, Pause(0.05)),
            holds("no 101 reaches the client", _no_101),
            either(status(502), closed),
            answer={"": (Tunnel(), SWITCH, Pause(0.3), Close())},
            methods="GET GET",
            why="nobody asked: an answer that cannot be",
        )
        for name, request in {
            "unasked": get(),
            "1.0": get(*ASK, version="1.0"),
            "not-named": get("Upgrade: websocket"),
        }.items()
    ),
    case(
        "upgrade-101-other-protocol",
        "9110 7.8",
        SHOULD,
        (get(*ASK), AwaitHeads(1)),
        status(502),
        answer=(
            Tunnel(),
            raw("HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: other/1"),
            Pause(0.2),
            Close(),
        ),
        why="a server does not switch to what the client did not name",
    ),
    case(
        "upgrade-101-no-field",
        "9110 15.2.2",
        SHOULD,
        (get(*ASK), AwaitHeads(1)),
        status(502),
        answer=(Tunnel(), raw("HTTP/1.1 101 Switching Protocols", "X: 1"), Pause(0.2), Close()),
        why="101 names the protocol",
    ),
]

CASES = [*ACCEPTED, *REFUSED, *NOT_ASKED]

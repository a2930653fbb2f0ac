"""Who may do what over the admin API.

Over the Unix socket, whoever may open it (mode 0600) may do everything. Over TCP everybody who reaches the port may
read; whoever wants to change something needs the token of `admin.token_file`. A web page in some browser must not be
able to do either: the Host field must name this machine, so that no name whose owner points it at 127.0.0.1 gets
through, and a request that changes something must not come from another origin.
"""

from __future__ import annotations

import hmac
import pwd
import socket
import struct
from collections.abc import Collection
from typing import Final

from aiohttp import web

from lbproxy.control.admin.view import Rejected
from lbproxy.control.token import NoToken, read_token
from lbproxy.core.hosts import is_address

_PEER_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_NOT_OVER_TCP: Final = (
    "nothing can be changed over TCP without admin.token_file in the configuration; "
    "a Unix socket, admin.socket, takes changes without a token (either needs a restart)"
)


def is_local(request: web.Request) -> bool:
    """Whether the request came over the Unix socket. Of a connection that has been lost nobody knows any more, and what
    came over TCP must not gain by that."""
    own = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return isinstance(own, str | bytes)


def is_own_host(value: str, names: Collection[str]) -> bool:
    """Whether a Host field is a plain address or one of `names`: nothing that somebody else's DNS can point here."""
    host = value.rpartition("]")[0].removeprefix("[") if value.startswith("[") else value.partition(":")[0]
    return host.lower().removesuffix(".") in names or is_address(host)


class Guard:
    """Judges requests. `hosts` are names of this machine besides localhost and plain addresses."""

    def __init__(self, hosts: Collection[str] = (), token_file: str = "") -> None:
        self._hosts: Final = {"localhost", *map(str.lower, hosts)}
        self._token_file: Final = token_file

    def check_host(self, request: web.Request) -> None:
        """Raises Rejected for a Host that is not ours."""
        if not is_local(request) and not is_own_host(request.headers.get("Host", ""), self._hosts):
            raise Rejected(421, "the Host field names another machine")

    def check_origin(self, request: web.Request) -> None:
        """Raises Rejected for what another web page has sent. Only for requests that may do something."""
        origin = request.headers.get("Origin")
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise Rejected(403, "the request comes from another site")
        if origin is not None and origin.partition("://")[2].lower() != request.headers.get("Host", "").lower():
            raise Rejected(403, "the request comes from another origin")

    def check_write(self, request: web.Request) -> None:
        """Raises Rejected unless this request may change something."""
        self.check_origin(request)
        if is_local(request):
            return
        if not self._token_file:
            raise Rejected(403, _NOT_OVER_TCP)
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        token = given.strip().encode("utf-8", "surrogateescape")  # whatever octets they were
        if scheme.lower() != "bearer" or not hmac.compare_digest(token, self._token()):
            raise Rejected(401, "the token is missing or wrong, see admin.token_file")

    def _token(self) -> bytes:
        try:
            return read_token(self._token_file)
        except NoToken as error:
            raise Rejected(503, str(error)) from None


def who(request: web.Request) -> str:
    """Who sent it, as far as can be told: a user of this machine, or an address that knew the token."""
    transport = request.transport
    if transport is None:
        return "unknown"
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple):
        return f"token from {peer[0]}"
    sock = transport.get_extra_info("socket")
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        uid = _PEER_CREDENTIALS.unpack(packed)[1]
    except (OSError, AttributeError):
        return "unknown"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"

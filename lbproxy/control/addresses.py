"""How places are written in the file: hosts, listening addresses, backend URLs, networks, hosts and paths to match.

As in `values`, every `read_*` takes the text of a scalar and raises `BadValue`.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from lbproxy.control.values import BadValue, quote
from lbproxy.core.spec import Address

# sun_path of sockaddr_un holds 108 bytes with the final NUL.
LONGEST_SOCKET_PATH_BYTES: Final = 107

_LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_LIKE_IPV4: Final = re.compile(r"[0-9.]+")
_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)


def read_bind(text: str) -> Address:
    """`host:port`, `[v6]:port` or `unix:/path`. Port 0 lets the system choose one."""
    if text.startswith("unix:"):
        return Address("", 0, read_socket_path(text.removeprefix("unix:")))
    if re.fullmatch(r"[0-9]{1,5}|:[0-9]{1,5}", text):
        raise BadValue(f"{quote(text)} names no address to bind", f"0.0.0.0:{text.lstrip(':')}")
    if text.startswith("*:"):
        raise BadValue(f"{quote(text)} is not host:port", f"0.0.0.0:{text[2:]}")
    if "://" in text:
        raise BadValue(f"{quote(text)} is a URL, not host:port", _URL.sub(r"\g<rest>", text).rstrip("/"))
    return read_host_port(text, None)


def read_tcp_bind(text: str) -> Address:
    """As `read_bind`, without Unix sockets."""
    if text.startswith("unix:"):
        raise BadValue(f"{quote(text)} is a Unix socket, which goes into `socket`")
    return read_bind(text)


def read_socket_path(path: str) -> str:
    """The absolute path of a Unix socket, short enough for the system."""
    if not path.startswith("/"):
        raise BadValue(f"{quote(path)} is not an absolute path", f"/{path}" if path.startswith("run/") else "")
    if len(path.encode("utf-8")) > LONGEST_SOCKET_PATH_BYTES:
        raise BadValue(f"{quote(path)} is longer than the {LONGEST_SOCKET_PATH_BYTES} bytes a socket path may have")
    return path


def read_backend_url(text: str) -> Address:
    """The address in `http://host[:port]`; the port defaults to 80."""
    url = _URL.fullmatch(text)
    if url is None:
        raise BadValue(f"{quote(text)} has no scheme", f"http://{text}" if _reads_as_host_port(text) else "")
    scheme, rest = url["scheme"].lower(), url["rest"]
    if scheme == "https":
        raise BadValue(f"{quote(text)} asks for TLS to the backend, which is not available yet")
    if scheme != "http":
        raise BadValue(f"{quote(text)} is not an http:// URL")
    if "@" in rest:
        raise BadValue(f"{quote(text)} holds credentials, and a backend URL is only a scheme, a host and a port")
    authority, rest_mark, tail = _cut_at(rest, "/?#")
    if rest_mark and (rest_mark, tail) != ("/", ""):
        raise BadValue(
            f"{quote(text)} goes on after the address, and a backend URL is only a scheme, a host and a port",
            f"http://{authority}" if _reads_as_host_port(authority) else "",
        )
    try:
        address = read_host_port(authority, 80)
    except BadValue as bad:
        raise BadValue(str(bad), f"http://{bad.hint}" if bad.hint else "") from None
    if address.port == 0:
        raise BadValue(f"{quote(text)} has port 0, which nobody can connect to")
    return address


def read_collector_url(text: str) -> str:
    """`http://host[:port][/path]` or the same with https, without a slash at the end."""
    url = _URL.fullmatch(text)
    if url is None:
        raise BadValue(f"{quote(text)} has no scheme", f"http://{text}" if _reads_as_host_port(text) else "")
    scheme = url["scheme"].lower()
    if scheme not in ("http", "https"):
        raise BadValue(f"{quote(text)} is neither an http:// nor an https:// URL")
    authority, mark, tail = _cut_at(url["rest"], "/?#")
    if "@" in authority or mark in ("?", "#") or "?" in tail or "#" in tail or not tail.isprintable() or " " in tail:
        raise BadValue(f"{quote(text)} is more than a scheme, a host, a port and a path")
    address = read_host_port(authority, 443 if scheme == "https" else 80)
    if address.port == 0:
        raise BadValue(f"{quote(text)} has port 0, which nobody can connect to")
    return f"{scheme}://{authority}{mark}{tail}".rstrip("/")


def read_network(text: str) -> str:
    """A CIDR network or a single address, as the canonical text of the network."""
    try:
        return str(ipaddress.ip_network(text, strict=True))
    except ValueError:
        pass
    try:
        network = str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise BadValue(f"{quote(text)} is not a network such as 10.0.0.0/8 or fd00::/8") from None
    raise BadValue(f"{quote(text)} has bits set after its prefix", network)


def read_match_host(text: str) -> str:
    """A host to match, in lower case: `example.com`, `*.example.com`, `10.0.0.1` or `[::1]`; never a port."""
    host = text.lower().rstrip(".")
    if re.fullmatch(r"(?:\[.*\]|[^:]*):[0-9]+", host):
        raise BadValue(f"{quote(text)} has a port, and a match is made on the host alone", host.rpartition(":")[0])
    if host in ("*", ""):
        raise BadValue(f"{quote(text)} is no host, leave `host` out to match any")
    if "://" in host or "/" in host:
        raise BadValue(f"{quote(text)} is not a host alone, a path goes into `path`")
    if host.startswith("["):
        _read_ipv6(host[1:-1] if host.endswith("]") else "", text)
        return f"[{ipaddress.ip_address(host[1:-1]).compressed}]"
    _check_host(host.removeprefix("*."), text)
    return host


def read_match_path(text: str) -> str:
    """A path prefix to match, as it stands in the request line."""
    if not text.startswith("/"):
        raise BadValue(f"{quote(text)} does not start with /", f"/{text}" if re.fullmatch(r"[\w./-]+", text) else "")
    if re.search(r"[?#]", text):
        raise BadValue(f"{quote(text)} holds a query or a fragment, and a match is made on the path alone")
    if text.endswith("*"):
        raise BadValue(f"{quote(text)} ends with *, and a match takes everything below it anyway", text.rstrip("*"))
    if not re.fullmatch(r"[!-~]+", text):
        raise BadValue(f"{quote(text)} holds characters that a request line writes percent-encoded")
    return text


def read_target(text: str) -> str:
    """What a check asks for: a path, with a query or without."""
    if not text.startswith("/"):
        raise BadValue(f"{quote(text)} does not start with /", f"/{text}" if re.fullmatch(r"[\w./-]+", text) else "")
    if "#" in text or not re.fullmatch(r"[!-~]+", text):
        raise BadValue(f"{quote(text)} holds characters that a request line cannot have")
    return text


def is_loopback(address: Address) -> bool:
    """Whether only this machine can reach a socket bound to `address`. A name other than localhost counts as not."""
    if address.path or address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


def read_host_port(text: str, default_port: int | None) -> Address:
    """`host:port` or `[v6]:port`; without a default the port must be there."""
    if text.startswith("["):
        inner, bracket, after = text[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise BadValue(f"{quote(text)} is not [address]:port")
        return Address(_read_ipv6(inner, text), _read_port(after[1:] if after else None, text, default_port))
    host, colon, port = text.rpartition(":")
    if ":" in host:
        raise BadValue(f"{quote(text)} holds an IPv6 address without brackets", _bracketed(text))
    if not colon:
        host, port = text, ""
    _check_host(host, text)
    return Address(host.lower(), _read_port(port if colon else None, text, default_port))


def _read_port(port: str | None, text: str, default: int | None) -> int:
    if port is None and default is not None:
        return default
    if not port:
        raise BadValue(f"{quote(text)} has no port")
    if not re.fullmatch(r"0|[1-9][0-9]{0,4}", port) or int(port) > 65535:
        raise BadValue(f"{quote(text)} has no port from 0 to 65535 behind the colon")
    return int(port)


def _read_ipv6(inner: str, text: str) -> str:
    try:
        return ipaddress.IPv6Address(inner).compressed
    except ValueError:
        raise BadValue(f"{quote(text)} holds no IPv6 address in its brackets") from None


def _check_host(host: str, text: str) -> None:
    if not host:
        raise BadValue(f"{quote(text)} has no host")
    if _LIKE_IPV4.fullmatch(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise BadValue(f"{quote(text)} holds no valid IPv4 address") from None
        return
    if not host.isascii():
        raise BadValue(f"{quote(text)} is not ASCII, write an international name in its xn-- form")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.removesuffix(".").split(".")):
        raise BadValue(f"{quote(text)} holds no valid host name")


def _bracketed(text: str) -> str:
    """The same with brackets, if it reads as an IPv6 address, with a port (`::1:80`) or without."""
    host, _, port = text.rpartition(":")
    for address, suffix in ((host, f":{port}"), (text, "")):
        try:
            return f"[{ipaddress.IPv6Address(address).compressed}]{suffix}"
        except ValueError:
            continue
    return ""


def _reads_as_host_port(text: str) -> bool:
    try:
        read_host_port(text, 80)
    except BadValue:
        return False
    return True


def _cut_at(text: str, marks: str) -> tuple[str, str, str]:
    for position, character in enumerate(text):
        if character in marks:
            return text[:position], character, text[position + 1 :]
    return text, "", ""

"""The affinity cookie: it names a session's backend, signed, so that the session stays where it is.

The ring places a session once; the cookie remembers where. So a changed ring moves no session that has a cookie, which
is what pools want whose sessions live in a backend's memory. The value is

    version "1", backend (hash of its name, 16 hex digits), issue time (Unix seconds, hex), signature

joined by dots. The signature is HMAC-SHA-256 (RFC 2104) over pool and the parts before it, cut to 128 bits; who does
not know the secret can neither choose a backend nor tell names from the value. Attributes follow RFC 6265.
"""

from __future__ import annotations

import hmac
from math import ceil
from typing import Final, final

from xxhash import xxh3_64_hexdigest

from lbproxy.core.spec import AffinityCookie

_SIGNATURE_DIGITS: Final = 32
# How far a cookie may come from the future, for clocks of several proxies differ.
_SKEW_S: Final = 60
# How many cookies of the name are looked at.
_MOST_READ: Final = 4


@final
class CookieAffinity:
    """Writes and reads a pool's affinity cookies."""

    __slots__ = ("_attributes", "_max_age", "_name", "_names", "_pool", "_secret")

    def __init__(self, spec: AffinityCookie, pool: str, backends: list[str]) -> None:
        self._name: Final = spec.name.encode()
        self._secret: Final = spec.secret.encode()
        self._pool: Final = pool.encode()
        self._max_age: Final = spec.max_age
        self._names: Final = {xxh3_64_hexdigest(name.encode()).encode(): name for name in backends}
        attributes = [f"Path={spec.path}"]
        if spec.max_age:
            attributes.append(f"Max-Age={ceil(spec.max_age)}")  # whole seconds, and 0 would take the cookie away
        if spec.secure:
            attributes.append("Secure")
        if spec.http_only:
            attributes.append("HttpOnly")
        if spec.same_site:
            attributes.append(f"SameSite={spec.same_site}")
        self._attributes: Final = "".join(f"; {attribute}" for attribute in attributes).encode()

    def line(self, backend: str, now: float) -> bytes:
        """The Set-Cookie line for a session that was served by this backend; `now` in Unix seconds."""
        named = xxh3_64_hexdigest(backend.encode()).encode()
        head = b"1.%b.%x" % (named, int(now))
        return b"Set-Cookie: %b=%b.%b%b\r\n" % (self._name, head, self._sign(head), self._attributes)

    def backend(self, cookie_lines: list[bytes], now: float) -> str | None:
        """The backend that the request's Cookie lines name; None when there is no cookie of ours, or it is not ours,
        too old, or of a backend that is gone. Of several, as a browser has them when `path` was another one, the one
        that was set last counts; more than a few are not looked at, for each costs a signature."""
        latest = 0
        found: str | None = None
        looked_at = 0
        for line in cookie_lines:
            for pair in line.split(b";"):
                name, _, value = pair.strip(b" \t").partition(b"=")
                if name == self._name:
                    looked_at += 1
                    if looked_at > _MOST_READ:
                        return found
                    named, issued = self._read(value.strip(b'"'), now)
                    if named is not None and (found is None or issued > latest):
                        found, latest = named, issued
        return found

    def _read(self, value: bytes, now: float) -> tuple[str | None, int]:
        """The backend that a cookie names, and when it was set in Unix seconds."""
        head, _, signature = value.rpartition(b".")
        if len(value) > 128 or not hmac.compare_digest(signature, self._sign(head)):
            return None, 0
        _, named, text = head.split(b".")
        issued = int(text, 16)
        age = now - issued
        if age < -_SKEW_S or (self._max_age and age > self._max_age):
            return None, 0
        return self._names.get(named), issued

    def _sign(self, head: bytes) -> bytes:
        digest = hmac.new(self._secret, self._pool + b"\0" + head, "sha256").hexdigest()
        return digest[:_SIGNATURE_DIGITS].encode()

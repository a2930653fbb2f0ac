"""Exchanges that have ended, as the data plane hands them over to what is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lbproxy.core import ledger
from lbproxy.core.exchange import Finished
from lbproxy.core.headers import RequestShape

_SMALL: Final[dict[str, Any]] = {
    "method": b"GET",
    "target": b"/things?page=2",
    "path": b"/things?page=2",
    "host": b"api.example.com",
    "client": "192.0.2.7",
    "peer": "10.0.0.1",
    "status": 200,
    "pool_name": "api",
    "backend_name": "b1",
    "decision": ledger.OWNER,
    "attempts": 1,
    "request_bytes": 10,
    "response_bytes": 2000,
    "duration_us": 1500,
    "first_byte_us": 900,
    "sent": 0.0001,
    "request_id": b"3f2a9c1e000001f2",
    "key": b"user-1",
}
_NO_FIELDS: Final[Mapping[bytes, bytes]] = {}


def ended(fields: Mapping[bytes, bytes] = _NO_FIELDS, **changes: Any) -> Finished:
    """A small answer from the owner of its key, but for `changes`; `fields` are the request's headers."""
    x = Finished()
    for name, value in {**_SMALL, **changes}.items():
        setattr(x, name, value)
    x.shape = RequestShape(tuple(fields), frozenset())
    x.values = tuple(fields.values())
    x.agent = x.field(b"user-agent")
    x.referer = x.field(b"referer")
    return x

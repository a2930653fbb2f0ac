"""Exchanges that have ended, as the data plane hands them over to what is told of them."""

from __future__ import annotations

from typing import Any

from lbproxy.core import ledger
from lbproxy.core.trace import Trace


class Ended:
    """A small answer from the owner of its key, but for `changes`."""

    def __init__(self, **changes: Any) -> None:
        self.method = b"GET"
        self.target = b"/things?page=2"
        self.path = b"/things?page=2"
        self.host = b"api.example.com"
        self.minor = 1
        self.client = "192.0.2.7"
        self.peer = "10.0.0.1"
        self.status = 200
        self.pool_name = "api"
        self.backend_name = "b1"
        self.decision = ledger.OWNER
        self.reason = ""
        self.attempts = 1
        self.request_bytes = 10
        self.response_bytes = 2000
        self.upgraded = False
        self.duration_us = 1500
        self.connect_us = -1
        self.first_byte_us = 900
        self.attempt_us = 1400
        self.request_id = b"3f2a9c1e000001f2"
        self.trace_id = b""
        self.trace: Trace | None = None
        self.key: bytes | None = b"user-1"
        self.fields: dict[bytes, bytes] = {}
        vars(self).update(changes)
        self.agent = self.field(b"user-agent")
        self.referer = self.field(b"referer")

    def field(self, name: bytes) -> bytes:
        return self.fields.get(name, b"")

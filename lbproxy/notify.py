"""What the service manager is told: systemd's notification protocol, one datagram for each message (sd_notify(3)).

Without a service manager nothing is told to anybody, and nothing else is different.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

# How long a message that matters waits for a service manager that has too many of them.
PATIENCE_S: Final = 1.0
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """The way to the service manager that started this process, if one did.

    `interval_s` is how often it wants to hear that we live, None if it does not.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """The variables are taken out of the environment: they are not meant for the processes that we start."""
        place, interval, pid = [environment.pop(name, "") for name in _VARIABLES]
        is_socket = place[:1] in ("/", "@")
        self._address = ("\0" + place[1:] if place.startswith("@") else place) if is_socket else ""
        is_watched = is_socket and interval.isdecimal() and int(interval) > 0 and pid in ("", str(os.getpid()))
        self.interval_s = int(interval) / 1e6 if is_watched else None
        self._is_stopping = False

    def ready(self, status: str) -> None:
        """Everything serves, from the start or after a reload."""
        if not self._is_stopping:
            self._tell(f"READY=1\nSTATUS={_line(status)}")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it, whatever came of it."""
        if not self._is_stopping:
            self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str) -> None:
        """The end begins; nothing but that is told any more, and that we live."""
        self._is_stopping = True
        self._tell(f"STOPPING=1\nSTATUS={_line(status)}")

    async def keep_alive(self) -> None:
        """Say again and again that the event loop turns, for ever, if anybody wants to know."""
        while self.interval_s is not None:
            self._tell("WATCHDOG=1", 0.0)
            await asyncio.sleep(self.interval_s / 2)

    def _tell(self, message: str, patience_s: float = PATIENCE_S) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(patience_s)
            try:
                sock.sendto(message.encode("utf-8", "replace"), self._address)
            except OSError:  # it is gone, or cannot keep up; there is nothing better to do
                pass


def _line(text: str) -> str:
    return " ".join(text.split())

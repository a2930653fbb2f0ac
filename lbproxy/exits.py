"""How a command ends: its exit code, and the exception that ends it with a message."""

from __future__ import annotations

from typing import Final

OK: Final = 0
BAD: Final = 1  # what was asked about, or what was to be started
USAGE: Final = 2
UNREACHABLE: Final = 3
REFUSED: Final = 4
INTERRUPTED: Final = 130  # as a shell reports SIGINT
PIPE_CLOSED: Final = 141  # as a shell reports SIGPIPE


class Stop(Exception):
    """Ends the command with a message and an exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

"""The admin token in its file."""

from __future__ import annotations

import os
import stat
from typing import Final, final

_MOST_BYTES: Final = 4096


@final
class NoToken(Exception):
    """Why a token file holds no token; `why` goes on after its name. `is_denied`: this user may not read it, another
    may."""

    def __init__(self, why: str, is_denied: bool = False) -> None:
        super().__init__(f"the token file {why}")
        self.why: Final = why
        self.is_denied: Final = is_denied


def read_token(path: str) -> bytes:
    """The token in a file, without white space around it. Raises NoToken."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise NoToken("is no regular file")
            token = file.read(_MOST_BYTES).strip()
    except OSError as error:
        raise NoToken(f"cannot be read: {error.strerror}", isinstance(error, PermissionError)) from None
    if not token:
        raise NoToken("is empty")
    return token


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody at the other end of a named pipe."""
    return os.open(path, flags | os.O_NONBLOCK)

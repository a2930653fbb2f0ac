"""What holds for all tests."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator

import pytest

# A shell starts what runs in the background with this signal ignored, and every process of a test would inherit that:
# those that are to end with Ctrl-C would not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _bytecode() -> Iterator[None]:
    """Where bytecode is not to be written beside the sources, hundreds of processes would each compile the proxy anew,
    which is a third of their start. They share a place of their own for it."""
    if not sys.dont_write_bytecode:
        yield
        return
    with (
        tempfile.TemporaryDirectory(prefix="lbproxy-bytecode-", ignore_cleanup_errors=True) as place,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PYTHONPYCACHEPREFIX", place)
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield

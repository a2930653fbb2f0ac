"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell starts what runs in the background with this signal ignored, and every process of a test would inherit that:
# those that are to end with Ctrl-C would not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

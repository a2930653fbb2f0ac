"""A process ends when its work is done, whoever still waits for something."""

from __future__ import annotations

import subprocess
import sys
import time

from lbproxy.ending import run_to_end

# A thread of the loop's that sleeps is one whose resolver does not answer: neither can be told to stop.
_HELD_UP = """
import asyncio, sys, threading, time
from lbproxy.ending import run_to_end

def sleep(begun):
    begun.set()
    time.sleep(60)

async def main():
    begun = threading.Event()
    asyncio.get_running_loop().run_in_executor(None, sleep, begun)
    begun.wait()
    sys.stdout.write("done")
    return 7

run_to_end(main())
"""


def test_what_still_waits_holds_nobody_up_and_nothing_is_lost() -> None:
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", _HELD_UP], capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "done", "")
    assert time.monotonic() - began < 30


def test_the_exit_code_is_that_of_the_work() -> None:
    async def main() -> int:
        return 3

    assert run_to_end(main()) == 3

"""A worker's process, from its start to its end.

A Ctrl-C or a hangup of the terminal reaches the whole foreground group, a worker's interpreter that is only starting
included: it would end with a traceback, or without a word. So a worker is born with these signals blocked, and lets
them in when it has decided to ignore them (`worker.main`). asyncio cannot do that, for uvloop's children begin with
nothing blocked and nothing ignored.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Final

# What follows from these is for the supervisor to decide.
NOT_FOR_WORKERS: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Child:
    """A process that has been started. Raises OSError when it cannot be."""

    def __init__(self, command: Sequence[str], descriptors: Sequence[int], environment: Mapping[str, str]) -> None:
        """`descriptors` are the open files that it inherits, under their numbers."""
        self._loop: Final = asyncio.get_running_loop()
        self._ended: Final[asyncio.Future[None]] = self._loop.create_future()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_WORKERS)
        try:
            self._process: Final = subprocess.Popen(  # noqa: S603  our own interpreter
                command, stdin=subprocess.DEVNULL, pass_fds=descriptors, env=environment
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.pid: Final = self._process.pid
        try:
            threading.Thread(target=self._watch, name="worker-watch", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._process.kill()
            self._process.wait()
            raise OSError(errno.EAGAIN, str(error)) from error

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        self._process.send_signal(number)

    async def wait(self) -> int:
        """Wait for its end; returns the exit code, or minus the number of the signal that ended it."""
        await self._ended
        return self._process.wait()

    def _watch(self) -> None:
        """In a thread of its own: wait for the end, but leave it to the loop's thread to reap the process, so that the
        number stays its own for as long as signals are sent to it. (A pidfd would do without a thread, from Linux 5.3.)
        """
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # it is reaped already
            pass
        try:
            self._loop.call_soon_threadsafe(self._tell)
        except RuntimeError:  # the loop is closed, and nobody waits
            pass

    def _tell(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

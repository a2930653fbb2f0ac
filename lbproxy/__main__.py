"""`python -m lbproxy`, and where the command `lbproxy` begins."""

import sys


def main() -> int:
    """Run one command and return its exit code; Ctrl-C is quiet from here on, while the program is still being loaded,
    too. What is sent to a proxy that is only starting waits until there is somebody to do it (`server._Signals`)."""
    try:
        if sys.argv[1:2] == ["run"]:
            import signal

            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGUSR1))
        from lbproxy.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130  # exits.INTERRUPTED, for which nothing more is to be loaded


if __name__ == "__main__":
    sys.exit(main())

"""`python -m lbproxy`, and where the command `lbproxy` begins."""

import sys


def main() -> int:
    """Run one command and return its exit code; Ctrl-C is quiet from here on, while the program is still being loaded,
    too."""
    try:
        from lbproxy.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130  # exits.INTERRUPTED, for which nothing more is to be loaded


if __name__ == "__main__":
    sys.exit(main())

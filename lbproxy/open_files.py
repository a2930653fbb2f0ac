"""Open files: as many as the system lets a process have.

Its shell, or whatever has started it, often lets it have fewer than a proxy needs: a socket for each client and
backend, and in the supervisor one for each listener and worker.
"""

from __future__ import annotations

import resource


def raise_limit() -> None:
    """Raise the soft limit of this process to its hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

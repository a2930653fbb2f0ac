"""The ring alone: how long 1,000 backends x 1024 vnodes take to build, and what a lookup costs."""

from __future__ import annotations

import os
import time

from benchmarks.figures import CheckResult
from benchmarks.loads import CHECKS
from benchmarks.machine import placement

_BACKENDS = 1000
_VNODES = 1024
_KEYS = 200_000


def run_ring() -> CheckResult:
    """Best of three builds; lookups over many keys, so that the processor's caches do not flatter."""
    from lbproxy.core.forge import build_ring
    from lbproxy.core.hashing import hash_key

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, placement(1).proxy)
    try:
        builds = []
        for _ in range(3):
            start = time.perf_counter()
            ring = build_ring([(f"backend-{number}", 1.0) for number in range(_BACKENDS)], vnodes=_VNODES)
            builds.append(time.perf_counter() - start)
        hashes = [hash_key(b"user-%d" % number) for number in range(_KEYS)]
        owner = ring.owner
        start = time.perf_counter()
        for position in hashes:
            owner(position)
        lookup_s = (time.perf_counter() - start) / _KEYS
    finally:
        os.sched_setaffinity(0, before)
    return CheckResult("ring", CHECKS["ring"], {"lbproxy": {"build_s": min(builds), "lookup_ns": lookup_s * 1e9}})

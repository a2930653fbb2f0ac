"""The loads: what is asked, over how many connections, with how many workers."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.backends import FILES_BYTES, SMALL_BYTES

# With Host and X-User-ID, the 20 fields that a browser sends to an application behind a login.
_BROWSER = (
    ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36"),
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"),
    ("Accept-Language", "en-GB,en;q=0.9,de;q=0.7"),
    ("Accept-Encoding", "gzip, deflate, br, zstd"),
    ("Referer", "https://shop.example.com/catalogue/shoes?page=3&sort=price"),
    ("Cookie", "session=6f1c0f4e2b7d4a8f9d3e5b1a7c9e0f12; theme=dark; consent=analytics.0-ads.0; cart=8812-3,9914-1"),
    ("Cache-Control", "max-age=0"),
    ("Pragma", "no-cache"),
    ("Upgrade-Insecure-Requests", "1"),
    ("Sec-Fetch-Dest", "document"),
    ("Sec-Fetch-Mode", "navigate"),
    ("Sec-Fetch-Site", "same-origin"),
    ("Sec-Fetch-User", "?1"),
    ("Sec-CH-UA", '"Chromium";v="140", "Not=A?Brand";v="24"'),
    ("Sec-CH-UA-Mobile", "?0"),
    ("Sec-CH-UA-Platform", '"Linux"'),
    ("DNT", "1"),
    ("Priority", "u=0, i"),
)


@dataclass(frozen=True, slots=True)
class Load:
    """Keyed requests from wrk. `users` is how many keys go round.

    `workers` None is what the command line says. `direct` measures a backend without a proxy too. `watch_memory`
    samples the proxy's resident memory while it runs.
    """

    name: str
    title: str
    path: str = "/"
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body_bytes: int = 0
    response_bytes: int = SMALL_BYTES
    connections: int = 64
    users: int = 1000
    workers: int | None = None
    direct: bool = False
    watch_memory: bool = False


SMALL = Load("small", "small keyed GET, 64 keep-alive connections")

LOADS: tuple[Load, ...] = (
    SMALL,
    Load("connections", "small keyed GET, 1,000 keep-alive connections", connections=1000),
    Load("browser", "20 browser headers, 64 connections", headers=_BROWSER),
    Load("10k", "10 KB responses, 64 connections", path="/10k", response_bytes=FILES_BYTES["10k"]),
    Load(
        "1m",
        "1 MB responses, 16 connections",
        path="/1m",
        response_bytes=FILES_BYTES["1m"],
        connections=16,
        watch_memory=True,
    ),
    Load(
        "upload",
        "64 KB uploads, 64 connections",
        path="/upload",
        method="POST",
        body_bytes=64 * 1024,
        response_bytes=len("accepted\n"),
        users=64,
    ),
    Load("close", "one connection per request, 64 at a time", headers=(("Connection", "close"),)),
    Load("latency", "one connection: added latency", connections=1, direct=True),
    Load("two-workers", "small keyed GET, 64 connections, two workers on two cores that carry the load too", workers=2),
)

# Measured without wrk, by memory.py and ring.py.
CHECKS: dict[str, str] = {
    "idle": "idle keep-alive connections: memory of each",
    "slow-upload": "a large upload to a slow backend: memory",
    "ring": "a ring of 1,000 backends x 1024 vnodes: build and lookup",
}


def select(names: list[str] | None) -> tuple[list[Load], list[str]]:
    """The loads and checks of these names, in their order here; None is all.

    Raises:
        SystemExit: a name is unknown.
    """
    known = [load.name for load in LOADS] + list(CHECKS)
    for name in names or ():
        if name not in known:
            raise SystemExit(f"benchmarks: no load {name!r}; known: {', '.join(known)}")
    wanted = set(known if names is None else names)
    return [load for load in LOADS if load.name in wanted], [name for name in CHECKS if name in wanted]

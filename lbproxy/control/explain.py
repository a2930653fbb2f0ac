"""Why a key goes where it goes, worked out from a configuration alone.

The way is the one that every request goes: hash the key, take the first token at or after it, then the next distinct
backends clockwise. A pin of the file goes before that, and with `prefer_local` those in the proxy's zone come first.
What only a running proxy knows (who is down, full, draining, overridden or pinned at run time) is not in it: this is
where the key lives, and where it would turn in which order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import SPACE, hash_key, tokens
from lbproxy.core.pins import PinTable
from lbproxy.core.ring import Ring
from lbproxy.core.spec import BackendSpec, KeySource, Pin, PoolSpec

_HASH_NAMES: Final = {1: "xxh3_64"}


@dataclass(frozen=True, slots=True)
class Step:
    """One backend of a key's preference list and the token that put it there.

    `number` is the token's number among the backend's own, from 0; `distance` how far round the circle it lies from the
    key, from 0 to 1.
    """

    backend: BackendSpec
    token: int
    number: int
    distance: float


@dataclass(frozen=True, slots=True)
class Standing:
    """How a backend stands on the ring: its tokens, the share its weight asks for and the share it owns, 0 to 1."""

    backend: BackendSpec
    tokens: int
    expected: float
    owned: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where `key` lives in `pool`. `steps` is the preference list, owner first, empty when nobody has a token.
    `pin` is the one that goes before it."""

    pool: PoolSpec
    key: bytes
    hash: int
    fingerprint: str
    steps: tuple[Step, ...]
    standings: tuple[Standing, ...]
    pin: Pin | None = None


def explain(pool: PoolSpec, key: bytes, zone: str = "") -> Explanation:
    """Where `key` lives in `pool`, and why, as a proxy in `zone` has it."""
    ring = build_ring(((b.name, b.weight) for b in pool.backends), pool.vnodes, pool.hash_version)
    backends = {backend.name: backend for backend in pool.backends}
    position = hash_key(key)
    listed = list(steps(ring, position, backends, pool.hash_version))
    if pool.prefer_local and zone:
        listed.sort(key=lambda step: step.backend.zone != zone)
    return Explanation(
        pool=pool,
        key=key,
        hash=position,
        fingerprint=ring.fingerprint,
        steps=tuple(listed),
        standings=tuple(_standings(ring, backends)),
        pin=PinTable(pool.pins).find(key),
    )


def steps(ring: Ring, position: int, backends: Mapping[str, BackendSpec], version: int) -> Iterator[Step]:
    """A key's preference list: every backend with the token that puts it there, the owner first. Each step takes as
    long as it takes to make all of its backend's tokens, so take no more of them than are wanted."""
    met: set[int] = set()
    points = ring.tokens
    start = ring.locate(position)
    standing = sum(count > 0 for count in ring.counts)
    for at in chain(range(start, len(points)), range(start)):
        member = ring.owners[at]
        if member in met:
            continue
        met.add(member)
        name = ring.names[member]
        number = tokens(name, ring.counts[member], version).index(points[at])
        yield Step(backends[name], points[at], number, (points[at] - position) % SPACE / SPACE)
        if len(met) == standing:
            return


def _standings(ring: Ring, backends: dict[str, BackendSpec]) -> Iterator[Standing]:
    total = sum(ring.weights) or 1.0
    for name, weight, count, owned in zip(ring.names, ring.weights, ring.counts, ring.ownership(), strict=True):
        yield Standing(backends[name], count, weight / total, owned)


def to_json(found: Explanation) -> dict[str, Any]:
    """The explanation for machines. Positions are hexadecimal text, because JSON numbers lose 64-bit integers."""
    steps = [
        {
            "name": step.backend.name,
            "address": str(step.backend.address),
            "weight": step.backend.weight,
            "zone": step.backend.zone,
            "token": f"0x{step.token:016x}",
            "token_number": step.number,
            "distance_ratio": step.distance,
        }
        for step in found.steps
    ]
    return {
        "pool": found.pool.name,
        "key": found.key.decode("utf-8", "backslashreplace"),
        "key_hex": found.key.hex(),
        "hash": f"0x{found.hash:016x}",
        "hash_version": found.pool.hash_version,
        "fingerprint": found.fingerprint,
        "pin": None if found.pin is None else {"backend": found.pin.backend, "on_down": found.pin.on_down},
        "owner": steps[0] if steps else None,
        "successors": steps[1:],
        "backends": [
            {
                "name": standing.backend.name,
                "weight": standing.backend.weight,
                "tokens": standing.tokens,
                "expected_share_ratio": standing.expected,
                "ownership_ratio": standing.owned,
            }
            for standing in found.standings
        ],
    }


def to_text(found: Explanation, most_successors: int = 10) -> str:
    """The explanation for people."""
    pool = found.pool
    count = sum(standing.tokens for standing in found.standings)
    lines = [
        f"pool      {pool.name}, {_plural(len(pool.backends), 'backend')}, {count} tokens, ring {found.fingerprint}",
        f"key       {_shown(found.key)}, found in {' or '.join(map(source_words, pool.sticky.keys))}",
        f"hash      0x{found.hash:016x} ({_HASH_NAMES[pool.hash_version]}), {_share(found.hash / SPACE)} of the circle",
        *_pinned(found),
        *_answer(found, most_successors),
        "",
        *_table(found),
    ]
    return "\n".join(lines) + "\n"


def _pinned(found: Explanation) -> Iterator[str]:
    if found.pin is not None:
        address = next(backend.address for backend in found.pool.backends if backend.name == found.pin.backend)
        otherwise = "nobody serves" if found.pin.on_down == "reject" else "as the ring says:"
        yield f"pin       to {found.pin.backend}, {address}, whatever the ring says; while it is out, {otherwise}"


def _answer(found: Explanation, most: int) -> Iterator[str]:
    if not found.steps:
        yield "owner     nobody: no backend has a token, because every weight is 0"
        return
    owner, *successors = found.steps
    yield f"owner     {_backend(owner.backend)}"
    which = "the first in the proxy's zone" if owner is not min(found.steps, key=lambda s: s.distance) else "the first"
    yield (
        f"why       its token {owner.number} at 0x{owner.token:016x} is {which} at or after the hash, "
        f"{_share(owner.distance)} further on"
    )
    for rank, step in enumerate(successors[:most], start=1):
        label = "then" if rank == 1 else ""
        yield f"{label:<10}{_backend(step.backend)}, token {step.number} at 0x{step.token:016x}"
    if len(successors) > most:
        yield f"{'':<10}and {len(successors) - most} more"


def _table(found: Explanation) -> Iterator[str]:
    width = max(len("backend"), *(len(standing.backend.name) for standing in found.standings))
    yield f"{'backend':<{width}}  {'weight':>8}  {'tokens':>8}  {'expected':>9}  {'owns':>9}"
    for standing in found.standings:
        yield (
            f"{standing.backend.name:<{width}}  {standing.backend.weight:>8g}  {standing.tokens:>8}  "
            f"{_share(standing.expected):>9}  {_share(standing.owned):>9}"
        )


def _backend(backend: BackendSpec) -> str:
    zone = f", zone {backend.zone}" if backend.zone else ""
    return f"{backend.name}, {backend.address}, weight {backend.weight:g}{zone}"


def source_words(source: KeySource) -> str:
    """Where a key is looked for, in words."""
    if source.kind == "client_ip":
        return "the client's address"
    if source.kind == "path_segment":
        return f"path segment {source.index}"
    return f"{source.kind} {source.name}"


def _shown(key: bytes) -> str:
    text = key.decode("utf-8", "backslashreplace")
    if text.isprintable() and text.encode() == key:
        return f'"{text}" ({_plural(len(key), "byte")})'
    return f"0x{key.hex()} ({_plural(len(key), 'byte')})"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _share(ratio: float) -> str:
    return f"{ratio * 100:.3f} %"

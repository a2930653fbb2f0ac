"""Why a backend's share is not what its weight asks for, held against real traffic and against what the ring says.

    observed - expected = (ring ownership - expected) + (owned share - ring ownership) + (observed - owned share)

Each share on the metrics page is compared with a count of its own: the backends count what reaches them, the core says
who owns each key that was sent, and the weights say what was to be expected.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import hash_key
from tests.running import Backends, Proxy, backend_list, in_thread

NAMES: Final = ("b1", "b2", "b3", "b4")
VNODES: Final = 64
CLIENTS: Final = 12
REQUESTS: Final = 240
POOL: Final = {
    "ring": {"vnodes": VNODES},
    "bounded_load": {"factor": 1.05, "min_gap": 0},
    "hot_keys": {"mode": "spread"},
    "health": {"kind": "none"},
    "ejection": {"consecutive_errors": 0},
    "retry": {"budget": "100%"},
}
PER_BACKEND: Final = {
    "observed": "upstream_requests_total",
    "owned": "route_owned_requests_total",
    "spilled": "route_spills_total",
    "received": "route_spills_received_total",
    "ring": "ring_ownership_ratio",
    "expected": "backend_expected_share_ratio",
    "decisions": "route_decisions_total",
}


def told(page: str) -> dict[str, Counter[str]]:
    """What the metrics page says, each added up by backend, or by decision."""
    by_name = {f"lbproxy_{name}": short for short, name in PER_BACKEND.items()}
    found: dict[str, Counter[str]] = {short: Counter() for short in PER_BACKEND}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in by_name:
                label = sample.labels.get("backend") or sample.labels["decision"]
                found[by_name[sample.name]][label] += sample.value  # type: ignore[assignment]
    return found


def passed(before: dict[str, Counter[str]], after: dict[str, Counter[str]], what: str) -> dict[str, int]:
    return {name: int(after[what][name] - before[what][name]) for name in after[what]}


def cases() -> Iterator[tuple[dict[str, float], float, float, str, random.Random]]:
    """Weights, how much of the traffic one user makes, how much has no user, and who is dead, all by chance."""
    chance = random.Random(20)
    for dead in ("", "", "b1", "", "b3", ""):
        weights = {name: chance.choice((0.5, 1, 2, 3)) for name in NAMES}
        yield weights, chance.choice((0, 0.3, 0.6)), chance.choice((0, 0.2)), dead, random.Random(chance.random())


async def ask(port: int, users: list[str | None]) -> None:
    """Several clients at once, so that there are bounds to be met."""

    async def client() -> None:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            while users:
                user = users.pop()
                headers = {} if user is None else {"X-User-ID": user}
                async with session.get("/slow/0.005", headers=headers) as answer:
                    assert answer.status == 200

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def test_the_three_causes_of_real_traffic_are_what_they_say(tmp_path: Path) -> None:
    async with Backends(*NAMES) as backends:
        listed = backend_list(backends.ports)
        pool = POOL | {"backends": listed, "pins": [{"key": "pinned", "backend": "b4"}]}
        with Proxy(tmp_path, {}, pools={"api": pool}) as proxy:
            met: Counter[str] = Counter()
            for number, (weights, hot, keyless, dead, chance) in enumerate(cases()):
                for backend in listed:
                    backend["weight"] = weights[backend["name"]]
                proxy.write_config()
                proxy.signal(signal.SIGHUP)
                await in_thread(proxy, "configuration applied", number + 1)
                if dead:
                    await backends.stop(dead)
                met += await one(proxy, backends, weights, hot, keyless, chance)
                if dead:
                    await backends.start(dead)
    assert {name for name, count in met.items() if count} >= {"owner", "spill:full", "no_key", "pinned", "retry"}


async def one(
    proxy: Proxy, backends: Backends, weights: Mapping[str, float], hot: float, keyless: float, chance: random.Random
) -> Counter[str]:
    """Send requests, and compare."""
    users = [
        None
        if chance.random() < keyless
        else "hot"
        if chance.random() < hot
        else chance.choice(("pinned", *map(str, range(500))))
        for _ in range(REQUESTS)
    ]
    before, seen = told(await asyncio.to_thread(proxy.admin, "/metrics")), dict(backends.seen)
    await ask(proxy.port, list(users))
    after = told(await asyncio.to_thread(proxy.admin, "/metrics"))
    observed, owned, spilled, received = (
        passed(before, after, what) for what in ("observed", "owned", "spilled", "received")
    )
    ring = build_ring(weights.items(), VNODES)
    shares = dict(zip(ring.names, ring.ownership(), strict=True))
    keyed = Counter(ring.names[ring.owner(hash_key(user.encode()))] for user in users if user is not None)
    for name in NAMES:
        assert observed[name] == backends.seen[name] - seen[name]
        assert owned[name] == keyed[name]
        assert after["expected"][name] == pytest.approx(weights[name] / sum(weights.values()))
        assert after["ring"][name] == pytest.approx(float(shares[name]))
    decided = passed(before, after, "decisions")
    assert sum(observed.values()) == sum(decided.values()) == REQUESTS
    assert sum(spilled.values()) == sum(received.values()) > 0
    # What a backend has answered is what it owns, without what went elsewhere, with what came, and with what is
    # nobody's: no request is counted twice, and none gets lost between the causes.
    nobodys = {name: observed[name] - owned[name] + spilled[name] - received[name] for name in NAMES}
    assert min(nobodys.values()) >= 0
    assert sum(nobodys.values()) == users.count(None)
    for name in NAMES:
        expected, ring_share = after["expected"][name], after["ring"][name]
        observed_share, owned_share = observed[name] / sum(observed.values()), owned[name] / sum(owned.values())
        causes = (ring_share - expected, owned_share - ring_share, observed_share - owned_share)
        assert sum(causes) == pytest.approx(observed_share - expected, abs=1e-12)
    return Counter(decided)

"""A world for the page to look at: real rings and documents, made-up traffic, and time that passes when told."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import hash_key
from lbproxy.core.moves import moved
from lbproxy.core.ring import Ring

Document = dict[str, Any]
START = 1_796_040_000.0
BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SPILLS = ("hot", "full", "failover", "pinned")


def iso(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class BackendModel:
    """What a world knows of a backend. Counts only grow."""

    def __init__(self, name: str, number: int, weight: float) -> None:
        self.name = name
        self.address = f"10.0.{number // 250}.{number % 250 + 1}:8080"
        self.zone = "abc"[number % 3]
        self.weight = weight
        self.effective_weight = weight
        self.state = "up"
        self.since = START - 3600
        self.until = 0.0
        self.in_flight = 0
        self.slots: int | None = 20
        self.override: Document | None = None
        self.requests = dict.fromkeys(("1xx", "2xx", "3xx", "4xx", "5xx"), 0)
        self.owned = 0
        self.spills = dict.fromkeys(SPILLS, 0)
        self.received = 0
        self.errors = {"connect_refused": 0, "reset": 0}
        self.latency = [0] * (len(BOUNDS_S) + 1)


class PoolModel:
    """A pool whose users ask by a Zipf law, each for himself; `hot` adds one user with that share of everything."""

    def __init__(self, name: str, weights: Mapping[str, float], users: int = 3000, vnodes: int = 1024) -> None:
        self.name = name
        self.vnodes = vnodes
        self.backends = {each: BackendModel(each, at, weight) for at, (each, weight) in enumerate(weights.items())}
        self.keys = [f"user-{at}" for at in range(users)]
        self.popularity = list(accumulate(1 / (at + 30) ** 0.6 for at in range(users)))
        self.hot: tuple[str, float, int] | None = None
        self.failing = ""
        self.no_key = 0
        self.rejected = 0
        self.saved = 0
        self.panic_mode = "off"
        self.requests = dict.fromkeys(("1xx", "2xx", "3xx", "4xx", "5xx"), 0)
        self.rng = random.Random(name)
        self._build()

    def _build(self) -> None:
        self.ring = build_ring([(each.name, each.effective_weight) for each in self.backends.values()], self.vnodes)
        self.owned = dict(zip(self.ring.names, self.ring.ownership(), strict=True))
        self._known: dict[str, list[BackendModel]] = {}

    def set_weight(self, name: str, weight: float) -> None:
        self.backends[name].effective_weight = weight
        self._build()

    def preference(self, key: str) -> list[BackendModel]:
        known = self._known.get(key)
        if known is None:
            known = [self.backends[self.ring.names[member]] for member in self.ring.walk(hash_key(key.encode()))]
            self._known[key] = known
        return known

    def serve(self, requests: int) -> None:
        """Let so many requests come and be answered."""
        for _ in range(requests):
            self._serve_one()
        for each in self.backends.values():
            each.in_flight = self.rng.randrange(4, 12) if requests and each.state == "up" else 0

    def _serve_one(self) -> None:
        key, reach = self._key()
        order = self.preference(key)
        owner = order[0]
        serving = [each for each in order if each.state == "up"]
        if not serving and self.panic_mode == "serve_all":
            serving = order
        if not serving:
            self.rejected += 1
            self.requests["5xx"] += 1
            return
        backend = serving[self.rng.randrange(min(reach, len(serving)))] if reach > 1 else serving[0]
        owner.owned += 1
        if backend is not owner:
            owner.spills["hot" if owner.state == "up" else "failover"] += 1
            backend.received += 1
        is_bad = backend.name == self.failing and self.rng.random() < 0.5
        code = "5xx" if is_bad else "2xx"
        backend.requests[code] += 1
        self.requests[code] += 1
        backend.latency[bisect_left(BOUNDS_S, self.rng.lognormvariate(-5.3, 0.8))] += 1

    def _key(self) -> tuple[str, int]:
        if self.hot is not None and self.rng.random() < self.hot[1]:
            return self.hot[0], self.hot[2]
        at = bisect_left(self.popularity, self.rng.random() * self.popularity[-1])
        return self.keys[min(at, len(self.keys) - 1)], 1

    def document(self) -> Document:
        total = sum(each.effective_weight for each in self.backends.values())
        serving = sum(each.effective_weight for each in self.backends.values() if each.state == "up")
        points = dict(zip(self.ring.names, self.ring.counts, strict=True))
        latency = [sum(each.latency[at] for each in self.backends.values()) for at in range(len(BOUNDS_S) + 1)]
        return {
            "name": self.name,
            "requests": dict(self.requests),
            "in_flight": sum(each.in_flight for each in self.backends.values()),
            "decisions": {"owner": 0, "no_key": self.no_key},
            "upgraded_open": 0,
            "rejected": {"no_backend": self.rejected},
            "retries": {
                "connect": {"success": self.saved, "failure": 7, "abandoned": 0},
                "status": {"success": 2, "failure": 0, "abandoned": 1},
            },
            "duration": {"bounds_s": list(BOUNDS_S), "counts": latency, "sum_s": 0.0},
            "key_sources": ["header X-User-ID"],
            "bounded_load": {"factor": 1.25, "min_gap": None},
            "hot_keys": {"mode": "spread"},
            "eligible": sum(each.state == "up" for each in self.backends.values()),
            "panic": not any(each.state == "up" for each in self.backends.values()),
            "panic_mode": self.panic_mode,
            "ring": {"fingerprint": self.ring.fingerprint, "points": sum(self.ring.counts), "vnodes": self.vnodes},
            "backends": [
                {
                    "name": each.name,
                    "address": each.address,
                    "zone": each.zone,
                    "weight": each.weight,
                    "effective_weight": each.effective_weight,
                    "wanted_weight": each.effective_weight,
                    "override": each.override,
                    "expected_share": each.effective_weight / total if total else 0.0,
                    "current_share": each.effective_weight / serving if serving and each.state == "up" else 0.0,
                    "ring_share": self.owned[each.name],
                    "points": points[each.name],
                    "state": each.state,
                    "state_since": iso(each.since),
                    "state_until": iso(each.until) if each.until else None,
                    "eligible": each.state == "up",
                    "requests": dict(each.requests),
                    "in_flight": each.in_flight,
                    "slots": each.slots,
                    "owned_requests": each.owned,
                    "spills": dict(each.spills),
                    "spills_received": each.received,
                    "errors": dict(each.errors),
                    "connections": {"active": each.in_flight, "idle": 3},
                    "duration": {"bounds_s": list(BOUNDS_S), "counts": list(each.latency), "sum_s": 0.0},
                }
                for each in self.backends.values()
            ],
        }

    def hot_keys(self) -> Document:
        keys = []
        if self.hot is not None:
            key, share, reach = self.hot
            keys.append(self._hot_key(1, key, share, reach, True))
        for at in range(4):
            share = (self.popularity[at] - (self.popularity[at - 1] if at else 0)) / self.popularity[-1]
            keys.append(self._hot_key(len(keys) + 1, self.keys[at], share, 1, False))
        return {"pool": self.name, "mode": "spread", "names_shown": False, "keys": keys}

    def _hot_key(self, rank: int, key: str, share: float, reach: int, is_hot: bool) -> Document:
        return {
            "rank": rank,
            "hash": f"0x{hash_key(key.encode()):016x}",
            "key": None,
            "requests_share": share,
            "work_share": share * 0.98,
            "in_flight": 3,
            "hot": is_hot,
            "reach": reach,
            "backends": [each.name for each in self.preference(key)[:reach]],
            "since": None,
        }

    def explain(self, key: bytes) -> Document:
        h = hash_key(key)
        order = [self.backends[self.ring.names[member]] for member in self.ring.walk(h)]
        serving = next((each for each in order if each.state == "up"), None)
        steps = [
            {
                "backend": each.name,
                "address": each.address,
                "zone": each.zone,
                "weight": each.effective_weight,
                "state": each.state,
                "token": "0x0000000000000000",
                "token_number": 7,
                "distance_ratio": (self._next(each.name, h) - h) % self.ring.size / self.ring.size,
                "in_flight": each.in_flight,
                "slots": each.slots,
                "may_serve": each.state == "up",
                "reason": "may serve" if each.state == "up" else "not eligible",
            }
            for each in order
        ]
        decision = "owner" if serving is order[0] else "failover"
        why = f"{order[0].name} owns the key and may not be asked"
        return {
            "pool": self.name,
            "key": key.decode("utf-8", "backslashreplace"),
            "hash": f"0x{h:016x}",
            "hash_version": 1,
            "fingerprint": self.ring.fingerprint,
            "hot": None,
            "pin": None,
            "decision": {"backend": serving.name if serving else None, "decision": decision, "why": why},
            "preference": steps,
            "further": 0,
        }

    def _next(self, name: str, h: int) -> int:
        run = self.ring.run(name)
        return run[bisect_left(run, h) % len(run)]

    def plan(self, weights: Mapping[str, float]) -> Document:
        after = build_ring(
            [(each.name, weights.get(each.name, each.effective_weight)) for each in self.backends.values()], self.vnodes
        )
        moves = moved(self.ring, after)
        flows = sorted(moves.flows.items(), key=lambda flow: -flow[1])
        then = dict(zip(after.names, after.ownership(), strict=True))
        return {
            "pool": self.name,
            "moved_share": moves.share,
            "needless_share": moves.needless / moves.size,
            "flows": [{"from": a, "to": b, "share": number / moves.size} for (a, b), number in flows],
            "backends": [
                {
                    "name": name,
                    "weight_before": self.backends[name].effective_weight,
                    "weight_after": weights.get(name, self.backends[name].effective_weight),
                    "ring_share_before": self.owned[name],
                    "ring_share_after": then[name],
                }
                for name in self.ring.names
            ],
            "warnings": [],
        }


class World:
    """A `Source` of made-up pools. `pass_time` lets traffic come; both clocks are its own unless it is `live`."""

    def __init__(self, *pools: PoolModel) -> None:
        self.models = {pool.name: pool for pool in pools}
        self.now = 1000.0
        self.wall_now = START
        self.history: list[Document] = []
        self.callbacks: list[Callable[[], None]] = []
        self.worker_states = ["ready", "ready"]
        self.silences: dict[int, int] = {}
        self.not_saved: list[str] = []
        self.silent: list[int] = []
        self.requests_before = 1000
        self.draining = False
        self.writes = "token"
        self.reload_result: Document = {"result": "applied", "at": iso(START), "problem": None}

    def pass_time(self, seconds: float, requests: int = 0, pool: str = "") -> None:
        self.now += seconds
        self.wall_now += seconds
        for model in self.models.values():
            if not pool or model.name == pool:
                model.serve(requests)

    def clock(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.wall_now

    def tell(self, kind: str, text: str, level: str = "info", pool: str = "", backend: str = "") -> None:
        self.history.append(
            {
                "id": len(self.history) + 1,
                "time": iso(self.wall_now),
                "kind": kind,
                "level": level,
                "pool": pool,
                "backend": backend,
                "text": text,
            }
        )
        for callback in list(self.callbacks):
            callback()

    def set_state(self, pool: str, name: str, state: str) -> None:
        backend = self.models[pool].backends[name]
        before, backend.state = backend.state, state
        backend.since = self.wall_now
        self.tell("state", f"{name} is {state}, it was {before}.", "info" if state == "up" else "warning", pool, name)

    # Source

    def info(self) -> Document:
        return {
            "version": "0.1.0",
            "config": "/etc/lbproxy/lbproxy.yaml",
            "generation": 3,
            "uptime_s": 7200.0,
            "ready": True,
            "draining": self.draining,
            "silent_workers": [{"worker": at, "silent_s": self.silences[at]} for at in self.silent],
            "not_saved": self.not_saved,
            "listeners": [{"name": "0.0.0.0:8080", "address": "0.0.0.0:8080"}],
            "writes": self.writes,
            "reload": self.reload_result,
        }

    def pools(self) -> Document:
        return {"pools": [model.document() for model in self.models.values()]}

    def workers(self) -> Document:
        return {
            "workers": [
                {
                    "worker": at,
                    "state": state,
                    "requests": self.requests_before + at,
                    "connections_open": 12,
                    "lag_s": 0.0004,
                    "silent_s": self.silences.get(at, 0),
                    "restarts": 0,
                }
                for at, state in enumerate(self.worker_states)
            ]
        }

    def events(self, after: int = 0) -> Sequence[Document]:
        return [event for event in self.history if event["id"] > after]

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(notify)
        return lambda: self.callbacks.remove(notify)

    def hot_keys(self, pool: str) -> Document:
        return self.models[pool].hot_keys()

    async def explain(self, pool: str, key: bytes) -> Document:
        return self.models[pool].explain(key)

    def ring(self, pool: str) -> Ring | None:
        return self.models[pool].ring if pool in self.models else None


def equal_pool(number: int, name: str = "api", **weights: float) -> PoolModel:
    """A pool of so many backends b1, b2, ... of weight 1 unless told otherwise."""
    return PoolModel(name, {f"b{at}": weights.get(f"b{at}", 1.0) for at in range(1, number + 1)})

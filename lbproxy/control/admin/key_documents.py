"""Documents about keys: which of a pool's are hot, and what happens to one and why.

They come from a snapshot that stands as those of the workers do, through the very code that routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from lbproxy.control.admin.view import Document
from lbproxy.control.explain import Step, steps
from lbproxy.core.account import OUT, Backend
from lbproxy.core.balance import Pool
from lbproxy.core.hashing import hash_key
from lbproxy.core.ledger import DECISIONS, FAILOVER, NO_KEY, OWNER, PINNED, SPILL_FULL, SPILL_HOT
from lbproxy.core.pieces import Pieces
from lbproxy.core.reasons import reasons
from lbproxy.observe.lines import iso_time
from lbproxy.observe.names import MOST_NAMED

HOT_KEYS_SHOWN: Final = MOST_NAMED


def hot_keys_document(pool: Pool, name_of: Callable[[int], str | None] | None, now: float, wall: float) -> Document:
    """The keys with the most work. `name_of` knows keys by their hashes; None when they may not be shown. `now` is
    monotonic and `wall` the same moment as wall time."""
    top = pool.account.hot.top
    keys = []
    for rank, row in enumerate(top.rows[:HOT_KEYS_SHOWN], start=1):
        known = pool.account.hot.hot.get(row.key)
        reach = known.reach if known is not None else 1
        keys.append(
            {
                "rank": rank,
                "hash": f"0x{row.key:016x}",
                "key": name_of(row.key) if name_of is not None else None,
                "requests_share": row.requests / top.requests if top.requests else 0.0,
                "work_share": row.work / top.work if top.work else 0.0,
                "in_flight": row.held,
                "hot": known is not None,
                "reach": reach,
                "backends": [backend.name for backend in islice(pool.replicas(row.key), reach)],
                "since": iso_time(int((wall + known.since - now) * 1000)) if known is not None else None,
            }
        )
    return {"pool": pool.name, "mode": pool.spec.hot_keys.mode, "names_shown": name_of is not None, "keys": keys}


def key_document(pool: Pool, key: bytes, words: Mapping[str, str], generation: int, most: int) -> Pieces[Document]:
    """What happens to a key now, and the first `most` of its preference list. `words` are the backends' states. All of
    it is of the moment of the first piece; to find the tokens, which stay where they are, takes one more for each."""
    h = hash_key(key)
    backend, decision, why = _decide(pool, key, h)
    hot = pool.account.hot.hot.get(h)
    pin = pool.pinned(key)
    listed = reasons(pool, h)
    preference = [_preference(pool, each, reason, words[each.name]) for each, reason in listed[:most]]
    made = {
        "pool": pool.name,
        "key": key.decode("utf-8", "backslashreplace"),
        "key_hex": key.hex(),
        "hash": f"0x{h:016x}",
        "hash_version": pool.spec.hash_version,
        "generation": generation,
        "fingerprint": pool.ring.fingerprint,
        "hot": None if hot is None else {"requests_share": hot.requests, "work_share": hot.work, "reach": hot.reach},
        "pin": None if pin is None else {"backend": pin.backend, "on_down": pin.on_down},
        "decision": {
            "backend": backend.name if backend is not None else None,
            "decision": DECISIONS[decision] if backend is not None else None,
            "why": why,
        },
        "preference": preference,
        "further": max(0, len(listed) - most),
    }
    for told, step in zip(preference, islice(_steps(pool, h), most), strict=True):
        told |= {"token": f"0x{step.token:016x}", "token_number": step.number, "distance_ratio": step.distance}
        yield
    return made


def _steps(pool: Pool, h: int) -> Iterable[Step]:
    specs = {backend.name: backend.spec for backend in pool.backends.values()}
    return steps(pool.ring, h, specs, pool.spec.hash_version)


def _decide(pool: Pool, key: bytes, h: int) -> tuple[Backend | None, int, str]:
    """What a worker does with a request of this key that has no cookie of ours, and why in a sentence."""
    account = pool.account
    if pool.spec.on_move == "pin":
        home = pool.home(h)
        if home is not None and account.load(home) < home.limit:
            return home, PINNED, f"the user has a WebSocket open to {home.name}"
    pin = pool.pinned(key)
    pinned = pool.backends.get(pin.backend) if pin is not None else None
    if pin is not None and pinned is not None:
        if pinned.state != OUT and account.load(pinned) < pinned.limit:
            return pinned, PINNED, f"the key is pinned to {pinned.name}"
        if pin.on_down == "reject":
            what = "cannot serve, and" if pinned.state == OUT else "is full: the request waits for a seat, as it"
            return None, PINNED, f"the key is pinned to {pinned.name}, which {what} may go nowhere else"
    backend, decision = pool.pick(h)
    return backend, decision, _why(pool, h, backend, decision)


def _why(pool: Pool, h: int, backend: Backend | None, decision: int) -> str:
    owner = pool.owner(h)
    if backend is None:
        if decision == FAILOVER:
            return "no backend is eligible: 503"
        return "every eligible backend is at its max_in_flight or max_connections: the request waits for a seat"
    if owner is None or decision == NO_KEY:
        return f"{backend.name} is the least loaded"
    if decision == OWNER:
        return (
            f"{backend.name} owns the key" if backend is owner else f"{backend.name} is one of the hot key's backends"
        )
    sentences: Mapping[int, str] = {
        FAILOVER: f"{owner.name} owns the key and may not be asked; {backend.name} is the next that may serve",
        SPILL_HOT: f"the key is hot; of the backends it is spread over, {backend.name} is the least loaded",
        SPILL_FULL: f"{owner.name} owns the key and is full; {backend.name} is the next with room",
    }
    return sentences[decision]


def _preference(pool: Pool, backend: Backend, reason: str, word: str) -> Document:
    return {
        "backend": backend.name,
        "address": str(backend.address),
        "zone": backend.spec.zone,
        "weight": backend.weight,
        "state": word,
        "in_flight": pool.account.load(backend),
        "slots": pool.slots(backend),
        "may_serve": reason.endswith("may serve"),
        "reason": reason,
    }

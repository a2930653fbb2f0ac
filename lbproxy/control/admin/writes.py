"""What the admin API can have done: reload, override, drain, and trying a change without making it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from aiohttp import web

from lbproxy.control.admin.answers import GUARD, INSTANCE, JOURNAL, document, only, read_body, read_json
from lbproxy.control.admin.guard import who
from lbproxy.control.admin.openapi import HEAVIEST, LONGEST_KEY, LONGEST_REASON, REASON_PATTERN
from lbproxy.control.admin.reads import backend_in, find_backend
from lbproxy.control.admin.view import Decision, Rejected
from lbproxy.control.values import LONGEST_DURATION_S, BadValue, read_duration
from lbproxy.core.spec import Pin

DRAIN: Final = "drain"
ACTIVE: Final = "active"


def routes() -> list[web.RouteDef]:
    return [
        web.post("/v1/reload", _reload),
        web.post("/v1/check", _check),
        web.post("/v1/plan", _plan),
        web.post("/v1/drain", _drain),
        web.patch("/v1/pools/{pool}/backends", _patch_several),
        web.patch("/v1/pools/{pool}/backends/{backend}", _patch),
        web.delete("/v1/pools/{pool}/backends/{backend}/overrides", _take_back),
        web.put("/v1/pools/{pool}/pins", _pin),
        web.delete("/v1/pools/{pool}/pins", _unpin),
    ]


async def _reload(request: web.Request) -> web.Response:
    request.app[GUARD].check_write(request)
    await _no_body(request)
    _tell(request)
    return document(await request.app[INSTANCE].reload())


async def _check(request: web.Request) -> web.Response:
    """A configuration may name variables of the environment, and errors quote values: so this is not for everybody."""
    request.app[GUARD].check_write(request)
    return document(await request.app[INSTANCE].check_text(await read_body(request)))


async def _plan(request: web.Request) -> web.Response:
    """JSON: decisions for one pool, which anybody may ask about. Any other body: a configuration; none: the file."""
    guard, instance = request.app[GUARD], request.app[INSTANCE]
    if request.content_type == "application/json":
        guard.check_origin(request)
        asked = await read_json(request)
        only(asked, "pool", "backends")
        if not isinstance(asked.get("pool"), str):
            raise Rejected(400, "pool must name a pool")
        return document(await instance.plan_change(asked["pool"], list(_decisions(asked.get("backends")))))
    guard.check_write(request)
    return document(await instance.plan_text(await read_body(request) or None))


async def _drain(request: web.Request) -> web.Response:
    request.app[GUARD].check_write(request)
    await _no_body(request)
    _tell(request)
    request.app[INSTANCE].drain_process()
    return document({"draining": True}, 202)


async def _patch(request: web.Request) -> web.Response:
    request.app[GUARD].check_write(request)
    backend = find_backend(request)["name"]
    asked = await read_json(request)
    only(asked, "weight", "state", "ttl", "reason", "force")
    decision = _decision(backend, {name: asked[name] for name in ("weight", "state") if name in asked})
    return document(_decided(await _decide(request, [decision], asked), backend))


async def _patch_several(request: web.Request) -> web.Response:
    request.app[GUARD].check_write(request)
    asked = await read_json(request)
    only(asked, "backends", "ttl", "reason", "force")
    return document(await _decide(request, list(_decisions(asked.get("backends"))), asked))


async def _take_back(request: web.Request) -> web.Response:
    """End all overrides of a backend: the file alone says what it is."""
    request.app[GUARD].check_write(request)
    await _no_body(request)
    backend = find_backend(request)["name"]
    answer = await _decide(request, [Decision(backend, weight=None, is_drained=False)], {})
    return document(_decided(answer, backend))


def _decided(answer: dict[str, Any], backend: str) -> dict[str, Any]:
    """What is answered about one backend of the pool."""
    return {**backend_in(answer, backend), "not_saved": answer["not_saved"]}


async def _pin(request: web.Request) -> web.Response:
    """The key stands in the body, which no log keeps."""
    request.app[GUARD].check_write(request)
    asked = await read_json(request)
    only(asked, "key", "prefix", "backend", "on_down", "reason")
    key, is_prefix = _pinned_keys(asked)
    backend, on_down = asked.get("backend"), asked.get("on_down", "failover")
    if not isinstance(backend, str):
        raise Rejected(400, "backend must name a backend")
    if on_down not in ("failover", "reject"):
        raise Rejected(400, "on_down must be 'failover' or 'reject'")
    pin = Pin(key, backend, is_prefix, on_down)
    reason = _reason(asked)
    _tell(request)
    return document(await request.app[INSTANCE].pin(request.match_info["pool"], pin, who(request), reason))


async def _unpin(request: web.Request) -> web.Response:
    request.app[GUARD].check_write(request)
    asked = await read_json(request)
    only(asked, "key", "prefix")
    key, is_prefix = _pinned_keys(asked)
    _tell(request)
    return document(await request.app[INSTANCE].unpin(request.match_info["pool"], key, is_prefix, who(request)))


def _pinned_keys(asked: dict[str, Any]) -> tuple[str, bool]:
    """The key, or the prefix of keys, that is asked about, and whether it is a prefix."""
    given = [name for name in ("key", "prefix") if name in asked]
    if len(given) != 1:
        raise Rejected(400, "give either key or prefix")
    text = asked[given[0]]
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_KEY:
        raise Rejected(400, f"{given[0]} must be a text of 1 to {LONGEST_KEY} characters")
    return text, given[0] == "prefix"


def _reason(asked: dict[str, Any]) -> str:
    """Terminals show it as it is, with `lbproxy status`; so it holds nothing that they would obey."""
    reason = asked.get("reason", "")
    if not isinstance(reason, str) or len(reason) > LONGEST_REASON:
        raise Rejected(400, f"reason must be a text of at most {LONGEST_REASON} characters")
    if re.fullmatch(REASON_PATTERN, reason) is None:
        raise Rejected(400, "reason must be one line, without control characters")
    return reason


async def _decide(request: web.Request, decisions: list[Decision], asked: dict[str, Any]) -> dict[str, Any]:
    reason, is_forced = _reason(asked), asked.get("force", False)
    if not isinstance(is_forced, bool):
        raise Rejected(400, "force must be true or false")
    _tell(request)
    return await request.app[INSTANCE].decide(
        request.match_info["pool"], decisions, who(request), _seconds(asked.get("ttl")), reason, is_forced
    )


def _decisions(asked: Any) -> Iterator[Decision]:
    if not isinstance(asked, dict) or not asked:
        raise Rejected(400, "backends must map names of backends to what is wanted of them")
    for name, wanted in asked.items():
        if not isinstance(wanted, dict):
            raise Rejected(400, f"what is wanted of {name} must be an object")
        only(wanted, "weight", "state")
        yield _decision(name, wanted)


def _decision(backend: str, wanted: dict[str, Any]) -> Decision:
    """Raises Rejected for what no decision can be."""
    if not wanted:
        raise Rejected(400, f"nothing is wanted of {backend}: give a weight or a state")
    weight = wanted.get("weight", ...)
    if weight is not ... and weight is not None:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= HEAVIEST:
            raise Rejected(400, f"weight must be a number from 0 to {HEAVIEST}, or null to go by the file")
        weight = float(weight)
    state = wanted.get("state", ...)
    if state not in (..., DRAIN, ACTIVE):
        raise Rejected(400, f"state must be {DRAIN!r} or {ACTIVE!r}")
    return Decision(backend, weight, state if state is ... else state == DRAIN)


def _seconds(ttl: Any) -> float | None:
    """How long a decision is to hold: a duration such as "10m", or seconds; None for good."""
    if ttl is None:
        return None
    if isinstance(ttl, str):
        try:
            return read_duration(ttl)
        except BadValue as bad:
            raise Rejected(400, f"ttl {bad}") from None
    if isinstance(ttl, int | float) and not isinstance(ttl, bool) and 0 < ttl <= LONGEST_DURATION_S:
        return float(ttl)
    raise Rejected(400, "ttl must be a duration such as 10m, or seconds above 0, and a year at the most")


async def _no_body(request: web.Request) -> None:
    if await read_body(request):
        raise Rejected(400, f"{request.path} takes no body")


def _tell(request: web.Request) -> None:
    """Every write is told before it is done."""
    request.app[JOURNAL].info("admin write", method=request.method, path=request.path, who=who(request))

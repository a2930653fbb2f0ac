"""A plan as a document for machines, and that document as text for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lbproxy.control.plan import ADDED, REMOVED, Plan, PoolPlan

_MOST_FLOWS: Final = 20


def to_json(found: Plan) -> dict[str, Any]:
    """The whole plan."""
    return {
        "is_change": found.is_change,
        "pools_added": list(found.pools_added),
        "pools_removed": list(found.pools_removed),
        "listeners_added": list(found.listeners_added),
        "listeners_removed": list(found.listeners_removed),
        "settings": list(found.settings),
        "needs_restart": list(found.needs_restart),
        "pools": [pool_to_json(pool) for pool in found.pools],
    }


def pool_to_json(found: PoolPlan) -> dict[str, Any]:
    """One pool's part."""
    keys = found.keys
    flows = sorted(found.moves.flows.items(), key=lambda flow: -flow[1])
    return {
        "pool": found.pool,
        "is_change": found.is_change,
        "fingerprint_before": found.fingerprint_before,
        "fingerprint_after": found.fingerprint_after,
        "moved_share": found.moves.share,
        "needless_share": found.moves.needless / found.moves.size,
        "flows": [{"from": giver, "to": taker, "share": span / found.moves.size} for (giver, taker), span in flows],
        "backends": [
            {
                "name": each.name,
                "change": each.change,
                "fields": list(each.fields),
                "weight_before": each.weight_before,
                "weight_after": each.weight_after,
                "expected_share_before": each.expected_before,
                "expected_share_after": each.expected_after,
                "ring_share_before": each.owned_before,
                "ring_share_after": each.owned_after,
            }
            for each in found.backends
        ],
        "settings": list(found.settings),
        "keys": None
        if keys is None
        else {
            "sampled": keys.seen,
            "sampled_one_in": 2**keys.bits,
            "moved": keys.moved,
            "moved_share": keys.moved / keys.seen if keys.seen else 0.0,
            "staying_until_idle": keys.staying,
            "sessions_open": keys.open * 2**keys.bits,
            "sessions_moved": keys.open_moved * 2**keys.bits,
            "sessions_moved_share": keys.open_moved / keys.open if keys.open else 0.0,
        },
        "sessions_moved_estimate": None if keys is None else keys.moved * 2**keys.bits,
        "warnings": list(found.warnings),
    }


def to_text(document: Mapping[str, Any]) -> str:
    """The document of `to_json` for people."""
    lines: list[str] = []
    for title, name in (
        ("pools that come", "pools_added"),
        ("pools that go", "pools_removed"),
        ("listeners that come", "listeners_added"),
        ("listeners that go", "listeners_removed"),
        ("settings that change", "settings"),
        ("only a restart changes", "needs_restart"),
    ):
        if document.get(name):
            lines.append(f"{title}: {', '.join(document[name])}")
    for pool in document["pools"]:
        if pool["is_change"] or pool["warnings"]:
            lines += ["", *_pool_lines(pool)] if lines else _pool_lines(pool)
    return "\n".join(lines or ["nothing changes"]) + "\n"


def _pool_lines(pool: Mapping[str, Any]) -> list[str]:
    needless = f", {_percent(pool['needless_share'])} of them needlessly" if pool["needless_share"] else ""
    lines = [f"pool {pool['pool']}: {_percent(pool['moved_share'])} of the keys move{needless}"]
    if pool["settings"]:
        lines.append(f"  settings that change: {', '.join(pool['settings'])}")
    lines += [f"  warning: {warning}" for warning in pool["warnings"]]
    width = max([len("backend"), *(len(flow["from"]) for flow in pool["flows"])])
    lines += [
        f"  {flow['from'] or '(nobody)':<{width}} -> {flow['to'] or '(nobody)':<{width}}  {_percent(flow['share']):>9}"
        for flow in pool["flows"][:_MOST_FLOWS]
    ]
    if len(pool["flows"]) > _MOST_FLOWS:
        rest = sum(flow["share"] for flow in pool["flows"][_MOST_FLOWS:])
        lines.append(f"  and {len(pool['flows']) - _MOST_FLOWS} smaller moves, together {_percent(rest)}")
    lines += _table(pool["backends"])
    keys = pool.get("keys")
    if keys:
        lines.append(
            f"  live keys: {keys['moved']} of {keys['sampled']} sampled move ({_percent(keys['moved_share'])}), about "
            f"{pool['sessions_moved_estimate']} users"
            + (f"; {keys['staying_until_idle']} of them stay until they are idle" if keys["staying_until_idle"] else "")
        )
        lines.append(
            f"  open now: {keys['sessions_moved']} of {keys['sessions_open']} sessions move "
            f"({_percent(keys['sessions_moved_share'])})"
        )
    return lines


def _table(backends: Sequence[Mapping[str, Any]]) -> list[str]:
    width = max([len("backend"), *(len(each["name"]) for each in backends)])
    lines = [f"  {'backend':<{width}}  {'weight':>17}  {'expected share':>22}  {'ring share':>22}"]
    for each in backends:
        weight = _pair(
            each["weight_before"], each["weight_after"], lambda value: "-" if value is None else f"{value:g}"
        )
        expected = _pair(each["expected_share_before"], each["expected_share_after"], _percent)
        owned = _pair(each["ring_share_before"], each["ring_share_after"], _percent)
        what = ", ".join(each["fields"]) or each["change"]
        mark = f"  {each['change']}" if each["change"] in (ADDED, REMOVED) else f"  {what}" if what else ""
        lines.append(f"  {each['name']:<{width}}  {weight:>17}  {expected:>22}  {owned:>22}{mark}")
    return lines


def _pair(before: Any, after: Any, write: Callable[[Any], str]) -> str:
    one, other = write(before), write(after)
    return one if one == other else f"{one} -> {other}"


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.2f} %"

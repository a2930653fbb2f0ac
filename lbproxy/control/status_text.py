"""How an instance and its backends stand, as text for people, from the documents of the admin API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]


def status(info: Document, pools: Sequence[Document]) -> str:
    """The whole picture."""
    return _picture(info, pools, {pool["name"]: None for pool in pools})


def moving(info: Document, pools: Sequence[Document], before: Sequence[Document], seconds: float) -> str:
    """The same with what backends have been asked since `before`, so many seconds ago; empty: nothing is known yet."""
    earlier = {pool["name"]: pool for pool in before}
    return _picture(info, pools, {pool["name"]: _flow(pool, earlier.get(pool["name"]), seconds) for pool in pools})


# Of each backend by name: its share of the requests, and how many there were in a second, as text.
_Flow = Mapping[str, tuple[str, str]]


def _picture(info: Document, pools: Sequence[Document], flows: Mapping[str, _Flow | None]) -> str:
    lines = [*_head(info)]
    for pool in pools:
        lines += ["", *_pool(pool, flows[pool["name"]])]
    return "\n".join(lines) + "\n"


def _flow(pool: Document, before: Document | None, seconds: float) -> _Flow:
    earlier = {each["name"]: sum(each["requests"].values()) for each in before["backends"]} if before else {}
    served = {each["name"]: sum(each["requests"].values()) - earlier.get(each["name"], 0) for each in pool["backends"]}
    total = sum(served.values())
    if not earlier or seconds <= 0:
        return dict.fromkeys(served, ("-", "-"))
    return {name: (_percent(n / total) if total else "-", f"{n / seconds:,.0f}") for name, n in served.items()}


def _head(info: Document) -> Iterator[str]:
    word = "draining" if info["draining"] else "ready" if info["ready"] else "not ready"
    listeners = ", ".join(each["address"] for each in info["listeners"])
    yield (
        f"lbproxy {info['version']}, {word}, up {_span(info['uptime_s'])}, {info['workers']} workers, "
        f"generation {info['generation']}, fingerprint {info['fingerprint']}, on {listeners}"
    )
    last = info.get("reload")
    if last is not None and last["result"] == "refused":
        yield f"the last reload was refused at {last['at']}: {last['problem']}"
    if info.get("needs_restart"):
        yield f"a restart is needed for {', '.join(info['needs_restart'])}"


def _pool(pool: Document, flow: _Flow | None) -> Iterator[str]:
    backends = pool["backends"]
    asked = " AND ALL ARE ASKED" if pool.get("panic_mode") == "serve_all" else ""
    panic = f", NOBODY IS ELIGIBLE{asked}" if pool["panic"] else ""
    yield (
        f"pool {pool['name']}: {pool['eligible']} of {len(backends)} backends eligible{panic}, "
        f"{pool['in_flight']} in flight, {pool['upgraded_open']} upgraded, {sum(pool['requests'].values())} requests, "
        f"ring {pool['ring']['fingerprint']}"
    )
    width = max([len("backend"), *(len(each["name"]) for each in backends)])
    yield (
        f"  {'backend':<{width}}  {'state':<9}  {'weight':>14}  {'share':>8}  {'ring':>8}  {'in flight':>9}  "
        f"{'requests':>10}  {'errors':>7}" + (f"  {'observed':>8}  {'req/s':>8}" if flow is not None else "")
    )
    for each in backends:
        errors = sum(each["errors"].values()) + each["requests"].get("5xx", 0)
        requests = sum(each["requests"].values())
        yield (
            f"  {each['name']:<{width}}  {each['state']:<9}  {_weight(each):>14}  "
            f"{_percent(each['expected_share']):>8}  {_percent(each['ring_share']):>8}  {each['in_flight']:>9}  "
            f"{requests:>10}  {errors:>7}{_flowing(each, flow)}{_notes(each)}"
        )


def _flowing(backend: Document, flow: _Flow | None) -> str:
    if flow is None:
        return ""
    share, rate = flow[backend["name"]]
    return f"  {share:>8}  {rate:>8}"


def backend_line(backend: Document) -> str:
    """One backend in one line."""
    return (
        f"{backend['name']}: {backend['state']}, weight {_weight(backend)}, {backend['in_flight']} in flight"
        f"{_notes(backend)}"
    )


def _weight(backend: Document) -> str:
    """The effective weight, and the file's where it is another."""
    text = f"{backend['effective_weight']:g}"
    return text if backend["effective_weight"] == backend["weight"] else f"{text} (file {backend['weight']:g})"


def _notes(backend: Document) -> str:
    notes = []
    if backend["upgraded_open"]:
        notes.append(f"{backend['upgraded_open']} upgraded")
    if backend["state"] == "draining":
        notes.append("empty, can be stopped" if backend["empty"] else "not empty yet")
    if backend["state_until"]:
        notes.append(f"until {backend['state_until']}")
    if backend["state"] == "down" and backend["probe"]:
        notes.append(f"last check: {backend['probe']['result']}")
    notes += [_override(each) for each in backend["overrides"]]
    return f"  [{'; '.join(notes)}]" if notes else ""


def _override(override: Document) -> str:
    what = "drain" if override["what"] == "drain" else f"weight {override['weight']:g}"
    until = f" until {override['expires_at']}" if override["expires_at"] else ""
    reason = f": {override['reason']}" if override["reason"] else ""
    return f"{what} by {override['by']} since {override['since']}{until}{reason}"


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.2f} %"


def _span(seconds: float) -> str:
    """A time in its two largest units."""
    whole = int(seconds)
    for size, unit, smaller, rest in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // smaller}{rest}"
    return f"{whole}s"

"""How an instance and its backends stand, as text for people, from the documents of the admin API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lbproxy.control.counts import last_check, requests, saved_by_retries

Document = Mapping[str, Any]


def status(info: Document, pools: Sequence[Document]) -> str:
    """The whole picture."""
    return _picture(info, pools, {pool["name"]: None for pool in pools})


def moving(info: Document, pools: Sequence[Document], before: Sequence[Document], seconds: float) -> str:
    """The same with what backends have been asked since `before`, so many seconds ago; empty: nothing is known yet."""
    earlier = {pool["name"]: pool for pool in before}
    return _picture(info, pools, {pool["name"]: _flow(pool, earlier.get(pool["name"]), seconds) for pool in pools})


def explained(found: Document, instance: str) -> str:
    """Where a request of a key goes now."""
    decision = found["decision"]
    where = "nowhere" if decision["backend"] is None else f"{decision['backend']} ({decision['decision']})"
    lines = [
        f"pool      {found['pool']}, generation {found['generation']}, ring {found['fingerprint']}, at {instance}",
        f"key       {json.dumps(found['key'], ensure_ascii=False)}, hash {found['hash']}",
        f"now       {where}: {decision['why']}",
    ]
    if found["hot"]:
        lines.append(
            f"hot       {_percent(found['hot']['requests_share'])} of the requests, over {found['hot']['reach']}"
        )
    for rank, each in enumerate(found["preference"]):
        slots = f" of {each['slots']}" if each["slots"] else ""
        lines.append(
            f"{'then' if rank == 1 else '' if rank else 'ring':<10}{each['backend']}, {each['address']}, weight "
            f"{each['weight']:g}, {each['state']}, {each['in_flight']}{slots} in flight: {each['reason']}"
        )
    if found["further"]:
        lines.append(f"{'':<10}and {found['further']} more")
    return "\n".join(lines) + "\n"


def fitted(text: str, columns: int, rows: int) -> str:
    """`text` cut to a terminal of that size, with an ellipsis where something is left out."""
    lines = [line if len(line) <= columns else line[: columns - 1] + "…" for line in text.splitlines()]
    if len(lines) >= rows:  # the last row is the cursor's
        lines = [*lines[: max(rows - 2, 0)], f"… {len(lines) - max(rows - 2, 0)} more lines"[:columns]]
    return "".join(f"{line}\n" for line in lines)


# Of each backend by name: its share of the requests, and how many there were in a second, as text.
_Flow = Mapping[str, tuple[str, str]]


def _picture(info: Document, pools: Sequence[Document], flows: Mapping[str, _Flow | None]) -> str:
    lines = [*_head(info)]
    for pool in pools:
        lines += ["", *_pool(pool, flows[pool["name"]])]
    return "\n".join(lines) + "\n"


def _flow(pool: Document, before: Document | None, seconds: float) -> _Flow:
    earlier = {each["name"]: requests(each) for each in before["backends"]} if before else {}
    served = {each["name"]: requests(each) - earlier.get(each["name"], 0) for each in pool["backends"]}
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
    for silent in info.get("silent_workers", ()):
        yield f"worker {silent['worker']} has been silent for {silent['silent_s']} s"
    last = info.get("reload")
    if last is not None and last["result"] == "refused":
        yield f"the last reload was refused at {last['at']}: {last['problem']}"
    if info.get("needs_restart"):
        yield f"a restart is needed for {', '.join(info['needs_restart'])}"
    for problem in info.get("not_saved", ()):
        yield f"what has been decided would not outlive a restart: {problem}"


def _pool(pool: Document, flow: _Flow | None) -> Iterator[str]:
    backends = pool["backends"]
    asked = " AND ALL ARE ASKED" if pool.get("panic_mode") == "serve_all" else ""
    saved = saved_by_retries(pool)
    retries = f", {saved} saved by retries" if saved else ""
    panic = f", NOBODY IS ELIGIBLE{asked}" if pool["panic"] else ""
    yield (
        f"pool {pool['name']}: {pool['eligible']} of {len(backends)} backends eligible{panic}, "
        f"{pool['in_flight']} in flight, {pool['upgraded_open']} upgraded, "
        f"{requests(pool)} requests{retries}, ring {pool['ring']['fingerprint']}"
    )
    table = [_titles(flow is not None), *(_cells(each, flow) for each in backends)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    notes = ["", *map(_notes, backends)]
    for cells, note in zip(table, notes, strict=True):
        texts = [
            cell.ljust(width) if at < _WORDS else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        yield "  " + "  ".join(texts) + note


# How many columns of the table hold words, which stand to the left; the others are numbers.
_WORDS: Final = 2


def _titles(is_moving: bool) -> list[str]:
    flow = ["observed", "req/s"] if is_moving else []
    return [
        "backend",
        "state",
        "weight",
        "share",
        "ring",
        *flow,
        "in flight",
        *([] if flow else ["requests"]),
        "errors",
    ]


def _cells(backend: Document, flow: _Flow | None) -> list[str]:
    errors = sum(backend["errors"].values()) + backend["requests"].get("5xx", 0)
    asked = backend.get("current_share", backend["expected_share"])  # an older instance does not say
    shares = [_percent(asked), _percent(backend["ring_share"])]
    counts = [str(backend["in_flight"]), *([str(requests(backend))] if flow is None else []), str(errors)]
    return [
        *(backend["name"], backend["state"], _weight(backend), *shares),
        *(() if flow is None else flow[backend["name"]]),
        *counts,
    ]


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
        notes.append("empty, can be stopped" if backend["empty"] else _why_not_empty(backend))
    if backend["state_until"]:
        notes.append(f"until {backend['state_until']}")
    if backend["state"] == "down" and backend["probe"]:
        notes.append(last_check(backend["probe"]["result"], backend["probe"].get("why")))  # an older instance has none
    notes += [_override(each) for each in backend["overrides"]]
    return f"  [{'; '.join(notes)}]" if notes else ""


def _why_not_empty(backend: Document) -> str:
    held = backend["in_flight"] or backend["upgraded_open"]
    return "not empty yet" if held else "not empty yet: it held something only a moment ago, or its sessions go on"


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

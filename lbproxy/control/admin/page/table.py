"""The table of a pool's backends: what each gets against what it should, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from lbproxy.control.admin.page import picture
from lbproxy.control.admin.page.picture import icon
from lbproxy.control.admin.page.shares import Share, shares
from lbproxy.control.admin.page.sight import PoolSight
from lbproxy.control.admin.page.source import BackendNow
from lbproxy.control.admin.page.window import Flow
from lbproxy.control.admin.page.words import (
    THIN,
    UNKNOWN,
    count,
    duration,
    escape,
    lasting,
    percent,
    plural,
    rate,
    rounded,
    signed,
    times,
    weight,
)
from lbproxy.core.ledger import SPILL_REASONS

CAUSES: Final = ("ring", "keys", "spill")
# The smallest scale of the causes: a difference of a few percent shall look like one.
_SMALLEST_SCALE: Final = 0.3
HEADS: Final = (
    ("name", "Backend", "with its state and weight"),
    ("share", "Share", "of the requests answered; the mark is the share its weight asks for"),
    ("ratio", "Times", "how many times the share its weight asks for, and the difference in percent of it"),
    ("diff", "Why", "what that difference is made of: the ring's own unevenness, how busy the keys are, spill"),
    ("out", "Spill", "requests of its keys served elsewhere, and of others' keys served here"),
    ("load", "In flight", "requests it holds now, of the slots it has now"),
    ("rate", "Requests", "per second, and the part that failed: an error, or a status of 500 or above"),
    ("p99", "Latency", "of the answers, until their last byte: median, and 99th percentile"),
)


def table(pool: PoolSight, lines: str) -> str:
    """The table around its rows."""
    heads = "".join(
        [
            f'<th scope="col" class="{key}" data-sort="{key}" title="{escape(title)}">{label}</th>'
            for key, label, title in HEADS
        ]
    )
    return (
        f'<table class="backends" id="{pool.id}-table">{caption(pool)}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table>"
    )


def caption(pool: PoolSight) -> str:
    text = f"{plural(pool.span.served, 'answer')} in the last {lasting(pool.span.seconds)}"
    if not pool.span.is_settled:
        text += ", in which something has changed"
    return f'<caption id="{pool.id}-caption">{text}</caption>'


def rows(pool: PoolSight) -> Iterator[tuple[str, str]]:
    by_name = shares(pool.now, pool.span)
    for backend in pool.now.backends:
        if not backend.takes_keys:  # whatever its weight is, it shall have nothing
            by_name[backend.name] = replace(by_name[backend.name], expected=0.0)
    widest = max((max(each.expected, each.observed) for each in by_name.values()), default=0.0) * 1.04
    parts = [_relative(share) for share in by_name.values()]
    scale = max((sum(abs(part) for part in each) for each in parts if each is not None), default=0.0)
    for index, backend in enumerate(pool.now.backends):
        yield (
            f"{pool.id}-b{index}",
            _row(pool, index, backend, by_name[backend.name], widest, max(scale, _SMALLEST_SCALE)),
        )


def _row(pool: PoolSight, index: int, backend: BackendNow, share: Share, widest: float, scale: float) -> str:
    flow = pool.span.backends[backend.name]
    ratio = share.ratio
    sort = {
        "name": index,
        "share": round(share.observed, 5),
        "ratio": round(ratio or 0.0, 3),
        "diff": round(abs(share.observed - share.expected), 5),
        "out": flow.spilled_away + flow.received,
        "load": backend.in_flight,
        "rate": flow.requests,
        "p99": round(flow.p99_s or 0.0, 4),
    }
    attributes = " ".join([f'data-{key}="{value}"' for key, value in sort.items()])
    cells = [
        _name(pool, index, backend),
        f'<td class="share" data-label="Share">{picture.share_bar(share.expected, share.observed, widest)}'
        f"<span>{percent(share.observed)} <small>of {percent(share.expected)}</small></span></td>",
        _times(share),
        _why(share, scale),
        _spill(flow),
        _load(backend),
        _traffic(flow),
        _latency(flow),
    ]
    kind = "" if backend.is_eligible else ' class="out"'
    name = escape(backend.name)
    return f'<tr id="{pool.id}-b{index}"{kind} data-backend="{name}" {attributes}>{"".join(cells)}</tr>'


def _name(pool: PoolSight, index: int, backend: BackendNow) -> str:
    colour = picture.swatch(index, len(pool.now.backends))
    zone = f" · zone {escape(backend.zone)}" if backend.zone else ""
    since = ""
    if backend.state != "up" and backend.since:
        since = f" {lasting(pool.wall - backend.since)}"
    return (
        f'<th scope="row"><div class="name"><i class="swatch {colour}"></i>'
        f'<button type="button" class="pick" title="{escape(backend.address)}">{escape(backend.name)}</button> '
        f'<span class="about"><span class="state s-{backend.state}">{icon(backend.state)}'
        f"{backend.state}{since}</span> <small>{_heavy(backend)}{zone}</small></span>"
        f"{_decided(backend, pool.wall)}</div></th>"
    )


def _heavy(backend: BackendNow) -> str:
    """Its weight, and why that is not the file's."""
    text = f"weight {weight(backend.effective_weight)}"
    if backend.effective_weight != backend.wanted_weight:
        return f"{text}, going to {weight(backend.wanted_weight)}"
    return f"{text} instead of {weight(backend.weight)}" if backend.effective_weight != backend.weight else text


def _decided(backend: BackendNow, wall: float) -> str:
    if not backend.decided:
        return ""
    left = f", for another {lasting(backend.decided_until - wall)}" if backend.decided_until else ""
    return f'<small class="note">{escape(backend.decided)}{left}</small>'


def _relative(share: Share) -> tuple[float, ...] | None:
    """The causes in parts of the expected share; None when none is expected."""
    if not share.expected:
        return None
    return tuple([part / share.expected for part in (share.ring_error, share.key_skew, share.spill)])


def _times(share: Share) -> str:
    if share.ratio is None:
        return f'<td class="ratio" data-label="Times its share">{UNKNOWN}</td>'
    difference = signed(round((share.ratio - 1) * 100))
    return (
        f'<td class="ratio" data-label="Times its share"><b>{times(share.ratio)}</b> '
        f"<small>{difference}{THIN}%</small></td>"
    )


def _why(share: Share, scale: float) -> str:
    relative = _relative(share)
    if relative is None:
        return f'<td class="diff" data-label="Why">{UNKNOWN}</td>'
    whole = rounded([part * 100 for part in relative], round(sum(relative) * 100))
    bar = picture.causes_bar(list(zip(CAUSES, relative, strict=True)), scale)
    parts = " ".join(
        [f"<span><small>{name}</small> {signed(number)}</span>" for name, number in zip(CAUSES, whole, strict=True)]
    )
    return f'<td class="diff" data-label="Why">{bar}<span class="sum">{parts}</span></td>'


def _spill(flow: Flow) -> str:
    reasons = ", ".join(
        [f"{reason} {number:,}" for reason, number in zip(SPILL_REASONS, flow.spilled, strict=True) if number]
    )
    title = f' title="out: {reasons}"' if reasons else ""
    away = f'<span>{icon("out")}<span class="vh">out </span>{count(flow.spilled_away)}</span>'
    here = f'<span>{icon("in")}<span class="vh">in </span>{count(flow.received)}</span>'
    return f'<td class="out" data-label="Spill"{title}>{away} {here}</td>'


def _load(backend: BackendNow) -> str:
    of = f"<small> of {count(backend.slots)}</small>" if backend.slots is not None else ""
    return f'<td class="load" data-label="In flight"><span>{count(backend.in_flight)}{of}</span></td>'


def _latency(flow: Flow) -> str:
    return (
        f'<td class="p99" data-label="Latency"><b>{duration(flow.p50_s)}</b> <small>{duration(flow.p99_s)}</small></td>'
    )


def _traffic(flow: Flow) -> str:
    failed = flow.failed + flow.errors
    kind = ' class="failed"' if failed else ""
    return (
        f'<td class="rate" data-label="Requests"><b>{rate(flow.per_s)}<small>/s</small></b> '
        f"<small{kind}>{percent(flow.trouble) if failed else 'no'} errors</small></td>"
    )

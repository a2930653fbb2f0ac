"""The part of the page that is about one pool: figures, ring, table of backends, hot keys, health."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lbproxy.control.admin.page import picture
from lbproxy.control.admin.page.judge import HotKey, Share, Verdict, shares
from lbproxy.control.admin.page.picture import icon
from lbproxy.control.admin.page.source import SPILL_REASONS, BackendNow, PoolNow
from lbproxy.control.admin.page.window import LONG_S, TIMELINE_S, Flow, Span
from lbproxy.control.admin.page.words import (
    THIN,
    UNKNOWN,
    count,
    duration,
    escape,
    lasting,
    names,
    percent,
    plural,
    rate,
    rounded,
    short_hash,
    signed,
    times,
    weight,
)
from lbproxy.core.ring import Ring

CAUSES: Final = ("ring", "keys", "spill")
KEYS_SHOWN: Final = 6
STORIES_SHOWN: Final = 40
LONG_NAME: Final = 14
# The smallest scale of the causes: a difference of a few percent shall look like one.
_SMALLEST_SCALE: Final = 0.3
STATE_WORDS: Final = {
    "up": "up",
    "down": "down",
    "ejected": "ejected",
    "held": "held",
    "unknown": "unknown",
    "draining": "draining",
}


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """All that is shown of a pool. `states` are the past states of each backend by name (`window.Past.states`)."""

    number: int
    now: PoolNow
    span: Span
    brisk: Flow
    rates: Sequence[tuple[float, float]]
    keys: Sequence[HotKey]
    verdict: Verdict
    states: Mapping[str, Sequence[tuple[float, str]]]
    wall: float

    @property
    def id(self) -> str:
        return f"p{self.number}"


def blocks(pool: PoolPicture) -> Iterator[tuple[str, str]]:
    """The parts that change with every look, each an element with that id."""
    yield f"{pool.id}-said", _said(pool)
    yield f"{pool.id}-figures", _figures(pool)
    yield f"{pool.id}-caption", _caption(pool)
    yield from _rows(pool)
    yield f"{pool.id}-hot", _hot(pool)
    yield f"{pool.id}-health", _health(pool)
    yield f"{pool.id}-weights", _weights(pool)


def _said(pool: PoolPicture) -> str:
    text = " ".join(pool.verdict.sentences)
    return f'<p class="said {pool.verdict.level}" id="{pool.id}-said">{icon(pool.verdict.level)}{escape(text)}</p>'


# Figures


def _figures(pool: PoolPicture) -> str:
    flow, now = pool.span.pool, pool.now
    serving = f"{len(now.eligible)}<small> of {len(now.backends)}</small>"
    spilled = sum(each.spilled_away for each in pool.span.backends.values())
    answered = max(pool.span.served, 1)
    tiles = [
        _tile("Requests", f"{rate(pool.brisk.per_s)}<small>/s</small>", picture.sparkline(pool.rates, LONG_S), "wide"),
        _tile("Backends serving", serving),
        _tile("Errors", percent(flow.failed / flow.requests) if flow.requests else UNKNOWN),
        _tile("Latency, median", duration(flow.p50_s)),
        _tile("99th percentile", duration(flow.p99_s)),
        _tile("In flight", count(now.in_flight)),
        _tile("Spilled", percent(spilled / answered) if pool.span.served else UNKNOWN),
    ]
    if flow.no_key:
        tiles.append(_tile("Without a key", percent(min(1.0, flow.no_key / max(flow.requests, 1)))))
    if now.tunnels:
        tiles.append(_tile("Tunnels open", count(now.tunnels)))
    return f'<dl class="figures" id="{pool.id}-figures">{"".join(tiles)}</dl>'


def _tile(label: str, value: str, drawing: str = "", kind: str = "") -> str:
    return f'<div class="figure {kind}"><dt>{label}</dt><dd>{value}</dd>{drawing}</div>'


# The table of backends

_HEADS: Final = (
    ("name", "Backend", "its state and weight"),
    ("share", "Share", "of the requests answered; the mark is the share its weight asks for"),
    ("ratio", "Times", "its share, and the difference in percent of it"),
    ("diff", "Why", "what the difference is made of: the ring, how busy the keys are, spill"),
    ("out", "Spill", "requests of its keys served elsewhere, and of others' keys served here"),
    ("load", "In flight", "and the slots it has now"),
    ("rate", "Requests", "per second, and the part that failed"),
    ("p99", "Latency", "median, and 99th percentile"),
)


def table(pool: PoolPicture, rows: str) -> str:
    """The table around its rows."""
    heads = "".join(
        [
            f'<th scope="col" class="{key}" data-sort="{key}" title="{escape(title)}">{label}</th>'
            for key, label, title in _HEADS
        ]
    )
    return (
        f'<table class="backends" id="{pool.id}-table">{_caption(pool)}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _caption(pool: PoolPicture) -> str:
    words = [
        f"{plural(pool.span.served, 'answer')} in the last {lasting(pool.span.seconds)}",
    ]
    return f'<caption id="{pool.id}-caption">{", ".join(words)}</caption>'


def _rows(pool: PoolPicture) -> Iterator[tuple[str, str]]:
    by_name = shares(pool.now, pool.span)
    widest = max((max(each.expected, each.observed) for each in by_name.values()), default=0.0) * 1.04
    parts = [_relative(share) for share in by_name.values()]
    scale = max((sum(abs(part) for part in each) for each in parts if each is not None), default=0.0)
    for index, backend in enumerate(pool.now.backends):
        yield (
            f"{pool.id}-b{index}",
            _row(pool, index, backend, by_name[backend.name], widest, max(scale, _SMALLEST_SCALE)),
        )


def _row(pool: PoolPicture, index: int, backend: BackendNow, share: Share, widest: float, scale: float) -> str:
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


def _name(pool: PoolPicture, index: int, backend: BackendNow) -> str:
    colour = picture.swatch(index, len(pool.now.backends))
    zone = f" · zone {escape(backend.zone)}" if backend.zone else ""
    since = ""
    if backend.state != "up" and backend.since:
        since = f" {lasting(pool.wall - backend.since)}"
    return (
        f'<th scope="row"><div class="name"><i class="swatch {colour}"></i>'
        f'<button type="button" class="pick" title="{escape(backend.address)}">{escape(backend.name)}</button> '
        f'<span class="about"><span class="state s-{backend.state}">{icon(backend.state)}'
        f"{STATE_WORDS.get(backend.state, backend.state)}{since}</span> <small>{_heavy(backend)}{zone}</small></span>"
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


# Hot keys


def _hot(pool: PoolPicture) -> str:
    items = "".join([_hot_key(key) for key in pool.keys[:KEYS_SHOWN]])
    if not items:
        items = '<li class="none">No key stands out.</li>'
    return f'<ol class="hot" id="{pool.id}-hot">{items}</ol>'


def _hot_key(key: HotKey) -> str:
    shown = escape(key.text) if key.text else f'<span title="{escape(key.hash)}">#{short_hash(key.hash)}</span>'
    number = len(key.backends)
    where = (
        f"spread over {number}: {names(key.backends)}" if number > 1 else f"on {names(key.backends)}" if number else ""
    )
    kind = "hot" if key.is_hot else ""
    word = " <em>hot</em>" if key.is_hot else ""
    return (
        f'<li class="{kind}" data-hash="{escape(key.hash)}"><b>{shown}{word}</b> '
        f"<span>{percent(key.requests_share)}<small> of requests</small></span> <small>{escape(where)}</small> "
        f"<span>{percent(key.work_share)}<small> of work</small></span></li>"
    )


# Health


def _health(pool: PoolPicture) -> str:
    eventful = [each for each in pool.now.backends if _has_a_story(pool, each)]
    calm = [each.name for each in pool.now.backends if not _has_a_story(pool, each)]
    rows = "".join([_story(pool, each) for each in eventful[:STORIES_SHOWN]])
    if len(eventful) > STORIES_SHOWN:
        rows += f"<li>and {len(eventful) - STORIES_SHOWN} more</li>"
    if eventful:
        rows += (
            '<li class="axis" aria-hidden="true"><p><span>10 min ago</span><span>5 min</span><span>now</span></p></li>'
        )
    if calm:
        all_of_them = names(calm) if eventful or len(calm) == 1 else "All backends"
        rows += f'<li class="calm">{icon("up")}<span>{escape(all_of_them)}: up all the time.</span></li>'
    return f'<ol class="health" id="{pool.id}-health">{rows}</ol>'


def _has_a_story(pool: PoolPicture, backend: BackendNow) -> bool:
    """Whether it was ever not up; that it was unknown at the start is nothing to tell."""
    past = [state for _, state in pool.states[backend.name]]
    return any(state != "up" for state in (past[1:] if past[0] == "unknown" else past)) or backend.state != "up"


def _story(pool: PoolPicture, backend: BackendNow) -> str:
    past = pool.states[backend.name]
    changes = len(past) - 1
    since = lasting(pool.wall - past[-1][0])
    told = f"{STATE_WORDS.get(backend.state, backend.state)} for {since}"
    if changes > 1:
        told += f", {changes} changes"
    return (
        f"<li><b>{escape(backend.name)}</b>{picture.timeline(past, pool.wall, TIMELINE_S)}"
        f'<small class="s-{backend.state}">{icon(backend.state)}{told}</small></li>'
    )


# Weights


def _weights(pool: PoolPicture) -> str:
    backends = pool.now.backends
    kind = "weights long" if any(len(each.name) > LONG_NAME for each in backends) else "weights"
    return f'<ul class="{kind}" id="{pool.id}-weights">{"".join(map(_wanted, backends))}</ul>'


def _wanted(backend: BackendNow) -> str:
    """What is wanted of a backend now, to be changed; a name stands with each field for those who hear the page."""
    name, number = escape(backend.name), f"{backend.wanted_weight:.6g}"
    drained = " checked" if backend.is_drained else ""
    now = "yes" if backend.is_drained else "no"
    return (
        f'<li data-backend="{name}"><span title="{name}">{name}</span>'
        f'<input type="number" inputmode="decimal" min="0" step="any" aria-label="Weight of {name}" value="{number}" '
        f'data-now="{number}"><label><input type="checkbox" aria-label="Drain {name}" data-now="{now}"{drained}>'
        "drain</label></li>"
    )


def ring_figure(pool: PoolPicture, ring: Ring) -> str:
    """The ring with room in its middle for words. The places' owners go along, for the script to light some up."""
    names = [backend.name for backend in pool.now.backends]
    places = picture.owners(ring)
    kind = "tracks" if picture.has_tracks(len(names)) else "band"
    return (
        f'<figure class="ring {kind}" id="{pool.id}-ring" data-owners="{picture.encoded(places)}" '
        f'data-members="{escape(json.dumps(ring.names))}">'
        f'<svg viewBox="0 0 {picture.BOX} {picture.BOX}" role="img" aria-label="The arcs of the ring by backend">'
        f'{picture.ring_circle(names, ring, places)}<g class="lit"></g><g class="needle"></g></svg>'
        f"<figcaption><b>{count(pool.now.points)}</b><span>{'point' if pool.now.points == 1 else 'points'} of "
        f"{plural(len(names), 'backend')}</span></figcaption></figure>"
    )

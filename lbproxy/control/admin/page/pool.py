"""The part of the page that is about one pool: its verdict, its figures, its ring, and what stands around them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from lbproxy.control.admin.page import panels, picture, table
from lbproxy.control.admin.page.picture import icon
from lbproxy.control.admin.page.sight import PoolSight
from lbproxy.control.admin.page.window import LONG_S
from lbproxy.control.admin.page.words import UNKNOWN, count, duration, escape, percent, plural, rate
from lbproxy.core.ring import Ring


def blocks(pool: PoolSight) -> Iterator[tuple[str, str]]:
    """The parts that change with every look, each an element with that id."""
    yield f"{pool.id}-said", _said(pool)
    yield f"{pool.id}-figures", _figures(pool)
    yield f"{pool.id}-caption", table.caption(pool)
    yield from table.rows(pool)
    yield f"{pool.id}-hot", panels.hot(pool)
    yield f"{pool.id}-health", panels.health(pool)
    yield f"{pool.id}-weights", panels.weights(pool)


def _said(pool: PoolSight) -> str:
    text = " ".join(pool.verdict.sentences)
    return f'<p class="said {pool.verdict.level}" id="{pool.id}-said">{icon(pool.verdict.level)}{escape(text)}</p>'


# Figures


def _figures(pool: PoolSight) -> str:
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
    if flow.saved:
        tiles.insert(3, _tile("Saved by retries", percent(min(1.0, flow.saved / max(flow.requests, 1)))))
    if flow.no_key:
        tiles.append(_tile("Without a key", percent(min(1.0, flow.no_key / max(flow.requests, 1)))))
    if now.tunnels:
        tiles.append(_tile("Tunnels open", count(now.tunnels)))
    return f'<dl class="figures" id="{pool.id}-figures">{"".join(tiles)}</dl>'


def _tile(label: str, value: str, drawing: str = "", kind: str = "") -> str:
    return f'<div class="figure {kind}"><dt>{label}</dt><dd>{value}</dd>{drawing}</div>'


# The ring


def ring_figure(pool: PoolSight, ring: Ring) -> str:
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

"""The panels beside the table: the busiest keys, the health of the last minutes, and the weights to be changed."""

from __future__ import annotations

from typing import Final

from lbproxy.control.admin.openapi import HEAVIEST
from lbproxy.control.admin.page import picture
from lbproxy.control.admin.page.picture import icon
from lbproxy.control.admin.page.shares import HotKey
from lbproxy.control.admin.page.sight import PoolSight
from lbproxy.control.admin.page.source import BackendNow
from lbproxy.control.admin.page.window import TIMELINE_S
from lbproxy.control.admin.page.words import escape, lasting, names, percent, short_hash

KEYS_SHOWN: Final = 6
STORIES_SHOWN: Final = 40
LONG_NAME: Final = 14


# Hot keys


def hot(pool: PoolSight) -> str:
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


def health(pool: PoolSight) -> str:
    eventful = [each for each in pool.now.backends if _has_a_story(pool, each)]
    told = {each.name for each in eventful}
    calm = [each.name for each in pool.now.backends if each.name not in told]
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


def _has_a_story(pool: PoolSight, backend: BackendNow) -> bool:
    """Whether it was ever not up; that it was unknown at the start is nothing to tell."""
    past = [state for _, state in pool.states[backend.name]]
    return any(state != "up" for state in (past[1:] if past[0] == "unknown" else past)) or backend.state != "up"


def _story(pool: PoolSight, backend: BackendNow) -> str:
    past = pool.states[backend.name]
    changes = len(past) - 1
    since = lasting(pool.wall - past[-1][0])
    told = f"{backend.state} for {since}"
    if changes > 1:
        told += f", {changes} changes"
    return (
        f"<li><b>{escape(backend.name)}</b>{picture.timeline(past, pool.wall, TIMELINE_S)}"
        f'<small class="s-{backend.state}">{icon(backend.state)}{told}</small></li>'
    )


# Weights


def weights(pool: PoolSight) -> str:
    backends = pool.now.backends
    kind = "weights long" if any(len(each.name) > LONG_NAME for each in backends) else "weights"
    return f'<ul class="{kind}" id="{pool.id}-weights">{"".join(map(_wanted, backends))}</ul>'


def _wanted(backend: BackendNow) -> str:
    """What is wanted of a backend now, to be changed; a name stands with each field for those who hear the page."""
    name, number = escape(backend.name), f"{backend.wanted_weight:.6g}"
    file = f"{backend.weight:.6g}"
    drained = " checked" if backend.is_drained else ""
    now = "yes" if backend.is_drained else "no"
    decided = ' data-decided="yes" title="Empty: as the file has it"' if backend.is_reweighed else ""
    return (
        f'<li data-backend="{name}"><span title="{name}">{name}</span>'
        f'<input type="number" inputmode="decimal" min="0" max="{HEAVIEST}" step="any" aria-label="Weight of {name}" '
        f'value="{number}" data-now="{number}" data-file="{file}" placeholder="{file}"{decided}>'
        f'<label><input type="checkbox" aria-label="Drain {name}" data-now="{now}"{drained}>'
        "drain</label></li>"
    )

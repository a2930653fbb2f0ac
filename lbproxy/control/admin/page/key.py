"""Where one key lives: the answer of the explain API, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lbproxy.control.admin.page.picture import icon
from lbproxy.control.admin.page.words import count, escape, percent, plural

# So much of the preference list is shown; nobody gets further than this without a disaster.
SHOWN: Final = 8


def nothing(number: int) -> str:
    """What stands where an answer would be."""
    return (
        f'<div class="key" id="p{number}-key"><p class="none">Type a key, such as a user\'s id, to see which backend '
        "owns it, who would come next, and why.</p></div>"
    )


def failed(number: int, why: str) -> str:
    return f'<div class="key" id="p{number}-key"><p class="none">{escape(why)}</p></div>'


def answer(number: int, found: Mapping[str, Any]) -> str:
    """The owner, the decision and the preference list. `number` is the pool's place on the page."""
    position = int(found["hash"], 16) / (1 << 64)
    steps: Sequence[Mapping[str, Any]] = found["preference"]
    owner = steps[0]["backend"] if steps else ""
    serving = found["decision"]["backend"] or ""
    items = "".join([_step(step, serving) for step in steps[:SHOWN]])
    hidden = max(0, len(steps) - SHOWN) + found["further"]
    more = f'<li class="none">and {plural(hidden, "more backend")}</li>' if hidden else ""
    return (
        f'<div class="key" id="p{number}-key" data-turn="{position:.6f}" data-owner="{escape(owner)}" '
        f'data-serving="{escape(serving)}" data-hash="{escape(found["hash"])}">'
        f"<p>{_sentence(found, owner, serving)}</p><ol>{items}{more}</ol>"
        f'<p class="hash">hash {escape(found["hash"])}, {percent(position, 3)} of the way round</p></div>'
    )


def _sentence(found: Mapping[str, Any], owner: str, serving: str) -> str:
    key, why = f"<q>{escape(found['key'])}</q>", escape(found["decision"]["why"])
    if not owner:
        return f"{key} has no owner: no backend has a point on the ring."
    if not serving:
        return f"{key} is of <b>{escape(owner)}</b>, but nobody can serve it: {why}."
    if serving == owner:
        text = f"{key} lives on <b>{escape(owner)}</b>."
    else:
        text = f"{key} is served by <b>{escape(serving)}</b>: {why}."
    hot = found["hot"]
    return f"{text} It is hot, with {percent(hot['work_share'])} of the work." if hot else text


def _step(step: Mapping[str, Any], serving: str) -> str:
    name = escape(step["backend"])
    is_serving = step["backend"] == serving
    slots = "" if step["slots"] is None else f" of {count(step['slots'])}"
    where = f"{percent(step['distance_ratio'], 4)} further, {count(step['in_flight'])} in flight{slots}"
    sign = icon("good" if step["may_serve"] else "bad")
    kind = "serving" if is_serving else "ready" if step["may_serve"] else "not"
    word = "serves" if is_serving else step["reason"]
    return (
        f'<li class="{kind}" data-backend="{name}"><b>{name}</b><span>{sign}{escape(word)}</span>'
        f"<small>{where}</small></li>"
    )

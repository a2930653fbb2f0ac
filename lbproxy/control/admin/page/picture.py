"""The drawings of the page, as SVG text: no inline style, colours by class, so that the style sheet has the last word.

The ring is drawn without any script. A circle whose `pathLength` is the number of places, with the places of one
backend as dashes of its stroke, is all of that backend's arcs in one element. The places are equally spaced points of
the hash space, asked for their owner; between two of them lies less than a pixel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from lbproxy.control.admin.page.words import escape
from lbproxy.core.ring import Ring

PLACES: Final = 2048
# Up to so many backends have a circle and a colour of their own; more share one circle, in neighbouring tones.
MOST_TRACKS: Final = 10
COLOURS: Final = 10
TONES: Final = 3
BOX: Final = 320
CENTRE: Final = BOX // 2
_OUTER: Final = 146.0
_INNER: Final = 84.0
_BAND: Final = 126.0
_BAND_WIDTH: Final = 24.0
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def has_tracks(backends: int) -> bool:
    """Whether the ring has a circle for each backend."""
    return backends <= MOST_TRACKS


def swatch(index: int, backends: int) -> str:
    """The class of a backend's colour, by its number in the pool."""
    return f"c{index % COLOURS}" if has_tracks(backends) else "plain"


def owners(ring: Ring) -> list[int]:
    """The owner of each of PLACES equally spaced points; empty for an empty ring."""
    if not ring.tokens:
        return []
    return [ring.owner((2 * place + 1) * ring.size // (2 * PLACES)) for place in range(PLACES)]


def encoded(places: Sequence[int]) -> str:
    """Owners as two letters each, for the script that lights up one of them."""
    return "".join([_ALPHABET[owner >> 6 & 63] + _ALPHABET[owner & 63] for owner in places])


def ring_circle(names: Sequence[str], ring: Ring, places: Sequence[int]) -> str:
    """The circles. `names` are the pool's backends in the order of its table."""
    circles = _tracks(names, ring, places) if has_tracks(len(names)) else _band(places)
    return f'<g transform="rotate(-90 {CENTRE} {CENTRE})">{"".join(circles)}</g>'


def _tracks(names: Sequence[str], ring: Ring, places: Sequence[int]) -> Iterator[str]:
    """A circle for each backend, the first outermost."""
    pitch = (_OUTER - _INNER) / max(len(names), 3)
    member = {name: index for index, name in enumerate(ring.names)}
    for index, name in enumerate(names):
        place = f'data-backend="{escape(name)}" {_circle(_OUTER - pitch * (index + 0.5), pitch - 1.5)}'
        yield f'<circle class="bed" {place}/>'
        yield _dashes(f"track {swatch(index, len(names))}", place, [owner == member.get(name) for owner in places])


def _band(places: Sequence[int]) -> Iterator[str]:
    """One circle for all."""
    place = _circle(_BAND, _BAND_WIDTH)
    yield f'<circle class="bed" {place}/>'
    for tone in range(TONES):
        yield _dashes(f"track t{tone}", place, [owner % TONES == tone for owner in places])


def _circle(radius: float, width: float) -> str:
    return f'cx="{CENTRE}" cy="{CENTRE}" r="{radius:.1f}" stroke-width="{width:.1f}"'


def _dashes(kind: str, place: str, wanted: Sequence[bool]) -> str:
    """A circle whose stroke is there at the wanted places only."""
    lengths = [(is_wanted, len(list(run))) for is_wanted, run in groupby(wanted)]
    if not any(is_wanted for is_wanted, _ in lengths):
        return ""
    dashes = [] if lengths[0][0] else [0]
    dashes += [length for _, length in lengths]
    # An odd number of lengths would be repeated with dashes and gaps swapped.
    if len(dashes) % 2:
        dashes.append(0)
    text = " ".join(map(str, dashes))
    return f'<circle class="{kind}" {place} pathLength="{PLACES}" stroke-dasharray="{text}"/>'


def share_bar(expected: float, observed: float, scale: float) -> str:
    """What a backend gets as a bar, and what it should get as a mark on it. `scale` is the share at the right end."""
    filled, mark = _part(observed, scale), _part(expected, scale)
    return (
        '<svg class="share" aria-hidden="true"><rect class="rail" width="100%" height="100%"/>'
        f'<rect class="fill" width="{filled}%" height="100%"/>'
        f'<line class="mark" x1="{mark}%" x2="{mark}%" y2="100%"/></svg>'
    )


def causes_bar(causes: Sequence[tuple[str, float]], scale: float) -> str:
    """Amounts by name, stacked to the right of the middle when above zero and to the left when below."""
    rects = []
    left = right = 50.0
    for name, amount in causes:
        width = _part(abs(amount), scale, 50)
        if amount < 0:
            left -= width
        at = left if amount < 0 else right
        if amount > 0:
            right += width
        rects.append(f'<rect class="{name}" x="{at:.1f}%" width="{width}%" height="100%"/>')
    return (
        '<svg class="why" aria-hidden="true"><rect class="rail" width="100%" height="100%"/>'
        f'{"".join(rects)}<line class="zero" x1="50%" x2="50%" y2="100%"/></svg>'
    )


def _part(value: float, scale: float, whole: float = 100) -> float:
    return round(min(1.0, max(0.0, value / scale)) * whole, 1) if scale > 0 else 0.0


def sparkline(rates: Sequence[tuple[float, float]], length_s: float) -> str:
    """Requests per second over the last `length_s`, from (seconds ago, rate), oldest first."""
    top = max((rate for _, rate in rates), default=0.0) or 1.0
    points = [f"{300 - ago / length_s * 300:.0f},{38 - rate / top * 36:.1f}" for ago, rate in rates if ago <= length_s]
    if len(points) < 2:
        return '<svg class="spark" viewBox="0 0 300 40" preserveAspectRatio="none" aria-hidden="true"></svg>'
    first, last = points[0].partition(",")[0], points[-1].partition(",")[0]
    line = " ".join(points)
    return (
        '<svg class="spark" viewBox="0 0 300 40" preserveAspectRatio="none" aria-hidden="true">'
        f'<polygon points="{first},40 {line} {last},40"/><polyline points="{line}"/></svg>'
    )


def timeline(states: Sequence[tuple[float, str]], now: float, length_s: float) -> str:
    """The states a backend was in over the last `length_s` until `now`, from (when it began, state)."""
    rects = [
        f'<rect class="s-{state}" x="{begin:.1f}%" width="{max(end - begin, 0.3):.1f}%" height="100%"/>'
        for begin, end, state in _stretches(states, now, length_s)
    ]
    return (
        f'<svg class="states" aria-hidden="true"><rect class="rail" width="100%" height="100%"/>{"".join(rects)}</svg>'
    )


def _stretches(states: Sequence[tuple[float, str]], now: float, length_s: float) -> Iterator[tuple[float, float, str]]:
    """(begin, end, state) in percent of the time shown."""
    ends = [at for at, _ in states[1:]] + [now]
    for (begin, state), end in zip(states, ends, strict=True):
        left, right = (100 - (now - at) / length_s * 100 for at in (begin, end))
        if right > 0:
            yield max(left, 0.0), right, state


def icon(name: str) -> str:
    """A sign from the sheet of signs that stands once in the page."""
    return f'<svg class="i" aria-hidden="true"><use href="#i-{name}"/></svg>'


# Told apart by their shape alone: a full disc, a tick, a bar, a cross, a clock's hands, arrows.
SIGNS: Final = {
    "up": '<circle cx="8" cy="8" r="5"/>',
    "down": '<path class="o" d="M4 4l8 8M12 4l-8 8"/>',
    "ejected": '<path d="M8 2.5l5 6H3z"/><path d="M3 10.5h10v2.5H3z"/>',
    "held": '<path class="o" d="M8 4.2V8l2.6 1.8"/><circle class="o" cx="8" cy="8" r="5.6"/>',
    "unknown": '<circle class="o" cx="8" cy="8" r="5" stroke-dasharray="2.4 2.2"/>',
    "draining": '<path class="o" d="M8 2.5v9M4 8l4 4 4-4"/>',
    "good": '<path class="o" d="M3 8.5l3.4 3.4L13 5"/>',
    "notice": '<path class="o" d="M8 3v6.2"/><circle cx="8" cy="12.4" r="1.2"/>',
    "bad": '<path class="o" d="M4 4l8 8M12 4l-8 8"/>',
    "out": '<path class="o" d="M3.5 8h9M9 4.5L12.5 8 9 11.5"/>',
    "in": '<path class="o" d="M12.5 8h-9M7 4.5L3.5 8 7 11.5"/>',
}


def sign_sheet() -> str:
    """All signs, to stand hidden at the top of the page."""
    symbols = "".join([f'<symbol id="i-{name}" viewBox="0 0 16 16">{shape}</symbol>' for name, shape in SIGNS.items()])
    return f'<svg class="signs" aria-hidden="true">{symbols}</svg>'

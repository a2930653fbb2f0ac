"""What has happened lately, for whoever watches: the journal's events once more, with a number and a sentence each.

Everything that matters is told to the journal; here it is kept for a while and handed to subscribers. Unlike the
journal's lines, events are never held back when there are many of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, final

from lbproxy.control.counts import last_check
from lbproxy.observe.journal import Emit, Fields, Journal, Level
from lbproxy.observe.lines import iso_time

Event = dict[str, Any]

MEMORY: Final = 500

# The kind of event that a line of the journal is; what is not here is an event of kind "other".
OTHER: Final = "other"
_KINDS: Final = {
    "backend state": "state",
    "backend ejected": "ejection",
    "backend not ejected": "ejection",
    "no backend is eligible": "panic",
    "backends are eligible again": "panic",
    "override set": "override",
    "override ended": "override",
    "pin set": "pin",
    "pin taken back": "pin",
    "backend is empty": "drain",
    "ring changed": "ring",
    "hot key": "hot_key",
    "configuration applied": "reload",
    "configuration unchanged": "reload",
    "configuration refused": "reload",
    "a restart is needed": "reload",
    "worker ready": "worker",
    "worker ended": "worker",
    "worker not started": "worker",
    "worker failed": "worker",
    "worker hangs": "worker",
    "worker not understood": "worker",
    "admin write": "admin",
    "draining": "process",
    "exchanges cut off": "process",
    "ended at once": "process",
    "stopped": "process",
    "serving": "process",
}
KINDS: Final = (*dict.fromkeys(_KINDS.values()), OTHER)


@final
class Events:
    """The last MEMORY events, the newest last, and who wants to know of each."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._all: deque[Event] = deque(maxlen=MEMORY)
        self._last = 0
        self._subscribers: dict[int, Callable[[], None]] = {}

    def add(self, level: Level, event: str, fields: Fields) -> None:
        """Keep an event of the journal."""
        if level == "debug" and event not in _KINDS:
            return
        self._last += 1
        self._all.append(
            {
                **fields,  # which are a worker's own, of an event of a worker's: they stand for none of the following
                "id": self._last,
                "time": iso_time(int(self._wall() * 1000)),
                "kind": _KINDS.get(event, OTHER),
                "level": level,
                "pool": str(fields.get("pool") or ""),
                "backend": str(fields.get("backend") or ""),
                "event": event,
                "text": sentence(event, fields),
            }
        )
        for callback in list(self._subscribers.values()):
            callback()

    def after(self, number: int) -> list[Event]:
        """Those with a greater number."""
        return [event for event in self._all if event["id"] > number]

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have it called after each new event; what is returned ends that."""
        number = max(self._subscribers, default=0) + 1
        self._subscribers[number] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(number, None)

        return unsubscribe


@final
class EventJournal(Journal):
    """A journal whose events are kept too."""

    def __init__(self, emit: Emit, events: Events) -> None:
        super().__init__(emit)
        self._events = events

    def tell(self, level: Level, event: str, fields: Fields) -> None:
        self._events.add(level, event, fields)
        super().tell(level, event, fields)


def sentence(event: str, fields: Fields) -> str:
    """The event in one sentence for people."""
    made = _SENTENCES.get(event)
    if made is not None:
        return made(fields)
    rest = ", ".join(f"{name} {value}" for name, value in fields.items() if value not in (None, ""))
    return f"{event}: {rest}" if rest else event


def _state(fields: Fields) -> str:
    words = {
        "up": "is up",
        "down": "is down",
        "unknown": "has not been checked yet",
        "held": "is up again and must prove itself",
        "draining": "drains",
        "ejected": "is ejected",
    }
    text = f"{fields.get('backend')} {words.get(str(fields.get('state')), str(fields.get('state')))}"
    if fields.get("for_s") is not None:
        text += f" for {_span(fields)}"
    if fields.get("state") in ("down", "up") and fields.get("check"):
        text += f" ({last_check(fields['check'], fields.get('why'))})"
    return text


def _span(fields: Fields) -> str:
    return f"{fields['for_s']:g} s" if isinstance(fields.get("for_s"), int | float) else str(fields.get("for_s"))


def _override(fields: Fields) -> str:
    weight = fields.get("weight")
    heavy = f"{weight:g}" if isinstance(weight, int | float) else str(weight)  # a worker may say anything
    decision = "drains" if fields.get("what") == "drain" else f"has weight {heavy}"
    text = f"{fields.get('backend')} {decision} by decision of {fields.get('who')}"
    if fields.get("for_s") is not None:
        text += f" for {_span(fields)}"
    return f"{text}: {fields['reason']}" if fields.get("reason") else text


def _override_ended(fields: Fields) -> str:
    what = "drain" if fields.get("what") == "drain" else "weight"
    return f"the {what} decided for {fields.get('backend')} is over: {fields.get('why')}"


def _ring(fields: Fields) -> str:
    moved = fields.get("moved_share")
    share = f"{moved * 100:.2f} %" if isinstance(moved, int | float) else "an unknown share"
    return f"{share} of the keys of {fields.get('pool')} have moved ({fields.get('cause')})"


def _hot_key(fields: Fields) -> str:
    if fields.get("is_hot"):
        share = fields.get("work_share")
        part = f" with {share * 100:.1f} % of the work" if isinstance(share, int | float) else ""
        return f"a key of {fields.get('pool')} is hot{part}, and is spread over {fields.get('reach')}"
    return f"a key of {fields.get('pool')} is no longer hot"


_SENTENCES: Final[dict[str, Callable[[Fields], str]]] = {
    "backend state": _state,
    "backend ejected": lambda fields: (
        f"{fields.get('backend')} is ejected for {_span(fields)}: {fields.get('reason')}"
        + (f" ({fields['error']})" if fields.get("error") else "")
    ),
    "backend not ejected": lambda fields: f"{fields.get('backend')} fails and stays: {fields.get('why')}",
    "backend is empty": lambda fields: f"{fields.get('backend')} has nothing left and can be stopped",
    "override set": _override,
    "override ended": _override_ended,
    "ring changed": _ring,
    "hot key": _hot_key,
    "no backend is eligible": lambda fields: f"no backend of {fields.get('pool')} is eligible",
    "backends are eligible again": lambda fields: f"backends of {fields.get('pool')} are eligible again",
    "configuration applied": lambda fields: f"configuration {fields.get('generation')} is in force",
    "configuration unchanged": lambda fields: "the configuration is as it was",
    "configuration refused": lambda fields: f"a configuration was refused: {fields.get('problem')}",
}

"""The shapes of the admin API's documents, as JSON Schema: the components of its OpenAPI description.

A shape names every member that a document has; all are always there. What may be missing is `null`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

from lbproxy.control.events import KINDS
from lbproxy.control.overrides import WHATS
from lbproxy.control.pool_state import CAUSES
from lbproxy.control.probes import RESULTS
from lbproxy.core.health import STATES
from lbproxy.core.ledger import (
    CODE_CLASSES,
    DECISIONS,
    REJECTIONS,
    RETRY_OUTCOMES,
    RETRY_REASONS,
    SPILL_REASONS,
    UPSTREAM_ERRORS,
)
from lbproxy.observe.facts import WorkerState
from lbproxy.observe.journal import Level

Shape = dict[str, Any]


def ref(name: str) -> Shape:
    """The component of that name."""
    return {"$ref": f"#/components/schemas/{name}"}


def thing(about: str = "", /, **members: Shape) -> Shape:
    """An object with exactly these members."""
    said = {"description": about} if about else {}
    return {"type": "object", **said, "properties": members, "required": list(members)}


def many(shape: Shape, about: str = "") -> Shape:
    """A list."""
    return {"type": "array", "items": shape, **({"description": about} if about else {})}


def maybe(shape: Shape, about: str = "") -> Shape:
    """That, or null."""
    return {"anyOf": [shape, {"type": "null"}], **({"description": about} if about else {})}


def one_of(words: Sequence[str], about: str = "") -> Shape:
    """One of these words."""
    return {"enum": list(words), **({"description": about} if about else {})}


def text(about: str = "", **more: Any) -> Shape:
    return {"type": "string", **({"description": about} if about else {}), **more}


def number(about: str = "", **more: Any) -> Shape:
    return {"type": "number", **({"description": about} if about else {}), **more}


def count(about: str = "", **more: Any) -> Shape:
    return {"type": "integer", "minimum": 0, **({"description": about} if about else {}), **more}


def share(about: str = "") -> Shape:
    return number(about, minimum=0, maximum=1.000001)


def flag(about: str = "") -> Shape:
    return {"type": "boolean", **({"description": about} if about else {})}


def time(about: str = "") -> Shape:
    return text(about, format="date-time")


def counts(words: Sequence[str], about: str = "") -> Shape:
    """How often each of these words was."""
    return thing(about, **{word: count() for word in words})


NOT_SAVED: Final = maybe(
    text(),
    "Why what has been decided, and is in force, could not be written to disk and would not outlive a restart; null: "
    "nothing went wrong. It is tried again with the next decision.",
)
HASH: Final = text("64 bits in hexadecimal.", pattern="^0x[0-9a-f]{16}$")
FINGERPRINT: Final = text("The hash of what decides routing: equal fingerprints route equally.")
GENERATION: Final = count("The number of the configuration in force; every change makes a new one.")
NAMES: Final = many(text())

_PROBLEM: Final = thing(
    "RFC 9457. Some problems have further members, such as `problems` of a configuration.",
    type=text(),
    title=text(),
    status={"type": "integer", "minimum": 400, "maximum": 599},
    detail=text("What is wrong, in a sentence."),
)

_FAULT: Final = thing(
    "One mistake in a configuration. Lines and columns count from 1; 0: the file itself.",
    file=text(),
    line=count(),
    column=count(),
    path=text("Where in the configuration."),
    message=text(),
    hint=text("What was probably meant."),
    source=text("The line as it stands in the file; of a very long one the part around the column."),
    source_start=count("How many characters of the line stand before that part."),
)

_OVERRIDE: Final = thing(
    "What an operator has decided for a backend, against the file.",
    pool=text(),
    backend=text(),
    what=one_of(WHATS),
    weight=maybe(number(minimum=0)),
    file_weight=number("What the file says.", minimum=0),
    by=text(),
    since=time(),
    expires_at=maybe(time(), "null: when it is taken back, or the file has another weight."),
    reason=text(),
)

_INFO: Final = thing(
    version=text(),
    python=text(),
    pid=count(),
    started_at=time(),
    uptime_s=number(),
    zone=text(),
    config=text("Where the configuration came from."),
    generation=GENERATION,
    fingerprint=FINGERPRINT,
    ready=flag("Whether every worker serves."),
    draining=flag(),
    workers=count(),
    silent_workers=many(
        thing(worker=count(), silent_s=count()), "Those whose event loop has not turned for three seconds or more."
    ),
    listeners=many(thing(name=text(), address=text("As it really is."))),
    writes=one_of(("token", "off"), "What changing something over TCP takes."),
    reload=maybe(
        thing(result=one_of(("applied", "unchanged", "refused")), at=time(), problem=maybe(text())), "The last reload."
    ),
    needs_restart=many(text(), "What was read since the start and only a restart puts in force."),
    overrides=many(ref("Override")),
    not_saved=many(text(), "Why what operators have decided, and is in force, is not on disk."),
)

_CONFIG: Final = thing(
    source=text(),
    generation=GENERATION,
    fingerprint=FINGERPRINT,
    config=maybe(
        {"type": "object"}, "With every default filled in and secrets left out: `lbproxy schema` has its shape."
    ),
    overrides=many(ref("Override")),
)

_WORKER: Final = thing(
    worker=count("The number of its slot."),
    state=one_of(get_args(WorkerState)),
    pid=maybe(count()),
    generation=GENERATION,
    started_at=maybe(time()),
    restarts=count("How often the slot's worker had to be replaced."),
    requests=count("Of the slot, not of the process."),
    connections_open=count(),
    lag_s=number("How late its event loop was at its last tick."),
    silent_s=count("For how many seconds its event loop has not turned; at ten it is replaced."),
    log_dropped=count("Lines of the access log that were lost."),
)

_DURATION: Final = thing(
    "A histogram.",
    bounds_s=many(number(), "Upper bounds."),
    counts=many(count(), "One more than bounds: the last has none."),
    sum_s=number(),
)

_BACKEND: Final = thing(
    name=text(),
    address=text(),
    zone=text(),
    weight=number("The file's.", minimum=0),
    effective_weight=number("In force now.", minimum=0),
    state=one_of(STATES),
    state_since=time(),
    state_until=maybe(time(), "When it ends by itself."),
    eligible=flag("Whether it may be sent requests."),
    empty=flag("Drained, and nothing is left on it."),
    wanted_weight=number("Where the effective weight is going.", minimum=0),
    override=maybe(
        thing(
            weight=maybe(number(minimum=0)),
            state=maybe(one_of(("drain",))),
            by=text(),
            since=time(),
            expires_at=maybe(time()),
            reason=text(),
        ),
        "All overrides in one; who and why are the last one's.",
    ),
    overrides=many(ref("Override")),
    probe=maybe(
        thing(
            result=one_of(RESULTS),
            why=text("More of it for people, such as the status, or why there was no connection; may be empty."),
            at=time(),
        ),
        "The last check.",
    ),
    ejections=thing(count=count(), spared=count("It failed, and stayed because too many were out.")),
    requests=counts(CODE_CLASSES, "By class of status."),
    in_flight=count("Requests that it holds, and what its tunnels count as."),
    upgraded_open=count("WebSockets and other tunnels."),
    slots=maybe(count(), "How many it may hold at present; null: any number."),
    max_in_flight=maybe(count()),
    owned_requests=count("Requests whose key it owns, wherever they were served."),
    spills=counts(SPILL_REASONS, "Requests that it owns and others served."),
    spills_received=count(),
    errors=counts(UPSTREAM_ERRORS),
    duration=ref("Duration"),
    connections=thing(active=count(), idle=count()),
    expected_share=share("What its effective weight asks for, whoever may be asked just now."),
    current_share=share("The same among those that may be asked now: 0 while it takes no new keys."),
    ring_share=share("What it owns of the circle."),
    points=count("Its vnodes."),
)

_POOL: Final = thing(
    name=text(),
    key_sources=many(text(), "Where the key is looked for, in words."),
    requests=counts(CODE_CLASSES, "By class of status."),
    in_flight=count(),
    decisions=counts(DECISIONS),
    rejected=counts(REJECTIONS),
    retries=thing("By what made them necessary.", **{reason: counts(RETRY_OUTCOMES) for reason in RETRY_REASONS}),
    duration=ref("Duration"),
    upgraded_open=count("WebSockets and other tunnels."),
    bounded_load=thing(
        factor=maybe(number()),
        min_gap=maybe(count(), "null: it follows the load."),
        tunnel_weight=number("What a WebSocket or other tunnel counts as.", minimum=0),
    ),
    hot_keys=thing(mode=one_of(("spread", "spill", "off"))),
    eligible=count("How many backends may be sent requests."),
    panic=flag("Whether none may."),
    panic_mode=one_of(("off", "serve_all"), "What is done then: 503, or asking all of them."),
    ring=thing(
        fingerprint=FINGERPRINT,
        points=count(),
        vnodes=count("Per weight 1."),
        changes=count(),
        last_change=maybe(thing(at=time(), cause=one_of(CAUSES), moved_share=share("Of the keys."))),
    ),
    backends=many(ref("Backend")),
)

_RING: Final = thing(
    pool=text(),
    generation=GENERATION,
    fingerprint=FINGERPRINT,
    hash_version=count(),
    vnodes=count("Per weight 1."),
    points=count(),
    members=many(thing(name=text(), effective_weight=number(minimum=0), points=count(), ring_share=share())),
    sectors=many(count(), "Who owns each of 720 evenly spaced places: an index into `members`."),
)

_HOT_KEYS: Final = thing(
    pool=text(),
    mode=one_of(("spread", "spill", "off")),
    names_shown=flag("Whether `admin.show_keys` allows `key`."),
    keys=many(
        thing(
            rank=count("From 1."),
            hash=HASH,
            key=maybe(text(), "Only with `admin.show_keys`, and null until a request of it has ended."),
            requests_share=share(),
            work_share=share("Of the seat seconds."),
            in_flight=count(),
            hot=flag(),
            reach=count("Over how many backends it is spread."),
            backends=many(text()),
            since=maybe(time(), "From when on it is hot."),
        )
    ),
)

_EXPLANATION: Final = thing(
    pool=text(),
    key=text("As text; octets that are none are escaped."),
    key_hex=text(),
    hash=HASH,
    hash_version=count(),
    generation=GENERATION,
    fingerprint=FINGERPRINT,
    hot=maybe(thing(requests_share=share(), work_share=share(), reach=count()), "null: it is not."),
    pin=maybe(thing(backend=text(), on_down=one_of(("failover", "reject")))),
    decision=thing(
        "What happens to a request of this key now.",
        backend=maybe(text()),
        decision=maybe(one_of(DECISIONS)),
        why=text(),
    ),
    preference=many(
        thing(
            backend=text(),
            address=text(),
            zone=text(),
            weight=number(minimum=0),
            state=one_of(STATES),
            token=HASH,
            token_number=count("Among the backend's own."),
            distance_ratio=share("How far round the circle from the key."),
            in_flight=count(),
            slots=maybe(count()),
            may_serve=flag(),
            reason=text(),
        ),
        "The owner first.",
    ),
    further=count("How many backends come after these."),
)

_POOL_PLAN: Final = {
    "pool": text(),
    "is_change": flag(),
    "fingerprint_before": FINGERPRINT,
    "fingerprint_after": FINGERPRINT,
    "moved_share": share("Of the keys; exact."),
    "needless_share": share("Moved although the change would not have asked for it."),
    "flows": many(thing(**{"from": text('"": nobody.'), "to": text(), "share": share()}), "The largest first."),
    "backends": many(
        thing(
            name=text(),
            change=one_of(("", "added", "removed", "changed")),
            fields=many(text(), "What changes."),
            weight_before=maybe(number(minimum=0), "null: it is not there."),
            weight_after=maybe(number(minimum=0)),
            expected_share_before=share(),
            expected_share_after=share(),
            ring_share_before=share(),
            ring_share_after=share(),
        )
    ),
    "settings": many(text(), "Other fields that change."),
    "keys": maybe(
        thing(
            sampled=count(),
            sampled_one_in=count(),
            moved=count("Of the sample."),
            moved_share=share(),
            staying_until_idle=count(),
            sessions_open=count(),
            sessions_moved=count(),
            sessions_moved_share=share(),
        ),
        "What it means for the users of the last minutes; null where nobody knows them.",
    ),
    "sessions_moved_estimate": maybe(count()),
    "warnings": NAMES,
}

SCHEMAS: Final[dict[str, Shape]] = {
    "Problem": _PROBLEM,
    "Fault": _FAULT,
    "Override": _OVERRIDE,
    "Info": _INFO,
    "Config": _CONFIG,
    "Worker": _WORKER,
    "Workers": thing(workers=many(ref("Worker"))),
    "Duration": _DURATION,
    "Backend": _BACKEND,
    "Pool": _POOL,
    "DecidedBackend": thing(**_BACKEND["properties"], not_saved=NOT_SAVED),
    "DecidedPool": thing(**_POOL["properties"], not_saved=NOT_SAVED),
    "Pools": thing(pools=many(ref("Pool"))),
    "Backends": thing(pool=text(), backends=many(ref("Backend"))),
    "Ring": _RING,
    "HotKeys": _HOT_KEYS,
    "Pins": thing(
        pool=text(),
        pins=many(
            thing(
                key=maybe(text()),
                prefix=maybe(text()),
                backend=text(),
                on_down=one_of(("failover", "reject")),
                source=one_of(("file", "operator")),
                by=maybe(text()),
                since=maybe(time()),
                reason=maybe(text()),
            )
        ),
        not_saved=NOT_SAVED,
    ),
    "Explanation": _EXPLANATION,
    "Event": thing(
        "Further members depend on the event.",
        id=count("Grows by one with each event; starts anew with the process."),
        time=time(),
        kind=one_of(KINDS),
        level=one_of(get_args(Level)),
        pool=text(),
        backend=text(),
        event=text("As the operational log calls it."),
        text=text("In a sentence."),
    ),
    "Reloaded": thing(
        outcome=one_of(("applied", "unchanged")),
        generation=GENERATION,
        fingerprint=FINGERPRINT,
        needs_restart=NAMES,
        complete=flag("Whether all workers have acknowledged."),
    ),
    "Checked": thing(
        ok=flag("Whether there are no problems."),
        problems=many(ref("Fault")),
        needs_restart=maybe(NAMES, "What only a restart would put in force; null for what is no configuration."),
    ),
    "PoolPlan": thing(**_POOL_PLAN),
    "ChangePlan": thing(generation=GENERATION, **_POOL_PLAN),
    "ConfigPlan": thing(
        generation=GENERATION,
        overrides_ended=many(ref("Override")),
        is_change=flag(),
        pools_added=NAMES,
        pools_removed=NAMES,
        listeners_added=NAMES,
        listeners_removed=NAMES,
        settings=NAMES,
        needs_restart=NAMES,
        pools=many(ref("PoolPlan")),
    ),
    "Draining": thing(draining={"const": True}),
}

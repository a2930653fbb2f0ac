"""The description of the admin API, as OpenAPI 3.1 has it: what `GET /v1/openapi.json` answers.

One table of operations; what all of them share (problems, security) is added here. Tests hold it against the routes
that there are and against what a running instance answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lbproxy import __version__
from lbproxy.control.admin import shapes
from lbproxy.control.admin.shapes import Shape, flag, maybe, number, one_of, ref, text
from lbproxy.control.values import DURATION_PATTERN, LONGEST_DURATION_S

Operation = dict[str, Any]

HEAVIEST: Final = 1_000_000  # the largest weight that can be decided
LONGEST_REASON: Final = 500
# Nothing that a terminal obeys, breaks a line at or turns a line round for.
REASON_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]*$"
LONGEST_KEY: Final = 4096
MOST_STEPS: Final = 1000
STEPS: Final = 10

_ABOUT: Final = """\
What a running lbproxy knows and can be told. It answers on `admin.listen` and on the Unix socket `admin.socket`, from
memory. Reading takes no token. Writing over TCP takes the token of `admin.token_file`; without one, writing works over
the socket alone, which takes none. Over TCP the `Host` must be an address, `localhost` or the configured name; a write
that another site's page has sent is refused. Errors are `application/problem+json`.
"""

_TAGS: Final = {
    "probes": "For load balancers, orchestrators and Prometheus.",
    "reading": "What is.",
    "trying": "What would be. Changes nothing.",
    "writing": "What shall be. Every write is a line in the operational log.",
    "page": "The page for people.",
}

_PROBLEMS: Final = {
    400: "It cannot be understood.",
    401: "The token is missing or wrong.",
    403: "Writing over TCP is off, or another site's page has sent it.",
    404: "There is no such thing.",
    408: "The body was too long in coming.",
    409: "It is refused as things stand; nothing has changed.",
    413: "The body is too large.",
    415: "The body is of another type.",
    421: "The `Host` names another machine.",
    422: "It is understood, and cannot be put in force.",
    500: "A bug; the operational log says more.",
    503: "Not now.",
}
_ALWAYS: Final = (421, 500)
_ON_WRITES: Final = (400, 401, 403, 408, 413, 503)

_TOKEN: Final[list[dict[str, list[str]]]] = [{"token": []}]

_WEIGHT: Final = maybe(number("", minimum=0, maximum=HEAVIEST), "null: go by the file again.")
_STATE: Final = one_of(("drain", "active"))
_WANTED: Final[Shape] = {
    "type": "object",
    "properties": {"weight": _WEIGHT, "state": _STATE},
    "minProperties": 1,
    "additionalProperties": False,
}
_ONE_BY_ONE: Final[Shape] = {
    "type": "object",
    "description": "What is wanted of each backend, by its name.",
    "minProperties": 1,
    "additionalProperties": _WANTED,
}
_HOW: Final = {
    "ttl": {
        "description": 'How long it holds: a duration such as "10m", or seconds. Without it: for good.',
        "anyOf": [
            text("", pattern=DURATION_PATTERN, examples=["10m", "1h30m"]),
            number("", exclusiveMinimum=0, maximum=LONGEST_DURATION_S),
            {"type": "null"},
        ],
    },
    "reason": text("For whoever looks later, in one line.", maxLength=LONGEST_REASON, pattern=REASON_PATTERN),
    "force": flag("Even if nobody is left to serve."),
}


def _body(shape: Shape, is_required: bool = True) -> Operation:
    return {"required": is_required, "content": {"application/json": {"schema": shape}}}


_KEY: Final = text("The key as text.", minLength=1)
_PINNED: Final = {
    "key": text("The key.", minLength=1, maxLength=LONGEST_KEY),
    "prefix": text("What the keys begin with.", minLength=1, maxLength=LONGEST_KEY),
}
_ON_DOWN: Final = one_of(("failover", "reject"), "While the backend is out: as the ring says, or 503.")
_KEY_HEX: Final = text("A key that is no text, in hexadecimal.", pattern="^([0-9a-fA-F]{2})+$")
_STEPS: Final = {
    "type": "integer",
    "minimum": 1,
    "maximum": MOST_STEPS,
    "default": STEPS,
    "description": "How much of the preference list is told.",
}
_YAML: Final = {"schema": {"description": "A configuration, as the file would have it."}}


def _query(name: str, shape: Shape) -> Operation:
    return {"name": name, "in": "query", "schema": shape}


def _answer(about: str, shape: Shape, kind: str = "application/json") -> Operation:
    return {"description": about, "content": {kind: {"schema": shape}}}


def _read(id: str, summary: str, shape: str, *problems: int, tag: str = "reading", **more: Any) -> Operation:
    """Something that is answered with a document."""
    return _operation(id, tag, summary, {200: _answer("As it is now.", ref(shape))}, problems, **more)


def _write(id: str, summary: str, answers: dict[int, Operation], *problems: int, **more: Any) -> Operation:
    return _operation(id, "writing", summary, answers, (*_ON_WRITES, *problems), security=_TOKEN, **more)


def _operation(
    id: str, tag: str, summary: str, answers: Mapping[int, Operation], problems: tuple[int, ...], **more: Any
) -> Operation:
    refused = {status: {"$ref": f"#/components/responses/{status}"} for status in sorted({*problems, *_ALWAYS})}
    responses = {str(status): answer for status, answer in sorted({**refused, **answers}.items())}
    return {"operationId": id, "tags": [tag], "summary": summary, **more, "responses": responses}


def _plain(id: str, tag: str, summary: str, kind: str, *problems: int, **more: Any) -> Operation:
    """Something that is answered with text."""
    return _operation(id, tag, summary, {200: _answer("As it is now.", text(), kind)}, problems, **more)


def _stream(about: str) -> dict[int, Operation]:
    return {200: _answer(about, text(), "text/event-stream")}


_EXPLAIN_ABOUT: Final = "What happens to a request with this key now, and why."
_PLAN_BODY: Final = {
    "description": "Decisions for one pool (JSON, takes no token), a configuration (other types), or none: the file.",
    "required": False,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"pool": text(), "backends": _ONE_BY_ONE},
                "required": ["pool", "backends"],
                "additionalProperties": False,
            }
        },
        "application/yaml": _YAML,
    },
}

PATHS: Final[dict[str, dict[str, Operation]]] = {
    "/healthz": {"get": _plain("healthz", "probes", "The supervisor lives.", "text/plain")},
    "/readyz": {
        "get": _operation(
            "readyz",
            "probes",
            "Whether traffic should be sent here.",
            {
                200: _answer("Every worker serves.", text(), "text/plain"),
                503: _answer("Not all serve, or it drains: which, in a few words.", text(), "text/plain"),
            },
            (),
        )
    },
    "/metrics": {"get": _plain("metrics", "probes", "Everything for Prometheus.", "text/plain")},
    "/v1/openapi.json": {
        "get": _operation(
            "openapi", "reading", "This description.", {200: _answer("OpenAPI 3.1.", {"type": "object"})}, ()
        )
    },
    "/v1/info": {"get": _read("info", "The instance.", "Info")},
    "/v1/config": {"get": _read("config", "The configuration in force.", "Config")},
    "/v1/workers": {"get": _read("workers", "The worker processes.", "Workers")},
    "/v1/pools": {"get": _read("pools", "All pools.", "Pools")},
    "/v1/pools/{pool}": {"get": _read("pool", "One pool.", "Pool", 404)},
    "/v1/pools/{pool}/backends": {
        "get": _read("backends", "The backends of a pool.", "Backends", 404),
        "patch": _write(
            "decideForSeveral",
            "Give several backends another weight or state, all at once.",
            {200: _answer("The pool as it stands then.", ref("DecidedPool"))},
            *(404, 409, 415, 422),
            requestBody=_body(
                {
                    "type": "object",
                    "properties": {"backends": _ONE_BY_ONE, **_HOW},
                    "required": ["backends"],
                    "additionalProperties": False,
                }
            ),
        ),
    },
    "/v1/pools/{pool}/backends/{backend}": {
        "get": _read("backend", "One backend.", "Backend", 404),
        "patch": _write(
            "decide",
            "Give a backend another weight or state.",
            {200: _answer("The backend as it stands then.", ref("DecidedBackend"))},
            *(404, 409, 415, 422),
            requestBody=_body(
                {
                    "type": "object",
                    "properties": {"weight": _WEIGHT, "state": _STATE, **_HOW},
                    "anyOf": [{"required": ["weight"]}, {"required": ["state"]}],
                    "additionalProperties": False,
                }
            ),
        ),
    },
    "/v1/pools/{pool}/backends/{backend}/overrides": {
        "delete": _write(
            "takeBack",
            "Go by the file again.",
            {200: _answer("The backend as it stands then.", ref("DecidedBackend"))},
            *(404, 409, 422),
        )
    },
    "/v1/pools/{pool}/ring": {"get": _read("ring", "The ring in force.", "Ring", 404)},
    "/v1/pools/{pool}/hot-keys": {
        "get": _read("hotKeys", "The keys with the most work, and which of them are spread.", "HotKeys", 404)
    },
    "/v1/pools/{pool}/pins": {
        "get": _read("pins", "The keys with a place of their own.", "Pins", 404),
        "put": _write(
            "pin",
            "Have a key, or all with a prefix, live on a backend.",
            {200: _answer("All pins of the pool as they are then.", ref("Pins"))},
            *(404, 409, 415),
            description="Exactly one of `key` and `prefix`. It goes before what the file says of the same keys.",
            requestBody=_body(
                {
                    "type": "object",
                    "properties": {**_PINNED, "backend": text(), "on_down": _ON_DOWN, "reason": _HOW["reason"]},
                    "required": ["backend"],
                    "oneOf": [{"required": ["key"]}, {"required": ["prefix"]}],
                    "additionalProperties": False,
                }
            ),
        ),
        "delete": _write(
            "unpin",
            "Take back a pin that an operator has set.",
            {200: _answer("The pins that are left.", ref("Pins"))},
            *(404, 409, 415),
            description="Exactly one of `key` and `prefix`. Pins of the file stay.",
            requestBody=_body(
                {
                    "type": "object",
                    "properties": _PINNED,
                    "oneOf": [{"required": ["key"]}, {"required": ["prefix"]}],
                    "additionalProperties": False,
                }
            ),
        ),
    },
    "/v1/pools/{pool}/explain": {
        "get": _read(
            "explain",
            _EXPLAIN_ABOUT,
            "Explanation",
            *(400, 404),
            description="Exactly one of `key` and `key_hex`.",
            parameters=[
                _query("key", _KEY),
                _query("key_hex", _KEY_HEX),
                _query("steps", _STEPS),
            ],
        ),
        "post": _read(
            "explainBody",
            f"{_EXPLAIN_ABOUT} The key stands in the body, which no log and no history keeps.",
            "Explanation",
            *(400, 404, 408, 413, 415),
            requestBody=_body(
                {
                    "type": "object",
                    "properties": {
                        "key": _KEY,
                        "key_hex": _KEY_HEX,
                        "steps": _STEPS,
                    },
                    "oneOf": [{"required": ["key"]}, {"required": ["key_hex"]}],
                    "additionalProperties": False,
                }
            ),
        ),
    },
    "/v1/events": {
        "get": _operation(
            "events",
            "reading",
            "What happens, as server-sent events.",
            _stream("Each has the number of an event as its `id`, its kind as `event`, and an Event as `data`."),
            (400, 503),
            parameters=[
                _query("after", text("Begin with what came after this event; without it, with what comes.")),
                {"name": "Last-Event-ID", "in": "header", "schema": text("The same, as browsers say it.")},
            ],
        )
    },
    "/v1/check": {
        "post": _operation(
            "check",
            "trying",
            "What is wrong with a configuration, and with the files that it names.",
            {200: _answer("All of it at once.", ref("Checked"))},
            _ON_WRITES,
            security=_TOKEN,
            requestBody={"required": False, "content": {"application/yaml": _YAML}},
        )
    },
    "/v1/plan": {
        "post": _operation(
            "plan",
            "trying",
            "What a change would do, and exactly which keys it would move.",
            {
                200: _answer(
                    "For decisions a ChangePlan, else a ConfigPlan.",
                    {"oneOf": [ref("ChangePlan"), ref("ConfigPlan")]},
                )
            },
            (*_ON_WRITES, 404, 422),
            security=[{}, *_TOKEN],
            requestBody=_PLAN_BODY,
        )
    },
    "/v1/reload": {
        "post": _write(
            "reload",
            "Read the configuration again and put it in force.",
            {200: _answer("It is in force, or it was already.", ref("Reloaded"))},
            409,
        )
    },
    "/v1/drain": {
        "post": _write("drain", "End the whole proxy in peace.", {202: _answer("It has begun.", ref("Draining"))})
    },
    "/": {
        "get": _plain(
            "page",
            "page",
            "The page, readable without JavaScript.",
            "text/html",
            parameters=[
                _query("pool", text("With `key`: about which key to say where it lives.")),
                _query("key", text()),
            ],
        )
    },
    "/page/key": {
        "get": _plain(
            "pageKey",
            "page",
            "Where a key lives, as a piece of the page.",
            "text/html",
            404,
            parameters=[{**_query("pool", text()), "required": True}, _query("key", text())],
        )
    },
    "/page/live": {
        "get": _operation(
            "pageLive",
            "page",
            "What changes on the page, as server-sent events.",
            _stream("Each is a JSON object with the pieces of the page that have changed."),
            (503,),
            parameters=[_query("since", text()), {"name": "Last-Event-ID", "in": "header", "schema": text()}],
        )
    },
    "/page/{name}": {
        "get": _operation(
            "pageFile",
            "page",
            "Style sheet, scripts and icons.",
            {
                200: {
                    "description": "A file.",
                    "content": {kind: {"schema": text()} for kind in ("text/css", "text/javascript", "image/svg+xml")},
                },
                304: {"description": "It has not changed."},
            },
            (404,),
        )
    },
}

_NAMES: Final = {"pool": "A pool's name.", "backend": "A backend's name.", "name": "A file's name."}


def description() -> dict[str, Any]:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lbproxy admin API",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": about} for name, about in _TAGS.items()],
        "security": [],
        "paths": {path: _with_path_parameters(path, operations) for path, operations in PATHS.items()},
        "components": {
            "schemas": shapes.SCHEMAS,
            "responses": {
                str(status): _answer(about, ref("Problem"), "application/problem+json")
                for status, about in _PROBLEMS.items()
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token of `admin.token_file`. Over the Unix socket nobody needs it.",
                }
            },
        },
    }


def _with_path_parameters(path: str, operations: dict[str, Operation]) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": text(_NAMES[name], minLength=1)} for name in names
    ]
    return {**({"parameters": parameters} if parameters else {}), **operations}

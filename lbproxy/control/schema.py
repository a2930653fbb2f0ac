"""The configuration file, field by field: type, default and doc line of each, in this one place.

The JSON Schema for editors and the reference in the docs are generated from here (`reference`), `build` turns a checked
`File` into what the core understands, `checks` holds what concerns several fields at once. A field's description says
what it does and, where that is not plain, its unit; a class's docstring introduces its section in the reference.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from lbproxy.control.addresses import read_backend_url
from lbproxy.control.fields import (
    COOKIE,
    LISTENERS,
    ONE_OR_MORE,
    BackendUrl,
    Bind,
    CollectorUrl,
    Count,
    Duration,
    ErrorStatus,
    FilledText,
    MatchHost,
    MatchPath,
    Method,
    Name,
    Natural,
    Network,
    Number,
    OptionalToken,
    Pace,
    Port,
    Secret,
    Share,
    Size,
    SocketPath,
    Span,
    StatusRange,
    Target,
    TcpBind,
    Text,
    Token,
    Truth,
    Version,
    Whole,
    Workers,
    Yes,
)

MAX_VNODES: Final = 65536


class Section(BaseModel):
    """A mapping of the file. Fields that it does not know are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OneOf(Section):
    """A section of alternatives: those that were not chosen are left out when it is written."""

    @model_serializer(mode="wrap")
    def _without_the_others(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        fields: dict[str, object] = write(self)
        return {name: value for name, value in fields.items() if value is not None}


# Where requests come in


class ListenerTimeout(Section):
    """How long a client may take."""

    request_head: Duration = Field(
        default=10.0,
        description="From the accept, or the first byte of a further request, to the end of the head; then 408, or the "
        "connection is closed if nothing has come.",
    )
    body_idle: Duration = Field(
        default=30.0,
        description="The longest pause inside a request body; then 408. Also how long a client may take nothing of "
        "an answer.",
    )
    keep_alive: Duration = Field(default=75.0, description="How long a connection may wait for its next request.")


class ListenerLimits(Section):
    """What a client may take up. Each cap holds before memory is spent on what it caps."""

    connections: Count = Field(
        default=20000, description="Open connections per worker; one more is closed as soon as it is accepted."
    )
    head_bytes: Size = Field(default=32768, ge=1024, description="Size of a request head; then 431.")
    header_count: Count = Field(default=100, description="Header lines in a request; then 431.")
    line_bytes: Size = Field(
        default=16384, ge=256, description="Length of the request line (then 414) and of a header line (then 431)."
    )
    body_bytes: Size | None = Field(
        default=None, ge=1, description="Size of a request body; then 413. `null`: any size."
    )


class Listener(Section):
    """An address that takes requests. Where nothing but the address is to be said, the address alone will do."""

    bind: Bind = Field(
        description="`host:port`, `[v6]:port` or `unix:/path`. `0.0.0.0` takes IPv4 and `[::]` takes IPv6 alone: list "
        "both for both. A host name is listened on at its first address. A Unix socket's mode is 0666 less the umask."
    )
    timeout: ListenerTimeout = Field(default_factory=ListenerTimeout)
    limits: ListenerLimits = Field(default_factory=ListenerLimits)
    trusted_proxies: list[Network] = Field(
        default_factory=list,
        description="Networks whose `X-Forwarded-*` and `Forwarded` are believed; anyone else's are replaced. The "
        "client's address is the last one in `X-Forwarded-For` that is not in them. On a Unix socket everyone is "
        "trusted if any network is.",
    )


# Where they go


class Match(Section):
    """Which requests go to the pool: an exact host before a wildcard before any host, then the longest path."""

    host: MatchHost | None = Field(
        default=None,
        description="`example.com`, or `*.example.com` for every host below it; without a port. `null`: any host.",
    )
    path: MatchPath = Field(
        default="/", description="`/api` takes `/api` and everything below it, but not `/apix`; `/` takes everything."
    )


class Key(OneOf):
    """One place to look for the key. Exactly one field."""

    header: Token | None = Field(
        default=None,
        description="A header. Lines of the same name count as one, joined by a comma and a space; the white space "
        "around a value does not count.",
    )
    cookie: Token | None = Field(default=None, description="A cookie, the first of that name.")
    query: FilledText | None = Field(
        default=None, description="A parameter of the query, the first of that name, decoded."
    )
    path_segment: Annotated[Whole, Field(ge=0, le=255)] | None = Field(
        default=None, description="A segment of the path, counted from 0, decoded: in `/users/42` number 1 is `42`."
    )
    client_ip: Yes | None = Field(default=None, description="`true`: the address of the client.")


class Affinity(Section):
    """A signed cookie that names a session's backend: the session stays there even when the ring changes."""

    cookie: Token = Field(default="lbproxy", description="The cookie's name.")
    secret: Secret = Field(
        description="What it is signed with: 16 characters or more, the same on every proxy. Better from a variable."
    )
    max_age: Span = Field(default=0.0, description="How long it holds. `0`: as long as the browser is open.")
    path: MatchPath = Field(default="/", description="Its `Path`.")
    secure: Truth = Field(default=False, description="Whether it is `Secure`: sent over TLS only.")
    http_only: Truth = Field(default=True, description="Whether it is `HttpOnly`: kept from scripts.")
    same_site: Literal["Lax", "Strict", "None", ""] = Field(
        default="Lax", description="Its `SameSite`. Empty: without one. `None` is the word and needs `secure`."
    )


class Sticky(Key):
    """Where the key of a request is found. One place, or an ordered list in `keys`; by default `header: X-User-ID`.

    Requests with the same key go to the same backend. An empty value counts as a missing one.
    """

    keys: list[Key] | None = Field(
        default=None, min_length=1, description="Places to look in, in this order, instead of the one above."
    )
    on_missing: Literal["balance", "client_ip", "reject"] = Field(
        default="balance",
        description="For a request without a key. `balance`: the least loaded backend by weight. `client_ip`: the "
        "client's address is the key. `reject`: 400.",
    )
    affinity: Annotated[Affinity | None, COOKIE] = Field(
        default=None,
        description="A cookie that keeps a session on its backend when the ring changes. `null`: none.",
    )


class RingOptions(Section):
    """How the backends stand on the circle. Pools with the same names, weights and options route alike everywhere."""

    vnodes: Count = Field(
        default=1024,
        le=MAX_VNODES,
        description="Tokens of a backend of weight 1. More make shares more even and the ring larger: 1024 leave a "
        "spread of about 3 %, 160 of about 8 %. Changing it moves keys.",
    )
    hash_version: Count = Field(
        default=1,
        description="Which hash places keys and tokens. Changing it moves nearly all keys; 1 is the only one yet.",
    )


class BoundedLoad(Section):
    """How much more than its part a backend may hold before its keys spill to their next backend."""

    factor: Number | None = Field(
        default=1.25,
        gt=1,
        lt=100,
        description="The cap as a multiple of the backend's part of the load. `null`: no cap.",
    )
    min_gap: Natural | None = Field(
        default=None,
        description="Requests that a backend may hold above its part whatever the factor. `null`: what chance "
        "explains, 2.5 times the root of its part. `0`: the hard bound.",
    )
    tunnel_weight: Number = Field(
        default=0.0, ge=0, le=1000, description="How many requests a WebSocket or other tunnel counts as."
    )


class HotKeys(Section):
    """What happens with a key that alone asks for more than one backend can fairly carry."""

    mode: Literal["spread", "spill", "off"] = Field(
        default="spread",
        description="`spread`: its requests are spread over the next backends of its own list and everybody else stays "
        "put. `spill`: it is held to a smaller part of its owner. `off`: it is treated like any other.",
    )
    max_in_flight: Count | None = Field(
        default=None, description="Requests that one key may have in flight at once; then 429. `null`: any number."
    )


class Health(Section):
    """Active checks of the backends. Without this section there are none."""

    kind: Literal["http", "tcp", "none"] = Field(
        default="http", description="`http`: a request. `tcp`: a connection. `none`: no checks."
    )
    path: Target = Field(default="/healthz", description="What is asked for.")
    method: Method = Field(default="GET", description="How it is asked for.")
    headers: dict[Token, Text] = Field(default_factory=dict, description="Headers of the check, by name.")
    expect_status: Annotated[list[StatusRange], ONE_OR_MORE] = Field(
        default_factory=lambda: ["200-399"], min_length=1, description="Statuses that count as healthy: one or a list."
    )
    expect_body: Text | None = Field(default=None, description="Text that the answer must contain. `null`: any answer.")
    port: Port | None = Field(default=None, description="The port to check, if it is not the one that serves.")
    interval: Duration = Field(default=2.0, description="From one check to the next, give or take a tenth.")
    fast_interval: Duration | None = Field(
        default=None, description="The interval while a backend is changing its state. `null`: `interval`."
    )
    timeout: Duration = Field(default=1.0, description="When a check counts as failed.")
    rise: Count = Field(default=2, description="Passed checks in a row that bring a backend back.")
    fall: Count = Field(default=3, description="Failed checks in a row that take a backend out.")
    hold: Span = Field(
        default=5.0,
        description="How long a backend that fell must be good before it is trusted again; doubled each time it falls.",
    )
    longest_hold: Span = Field(default=300.0, description="The longest that `hold` grows to.")
    forgive: Duration = Field(default=60.0, description="Good service that makes up for one fall.")


class Ejection(Section):
    """Taking a backend out because of what live requests met there, for a time that grows each time it recurs."""

    consecutive_errors: Natural = Field(default=5, description="Errors in a row that eject a backend. `0`: none do.")
    failure_rate: Share | None = Field(
        default=None, gt=0, description="Share of failed requests that ejects a backend. `null`: none does."
    )
    min_requests: Count = Field(default=20, description="Requests before `failure_rate` is looked at.")
    base: Duration = Field(default=10.0, description="How long the first ejection lasts.")
    max: Duration = Field(default=300.0, description="The longest that an ejection lasts.")
    max_share: Share = Field(default=0.5, description="Share of the pool that may be ejected at once.")


class Retry(Section):
    """Trying another backend when one fails. A response that has begun is never repeated."""

    attempts: Count = Field(default=3, le=100, description="Backends tried for a request, the first one included.")
    budget: Share = Field(default=0.2, description="Further attempts as a share of the live requests.")
    min_budget: Natural = Field(default=10, description="Further attempts at once that are always allowed.")
    per_try: Duration | None = Field(
        default=None,
        description="How long an attempt may take to its first byte before another backend is asked; where none may "
        "be, it goes on. `null`: until `timeout.first_byte` is over.",
    )
    buffer: Size = Field(
        default=65536, description="How much of a request body is kept to be sent again. `0`: nothing."
    )
    statuses: list[ErrorStatus] = Field(
        default_factory=list, description="Statuses of a backend that are worth another attempt, such as `[502, 503]`."
    )
    methods: list[Method] = Field(
        default_factory=list,
        description="Methods that may be repeated although a backend may already have acted on them, besides the "
        "idempotent ones (GET, HEAD, OPTIONS, TRACE, PUT, DELETE).",
    )


class Queue(Section):
    """Requests that wait while every eligible backend is full."""

    size: Natural = Field(default=100, description="How many may wait, per worker; then 503. `0`: none.")
    timeout: Duration = Field(default=1.0, description="How long one waits; then 503.")


class Pin(Section):
    """Keys that live on a backend whatever the ring says. Either `key` or `prefix`."""

    key: FilledText | None = Field(default=None, description="The key.")
    prefix: FilledText | None = Field(default=None, description="What the keys begin with; the longest counts.")
    backend: Name = Field(description="The name of the backend, which is one of the pool's.")
    on_down: Literal["failover", "reject"] = Field(
        default="failover", description="While it cannot be asked. `failover`: as the ring says. `reject`: 503."
    )


class PoolTimeout(Section):
    """How long a backend may take."""

    connect: Duration = Field(
        default=1.0, description="Opening a connection; then the next backend is tried, in the end 504."
    )
    first_byte: Duration = Field(
        default=30.0, description="Of each attempt: from the end of the request to the head of the response; then 504."
    )
    idle: Duration = Field(
        default=60.0, description="The longest pause inside a response body; then the client sees it cut."
    )
    tunnel: Duration = Field(
        default=3600.0, description="The longest silence on both sides of a WebSocket or other tunnel."
    )


class Connections(Section):
    """Idle connections to the backends, kept for the next request."""

    max_idle: Natural = Field(default=256, description="How many are kept, per backend and worker. `0`: none.")
    idle_timeout: Duration = Field(default=30.0, description="How long one is kept. Keep it below the backend's own.")
    max_age: Duration = Field(default=600.0, description="How old one may become, however busy it was.")


class Backend(Section):
    """One address that requests may be sent to."""

    name: Name | None = Field(
        default=None,
        description="Who it is on the ring: a key stays with the name, whatever the address. By default `host:port`.",
    )
    url: BackendUrl = Field(
        description="`http://host:port`; the port is 80 if left out. A host name is looked up for each new connection, "
        "and its addresses are tried in turn."
    )
    weight: Number = Field(
        default=1.0, ge=0, le=1_000_000, description="Its part of the keys; fractions are fine. `0`: no new keys."
    )
    zone: Text = Field(
        default="",
        description="Where it runs. It never changes who owns a key, only who stands in and who comes first.",
    )
    max_in_flight: Count | None = Field(default=None, description="Requests it may hold at once. `null`: any number.")
    max_connections: Count | None = Field(
        default=None, description="Connections to it, per worker. `null`: any number."
    )

    @property
    def identity(self) -> str:
        """Its name on the ring."""
        return self.name or str(read_backend_url(self.url))

    @model_serializer(mode="wrap")
    def _by_name(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        fields: dict[str, object] = write(self)
        return fields | {"name": self.identity}


class Pool(Section):
    """A named set of backends with one ring and one policy."""

    match: Annotated[Annotated[list[Match], Field(min_length=1)] | None, ONE_OR_MORE] = Field(
        default=None,
        description="Which requests come here: one match or a list. Without it all that no other pool takes.",
    )
    sticky: Sticky = Field(default_factory=Sticky)
    ring: RingOptions = Field(default_factory=RingOptions)
    bounded_load: BoundedLoad = Field(default_factory=BoundedLoad)
    hot_keys: HotKeys = Field(default_factory=HotKeys)
    health: Health = Field(
        default_factory=lambda: Health(kind="none"),
        description="Active checks of the backends. Without this section there are none.",
    )
    ejection: Ejection = Field(default_factory=Ejection)
    retry: Retry = Field(default_factory=Retry)
    timeout: PoolTimeout = Field(default_factory=PoolTimeout)
    connections: Connections = Field(default_factory=Connections)
    queue: Queue = Field(default_factory=Queue)
    panic: Literal["off", "serve_all"] = Field(
        default="off",
        description="When no backend is eligible. `off`: 503. `serve_all`: all are asked as if they were.",
    )
    slow_start: Span = Field(
        default=0.0, description="How long a backend that comes (back) takes to get all its keys. `0`: at once."
    )
    session_drain: Span = Field(
        default=0.0,
        description="For how long after its last request a key stays on a backend that drains. `0`: it goes at once.",
    )
    pace: Pace | None = Field(
        default=None, description="The share of keys that changes of weight may move, such as `5%/min`. `null`: any."
    )
    on_move: Literal["keep", "close", "pin"] = Field(
        default="keep",
        description="What happens to a WebSocket when its key's owner changes. `keep`: nothing. `close`: it is closed. "
        "`pin`: the key's other requests follow it while it lives.",
    )
    zone: Literal["any", "prefer_local"] = Field(
        default="any",
        description="`prefer_local`: backends in the proxy's own `zone` come first while health and the bound allow.",
    )
    pins: list[Pin] = Field(default_factory=list, description="Keys with a place of their own.")
    backends: list[Backend] = Field(min_length=1, description="Who serves them: one backend or more.")


# What holds for all of it


class Headers(Section):
    """What is added to and taken from requests and responses, beyond what HTTP itself demands."""

    x_forwarded: Literal["append", "off", "pass"] = Field(
        default="append",
        description="`X-Forwarded-For`, `-Proto` and `-Host`. `append`: to what a trusted proxy sent; anyone "
        "else's are replaced. `off`: taken out. `pass`: left as they are.",
    )
    forwarded: Truth = Field(default=False, description="Whether `Forwarded` (RFC 7239) is written too.")
    via: OptionalToken = Field(default="lbproxy", description="The name written into `Via`. Empty: none is.")
    request_id: Literal["keep", "make", "off"] = Field(
        default="keep",
        description="`X-Request-ID`. `keep`: a valid one is kept, else made. `make`: always made. `off`: neither.",
    )
    traceparent: Literal["make", "pass"] = Field(
        default="make",
        description="`traceparent` and `tracestate`. `make`: a valid trace is kept, else one begins here. `pass`: left "
        "as they are.",
    )
    debug_headers: Truth = Field(
        default=False,
        description="Whether responses to `trusted_proxies` carry `X-LB-Backend` and `X-LB-Decision`: who answered and "
        "why. Those that the proxy makes itself name whom it asked last, and say in `X-LB-Reason` why nobody answered.",
    )


class Admin(Section):
    """The admin API, the page, `/metrics`, `/healthz` and `/readyz`."""

    listen: TcpBind | None = Field(
        default="127.0.0.1:9901",
        description="TCP address. Reading is open to all who reach it, writing needs the token; an address that others "
        "can reach needs a `token_file`. `null`: none.",
    )
    socket: SocketPath = Field(
        default="", description="Path of a Unix socket, mode 0600, with full rights. Empty: none."
    )
    token_file: Text = Field(
        default="", description="File that holds the token for writing. Empty: no writing over TCP."
    )
    show_keys: Truth = Field(
        default=False,
        description="Whether the hottest keys, which are personal data, are shown by name to all who may read. They "
        "are never in metrics, nor in the operational log.",
    )


class AccessLog(Section):
    """One line per request."""

    path: Text = Field(default="-", description="A file, `-` for stdout, empty for none.")
    format: Literal["json", "combined"] = Field(
        default="json",
        description="`json`, or `combined` as web servers have long written it, with our fields at the end.",
    )
    key: Truth = Field(default=False, description="Whether the key, which is personal data, is written into each line.")


class Log(Section):
    """What the proxy says about itself, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="The least that is said.")
    format: Literal["text", "json"] = Field(default="text", description="For people or for machines.")
    access: AccessLog = Field(default_factory=AccessLog)


class Tracing(Section):
    """OpenTelemetry spans of sampled requests. Needs the extra `otel`: `pip install 'lbproxy[otel]'`."""

    otlp: CollectorUrl = Field(
        default="",
        description="Where they are sent over OTLP/HTTP, such as `http://127.0.0.1:4318`. Empty: nowhere.",
    )
    sample: Share = Field(
        default=0.01,
        description="Share of the traces that begin here. A request that brings a trace is sampled if whoever asks has "
        "sampled it.",
    )
    service: FilledText = Field(default="lbproxy", description="Their `service.name`.")


class Drain(Section):
    """How the proxy ends."""

    timeout: Duration = Field(
        default=30.0,
        description="How long requests that are running at SIGTERM or SIGINT may still take before they are cut.",
    )


class Reload(Section):
    """When this file is read again, besides SIGHUP, `lbproxy reload` and the admin API."""

    watch: Span = Field(
        default=1.0,
        description="How often the file is looked at. A change is taken up once two looks in a row have found the same "
        "file; a bad one changes nothing, and neither does one that is gone, but both are a reload that failed. `0`: "
        "it is not watched.",
    )


# How outermost fields begin that are there for their anchors alone, and mean nothing by themselves.
ASIDE: Final = "x-"


class File(Section):
    """The whole file."""

    version: Version = Field(default=1, description="The version of this format.")
    listen: Annotated[list[Listener], LISTENERS] = Field(
        min_length=1, description="Where requests come in: an address, a section, or a list of either."
    )
    zone: Text = Field(default="", description="Where this proxy runs, for pools with `zone: prefer_local`.")
    workers: Workers = Field(default="auto", description="Processes that carry traffic. `auto`: one per usable core.")
    pools: dict[Name, Pool] = Field(min_length=1, description="Where they go: the pools, by name.")
    headers: Headers = Field(default_factory=Headers)
    admin: Admin = Field(default_factory=Admin)
    log: Log = Field(default_factory=Log)
    tracing: Tracing = Field(default_factory=Tracing)
    drain: Drain = Field(default_factory=Drain)
    reload: Reload = Field(default_factory=Reload)

"""What was asked for: the configuration, resolved, as frozen values.

`control/schema.py` is where a field is documented and given its default; `control/build.py` turns a checked file into
the classes here. They are hashable and picklable, hold no behaviour, and are all that crosses from the supervisor to
a worker. Durations are float seconds, sizes are integer bytes, shares are floats from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

KeyKind = Literal["header", "cookie", "query", "path_segment", "client_ip"]
OnMissing = Literal["balance", "client_ip", "reject"]


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect or bind: TCP `host` and `port`, or a Unix socket `path` (then host is "" and port 0)."""

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class KeySource:
    """One place to look for the key. `name` for header, cookie and query; `index` (from 0) for path_segment."""

    kind: KeyKind
    name: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class AffinityCookie:
    """The cookie that names a session's backend, signed with `secret`. `max_age` seconds, 0 for a session cookie."""

    name: str = "lbproxy"
    secret: str = field(default="", repr=False)
    max_age: float = 0.0
    path: str = "/"
    secure: bool = False
    http_only: bool = True
    same_site: Literal["Lax", "Strict", "None", ""] = "Lax"


@dataclass(frozen=True, slots=True)
class Sticky:
    """Where the key comes from, in order, and what to do when no source has a non-empty value.

    `cookie` not None: a session stays on the backend that its cookie names, even when the ring changes.
    """

    keys: tuple[KeySource, ...] = (KeySource("header", "X-User-ID"),)
    on_missing: OnMissing = "balance"
    cookie: AffinityCookie | None = None


@dataclass(frozen=True, slots=True)
class BoundedLoad:
    """Consistent hashing with bounded loads. `factor` None switches the bound off.

    `min_gap`: seats above its share that a backend may hold whatever the factor; None is what chance explains, 0 the
    hard bound. `tunnel_weight`: seats that an upgraded connection counts as.
    """

    factor: float | None = 1.25
    min_gap: int | None = None
    tunnel_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class HotKeys:
    """`max_in_flight`: what one key may hold machine-wide; beyond it, 429."""

    mode: Literal["spread", "spill", "off"] = "spread"
    max_in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """A key, or every key with a prefix, that lives on a backend whatever the ring says."""

    key: str
    backend: str
    is_prefix: bool = False
    on_down: Literal["failover", "reject"] = "failover"


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests that wait while every eligible backend is full: how many per worker, and for how many seconds."""

    size: int = 100
    timeout: float = 1.0


@dataclass(frozen=True, slots=True)
class Health:
    """Active probes. `kind` "none" switches them off."""

    kind: Literal["http", "tcp", "none"] = "none"
    path: str = "/healthz"
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    expect_status: tuple[tuple[int, int], ...] = ((200, 399),)
    expect_body: str | None = None
    port: int | None = None
    interval: float = 2.0
    fast_interval: float | None = None
    timeout: float = 1.0
    rise: int = 2
    fall: int = 3
    hold: float = 5.0
    longest_hold: float = 300.0
    forgive: float = 60.0


@dataclass(frozen=True, slots=True)
class Ejection:
    """Taking a backend out by its live results. `consecutive_errors` 0 switches it off."""

    consecutive_errors: int = 5
    failure_rate: float | None = None
    min_requests: int = 20
    base: float = 10.0
    max: float = 300.0
    max_share: float = 0.5


@dataclass(frozen=True, slots=True)
class Retry:
    """What may be repeated, and how often. `attempts` counts the first one."""

    attempts: int = 3
    budget: float = 0.2
    min_budget: int = 10
    per_try: float | None = None
    buffer: int = 65536
    statuses: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolTimeouts:
    """How long a backend may take: to be connected, to begin its answer, between two pieces of it, and in a tunnel."""

    connect: float = 1.0
    first_byte: float = 30.0
    idle: float = 60.0
    tunnel: float = 3600.0


@dataclass(frozen=True, slots=True)
class UpstreamConnections:
    """Idle connections kept per backend and worker: how many, for how long, and their age at the most."""

    max_idle: int = 256
    idle_timeout: float = 30.0
    max_age: float = 600.0


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One address requests may be sent to. `name` alone is its identity on the ring."""

    name: str
    address: Address
    weight: float = 1.0
    zone: str = ""
    max_in_flight: int | None = None
    max_connections: int | None = None


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A named set of backends with one ring and one policy.

    `slow_start`: seconds over which a backend that comes (back) gets its tokens. `session_drain`: seconds for which a
    key that was seen stays on a draining backend. `pace`: the share of keys that changes of weight may move per second.
    `on_move`: what happens to an upgraded connection when its key's owner changes. `prefer_local`: keep traffic in the
    proxy's own zone while health and the bound allow it.
    """

    name: str
    backends: tuple[BackendSpec, ...]
    sticky: Sticky = Sticky()
    vnodes: int = 1024
    hash_version: int = 1
    bounded_load: BoundedLoad = BoundedLoad()
    hot_keys: HotKeys = HotKeys()
    health: Health = Health()
    ejection: Ejection = Ejection()
    retry: Retry = Retry()
    timeout: PoolTimeouts = PoolTimeouts()
    connections: UpstreamConnections = UpstreamConnections()
    panic: Literal["off", "serve_all"] = "off"
    slow_start: float = 0.0
    session_drain: float = 0.0
    pace: float | None = None
    on_move: Literal["keep", "close", "pin"] = "keep"
    queue: Queue = Queue()
    pins: tuple[Pin, ...] = ()
    prefer_local: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """Requests for `host` ("" is any, "*.example.com" any label below) whose path starts with `path` go to `pool`."""

    pool: str
    host: str = ""
    path: str = "/"


@dataclass(frozen=True, slots=True)
class ListenerTimeouts:
    """How long a client may take: for a request's head, between two pieces of a body, and until its next request."""

    request_head: float = 10.0
    body_idle: float = 30.0
    keep_alive: float = 75.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps that hold before anything is allocated for what they cap. `body_bytes` None is no cap."""

    connections: int = 20000
    head_bytes: int = 32768
    header_count: int = 100
    line_bytes: int = 16384
    body_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """`name` is the bind address as it was written: its identity across reloads and its metric label."""

    name: str
    bind: Address
    timeouts: ListenerTimeouts = ListenerTimeouts()
    limits: Limits = Limits()
    trusted_proxies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HeaderPolicy:
    """What the proxy adds to and takes from header sections, beyond what HTTP itself demands.

    `x_forwarded`: append (to what a trusted proxy sent; anyone else's is replaced) | off (none is added, the client's
    are removed) | pass (left as they are). `via` "" adds none. `request_id`: keep (a valid one is kept, else made) |
    make (always made) | off. `traceparent`: make (a valid one is kept, else made) | pass.
    """

    x_forwarded: Literal["append", "off", "pass"] = "append"
    forwarded: bool = False
    via: str = "lbproxy"
    request_id: Literal["keep", "make", "off"] = "keep"
    traceparent: Literal["make", "pass"] = "make"
    debug: bool = False


@dataclass(frozen=True, slots=True)
class AccessLogSpec:
    """`path` "-" is stdout, "" is off. `key` True writes the key, which is personal data, into each line."""

    path: str = "-"
    format: Literal["json", "combined"] = "json"
    key: bool = False


@dataclass(frozen=True, slots=True)
class LogSpec:
    """What is told on stderr, from `level` up, and the access log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    access: AccessLogSpec = AccessLogSpec()


@dataclass(frozen=True, slots=True)
class TracingSpec:
    """OpenTelemetry spans: `otlp` is where they are sent over HTTP, "" is nowhere. `sample`: the share of the traces
    that begin here; of others, those that whoever asks has sampled. `service` is what the proxy is called there."""

    otlp: str = ""
    sample: float = 0.01
    service: str = "lbproxy"


@dataclass(frozen=True, slots=True)
class AdminSpec:
    """`listen` None: no TCP port. `socket` "": no Unix socket. `show_keys`: the hottest keys by name."""

    listen: Address | None = Address("127.0.0.1", 9901)
    socket: str = ""
    token_file: str = ""
    show_keys: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """The whole of a checked file with every default filled in. `workers` is already a number; `watch` is how often,
    in seconds, the file is looked at for changes, 0 for never."""

    listeners: tuple[ListenerSpec, ...]
    pools: tuple[PoolSpec, ...]
    routes: tuple[Route, ...]
    workers: int = 1
    headers: HeaderPolicy = HeaderPolicy()
    admin: AdminSpec = AdminSpec()
    log: LogSpec = LogSpec()
    tracing: TracingSpec = TracingSpec()
    drain_timeout: float = 30.0
    watch: float = 1.0
    zone: str = ""
    source: str = field(default="", compare=False)

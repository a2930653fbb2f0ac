"""Overview: is all well, and how much goes through?"""

from __future__ import annotations

from grafana.boards.common import (
    CODE_COLORS,
    ERRORS,
    OVERVIEW,
    marks,
    number,
    pool_variable,
    to_distribution,
    to_workers,
    variables,
    verdict,
    yes_no,
)
from grafana.frame import Row, dashboard
from grafana.panels import BAD, GOOD, NOTICE, Json, override, query, table, thresholds, timeseries
from grafana.queries import (
    NEARLY,
    POOLS,
    PROXIES,
    SILENT_AFTER_S,
    UNEVEN,
    Shares,
    by,
    error_share,
    kept_share,
    not_serving,
    quantile,
)


def build() -> Json:
    return dashboard(
        OVERVIEW,
        "lbproxy / Overview",
        "Is all well, and how much goes through? Tiles and lines lead to the dashboards that say why.",
        variables(pool_variable(several=True)),
        marks(POOLS),
        [_verdict(), _pools(), _traffic(), _trouble(), _connections()],
    )


def _verdict() -> Row:
    shares = Shares.of(POOLS, POOLS)
    return Row(
        "Is all well?",
        4,
        (
            verdict(4, shares, "Spread as configured?", (to_distribution(""),)),
            yes_no(
                3,
                "Backends",
                "How many backends may not be given requests: down, ejected, held, draining or not yet known.",
                by("", f"1 - {by('pool, backend', POOLS.series('backend_up'), 'min')}"),
                "All up",
                links=(to_distribution(""),),
            ),
            yes_no(
                3,
                "Panic",
                "Pools of which no backend is eligible. What happens then is the pool's setting `panic`.",
                by("", by("pool", POOLS.series("pool_panic"), "max")),
                "None",
            ),
            yes_no(
                3,
                "Workers",
                "How many worker processes are not serving: starting, draining, down, or silent for "
                f"{SILENT_AFTER_S} s or more.",
                not_serving(PROXIES),
                "All serve",
                links=(to_workers(),),
            ),
            yes_no(
                3,
                "Configuration",
                "Whether the file was good when it was last read. A bad file changes nothing: the last good one "
                "stays in force.",
                by("", f"1 - {PROXIES.series('config_last_reload_success')}"),
                "Good",
                "Refused",
            ),
            number(3, "Requests", "Requests answered per second.", "reqps", by("", POOLS.rate("requests_total"))),
            number(
                3,
                "Server errors",
                "Share of answers with a status of 500 or above, the backends' own and the proxy's.",
                "percentunit",
                error_share(POOLS, "requests_total"),
                ERRORS,
            ),
            number(
                2,
                "p99",
                "99 of 100 requests are answered within this time, from their head to the last byte of the answer.",
                "s",
                quantile(0.99, POOLS, "request_duration_seconds"),
            ),
        ),
    )


def _pools() -> Row:
    values = {
        "Requests": by("pool", POOLS.rate("requests_total")),
        "Server errors": error_share(POOLS, "requests_total", "pool"),
        "p99": quantile(0.99, POOLS, "request_duration_seconds", "pool"),
        "In flight": by("pool", POOLS.series("requests_in_flight")),
        "Backends up": by("pool", by("pool, backend", POOLS.series("backend_up"), "min")),
        "Backends": by("pool", by("pool, backend", POOLS.series("backend_up"), "min"), "count"),
        "Furthest off": by("pool", Shares.of(POOLS, POOLS).excess, "max"),
        "On its owner": kept_share(POOLS, "pool"),
    }
    colored = {"custom__cellOptions": {"type": "color-text"}}
    return Row(
        "Pools",
        7,
        (
            table(
                24,
                "Pools now",
                "One line per pool. Furthest off: how far its worst backend is from its share, beyond chance. On its "
                "owner: the share of keyed requests served by the backend that owns the key, or that it is pinned to.",
                "pool",
                values,
                sort_by="Requests",
                overrides=[
                    override("Pool", links=[to_distribution("${__value.raw}")]),
                    override("Requests", unit="reqps"),
                    override("Server errors", unit="percentunit", thresholds=ERRORS, **colored),
                    override("p99", unit="s"),
                    override(
                        "Furthest off",
                        unit="percentunit",
                        thresholds=thresholds(GOOD, (NEARLY, NOTICE), (UNEVEN, BAD)),
                        **colored,
                    ),
                    override("On its owner", unit="percentunit"),
                ],
            ),
        ),
    )


def _traffic() -> Row:
    return Row(
        "Traffic",
        8,
        (
            timeseries(
                8,
                "Requests by pool",
                "Requests answered per second.",
                "reqps",
                query(by("pool", POOLS.rate("requests_total")), "{{pool}}"),
                links=[to_distribution()],
            ),
            timeseries(
                8,
                "Answers by status",
                "Answers per second by the class of their status, as the clients got them.",
                "reqps",
                query(by("code", POOLS.rate("requests_total")), "{{code}}"),
                stack="normal",
                overrides=CODE_COLORS,
            ),
            timeseries(
                8,
                "Time to answer",
                "From the request's head to the last byte of the answer: half, nine of ten and 99 of 100 requests "
                "are answered within this time.",
                "s",
                *(query(quantile(q, POOLS, "request_duration_seconds"), f"p{q * 100:.0f}") for q in (0.5, 0.9, 0.99)),
            ),
            timeseries(
                8,
                "In flight by pool",
                "Requests that are being handled.",
                "short",
                query(by("pool", POOLS.series("requests_in_flight")), "{{pool}}"),
            ),
            timeseries(
                8,
                "Time to answer by pool, p99",
                "99 of 100 requests are answered within this time.",
                "s",
                query(quantile(0.99, POOLS, "request_duration_seconds", "pool"), "{{pool}}"),
                links=[to_distribution()],
            ),
            timeseries(
                8,
                "Bytes",
                "Bodies received from clients and sent to them, per second.",
                "Bps",
                query(by("", POOLS.rate("response_bytes_total")), "sent"),
                query(by("", POOLS.rate("request_bytes_total")), "received"),
            ),
        ),
    )


def _trouble() -> Row:
    return Row(
        "Trouble",
        8,
        (
            timeseries(
                8,
                "Answered by the proxy itself",
                "Requests per second that no backend answered, by reason: bad requests, no backend to be had, too "
                "slow a backend, too much of everything.",
                "reqps",
                query(
                    by(
                        "reason",
                        f"{POOLS.rate('requests_rejected_total')} or {PROXIES.rate('early_rejections_total')}",
                    ),
                    "{{reason}}",
                ),
                stack="normal",
            ),
            timeseries(
                8,
                "Failures between proxy and backends",
                "Connections refused, reset, closed early or too slow, per second.",
                "ops",
                query(by("reason", POOLS.rate("upstream_errors_total")), "{{reason}}"),
                stack="normal",
            ),
            timeseries(
                8,
                "Retries",
                "Further attempts per second, by what made them necessary and what became of them; and those that were "
                "possible but not allowed.",
                "ops",
                query(by("reason, outcome", POOLS.rate("retries_total")), "{{reason}}: {{outcome}}"),
                query(by("reason", POOLS.rate("retries_refused_total")), "not allowed: {{reason}}"),
            ),
            timeseries(
                8,
                "Backends not up",
                "Backends of each pool that may not be given requests.",
                "short",
                query(by("pool", f"1 - {by('pool, backend', POOLS.series('backend_up'), 'min')}"), "{{pool}}"),
                links=[to_distribution()],
            ),
            timeseries(
                8,
                "Waiting for backends, p99",
                "Time to open a connection to a backend, and from sending a request to the head of its answer.",
                "s",
                query(quantile(0.99, POOLS, "upstream_first_byte_seconds"), "first byte"),
                query(quantile(0.99, POOLS, "upstream_connect_duration_seconds"), "connect"),
            ),
            timeseries(
                8,
                "Clients that went away",
                "Requests per second whose client was gone before the answer had ended. Not the backend's fault.",
                "reqps",
                query(by("pool", POOLS.rate("client_aborts_total")), "{{pool}}"),
            ),
        ),
    )


def _connections() -> Row:
    return Row(
        "Connections",
        7,
        (
            timeseries(
                8,
                "Open, from clients",
                "Connections that clients have open, by listener.",
                "short",
                query(by("listener", PROXIES.series("connections_open")), "{{listener}}"),
            ),
            timeseries(
                8,
                "New, from clients",
                "Connections accepted per second, those closed at once because the listener was full, and those that "
                "became a WebSocket or another tunnel, by pool.",
                "cps",
                query(by("listener", PROXIES.rate("connections_total")), "{{listener}}"),
                query(by("listener", PROXIES.rate("connections_refused_total")), "{{listener}}, refused"),
                query(by("pool", POOLS.rate("upgraded_connections_total")), "{{pool}}, upgraded"),
            ),
            timeseries(
                8,
                "WebSockets and other tunnels",
                "Upgraded connections that are open, by pool.",
                "short",
                query(by("pool", POOLS.series("upgraded_connections_open")), "{{pool}}"),
            ),
        ),
    )

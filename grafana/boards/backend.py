"""One backend: what it was given, what it did with it, and what the proxy thinks of it."""

from __future__ import annotations

from typing import Final

from grafana.boards.common import (
    CODE_COLORS,
    ERRORS,
    OFF,
    ONE_BACKEND,
    SIDE_COLORS,
    SIDES,
    STATE_WORDS,
    backend_variable,
    marks,
    number,
    pool_variable,
    to_distribution,
    variables,
)
from grafana.frame import Row, dashboard
from grafana.panels import (
    BAD,
    CALM,
    NOTICE,
    PLAIN,
    Json,
    fixed,
    heatmap,
    override,
    query,
    stat,
    state_timeline,
    table,
    timeseries,
)
from grafana.queries import BACKEND, CAUSES, POOL, Shares, by, error_share, quantile, state_code

_SHARES: Final = Shares.of(BACKEND, POOL)


def build() -> Json:
    return dashboard(
        ONE_BACKEND,
        "lbproxy / One backend",
        "What one backend was given, what it did with it, and what the proxies think of it.",
        variables(pool_variable(several=False), backend_variable()),
        marks(POOL),
        [_now(), _share(), _traffic(), _health(), _connections()],
    )


def _now() -> Row:
    link = to_distribution("${pool}")
    return Row(
        "Now",
        4,
        (
            stat(
                4,
                "State",
                "What the proxies think of it; of several proxies, the worst.",
                "short",
                query(state_code(BACKEND), "state", instant=True),
                fill=True,
                mappings=[STATE_WORDS],
            ),
            number(3, "Requests", "Answers per second.", "reqps", by("", BACKEND.rate("upstream_requests_total"))),
            number(
                3,
                "Server errors",
                "Share of its answers with a status of 500 or above.",
                "percentunit",
                error_share(BACKEND, "upstream_requests_total"),
                ERRORS,
            ),
            number(
                3,
                "p99",
                "99 of 100 of its answers end within this time.",
                "s",
                quantile(0.99, BACKEND, "upstream_request_duration_seconds"),
            ),
            number(
                3,
                "In flight",
                "Requests it holds now.",
                "short",
                by("", BACKEND.series("upstream_requests_in_flight")),
            ),
            number(
                4,
                "Weight in force",
                "Its weight on the ring now: configured, or as overridden, and what slow start and paced moves have "
                "let through of it.",
                "none",
                by("", BACKEND.series("backend_effective_weight"), "avg"),
            ),
            stat(
                4,
                "Off by",
                "Observed over expected share, minus one.",
                "percentunit",
                query(_SHARES.relative, "off by", instant=True),
                colors=OFF,
                links=(link,),
                decimals=0,
            ),
        ),
    )


def _share() -> Row:
    queries: list[Json] = []
    overrides: list[Json] = []
    for cause in CAUSES:
        above, below = SIDES[cause]
        for title, clamp in ((above, "clamp_min"), (below, "clamp_max")):
            queries.append(query(f"{clamp}({_SHARES.cause(cause)}, 0)", title))
        overrides += SIDE_COLORS[cause]
    return Row(
        "Its share of the pool",
        9,
        (
            timeseries(
                9,
                "Shares",
                "Expected: what its weight asks for. Ring: its part of the hash space. Owned: requests whose key it "
                "owns. Observed: requests it served.",
                "percentunit",
                query(_SHARES.expected, "expected"),
                query(_SHARES.ring, "ring"),
                query(_SHARES.owned, "owned"),
                query(_SHARES.observed, "observed"),
                overrides=[
                    override("expected", color=fixed(PLAIN)),
                    override("ring", color=fixed("purple")),
                    override("owned", color=fixed(NOTICE)),
                    override("observed", color=fixed(CALM)),
                ],
                links=[to_distribution("${pool}")],
            ),
            timeseries(
                9,
                "Why: the three causes, stacked",
                "Observed minus expected share is exactly ring error plus key skew plus spill. Above zero the cause "
                "gives it more than it should have, below zero it takes away.",
                "percentunit",
                *queries,
                stack="normal",
                least=None,
                overrides=overrides,
            ),
            table(
                6,
                "What it is",
                "Its address and zone as configured, and the tokens that its weight in force gives it on the ring; "
                "several lines when proxies have different configurations.",
                "backend",
                {
                    "Configured weight": by("backend, address, zone", BACKEND.series("backend_info"), "max")
                    + " * on (backend) group_left () "
                    + by("backend", BACKEND.series("backend_configured_weight"), "max"),
                    "Tokens": by("backend, address, zone", BACKEND.series("backend_info"), "max")
                    + " * on (backend) group_left () "
                    + by("backend", BACKEND.series("ring_points"), "max"),
                },
                more_labels=("address", "zone"),
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
                "Answers by status",
                "Answers received from it per second, by the class of their status.",
                "reqps",
                query(by("code", BACKEND.rate("upstream_requests_total")), "{{code}}"),
                stack="normal",
                overrides=CODE_COLORS,
            ),
            timeseries(
                8,
                "Time to answer",
                "From sending the request to the last byte of the answer, and the p99 of all backends of the pool.",
                "s",
                *(
                    query(quantile(q, BACKEND, "upstream_request_duration_seconds"), f"p{q * 100:.0f}")
                    for q in (0.5, 0.9, 0.99)
                ),
                query(quantile(0.99, POOL, "upstream_request_duration_seconds"), "p99 of the pool"),
                overrides=[override("p99 of the pool", color=fixed(PLAIN))],
            ),
            heatmap(
                8,
                "Where its times fall",
                "How many answers took how long.",
                "s",
                by("le", BACKEND.increase("upstream_request_duration_seconds_bucket")),
            ),
            timeseries(
                8,
                "In flight against the bound",
                "Requests that it holds, and the most it may hold now, over all proxies. At the bound its keys spill; "
                "without a bound there is no line.",
                "short",
                query(by("", BACKEND.series("upstream_requests_in_flight")), "in flight"),
                query(by("", BACKEND.series("backend_slots")), "bound"),
                overrides=[
                    override("in flight", color=fixed(CALM)),
                    override("bound", color=fixed(BAD), custom__fillOpacity=0),
                ],
            ),
            timeseries(
                8,
                "Spills out and in",
                "Requests per second of its keys that others served, by reason, and of others' keys that it served.",
                "reqps",
                query(by("reason", BACKEND.rate("route_spills_total")), "out, {{reason}}"),
                query(by("", BACKEND.rate("route_spills_received_total")), "in"),
            ),
            timeseries(
                8,
                "Failures",
                "Failures between the proxies and this backend per second, by reason. Loops are its answers with 508, "
                "which speak against the request.",
                "ops",
                query(by("reason", BACKEND.rate("upstream_errors_total")), "{{reason}}"),
                query(by("", BACKEND.rate("upstream_loops_total")), "loops"),
                stack="normal",
            ),
        ),
    )


def _health() -> Row:
    return Row(
        "Health",
        7,
        (
            state_timeline(
                9,
                "State, by proxy",
                "What each proxy thinks of it.",
                query(state_code(BACKEND, "instance"), "{{instance}}"),
                mappings=[STATE_WORDS],
            ),
            timeseries(
                5,
                "Probes",
                "Health checks per second, by result.",
                "ops",
                query(by("result", BACKEND.rate("health_checks_total")), "{{result}}"),
            ),
            timeseries(
                5,
                "Changes of state",
                "How often it changed to each state.",
                "short",
                query(by("to", BACKEND.increase("backend_state_changes_total")), "to {{to}}"),
                bars=True,
                stack="normal",
            ),
            timeseries(
                5,
                "Ejections",
                "How often failing requests took it out, by reason; how often they would have, but too many of the "
                "pool were out already; and whether it is out.",
                "short",
                query(by("reason", BACKEND.increase("ejections_total")), "{{reason}}"),
                query(by("", BACKEND.increase("ejections_spared_total")), "spared"),
                query(by("", BACKEND.series("ejections_active"), "max"), "out now"),
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
                "Open",
                "Connections to it that carry a request, and those kept for the next one.",
                "short",
                query(by("state", BACKEND.series("upstream_connections")), "{{state}}"),
                stack="normal",
            ),
            timeseries(
                8,
                "Opened",
                "Connections opened per second. Many of them mean that it closes them early or "
                "that `max_idle` is small.",
                "cps",
                query(by("", BACKEND.rate("upstream_connections_opened_total")), "opened"),
            ),
            timeseries(
                8,
                "WebSockets and other tunnels",
                "Upgraded connections to it that are open.",
                "short",
                query(by("", BACKEND.series("upstream_upgraded_connections_open")), "open"),
            ),
        ),
    )

"""Load distribution: is a pool's load spread as its weights ask for, and if not, why?"""

from __future__ import annotations

from typing import Final

from grafana.boards.common import (
    DISTRIBUTION,
    OFF,
    SIDE_COLORS,
    SIDES,
    STATE_WORDS,
    marks,
    number,
    pool_variable,
    to_backend,
    variables,
    verdict,
)
from grafana.panels import (
    BAD,
    CALM,
    GOOD,
    NOTICE,
    PLAIN,
    Json,
    Row,
    bar_chart,
    bar_gauge,
    dashboard,
    fixed,
    override,
    query,
    stat,
    state_timeline,
    table,
    thresholds,
    timeseries,
)
from grafana.queries import (
    CAUSES,
    KEY_SKEW,
    NEARLY,
    POOL,
    RING_ERROR,
    SPILL,
    Shares,
    by,
    kept_share,
    ratio,
    state_code,
)

SHARES: Final = Shares.of(POOL, POOL)
# More bars than these nobody can read; the table has all backends.
_BARS: Final = 25

_MEANING: Final = {
    RING_ERROR: "Share of the hash space minus expected share: how well the tokens divide the ring. More vnodes make "
    "it smaller.",
    KEY_SKEW: "Share of the requests whose key the backend owns, minus its share of the hash space: some users ask "
    "more than others, and chance.",
    SPILL: "Share of the requests served minus share of the requests owned: below zero, its keys were served elsewhere "
    "(at its bound, a hot key spread, not eligible); above zero, it served others' keys. Requests without a key, dealt "
    "out by load, are in it too.",
}
_DECISIONS: Final = {
    "owner": GOOD,
    "pinned": CALM,
    "spill:hot": "yellow",
    "spill:full": NOTICE,
    "failover": BAD,
    "retry": "dark-red",
    "no_key": "purple",
}


def build() -> Json:
    return dashboard(
        DISTRIBUTION,
        "lbproxy / Load distribution",
        "Is the load of a pool spread as its weights ask for, and if not, which backend is off, and why?",
        variables(pool_variable(several=False)),
        marks(POOL),
        [_verdict(), _shares(), _over_time(), _bound(), _stickiness(), _health(), _hot_keys()],
    )


def _verdict() -> Row:
    return Row(
        "Is the load spread as configured, and if not, why?",
        5,
        (
            verdict(5, SHARES, "Spread as configured?"),
            stat(
                5,
                "Which backend is furthest off?",
                "The backend furthest from its expected share, and by what part of that share it gets more or less "
                f"than it should. None: all are within {NEARLY:.0%}, or chance explains it.",
                "percentunit",
                query(SHARES.furthest, "{{backend}}", instant=True),
                name=True,
                colors=OFF,
                nothing="None",
                decimals=0,
                links=(to_backend(),),
            ),
            stat(
                5,
                "Why?",
                "What adds most to that backend's deviation, and how much of the pool's requests that is. Ring "
                "error: the tokens; more vnodes help. Key skew: some users ask more than others; see the hot keys "
                "below. Spill: its keys are served elsewhere, or others' keys by it; see the bound and the health "
                "below.",
                "percentunit",
                query(SHARES.main_cause, "{{cause}}", instant=True),
                name=True,
                nothing="Nothing",
                decimals=1,
            ),
            number(3, "Requests", "Requests answered per second.", "reqps", by("", POOL.rate("requests_total"))),
            number(
                3,
                "On their owner",
                "Share of the keyed requests served by the backend that owns the key, or that it is pinned to.",
                "percentunit",
                kept_share(POOL),
                thresholds(BAD, (0.8, NOTICE), (0.95, GOOD)),
            ),
            number(
                3,
                "Hottest key",
                "Share of the pool's requests that its busiest key makes. One backend's fair share is in the panel "
                "of hot keys below.",
                "percentunit",
                by("", POOL.series("hot_key_requests_ratio", 'rank="1"'), "max"),
            ),
        ),
    )


def _furthest(expression: str) -> str:
    """An expression for the backends with the largest deviation, as many as a chart can show."""
    return by("backend", f"{expression} and on (pool, backend) topk({_BARS}, abs({SHARES.deviation}))", "max")


def _shares() -> Row:
    return Row(
        "Shares now",
        10,
        (_expected_and_observed(12), _causes(12), _accounts(24)),
    )


def _expected_and_observed(width: int) -> Json:
    return bar_chart(
        width,
        "Expected and observed share",
        "What the weights ask for, and what each backend got. Backends with the largest difference, at most "
        f"{_BARS}; all are in the table below.",
        "percentunit",
        "backend",
        {"expected": _furthest(SHARES.expected), "observed": _furthest(SHARES.observed)},
        overrides=[override("expected", color=fixed(PLAIN)), override("observed", color=fixed(CALM))],
        links=[to_backend("${__data.fields.Backend}")],
    )


def _causes(width: int) -> Json:
    """Stacked bars. Each cause is cut into what is above and what is below zero, so that bars stack on both sides."""
    values: dict[str, str] = {}
    overrides: list[Json] = []
    for cause in CAUSES:
        above, below = SIDES[cause]
        for title, clamp in ((above, "clamp_min"), (below, "clamp_max")):
            values[title] = _furthest(f"{clamp}({SHARES.cause(cause)}, 0)")
        overrides += SIDE_COLORS[cause]
    return bar_chart(
        width,
        "Why: the three causes, stacked",
        "Observed minus expected share is exactly ring error plus key skew plus spill. Bars above zero give a backend "
        "more than it should have, bars below take away. "
        + " ".join(f"{c.capitalize()}: {_MEANING[c]}" for c in CAUSES),
        "percentunit",
        "backend",
        values,
        stacked=True,
        overrides=overrides,
        links=[to_backend("${__data.fields.Backend}")],
    )


def _accounts(width: int) -> Json:
    signed = {"unit": "percentunit", "decimals": 2}
    values = {
        "State": state_code(POOL, "backend"),
        "Weight": by("backend", POOL.series("backend_effective_weight"), "avg"),
        "Expected": by("backend", SHARES.expected),
        "Observed": by("backend", SHARES.observed),
        "Off by": by("backend", SHARES.relative),
        "Ring error": by("backend", SHARES.cause(RING_ERROR)),
        "Key skew": by("backend", SHARES.cause(KEY_SKEW)),
        "Spill": by("backend", SHARES.cause(SPILL)),
        "Requests": by("backend", POOL.rate("upstream_requests_total")),
        "In flight": by("backend", POOL.series("upstream_requests_in_flight")),
        "Of its bound": by("backend", POOL.series("backend_load_ratio"), "max"),
    }
    return table(
        width,
        "Every backend's account",
        "Expected + ring error + key skew + spill = observed. Off by: observed over expected, minus one. Of its bound: "
        "requests in flight over the most it may hold now.",
        "backend",
        values,
        sort_by="Off by",
        overrides=[
            override("Backend", links=[to_backend("${__value.raw}")]),
            override("State", mappings=[STATE_WORDS], custom__cellOptions={"type": "color-text"}),
            override("Expected", unit="percentunit", decimals=2),
            override("Observed", unit="percentunit", decimals=2),
            override(
                "Off by", unit="percentunit", decimals=0, thresholds=OFF, custom__cellOptions={"type": "color-text"}
            ),
            *(override(cause.capitalize(), **signed) for cause in CAUSES),
            override("Requests", unit="reqps"),
            override("Of its bound", unit="percentunit", decimals=0),
        ],
    )


def _over_time() -> Row:
    def lines(title: str, description: str, expression: str) -> Json:
        return timeseries(
            6,
            title,
            description,
            "percentunit",
            query(by("backend", expression), "{{backend}}"),
            least=None,
            links=[to_backend()],
        )

    return Row(
        "Shares over time, in points of the pool's requests",
        9,
        (
            lines(
                "Observed minus expected", "How far each backend is from what its weight asks for.", SHARES.deviation
            ),
            *(lines(f"Of this, {cause}", _MEANING[cause], SHARES.cause(cause)) for cause in CAUSES),
        ),
    )


def _bound() -> Row:
    per_weight = (
        f"({by('backend', POOL.series('upstream_requests_in_flight'))} / "
        f"({by('backend', POOL.series('backend_expected_share_ratio'), 'avg')} > 0))"
    )
    peak = ratio(by("", per_weight, "max"), f"({by('', POOL.series('upstream_requests_in_flight'))} > 0)")
    return Row(
        "Bounded load: what left its owner, and where it went",
        8,
        (
            timeseries(
                8,
                "Load against the bound",
                "Requests in flight over the most a backend may hold now. At 1 it is full, and keys spill to their "
                "successors.",
                "percentunit",
                query(by("backend", POOL.series("backend_load_ratio"), "max"), "{{backend}}"),
                line_at=thresholds(GOOD, (1, BAD)),
                links=[to_backend()],
            ),
            timeseries(
                8,
                "In flight per backend",
                "Requests that each backend holds.",
                "short",
                query(by("backend", POOL.series("upstream_requests_in_flight")), "{{backend}}"),
                links=[to_backend()],
            ),
            timeseries(
                8,
                "Busiest backend over the mean",
                "Requests in flight at the busiest backend, by weight, over the mean of the pool. The bound keeps it "
                "near the balance factor once there are more than a few requests.",
                "none",
                query(f"{peak} or 0 * {by('', POOL.series('upstream_requests_in_flight'))}", "peak over mean"),
            ),
            timeseries(
                8,
                "Served elsewhere, by reason",
                "Requests per second that their owner did not serve. Hot: a hot key was spread. Full: the owner was "
                "at its bound. Failover: the owner was not eligible, or the attempt failed.",
                "reqps",
                query(by("reason", POOL.rate("route_spills_total")), "{{reason}}"),
                stack="normal",
                overrides=[
                    override("hot", color=fixed("yellow")),
                    override("full", color=fixed(NOTICE)),
                    override("failover", color=fixed(BAD)),
                ],
            ),
            timeseries(
                8,
                "Spills out, per owner",
                "Requests per second of each backend's keys that another one served.",
                "reqps",
                query(by("backend", POOL.rate("route_spills_total")), "{{backend}}"),
                stack="normal",
                links=[to_backend()],
            ),
            timeseries(
                8,
                "Spills in, per backend",
                "Requests per second of others' keys that each backend served.",
                "reqps",
                query(by("backend", POOL.rate("route_spills_received_total")), "{{backend}}"),
                stack="normal",
                links=[to_backend()],
            ),
        ),
    )


def _stickiness() -> Row:
    moved = by("pool", POOL.series("ring_last_change_moved_ratio"), "max")
    changes = by("pool", POOL.increase("ring_changes_total"))
    return Row(
        "Stickiness: did users stay where they were?",
        8,
        (
            timeseries(
                10,
                "How backends were chosen",
                "Requests by how their backend was chosen. Anything but owner, pinned and no_key is a user who was "
                "not where the ring says.",
                "percentunit",
                query(
                    ratio(
                        by("decision", POOL.rate("route_decisions_total")),
                        f"ignoring (decision) group_left () {by('', POOL.rate('route_decisions_total'))}",
                    ),
                    "{{decision}}",
                ),
                stack="normal",
                most=1,
                overrides=[override(word, color=fixed(color)) for word, color in _DECISIONS.items()],
            ),
            timeseries(
                5,
                "On their owner, over time",
                "Share of the keyed requests served by the backend that owns the key, or that it is pinned to.",
                "percentunit",
                query(kept_share(POOL), "on their owner"),
                most=1,
            ),
            timeseries(
                5,
                "Moved at each ring change",
                "Exact share of the hash space that changed its owner, at the time of each change. A change should "
                "move what it must and nothing else: one of n equal backends leaving moves 1/n.",
                "percentunit",
                query(f"({moved} and on (pool) {changes} > 0) or 0 * {moved}", "moved"),
                bars=True,
            ),
            timeseries(
                4,
                "Ring changes, by cause",
                "How often the ring was replaced by another one.",
                "short",
                query(by("cause", POOL.increase("ring_changes_total")), "{{cause}}"),
                bars=True,
                stack="normal",
            ),
        ),
    )


def _health() -> Row:
    return Row(
        "Health",
        8,
        (
            state_timeline(
                14,
                "State of each backend",
                "Up: takes requests. Draining: finishes what it has. Unknown: not probed yet. Held: up again, but not "
                "trusted yet. Ejected: taken out by failing requests. Down: failed its probes. Of several proxies, "
                "the worst.",
                query(state_code(POOL, "backend"), "{{backend}}"),
                mappings=[STATE_WORDS],
            ),
            timeseries(
                5,
                "Backends up",
                "Backends that may be given requests, and all of the pool.",
                "short",
                query(by("", by("backend", POOL.series("backend_up"), "min")), "up"),
                query(by("", by("backend", POOL.series("backend_up"), "min"), "count"), "all"),
                overrides=[override("up", color=fixed(GOOD)), override("all", color=fixed(PLAIN))],
            ),
            timeseries(
                5,
                "Changes of state",
                "How often backends changed to each state.",
                "short",
                query(by("to", POOL.increase("backend_state_changes_total")), "to {{to}}"),
                bars=True,
                stack="normal",
            ),
        ),
    )


def _hot_keys() -> Row:
    fair = f"1 / {by('', by('backend', POOL.series('backend_expected_share_ratio'), 'avg') + ' > 0', 'count')}"
    return Row(
        "Hot keys, by rank and never by name",
        8,
        (
            timeseries(
                16,
                "Share of requests, by rank",
                "The pool's busiest keys, 1 the busiest, and the fair share of one backend. Who they are is told by "
                "the admin API, and only there.",
                "percentunit",
                query(by("rank", POOL.series("hot_key_requests_ratio"), "max"), "key {{rank}}"),
                query(fair, "one backend's fair share"),
                overrides=[
                    override(
                        "one backend's fair share",
                        color=fixed(PLAIN),
                        custom__lineStyle={"fill": "dash", "dash": [8, 6]},
                        custom__fillOpacity=0,
                    )
                ],
            ),
            bar_gauge(
                8,
                "Now",
                "The busiest keys now. Orange from 5 %, red from 10 % of the pool's requests.",
                "percentunit",
                query(
                    f"sort_desc({by('rank', POOL.series('hot_key_requests_ratio'), 'max')})",
                    "key {{rank}}",
                    instant=True,
                ),
                colors=thresholds(GOOD, (0.05, NOTICE), (0.10, BAD)),
            ),
        ),
    )

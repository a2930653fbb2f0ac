"""Load distribution: is a pool's load spread as its weights ask for, and if not, why?"""

from __future__ import annotations

from typing import Final

from grafana.boards.behaviour import bound, health, hot_keys, stickiness
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
    yes_no,
)
from grafana.frame import Row, dashboard
from grafana.panels import (
    BAD,
    CALM,
    GOOD,
    NOTICE,
    PLAIN,
    Json,
    bar_chart,
    fixed,
    override,
    query,
    stat,
    table,
    thresholds,
    timeseries,
    word_for_range,
    words,
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
    "(at its bound, a hot key spread, not eligible, pinned); above zero, it served others' keys. Requests without a "
    "key, dealt out by load, are in it too.",
}


def build() -> Json:
    return dashboard(
        DISTRIBUTION,
        "lbproxy / Load distribution",
        "Is the load of a pool spread as its weights ask for, and if not, which backend is off, and why?",
        variables(pool_variable(several=False)),
        marks(POOL),
        [_verdict(), _shares(), _over_time(), bound(), stickiness(), health(), hot_keys()],
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
            yes_no(
                3,
                "Hot keys",
                "How many keys make more work than one backend can fairly carry, as the proxies judge it; of several "
                "proxies, the most.",
                by("", POOL.series("hot_keys_active"), "max"),
                "None",
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
        "Override": by("backend", POOL.series("backend_override")),
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
        "Expected + ring error + key skew + spill = observed. Off by: observed over expected, minus one. Override: an "
        "operator has set its weight or drains it. Of its bound: requests in flight over the most it may hold now.",
        "backend",
        values,
        sort_by="Off by",
        overrides=[
            override("Backend", links=[to_backend("${__value.raw}")]),
            override("State", mappings=[STATE_WORDS], custom__cellOptions={"type": "color-text"}),
            override("Override", mappings=[words({0: ("no", PLAIN)}), word_for_range(1, None, "yes", NOTICE)]),
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

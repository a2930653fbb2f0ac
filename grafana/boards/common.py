"""What the dashboards share: variables, annotations, links, colours, and the verdict."""

from __future__ import annotations

from typing import Final

from grafana.frame import annotation, datasource_variable, label_variable
from grafana.panels import (
    BAD,
    CALM,
    GOOD,
    NOTICE,
    PLAIN,
    Json,
    fixed,
    link,
    override,
    query,
    stat,
    thresholds,
    word_for_nothing,
    word_for_range,
    words,
)
from grafana.queries import CAUSES, KEY_SKEW, NEARLY, PROXIES, RING_ERROR, SPILL, STATES, UNEVEN, Scope, Shares, by

OVERVIEW: Final = "lbproxy-overview"
DISTRIBUTION: Final = "lbproxy-distribution"
ONE_BACKEND: Final = "lbproxy-backend"
WORKERS: Final = "lbproxy-workers"

STATE_COLORS: Final = dict(zip(STATES, (GOOD, CALM, "purple", "yellow", NOTICE, BAD), strict=True))
STATE_WORDS: Final = words({code: (state, STATE_COLORS[state]) for code, state in enumerate(STATES, 1)})

CODE_COLORS: Final = [
    override("1xx", color=fixed("purple")),
    override("2xx", color=fixed(GOOD)),
    override("3xx", color=fixed(CALM)),
    override("4xx", color=fixed("yellow")),
    override("5xx", color=fixed(BAD)),
]
# A share of errors, and a deviation as a part of the expected share.
ERRORS: Final = thresholds(GOOD, (0.01, NOTICE), (0.05, BAD))
OFF: Final = thresholds(BAD, (-UNEVEN, NOTICE), (-NEARLY, GOOD), (NEARLY, NOTICE), (UNEVEN, BAD))
CAUSE_COLORS: Final = {RING_ERROR: CALM, KEY_SKEW: NOTICE, SPILL: "purple"}

# Stacks take only what is above zero or only what is below: each cause has a series for either side, in one colour.
SIDES: Final = {cause: (cause, f"{cause}, less") for cause in CAUSES}
SIDE_COLORS: Final = {
    cause: [
        override(above, color=fixed(CAUSE_COLORS[cause])),
        override(
            below,
            color=fixed(CAUSE_COLORS[cause]),
            custom__hideFrom={"legend": True, "tooltip": False, "viz": False},
        ),
    ]
    for cause, (above, below) in SIDES.items()
}

_KEPT: Final = "var-datasource=${datasource}&${job:queryparam}&${instance:queryparam}&${__url_time_range}"


def variables(*more: Json) -> list[Json]:
    """Those that every dashboard has, then `more`."""
    return [
        datasource_variable(),
        label_variable("job", "Job", "lbproxy_build_info", several=True),
        label_variable("instance", "Instance", 'lbproxy_build_info{job=~"$job"}', several=True),
        *more,
    ]


def pool_variable(*, several: bool) -> Json:
    return label_variable("pool", "Pool", PROXIES.series("ring_info"), several=several)


def backend_variable() -> Json:
    return label_variable("backend", "Backend", PROXIES.series("backend_info", 'pool="$pool"'), several=False)


def marks(scope: Scope = PROXIES) -> list[Json]:
    """Reloads of the configuration and changes of rings."""
    return [
        annotation(
            "Reloads",
            CALM,
            f"{PROXIES.series('config_last_reload_timestamp_seconds')} * 1000",
            "Configuration read",
            "{{instance}}",
            value_is_time=True,
        ),
        annotation(
            "Ring changes",
            NOTICE,
            f"{by('pool', scope.series('ring_last_change_timestamp_seconds') + ' > 0', 'max')} * 1000",
            "Ring of {{pool}} changed",
            "{{pool}}",
            value_is_time=True,
        ),
    ]


def to_distribution(pool: str = "${__field.labels.pool}") -> Json:
    """`pool` "" leaves the choice of the pool to the other dashboard."""
    return link("Load distribution", f"/d/{DISTRIBUTION}?{_KEPT}" + (f"&var-pool={pool}" if pool else ""))


def to_backend(backend: str = "${__field.labels.backend}", pool: str = "${pool}") -> Json:
    return link("This backend", f"/d/{ONE_BACKEND}?{_KEPT}&var-pool={pool}&var-backend={backend}")


def to_workers() -> Json:
    return link("Workers", f"/d/{WORKERS}?{_KEPT}")


def verdict(width: int, shares: Shares, title: str, links: tuple[Json, ...] = ()) -> Json:
    """The tile that says in a word whether the load is spread as configured."""
    return stat(
        width,
        title,
        "How far the backend that is furthest off is from its expected share, as a part of that share, beyond what "
        f"chance explains (three standard deviations at this number of requests). Up to {NEARLY:.0%}: as configured. "
        f"Above {UNEVEN:.0%}: not.",
        "percentunit",
        query(by("", shares.excess, "max"), "furthest off", instant=True),
        fill=True,
        colors=thresholds(GOOD, (NEARLY, NOTICE), (UNEVEN, BAD)),
        mappings=[
            word_for_range(0, NEARLY, "Yes", GOOD),
            word_for_range(NEARLY, UNEVEN, "Nearly", NOTICE),
            word_for_range(UNEVEN, None, "No", BAD),
            word_for_nothing("No traffic"),
        ],
        nothing="No traffic",
        links=links,
    )


def yes_no(
    width: int, title: str, description: str, expr: str, good: str, bad: str = "", links: tuple[Json, ...] = ()
) -> Json:
    """A tile that is good at 0 and bad above: `good` and `bad` are its words, without `bad` the number stands there."""
    mappings = [words({0: (good, GOOD)})]
    if bad:
        mappings.append(word_for_range(0.001, None, bad, BAD))
    return stat(
        width,
        title,
        description,
        "short",
        query(expr, title, instant=True),
        fill=True,
        colors=thresholds(GOOD, (1, BAD)),
        mappings=mappings,
        links=links,
    )


def number(width: int, title: str, description: str, unit: str, expr: str, colors: Json | None = None) -> Json:
    """A tile with one number."""
    return stat(width, title, description, unit, query(expr, title, instant=True), colors=colors or thresholds(PLAIN))

"""Rows about what a pool did with its keys: the bound, stickiness, health, hot keys."""

from __future__ import annotations

from typing import Final

from grafana.boards.common import (
    STATE_WORDS,
    to_backend,
)
from grafana.frame import Row
from grafana.panels import (
    BAD,
    CALM,
    GOOD,
    NOTICE,
    PLAIN,
    bar_gauge,
    fixed,
    override,
    query,
    state_timeline,
    thresholds,
    timeseries,
)
from grafana.queries import (
    POOL,
    by,
    kept_share,
    ratio,
    state_code,
)

# Colours of how a backend was chosen, and of why the owner did not serve.
SPILLS: Final = {"hot": "yellow", "full": NOTICE, "failover": BAD, "pinned": CALM}
DECISIONS: Final = {
    "owner": GOOD,
    "spill:hot": "yellow",
    "spill:full": NOTICE,
    "failover": BAD,
    "retry": "dark-red",
    "pinned": CALM,
    "no_key": "purple",
}


def bound() -> Row:
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
                "at its bound. Failover: the owner was not eligible, or the attempt failed. Pinned: the key is kept "
                "elsewhere.",
                "reqps",
                query(by("reason", POOL.rate("route_spills_total")), "{{reason}}"),
                stack="normal",
                overrides=[override(word, color=fixed(color)) for word, color in SPILLS.items()],
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


def stickiness() -> Row:
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
                overrides=[override(word, color=fixed(color)) for word, color in DECISIONS.items()],
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


def health() -> Row:
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
                "How often backends changed to each state, and how often the last one that might be given requests was "
                "lost.",
                "short",
                query(by("to", POOL.increase("backend_state_changes_total")), "to {{to}}"),
                query(by("", POOL.increase("pool_panics_total")), "none left"),
                overrides=[override("none left", color=fixed(BAD))],
                bars=True,
                stack="normal",
            ),
        ),
    )


def hot_keys() -> Row:
    fair = f"1 / {by('', by('backend', POOL.series('backend_expected_share_ratio'), 'avg') + ' > 0', 'count')}"
    return Row(
        "Hot keys, by rank and never by name",
        8,
        (
            timeseries(
                16,
                "Share of requests, by rank",
                "The keys with the most work, 1 the most, and the fair share of one backend. Who they are is told by "
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
                "The keys with the most work now. Orange from 5 %, red from 10 % of the pool's requests.",
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

"""Workers: the processes behind it, what they were told, and whether they keep up."""

from __future__ import annotations

from grafana.boards.common import WORKERS, marks, number, variables, yes_no
from grafana.frame import Row, dashboard
from grafana.panels import BAD, CALM, GOOD, NOTICE, PLAIN, Json, fixed, override, query, table, thresholds, timeseries
from grafana.queries import HANGS_AFTER_S, PROXIES, SILENT_AFTER_S, by, not_serving, ratio, serving


def build() -> Json:
    return dashboard(
        WORKERS,
        "lbproxy / Workers",
        "The processes behind it, what they were told, and whether they keep up.",
        variables(),
        marks(),
        [_now(), _work(), _event_loops(), _processes(), _given_up(), _told()],
    )


def _now() -> Row:
    return Row(
        "Now",
        4,
        (
            yes_no(
                4,
                "Workers not serving",
                f"Worker processes that are starting, draining, down, or silent for {SILENT_AFTER_S} s or more.",
                not_serving(PROXIES),
                "None",
            ),
            number(4, "Workers serving", "Worker processes that serve.", "short", serving(PROXIES)),
            number(
                4, "Requests", "Requests answered per second.", "reqps", by("", PROXIES.rate("worker_requests_total"))
            ),
            number(
                4,
                "Longest silence",
                "For how long the event loop of some worker has not turned. Its clients and its part of the new "
                f"connections wait; at {HANGS_AFTER_S} s it is replaced.",
                "s",
                by("", PROXIES.series("worker_silent_seconds"), "max"),
                thresholds(GOOD, (SILENT_AFTER_S, NOTICE), (HANGS_AFTER_S, BAD)),
            ),
            number(
                4,
                "Worst event loop lag",
                "How late the slowest worker's event loop is. Above a few tens of milliseconds all its requests wait.",
                "s",
                by("", PROXIES.series("worker_event_loop_lag_seconds"), "max"),
                thresholds(GOOD, (0.05, NOTICE), (0.25, BAD)),
            ),
            number(
                4,
                "Generations in use",
                "How many generations of the configuration the workers of one proxy read. More than 1 is right only "
                "for the moment of a reload.",
                "short",
                'max(count by (instance) (count_values by (instance) ("generation", '
                f"{PROXIES.series('worker_generation')} > 0)))",
                thresholds(GOOD, (2, NOTICE)),
            ),
        ),
    )


def _work() -> Row:
    mean = by("instance", PROXIES.rate("worker_requests_total"), "avg")
    return Row(
        "Work",
        8,
        (
            timeseries(
                8,
                "Requests by worker",
                "Requests answered per second by each worker. The kernel deals out connections, so a few long-lived "
                "ones are not spread evenly.",
                "reqps",
                query(by("instance, worker", PROXIES.rate("worker_requests_total")), "{{instance}} {{worker}}"),
            ),
            timeseries(
                8,
                "Busiest worker over the mean",
                "Requests of the busiest worker over the mean of its proxy. At the number of workers, one does all.",
                "none",
                query(
                    ratio(by("instance", PROXIES.rate("worker_requests_total"), "max"), mean),
                    "{{instance}}",
                ),
            ),
            timeseries(
                8,
                "Connections from clients",
                "Connections that clients have open, by proxy and listener.",
                "short",
                query(by("instance, listener", PROXIES.series("connections_open")), "{{instance}} {{listener}}"),
            ),
        ),
    )


def _event_loops() -> Row:
    return Row(
        "Event loops",
        8,
        (
            timeseries(
                8,
                "Event loop lag",
                "How late each worker's last tick came: how long a request may have to wait before anything is done "
                "for it.",
                "s",
                query(
                    by("instance, worker", PROXIES.series("worker_event_loop_lag_seconds"), "max"),
                    "{{instance}} {{worker}}",
                ),
                line_at=thresholds(GOOD, (0.25, BAD)),
            ),
            timeseries(
                8,
                "Silent workers",
                "For how long each worker's event loop has not turned. One that is only late is soon at 0 again; from "
                f"{SILENT_AFTER_S} s on a worker is named as silent, and at {HANGS_AFTER_S} s it is replaced.",
                "s",
                query(
                    by("instance, worker", PROXIES.series("worker_silent_seconds"), "max"),
                    "{{instance}} {{worker}}",
                ),
                line_at=thresholds(GOOD, (SILENT_AFTER_S, NOTICE), (HANGS_AFTER_S, BAD)),
            ),
            timeseries(
                8,
                "Event loop turns",
                "Ticks per second of each worker's event loop: ten, or a little less. The lag tells of the last tick "
                "alone; this falls with whatever held the loop up between two scrapes.",
                "ops",
                query(by("instance, worker", PROXIES.rate("worker_ticks_total")), "{{instance}} {{worker}}"),
            ),
        ),
    )


def _processes() -> Row:
    return Row(
        "Processes",
        8,
        (
            timeseries(
                12,
                "Workers by state",
                "Worker processes by what they are doing.",
                "short",
                query(by("state", PROXIES.series("workers")), "{{state}}"),
                stack="normal",
                overrides=[
                    override("ready", color=fixed(GOOD)),
                    override("starting", color=fixed(CALM)),
                    override("draining", color=fixed(NOTICE)),
                    override("down", color=fixed(BAD)),
                ],
            ),
            timeseries(
                12,
                "Workers replaced",
                "How often a worker had to be replaced, by what ended the old one; hung: its event loop did not turn.",
                "short",
                query(by("reason", PROXIES.increase("worker_restarts_total")), "{{reason}}"),
                bars=True,
                stack="normal",
            ),
        ),
    )


def _given_up() -> Row:
    return Row(
        "Given up",
        8,
        (
            timeseries(
                8,
                "Refused before a pool was known",
                "Requests per second that were too large, malformed or without a route, by reason.",
                "reqps",
                query(by("reason", PROXIES.rate("early_rejections_total")), "{{reason}}"),
                stack="normal",
            ),
            timeseries(
                8,
                "Access log lines dropped",
                "Lines per second given up because the log could not be written fast enough. Traffic never waits for "
                "it.",
                "ops",
                query(by("instance", PROXIES.rate("access_log_dropped_total")), "{{instance}}"),
            ),
            timeseries(
                8,
                "Connections closed at once",
                "Connections per second that were refused because the listener had as many as it may.",
                "cps",
                query(by("instance, listener", PROXIES.rate("connections_refused_total")), "{{instance}} {{listener}}"),
            ),
        ),
    )


def _told() -> Row:
    info = (
        by("instance, version, python", PROXIES.series("build_info"), "max")
        + "\n* on (instance) group_left (fingerprint) "
        + by("instance, fingerprint", PROXIES.series("config_info"), "max")
        + "\n* on (instance) group_left () "
        + by("instance", PROXIES.series("config_generation"), "max")
    )
    return Row(
        "What they were told",
        8,
        (
            table(
                12,
                "Proxies",
                "What each proxy runs. Equal fingerprints route equally: proxies of one job should have the same.",
                "instance",
                {"Generation": info, "Workers": by("instance", PROXIES.series("workers"))},
                more_labels=("version", "python", "fingerprint"),
            ),
            timeseries(
                6,
                "Reloads",
                "How often the configuration was read, by result.",
                "short",
                query(by("result", PROXIES.increase("config_reloads_total")), "{{result}}"),
                bars=True,
                stack="normal",
                overrides=[
                    override("applied", color=fixed(GOOD)),
                    override("unchanged", color=fixed(PLAIN)),
                    override("refused", color=fixed(BAD)),
                ],
            ),
            timeseries(
                6,
                "Generation by worker",
                "The generation of the configuration that each worker reads.",
                "short",
                query(by("instance, worker", PROXIES.series("worker_generation"), "max"), "{{instance}} {{worker}}"),
            ),
        ),
    )

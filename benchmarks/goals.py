"""What was promised, as a table: each row says what is wanted and finds the figure among the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks.figures import DIRECT, CheckResult, LoadResult, Summary

SUBJECT = "lbproxy"


@dataclass(frozen=True, slots=True)
class Results:
    """All that was measured, by load or check; `failures` says why others were not."""

    loads: Mapping[str, LoadResult]
    checks: Mapping[str, CheckResult]
    failures: tuple[str, ...] = ()

    def of(self, load: str, proxy: str) -> Summary | None:
        result = self.loads.get(load)
        return result.summaries().get(proxy) if result else None

    def figure(self, check: str, name: str) -> float | None:
        result = self.checks.get(check)
        return result.figures.get(SUBJECT, {}).get(name) if result else None


Finder = Callable[[Results], float | None]


@dataclass(frozen=True, slots=True)
class Goal:
    """`wanted` is the least or the most that `find` should give; its None means: not measured."""

    text: str
    bound: Literal["at least", "at most"]
    wanted: float
    find: Finder

    def is_met(self, value: float) -> bool:
        return value >= self.wanted if self.bound == "at least" else value <= self.wanted


def _rate(load: str, peer: str) -> Finder:
    return _ratio(load, peer, lambda summary: summary.requests_per_s)


def _cpu(load: str, peer: str) -> Finder:
    return _ratio(load, peer, lambda summary: summary.cpu_us)


def _ratio(load: str, peer: str, figure: Callable[[Summary], float]) -> Finder:
    def find(results: Results) -> float | None:
        ours, theirs = results.of(load, SUBJECT), results.of(load, peer)
        return figure(ours) / figure(theirs) if ours and theirs and figure(theirs) else None

    return find


def _added_latency(results: Results) -> float | None:
    """Of ours to nginx's: median at one connection, less that of asking the backend directly."""
    ours, theirs, direct = (results.of("latency", name) for name in (SUBJECT, "nginx", DIRECT))
    if not (ours and theirs and direct) or theirs.median_us <= direct.median_us:
        return None
    return (ours.median_us - direct.median_us) / (theirs.median_us - direct.median_us)


def _two_workers(results: Results) -> float | None:
    """The ratio to nginx with two workers each, over the ratio with one."""
    two, one = _rate("two-workers", "nginx")(results), _rate("small", "nginx")(results)
    return two / one if two and one else None


def _flat(results: Results) -> float | None:
    """MB by which the peak of resident memory grew from the first round of 1 MB responses to the last."""
    ours = results.of("1m", SUBJECT)
    return (ours.last_peak_rss_bytes - ours.first_peak_rss_bytes) / 2**20 if ours else None


GOALS: tuple[Goal, ...] = (
    Goal("small keyed GETs: requests/s, of nginx", "at least", 0.55, _rate("small", "nginx")),
    Goal("small keyed GETs: requests/s, of HAProxy", "at least", 0.68, _rate("small", "haproxy")),
    Goal("small keyed GETs: requests/s, of Envoy", "at least", 2.0, _rate("small", "envoy")),
    Goal("small keyed GETs: CPU per request, of nginx", "at most", 1.9, _cpu("small", "nginx")),
    Goal("small keyed GETs: CPU per request, of HAProxy", "at most", 1.5, _cpu("small", "haproxy")),
    Goal("two workers each: ratio to nginx, over that with one", "at least", 1.0, _two_workers),
    Goal("1,000 connections: requests/s, of HAProxy", "at least", 1.0, _rate("connections", "haproxy")),
    Goal(
        "1,000 connections: requests/s, of HAProxy at maxconn 4000",
        "at least",
        1.0,
        _rate("connections", "haproxy-4000"),
    ),
    Goal("1,000 connections: requests/s, of Envoy", "at least", 1.0, _rate("connections", "envoy")),
    Goal("20 browser headers: requests/s, of nginx", "at least", 0.5, _rate("browser", "nginx")),
    Goal("1 MB responses: throughput, of nginx", "at least", 1.0, _rate("1m", "nginx")),
    Goal("1 MB responses: growth of peak memory over the rounds, MB", "at most", 8.0, _flat),
    Goal("64 KB uploads: requests/s, of nginx", "at least", 0.85, _rate("upload", "nginx")),
    Goal("one connection per request: requests/s, of nginx", "at least", 0.6, _rate("close", "nginx")),
    Goal("added median latency at one connection, of nginx", "at most", 1.4, _added_latency),
    Goal("idle keep-alive connection, KB", "at most", 12.0, lambda results: results.figure("idle", "pss_kb_each")),
    Goal(
        "upload to a slow backend: growth of memory, MB",
        "at most",
        8.0,
        lambda results: results.figure("slow-upload", "growth_mb"),
    ),
    Goal("1,000 backends x 1024 vnodes: build, s", "at most", 2.0, lambda results: results.figure("ring", "build_s")),
    Goal(
        "1,000 backends x 1024 vnodes: owner lookup, ns",
        "at most",
        1000.0,
        lambda results: results.figure("ring", "lookup_ns"),
    ),
)

"""What a round measured, what several rounds amount to, and how two proxies compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

DIRECT = "direct"
"""The name under which a backend without a proxy is measured."""


@dataclass(frozen=True, slots=True)
class Round:
    """One run of wrk. `cpu_us` is the proxy's CPU time per request, `busy` its share of its cores (0 to 1), `foreign`
    what programs that are no part of this took of all the cores used, `start` which start of all programs it was in."""

    requests_per_s: float
    megabytes_per_s: float
    median_us: float
    p99_us: float
    cpu_us: float = 0.0
    busy: float = 0.0
    peak_rss_bytes: int = 0
    foreign: float = 0.0
    start: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """Medians over the rounds; `spread` is (largest - smallest) / median of the requests per second. The peaks of
    memory are those of the first and the last round after the last start."""

    requests_per_s: float
    megabytes_per_s: float
    median_us: float
    p99_us: float
    cpu_us: float
    busy: float
    spread: float
    first_peak_rss_bytes: int
    last_peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The rounds of every proxy (and DIRECT) under one load, and what was wrong with them short of an error."""

    load: str
    title: str
    rounds: dict[str, tuple[Round, ...]]
    complaints: tuple[str, ...] = ()

    def joined(self, later: LoadResult) -> LoadResult:
        """This with the rounds of a later start behind its own, and what was wrong with either."""
        rounds = {name: (*mine, *later.rounds[name]) for name, mine in self.rounds.items()}
        return replace(self, rounds=rounds, complaints=tuple(dict.fromkeys((*self.complaints, *later.complaints))))

    def summaries(self) -> dict[str, Summary]:
        return {name: summarize(rounds) for name, rounds in self.rounds.items()}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A measurement that is not a load: figures by proxy, each with its unit in its name."""

    check: str
    title: str
    figures: dict[str, dict[str, float]]


def summarize(rounds: Sequence[Round]) -> Summary:
    """Medians of at least one round."""
    rates = [each.requests_per_s for each in rounds]
    peaks = [each.peak_rss_bytes for each in rounds if each.start == rounds[-1].start]
    return Summary(
        requests_per_s=median(rates),
        megabytes_per_s=median(each.megabytes_per_s for each in rounds),
        median_us=median(each.median_us for each in rounds),
        p99_us=median(each.p99_us for each in rounds),
        cpu_us=median(each.cpu_us for each in rounds),
        busy=median(each.busy for each in rounds),
        spread=(max(rates) - min(rates)) / median(rates),
        first_peak_rss_bytes=peaks[0],
        last_peak_rss_bytes=peaks[-1],
    )

"""Is all well, and if the load is uneven, why? The answer in words.

A share is judged by how far it is from the expected (`shares.py`), and named with the largest of its three causes. What
keeps it from being judged is too little traffic, for which chance is cause enough, or a change that is only moments
old.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final, Literal

from lbproxy.control.admin.page.shares import HotKey, Share, shares
from lbproxy.control.admin.page.source import BackendNow, PoolNow
from lbproxy.control.admin.page.window import Span
from lbproxy.control.admin.page.words import about, lasting, names, plural, rough_times
from lbproxy.core.ledger import SPILL_REASONS

Level = Literal["good", "notice", "bad"]
LEVELS: Final[tuple[Level, ...]] = ("good", "notice", "bad")

# So many backends are told one by one.
MOST_TOLD: Final = 2
# A share is uneven beyond these, times the expected.
TOO_MUCH: Final = 1.25
TOO_LITTLE: Final = 0.75
# ... and when it is further from the expected than chance takes it, in standard deviations.
BEYOND_CHANCE: Final = 4.0
FEWEST_REQUESTS: Final = 200
# The share of answers that may be errors before it is told, before it is bad, and how many it takes.
SOME_ERRORS: Final = 0.01
MANY_ERRORS: Final = 0.05
FEWEST_ERRORS: Final = 10

_STATE_WORDS: Final = {
    "down": "down",
    "ejected": "ejected",
    "held": "held back after a fall",
    "unknown": "unchecked",
    "draining": "draining",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one look should tell: the worst level there is, and sentences, the gravest first."""

    level: Level
    sentences: tuple[str, ...]


# The verdict

Finding = tuple[Level, str]


def worst(levels: Iterable[Level]) -> Level:
    return max(levels, key=LEVELS.index, default="good")


def judge(pool: PoolNow, span: Span, keys: Sequence[HotKey]) -> Verdict:
    """The state of one pool."""
    absences = list(_who_serves(pool))
    findings = [*absences, *_refuge(pool, span), *_errors(pool, span), *_spread(pool, span, keys)]
    findings.sort(key=lambda finding: -LEVELS.index(finding[0]))
    level = worst(level for level, _ in findings)
    if not absences:
        before = sum(each != "good" for each, _ in findings)
        findings.insert(before, ("good", _all_serve(len(pool.backends))))
    return Verdict(level, tuple([sentence for _, sentence in findings]))


def _all_serve(number: int) -> str:
    return {1: "The backend serves.", 2: "Both backends serve."}.get(number, f"All {number} backends serve.")


def _who_serves(pool: PoolNow) -> Iterator[Finding]:
    if not pool.backends:
        yield "bad", "The pool has no backends."
        return
    if not pool.eligible and pool.serves_all:
        yield "bad", "No backend is eligible, so all are asked as if they were (panic: serve_all)."
    elif not pool.eligible:
        yield "bad", "No backend can serve."
    for state, words in _STATE_WORDS.items():
        group = [backend for backend in pool.backends if backend.state == state]
        if group:
            yield "notice", _standing(group, words, len(pool.backends))


def _refuge(pool: PoolNow, span: Span) -> Iterator[Finding]:
    """How much is served elsewhere because of that."""
    moved = sum(flow.spilled[SPILL_REASONS.index("failover")] for flow in span.backends.values())
    if pool.eligible and len(pool.eligible) < len(pool.backends) and moved >= SOME_ERRORS * span.served > 0:
        yield (
            "notice",
            f"The next backends on the ring serve {about(moved / span.served)} of the requests in their place.",
        )


def _standing(group: Sequence[BackendNow], words: str, number: int) -> str:
    if len(group) == 1:
        (backend,) = group
        return f"{backend.name} is {words}."
    if len(group) == number:
        return f"{'Both' if number == 2 else f'All {number}'} backends are {words}."
    return f"{len(group)} of {number} backends are {words}: {names([backend.name for backend in group])}."


def _errors(pool: PoolNow, span: Span) -> Iterator[Finding]:
    flow = span.pool
    if flow.failed >= FEWEST_ERRORS and flow.failed > SOME_ERRORS * flow.requests:
        share = flow.failed / flow.requests
        failed = {name: each.failed + each.errors for name, each in span.backends.items()}
        culprit = max(failed, key=failed.__getitem__, default="")
        is_one = len(failed) > 1 and failed[culprit] > sum(failed.values()) / 2
        source = f", most of them from {culprit}" if is_one else ""
        level: Level = "bad" if share > MANY_ERRORS else "notice"
        yield level, f"{about(share)} of the answers are errors (5xx){source}."
    if flow.errors >= FEWEST_ERRORS and flow.errors > SOME_ERRORS * flow.requests:
        share = min(1.0, flow.errors / max(flow.requests, 1))
        yield "bad" if share > MANY_ERRORS else "notice", f"{about(share)} of the requests are turned away."


def _spread(pool: PoolNow, span: Span, keys: Sequence[HotKey]) -> Iterator[Finding]:
    served = span.served
    if not span.pool.requests and not served:
        yield "good", f"No requests in the last {lasting(span.seconds)}." if span.seconds >= 1 else "No requests yet."
        return
    spread = [key for key in keys if key.is_hot and len(key.backends) > 1]
    for key in spread:
        yield "good", f"A hot key with {about(key.work_share)} of the work is spread over {len(key.backends)} backends."
    if len(pool.backends) == 1:
        return
    if not span.is_settled:
        yield "good", "Load is settling after a change."
        return
    if served < FEWEST_REQUESTS:
        yield "good", f"Too few requests to judge how they are spread ({plural(served, 'answer')})."
        return
    uneven = list(_uneven(pool, span, keys))
    yield from uneven
    if not uneven and not spread and len(pool.eligible) == len(pool.backends):
        yield "good", "Load is spread as configured."


def _uneven(pool: PoolNow, span: Span, keys: Sequence[HotKey]) -> Iterator[Finding]:
    served = span.served
    by_name = shares(pool, span)
    ranked = sorted(pool.backends, key=lambda each: -abs(by_name[each.name].observed - each.expected))
    helpers = {name for key in keys if key.is_hot for name in key.backends[1:]}
    over = [each for each in ranked if _is_too_much(by_name[each.name], served)]
    told = [each for each in over if not _is_told(by_name[each.name], pool, each.name in helpers)]
    for backend in told[:MOST_TOLD]:
        share = by_name[backend.name]
        amount = (
            f"gets {rough_times(share.ratio)} its share" if share.ratio is not None else "has no weight but traffic"
        )
        yield "notice", f"{backend.name} {amount}: {_cause(backend, share, span, keys)}."
    if len(told) > MOST_TOLD:
        yield "notice", f"{len(told) - MOST_TOLD} more get over {TOO_MUCH:g} times their share."
    under = [each for each in ranked if each.is_eligible and _is_too_little(by_name[each.name], served)]
    if under and not over and not helpers:
        share = by_name[under[0].name]
        others = f", and {len(under) - 1} more get too little" if len(under) > 1 else ""
        yield (
            "notice",
            f"{under[0].name} gets {rough_times(share.ratio or 0.0)} its share{others}: its users are quiet.",
        )


def _is_told(share: Share, pool: PoolNow, is_helping: bool) -> bool:
    """Whether what was said of absent backends or of hot keys explains it already."""
    is_expected = is_helping or len(pool.eligible) < len(pool.backends)
    return is_expected and share.spill >= (share.observed - share.expected) / 2


def _is_too_much(share: Share, served: int) -> bool:
    return share.observed > share.expected * TOO_MUCH and _deviation(share, served) > BEYOND_CHANCE


def _is_too_little(share: Share, served: int) -> bool:
    return share.observed < share.expected * TOO_LITTLE and _deviation(share, served) > BEYOND_CHANCE


def _deviation(share: Share, served: int) -> float:
    """How many standard deviations the observed share is from the expected, were every request a draw of its own."""
    expected = min(max(share.expected, 1 / served), 0.999)
    return abs(share.observed - share.expected) / sqrt(expected * (1 - expected) / served)


def _cause(backend: BackendNow, share: Share, span: Span, keys: Sequence[HotKey]) -> str:
    causes = {"ring": share.ring_error, "keys": share.key_skew, "spill": share.spill}
    gravest = max(causes, key=causes.__getitem__)
    if gravest == "ring":
        return f"it owns that much of the ring ({about(share.ring)}), more vnodes would even it out"
    if gravest == "keys":
        return _busy_keys(backend, share, keys)
    return _taken_over(span)


def _busy_keys(backend: BackendNow, share: Share, keys: Sequence[HotKey]) -> str:
    own = [key for key in keys if key.backends[:1] == (backend.name,)]
    own.sort(key=lambda key: -key.requests_share)
    if own and own[0].requests_share >= share.key_skew / 2:
        return f"one hot key ({about(own[0].requests_share)} of all requests)"
    if own and sum(key.requests_share for key in own) >= share.key_skew / 2:
        return f"{len(own)} busy keys ({about(sum(key.requests_share for key in own))} of all requests)"
    return "its users ask more than those of the others"


def _taken_over(span: Span) -> str:
    hot, full, failover, pinned = (
        sum(numbers) for numbers in zip(*(each.spilled for each in span.backends.values()), strict=True)
    )
    reasons = {
        "it helps with a hot key": hot,
        "it takes what others at their bound pass on": full,
        "it stands in for others that failed": failover,
        "pins send it other backends' keys": pinned,
        "requests without a key go to whoever is least loaded": span.pool.no_key,
    }
    return max(reasons, key=reasons.__getitem__)


# Of the proxy itself


def judge_instance(info: Mapping[str, Any], workers: Mapping[str, Any]) -> Verdict:
    """The state of the proxy itself, apart from its pools; no sentence when there is nothing to say."""
    findings = [*_process(info, workers), *_reload(info), *_not_saved(info)]
    return Verdict(worst(level for level, _ in findings), tuple([text for _, text in findings]))


def _process(info: Mapping[str, Any], workers: Mapping[str, Any]) -> Iterator[Finding]:
    states = [worker["state"] for worker in workers["workers"]]
    missing = sum(state != "ready" for state in states)
    if info["draining"]:
        yield "notice", "This proxy is draining: it accepts nothing new."
    elif missing == len(states):
        yield "bad", "No worker serves."
    elif missing:
        yield "notice", f"{missing} of {len(states)} workers {'is' if missing == 1 else 'are'} not ready."
    for silent in info["silent_workers"]:
        yield "notice", f"Worker {silent['worker']} has been silent for {silent['silent_s']} s."


def _reload(info: Mapping[str, Any]) -> Iterator[Finding]:
    reload = info["reload"]
    if reload and reload["result"] == "refused":
        problem = f": {reload['problem']}" if reload["problem"] else ""
        yield "notice", f"The last reload was refused, and what was before it is in force{problem}."


def _not_saved(info: Mapping[str, Any]) -> Iterator[Finding]:
    for problem in info["not_saved"]:
        yield "notice", f"What has been decided would not outlive a restart: {problem}."

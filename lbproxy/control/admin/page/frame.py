"""The page around its pieces, and the pieces that are about the proxy as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any, Final

from lbproxy.control.admin.page import key as keys
from lbproxy.control.admin.page import table
from lbproxy.control.admin.page.judge import LEVELS, Verdict, judge_instance, worst
from lbproxy.control.admin.page.picture import icon, sign_sheet
from lbproxy.control.admin.page.sight import PoolSight
from lbproxy.control.admin.page.terms import terms
from lbproxy.control.admin.page.words import count, duration, escape, lasting

Document = Mapping[str, Any]
Pieces = Callable[[str], str]

EVENTS_SHOWN: Final = 40
_FOLDER: Final = files("lbproxy.control.admin.page").joinpath("templates")


def _template(name: str) -> Template:
    return Template(_FOLDER.joinpath(name).read_text("utf-8"))


_PAGE: Final = _template("page.html")
_MAIN: Final = _template("main.html")
_POOL: Final = _template("pool.html")
_APPLY: Final = _template("apply.html").template
_READ_ONLY: Final = '<p class="none">Nothing can be applied from here: the configuration has no admin.token_file.</p>'
_TITLES: Final = {"good": "All well", "notice": "Notice", "bad": "Trouble"}


# Pieces


def blocks(
    info: Document, workers: Document, events: Sequence[Document], sights: Sequence[PoolSight]
) -> Iterator[tuple[str, str]]:
    """The pieces that are not about one pool."""
    yield "verdict", verdict(overall(info, workers, sights))
    yield "facts", _facts(info)
    yield "events", _events(events)
    yield "workers", _workers(info, workers)


def overall(info: Document, workers: Document, sights: Sequence[PoolSight]) -> Verdict:
    """One verdict for everything. With several pools, only bad news are told, and whose they are."""
    instance = judge_instance(info, workers)
    level = worst([instance.level, *(each.verdict.level for each in sights)])
    if len(sights) == 1:
        of_pool = sights[0].verdict
        both = (
            [of_pool, instance] if LEVELS.index(of_pool.level) >= LEVELS.index(instance.level) else [instance, of_pool]
        )
        return Verdict(level, tuple([sentence for each in both for sentence in each.sentences]))
    told = list(instance.sentences)
    unwell = [each for each in sights if each.verdict.level != "good"]
    unwell.sort(key=lambda each: -LEVELS.index(each.verdict.level))
    told += [f"{each.now.name}: {each.verdict.sentences[0]}" for each in unwell]
    if len(unwell) < len(sights):
        told.append(_wells(len(sights) - len(unwell), len(sights)))
    return Verdict(level, tuple(told))


def _wells(well: int, number: int) -> str:
    if well == number:
        return "Both pools are well." if number == 2 else f"All {number} pools are well."
    return "The other pool is well." if well == 1 else f"The other {well} pools are well."


def verdict(said: Verdict) -> str:
    """The one look. Its first sentence is the heading."""
    first, *rest = said.sentences or ("All is well.",)
    more = f"<p>{escape(' '.join(rest))}</p>" if rest else ""
    title = f"{_TITLES[said.level]}: {first}" if said.level != "good" else _TITLES["good"]
    return (
        f'<section class="verdict {said.level}" id="verdict" aria-label="Verdict" data-title="{escape(title)}" '
        f'data-level="{said.level}"><span class="badge">{icon(said.level)}</span>'
        f"<div><h1>{escape(first)}</h1>{more}</div></section>"
    )


def _facts(info: Document) -> str:
    listeners = ", ".join([listener["address"] for listener in info["listeners"]])
    facts = [
        ("version", info["version"]),
        ("serving on", listeners),
        ("up for", lasting(info["uptime_s"])),
        ("configuration", f"{info['config'] or 'built in'}, generation {info['generation']}"),
    ]
    items = "".join([f"<div><dt>{name}</dt><dd>{escape(str(value))}</dd></div>" for name, value in facts])
    return f'<dl class="facts" id="facts">{items}</dl>'


def _events(events: Sequence[Document]) -> str:
    items = "".join([_event(event) for event in reversed(events[-EVENTS_SHOWN:])])
    return f'<ol class="events" id="events">{items or "<li class=none>Nothing has happened yet.</li>"}</ol>'


def _event(event: Document) -> str:
    when = str(event["time"])
    pool = f" <small>{escape(event['pool'])}</small>" if event["pool"] else ""
    return (
        f'<li class="{escape(event["level"])}" id="e{event["id"]}">'
        f'<time datetime="{escape(when)}">{escape(when[11:19])}Z</time>'
        f'<span class="kind">{escape(event["kind"].replace("_", " "))}</span>'
        f"<span>{escape(event['text'])}{pool}</span></li>"
    )


def _workers(info: Document, workers: Document) -> str:
    silent = {each["worker"] for each in info["silent_workers"]}
    rows = "".join([_worker(worker, worker["worker"] in silent) for worker in workers["workers"]])
    return (
        '<table class="workers" id="workers"><caption class="vh">Worker processes</caption><thead><tr>'
        '<th scope="col">Worker</th><th scope="col">State</th><th scope="col">Requests</th>'
        '<th scope="col">Clients</th><th scope="col">Loop lag</th><th scope="col">Restarts</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _worker(worker: Document, is_silent: bool) -> str:
    state = f"silent {worker['silent_s']} s" if is_silent else worker["state"]
    is_ready = worker["state"] == "ready" and not is_silent
    sign = "up" if is_ready else "down" if worker["state"] == "down" else "held"
    return (
        f'<tr><th scope="row">{worker["worker"]}</th>'
        f'<td class="s-{sign}"><span class="state s-{sign}">{icon(sign)}{escape(state)}</span></td>'
        f'<td data-label="Requests">{count(worker["requests"])}</td>'
        f'<td data-label="Clients">{count(worker["connections_open"])}</td>'
        f'<td data-label="Loop lag">{duration(worker["lag_s"])}</td>'
        f'<td data-label="Restarts">{count(worker["restarts"])}</td></tr>'
    )


# The frame


def page(content: str, piece: Pieces, version: str) -> str:
    """The whole page around its `content`. `version` changes when a file of the page does."""
    return _PAGE.substitute(version=version, signs=sign_sheet(), facts=piece("facts"), main=content, terms=terms())


def main(
    info: Document, sights: Sequence[PoolSight], piece: Pieces, boot: str, number: int, said: Mapping[int, str]
) -> str:
    """What changes when pools or backends come and go. `said` are answers about a key, by the number of the pool that
    was asked about it."""
    return _MAIN.substitute(
        boot=boot,
        number=number,
        verdict=piece("verdict"),
        index=_index(sights) if len(sights) > 1 else "",
        pools="".join([_pool(each, piece, len(sights) > 1, info, said) for each in sights]),
        events=piece("events"),
        workers=piece("workers"),
    )


def _index(sights: Sequence[PoolSight]) -> str:
    links = "".join([f'<li><a href="#{each.id}">{escape(each.now.name)}</a></li>' for each in sights])
    return f'<nav aria-label="Pools"><ul class="index">{links}</ul></nav>'


def _pool(each: PoolSight, piece: Pieces, is_one_of_several: bool, info: Document, said: Mapping[int, str]) -> str:
    at = each.id
    rows = "".join([piece(f"{at}-b{index}") for index in range(len(each.now.backends))])
    return _POOL.substitute(
        at=at,
        name=escape(each.now.name),
        sticky=f"sticky by {escape(' or '.join(each.now.keys))}" if each.now.keys else "",
        said=piece(f"{at}-said") if is_one_of_several else "",
        answer=said.get(each.number) or keys.nothing(each.number),
        table=table.table(each, rows),
        apply=_READ_ONLY if info["writes"] == "off" else _APPLY,
        **{name: piece(f"{at}-{name}") for name in ("figures", "ring", "hot", "health", "weights")},
    )


def as_json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)

"""What is wrong with a tree, in our words: pydantic's findings translated, the cross checks, and where each belongs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, Final

from pydantic import ValidationError

from lbproxy.control import schema
from lbproxy.control.checks import Fault, cross_check
from lbproxy.control.closest import closest
from lbproxy.control.fields import describe
from lbproxy.control.named_files import look
from lbproxy.control.paths import all_fields, inner_section, section_of, step_into
from lbproxy.control.schema import ASIDE, File
from lbproxy.control.tree import MAX_TROUBLES, Node, Path, Trouble
from lbproxy.control.values import BadValue

# Fields that people will look for and that do not exist yet.
_NOT_YET: Final = {
    "tls": "TLS is not available yet",
    "proxy_protocol": "the PROXY protocol is not available yet",
}
# What other proxies call it: the fields that may be meant, of which the first that the section has is.
_ELSEWHERE: Final = {
    "servers": "backends", "nodes": "backends", "hosts": "backends", "targets": "backends", "members": "backends",
    "endpoints": "backends", "upstreams": "backends pools", "address": "url bind", "addr": "url bind",
    "server": "url first_byte", "host": "url",
    "bind": "listen", "listeners": "listen", "frontends": "listen", "id": "name", "upstream": "pools",
    "clusters": "pools", "healthcheck": "health", "health_check": "health", "httpchk": "health", "replicas": "vnodes",
    "circuit_breaker": "ejection", "outlier_detection": "ejection",
    "balance": "sticky", "hash": "sticky", "hash_policy": "sticky", "hash_balance_factor": "factor bounded_load",
    "retry_policy": "retry", "redispatch": "retry", "retry_on": "statuses retry", "retries": "attempts retry",
    "num_retries": "attempts retry", "tries": "attempts",
    "max_fails": "consecutive_errors", "error_limit": "consecutive_errors", "consecutive_5xx": "consecutive_errors",
    "fail_timeout": "base", "base_ejection_time": "base", "max_ejection_percent": "max_share",
    "unhealthy_threshold": "fall", "healthy_threshold": "rise", "uri": "path", "location": "path", "prefix": "path",
    "server_name": "host", "domains": "host", "routes": "match",
    "maxconn": "max_in_flight limits", "max_conns": "max_in_flight", "max_requests": "max_in_flight",
    "maxqueue": "size queue", "max_pending_requests": "size queue", "keepalive": "max_idle connections",
    "client_max_body_size": "body_bytes", "set_real_ip_from": "trusted_proxies", "real_ip": "trusted_proxies",
    "forwardfor": "x_forwarded", "stats": "admin",
}  # fmt: skip
# The fields of a section that may be meant where a word stands for the whole section: the first that it fits.
_IN_A_WORD: Final = {
    "Sticky": ("header",), "Key": ("header",), "Health": ("kind", "path"),
    "Match": ("path", "host"), "Retry": ("attempts",), "BoundedLoad": ("factor",), "HotKeys": ("mode",),
    "RingOptions": ("vnodes",),
}  # fmt: skip
# How a section is written that somebody wants to be without, in one of these words.
_OFF: Final = ("off", "none", "no", "false", "disabled")
_TURNED_OFF: Final = {
    "BoundedLoad": "{factor: null}", "HotKeys": "{mode: off}", "Health": "{kind: none}",
    "Ejection": "{consecutive_errors: 0}", "Retry": "{attempts: 1}", "Queue": "{size: 0}",
}  # fmt: skip


def check_tree(root: Node) -> tuple[File | None, list[Trouble]]:
    """The file that `root` holds, or everything that is wrong with it."""
    data = root.plain()
    if not isinstance(data, dict):
        message = f"expected fields such as listen and pools, got {describe(data)}"
        return None, [Trouble(root.place, (), message)]
    data = {name: value for name, value in data.items() if not name.startswith(ASIDE)}
    file: File | None = None
    found: list[Any] = []
    try:
        file = File.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False)
    faults = chain(map(_translate, found), cross_check(data))
    troubles = _troubles(root, faults)
    return (None if troubles else file), troubles


def check_named_files(root: Node) -> list[Trouble]:
    """Everything that is wrong with the files that `root` names, each where it is named."""
    return _troubles(root, look(root.plain()))


def _troubles(root: Node, faults: Iterator[Fault]) -> list[Trouble]:
    """The faults where they belong, as many as anybody can use. What is wrong in something that aliases repeat is to be
    mended in one place, and is told once, with how often it is repeated."""
    troubles: dict[tuple[object, ...], Trouble] = {}
    repeated: Counter[tuple[object, ...]] = Counter()
    for fault in faults:
        trouble, node, missing = _placed(root, fault)
        same: tuple[object, ...] = (id(node), missing, trouble.place, trouble.message, trouble.hint)
        if same in troubles:
            repeated[same] += 1
        elif len(troubles) < MAX_TROUBLES:
            troubles[same] = trouble
        else:
            last = max(trouble.place for trouble in troubles.values())
            too_many = Trouble(last, (), f"there are more than {MAX_TROUBLES} mistakes, and no more is told")
            return [*troubles.values(), too_many]
    for told, times in repeated.items():
        where = f"{times} place that repeats it" if times == 1 else f"{times} places that repeat it"
        troubles[told] = replace(troubles[told], message=f"{troubles[told].message} (so, too, in {where})")
    return list(troubles.values())


def _translate(error: Any) -> Fault:
    """One of pydantic's findings as a fault."""
    path, kind, context = tuple(error["loc"]), error["type"], error.get("ctx", {})
    if path and path[-1] == "[key]":
        path = path[:-1]
        return Fault(path, *_said(kind, context, error), about_key=True)
    if kind == "extra_forbidden":
        return _unknown_field(path)
    return Fault(path, *_said(kind, context, error), about_key=kind == "missing")


def _said(kind: str, context: dict[str, Any], error: Any) -> tuple[str, str]:
    """The message and the hint."""
    found = describe(error["input"])
    cause = context.get("error")
    if isinstance(cause, BadValue):
        return str(cause), cause.hint
    if kind == "missing":
        return "missing", ""
    if kind == "literal_error":
        words = re.findall(r"'([^']*)'", context["expected"])
        return f"{found} is not one of {', '.join(words)}", closest(str(error["input"]), words)
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"expected a mapping, got {found}", _in_full(context.get("class_name", ""), error["input"])
    if kind == "list_type":
        return f"expected a list, got {found}", ""
    if kind == "too_short":
        return "may not be empty", ""
    for limit, words_before in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
        if limit in context:
            return f"must be {words_before} {context[limit]:g}", _ratio(error)
    return str(error["msg"]), ""


def _in_full(section: str, given: object) -> str:
    """A section for which only a word was given, as it was probably meant; empty where that is not known."""
    if not isinstance(given, str) or not given:
        return ""
    if section in _TURNED_OFF and given in _OFF:
        return _TURNED_OFF[section]
    if section in ("Sticky", "Key") and given == "client_ip":
        return "{client_ip: true}"
    if section == "Backend":
        url = given if "://" in given else f"http://{given}"
        return f'{{url: "{url}"}}' if _fits(section, "url", url) else ""
    return next((f"{{{field}: {given}}}" for field in _IN_A_WORD.get(section, ()) if _fits(section, field, given)), "")


def _fits(section: str, field: str, given: str) -> bool:
    """Whether a section may be just that."""
    model: type[schema.Section] = getattr(schema, section)
    try:
        model.model_validate({field: given})
    except ValidationError:
        return False
    return True


def _ratio(error: Any) -> str:
    """The factor that somebody wrote in percent, as HAProxy has it."""
    given = error["input"]
    if error["type"] != "less_than" or error["loc"][-1] != "factor" or float(given) <= 100:
        return ""
    return f"{float(given) / 100:g}"


def _unknown_field(path: Path) -> Fault:
    name = str(path[-1])
    annotation: Any = File
    for step in path[:-1]:
        annotation = step_into(annotation, step)
    section = section_of(annotation) or inner_section(annotation)[0]  # type: ignore[index]  # only sections forbid
    if name in _NOT_YET:
        return Fault(path, _NOT_YET[name], about_key=True)
    fields = section.model_fields
    meant = next((word for word in _ELSEWHERE.get(name, "").split() if word in fields), "")
    homes = _homes().get(name, ())
    # What is a field elsewhere was rather put in the wrong place than misspelled, unless it is nearly one of these.
    hint = meant or closest(name, fields, cutoff=0.8 if homes else 0.6)
    message = "unknown field"
    if not hint and homes:
        message = f"unknown field here, it belongs to {' or '.join(homes)}"
    return Fault(path, message, hint, about_key=True)


@cache
def _homes() -> dict[str, list[str]]:
    """Where in the file there are fields, by their name."""
    homes: dict[str, list[str]] = {}
    for home, _, _ in all_fields():
        homes.setdefault(home.rpartition(".")[2], []).append(home)
    return homes


def _placed(root: Node, fault: Fault) -> tuple[Trouble, Node, Path]:
    """The fault where the reader should look: at the value if it is written on the spot, else at its key. With it the
    innermost value that is there, which aliases share, and the fields on the way from there that are not."""
    node, place, shown = root, root.place, list[str | int]()
    missing: Path = ()
    for position, step in enumerate(fault.path, start=1):
        if isinstance(node.value, str):
            # A word was given for a section: what is missing from it has a path, what is wrong with it is the word.
            missing = fault.path[position - 1 :]
            shown.extend(missing if fault.about_key else ())
            break
        if isinstance(node.value, dict) and step in node.value:
            entry = node.value[str(step)]
            node = entry.node
            at_key = not isinstance(node.value, str) or (fault.about_key and position == len(fault.path))
            place = entry.place if at_key else node.place
        elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            place = node.place
        elif isinstance(step, int):
            continue  # a single item was given for a list of one
        else:
            missing = (*missing, step)
        shown.append(step)
    return Trouble(place, tuple(shown), fault.message, fault.hint, fault.is_denied), node, missing

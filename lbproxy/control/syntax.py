"""The YAML parser's complaints in the words of somebody who has to mend the file.

The parser says what it was doing; a table says what usually is the matter. A complaint that is not in it is passed on
as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

import yaml

_IPV6: Final = re.compile(r"(?<![\"'\w])(?:http://)?\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\]")


@dataclass(frozen=True, slots=True)
class _Rule:
    """`problem` and `context` are what the parser says, as patterns; `at` is which of its two marks to point at."""

    problem: str
    message: str
    context: str = ""
    at: Literal["problem", "context"] = "problem"


_RULES: Final = (
    _Rule(r"'\\t'", "a tab stands where YAML wants spaces"),
    _Rule("end of stream", "this quote is not closed", "quoted scalar", at="context"),
    _Rule("expected ',' or '}', but got '<stream end>'", "this { is not closed", at="context"),
    _Rule("expected ',' or ']', but got '<stream end>'", "this [ is not closed", at="context"),
    _Rule(r"expected ',' or '(?P<c>[}\]])'", "a comma or the closing {c} is missing before this, or quotes around it"),
    _Rule("expected the node content, but found '[]}]'", "this bracket closes nothing, or stands where a value must"),
    _Rule("character '(?P<c>.)' that cannot start any token", "a value that begins with {c} needs quotes"),
    _Rule("expected alphabetic or numeric", "a value that begins with * needs quotes", "alias", at="context"),
    _Rule("expected alphabetic or numeric", "a value that begins with & needs quotes", "anchor", at="context"),
    _Rule(
        "mapping values are not allowed here",
        "this colon does not belong here: the line is indented too far, or what stands before it needs quotes",
    ),
    _Rule(
        "expected <block end>, but found '<scalar>'",
        "this follows a value that has already ended, or a quote above is not closed",
    ),
    _Rule("expected <block end>, but found '[],}]'", "this closes or separates nothing"),
    _Rule("expected <block end>", "the indentation of this line does not fit the lines above"),
    _Rule("could not find expected ':'", "this line has no colon behind its key", "simple key", at="context"),
    _Rule(
        "unknown escape character '(?P<c>.)'", "\\{c} means nothing between double quotes, write \\\\ for a backslash"
    ),
)


def explain_syntax(error: yaml.MarkedYAMLError, text: str) -> tuple[int, int, str]:
    """Line and column, from 1, and what is wrong there."""
    mark = error.problem_mark or error.context_mark
    problem, context = error.problem or "this is not valid YAML", error.context or ""
    message = f"{problem}, {context}" if context else problem
    if mark is None:
        return 1, 1, message
    if text[max(0, mark.index - 1) : mark.index + 1] == "${":
        return mark.line + 1, mark.column + 1, "${NAME} needs quotes inside { } and [ ]"
    start = text.rfind("\n", 0, mark.index) + 1
    if address := _IPV6.search(text[start:].partition("\n")[0]):
        return mark.line + 1, address.start() + 1, "an IPv6 address in brackets needs quotes"
    for rule in _RULES:
        found = re.search(rule.problem, problem)
        if found is not None and rule.context in context:
            at = error.context_mark if rule.at == "context" and error.context_mark is not None else mark
            return at.line + 1, at.column + 1, rule.message.replace("{c}", found.groupdict().get("c", ""))
    return mark.line + 1, mark.column + 1, message

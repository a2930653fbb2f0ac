"""Whatever a file holds, it loads or it raises ConfigError, and every problem has a place in it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lbproxy.control.config import decode, loads
from lbproxy.control.problems import ConfigError
from lbproxy.control.tree import LINE_BREAK
from lbproxy.core.spec import Config

FULL = (Path(__file__).parent.parent / "config" / "full.yaml").read_text()
# Pieces that YAML or the loader give a meaning to.
PIECES = (
    "{", "}", "[", "]", ",", ":", ": ", "- ", "? ", "#", "&a ", "*a", "<<: ", "!!str ", "!", "|\n", ">\n", "'", '"',
    "\\", "%YAML 1.1\n", "---\n", "...\n", "${", "${A}", "${A:-x}", "$$", "~", "null", "on", "010", "0x1F", "1:30",
    ".inf", "\t", "\n", "\r", "  ", "\x85", "\u2028", "\ufeff", "\x00", "\ud800", "\U0010ffff", "\\ud800", "@", "`",
    "9" * 30, "listen", "pools", "backends", "sticky", "keys", "match", "url", "5s", "64KiB", "20%", "http://a",
    "0.0.0.0:1", "unix:/",
)  # fmt: skip


def load_or_fail_well(text: str) -> None:
    try:
        found = loads(text, "f", {"A": "1"})
    except ConfigError as error:
        lines = LINE_BREAK.split(text)
        said = str(error)
        complaints = error.problems
    else:
        assert isinstance(found, Config)
        return
    assert said
    assert complaints
    for problem in complaints:
        assert problem.message
        assert problem.headline().isprintable()
        if problem.line:
            assert 1 <= problem.line <= len(lines) + 1
            assert problem.column >= 1


@given(st.text())
@example("a: &a {<<: *a}")
@example("? &a [*a]\n: 1")
@example("!<%FF> x")
@example("{? , : }")
def test_any_text(text: str) -> None:
    load_or_fail_well(text)


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_heap_of_pieces(text: str) -> None:
    load_or_fail_well(text)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """The full example with a few places cut, doubled or overwritten."""
    text = FULL
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        piece = draw(st.one_of(st.sampled_from(PIECES), st.just(text[start:end] * 2), st.just("")))
        text = text[:start] + piece + text[end:]
    return text


@given(mutated())
@settings(max_examples=150, deadline=None)
def test_a_damaged_file(text: str) -> None:
    load_or_fail_well(text)


@st.composite
def reshaped(draw: st.DrawFn) -> str:
    """A file in which values of any shape stand in the places of others."""
    values = st.recursive(
        st.sampled_from(["~", "x", "1", "5s", "on", "''", "http://a:1", "[]", "{}", "-1", "*a", "&a x", "20%", "${A}"]),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
            st.dictionaries(
                st.sampled_from(
                    [
                        "header",
                        "keys",
                        "url",
                        "name",
                        "weight",
                        "bind",
                        "path",
                        "kind",
                        "affinity",
                        "secret",
                        "prefix",
                        "x",
                        "<<",
                    ]
                ),
                inner,
                max_size=3,
            ).map(lambda fields: "{" + ", ".join(f"{name}: {value}" for name, value in fields.items()) + "}"),
        ),
        max_leaves=6,
    )
    top = ("listen", "workers", "headers", "admin", "log", "drain", "version", "other")
    inside = ("match", "sticky", "ring", "bounded_load", "health", "ejection", "retry", "timeout", "backends", "pins")
    lines = [f"{name}: {draw(values)}" for name in draw(st.sets(st.sampled_from(top), max_size=4))]
    lines.append(f"pools: {draw(values)}" if draw(st.booleans()) else "pools:\n  p:")
    if lines[-1].endswith("p:"):
        lines += [f"    {name}: {draw(values)}" for name in draw(st.sets(st.sampled_from(inside), max_size=5))]
    return "\n".join(lines)


@given(reshaped())
@settings(max_examples=300, deadline=None)
def test_values_of_any_shape(text: str) -> None:
    load_or_fail_well(text)


@given(st.binary())
def test_any_bytes(content: bytes) -> None:
    said = ""
    try:
        load_or_fail_well(decode(content, "f"))
    except ConfigError as error:
        said = str(error)
    assert not said or "is not UTF-8" in said

"""Trace context as the W3C recommendation has it: what is a traceparent, and what of it is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core.headers import RequestShapes
from lbproxy.core.trace import Trace, ids_of, is_sampled, is_traceparent, sampled_below

TRACE = b"0af7651916cd43dd8448eb211c80319c"
SPAN = b"b7ad6b7169203331"
GOOD = b"00-%b-%b-01" % (TRACE, SPAN)

HEX = st.sampled_from("0123456789abcdef")


def digits(count: int) -> st.SearchStrategy[bytes]:
    text = st.text(HEX, min_size=count, max_size=count)
    return text.filter(lambda found: found.strip("0") != "").map(str.encode)


@given(digits(32), digits(16), st.integers(0, 255))
def test_ids_and_the_sampled_flag_are_read_as_they_were_written(trace: bytes, span: bytes, flags: int) -> None:
    value = b"00-%b-%b-%02x" % (trace, span, flags)
    assert is_traceparent(value)
    assert ids_of(value) == (trace, span)
    assert is_sampled(value) == bool(flags & 1)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        GOOD[:-1],
        GOOD + b"-",  # version 00 ends with its flags
        GOOD + b"-more",
        GOOD + b"\n",
        b"ff" + GOOD[2:],
        b"0" + GOOD,
        GOOD.replace(b"-", b"_"),
        GOOD.upper(),
        b"00-%b-%b-01" % (b"0" * 32, SPAN),
        b"00-%b-%b-01" % (TRACE, b"0" * 16),
        b"00-%b-%b-0x" % (TRACE, SPAN),
        b"00-%b-%b-01" % (TRACE[:-1], SPAN),
        b"cc" + GOOD[2:] + b"more",  # a later version may go on, but behind a hyphen
    ],
)
def test_what_is_no_traceparent(value: bytes) -> None:
    assert not is_traceparent(value)


@pytest.mark.parametrize("value", [GOOD, GOOD[:-2] + b"00", b"cc" + GOOD[2:], b"cc" + GOOD[2:] + b"-what-comes-later"])
def test_later_versions_are_read_as_far_as_they_are_known(value: bytes) -> None:
    assert is_traceparent(value)
    assert ids_of(value) == (TRACE, SPAN)


@given(digits(32), digits(16), digits(16))
def test_a_backend_is_told_the_attempt_as_its_parent(trace: bytes, server: bytes, client: bytes) -> None:
    sent = Trace(trace, b"", server, client).traceparent
    assert is_traceparent(sent)
    assert is_sampled(sent)
    assert ids_of(sent) == (trace, client)


def test_a_share_of_all_traces_is_sampled() -> None:
    assert sampled_below(0.0) == 0
    assert sampled_below(1.0) == 1 << 64
    assert sampled_below(0.25) == 1 << 62


@pytest.mark.parametrize(
    ("names", "kept", "at"),
    [
        ((b"Host", b"Traceparent", b"tracestate"), (True, True, True), 1),
        ((b"tracestate", b"Host"), (False, True), -1),  # of no trace that could go on
        ((b"traceparent", b"traceparent", b"tracestate"), (False, False, False), -1),
    ],
)
def test_one_traceparent_goes_on_and_nothing_else_of_the_kind(
    names: tuple[bytes, ...], kept: tuple[bool, ...], at: int
) -> None:
    shape = RequestShapes(keeps_traces=True).learn(names)
    assert (shape.keep, shape.traceparent, shape.is_simple) == (kept, at, True)
    passed = RequestShapes().learn(names)
    assert (all(passed.keep), passed.traceparent, passed.special) == (True, -1, False)


@pytest.mark.parametrize(("other", "is_simple"), [(b"Content-Length", True), (b"Expect", False), (b"Upgrade", False)])
def test_a_trace_among_other_special_fields_is_looked_at_with_them(other: bytes, is_simple: bool) -> None:
    shape = RequestShapes(keeps_traces=True).learn((b"Host", other, b"traceparent"))
    assert (shape.special, shape.is_simple, shape.traceparent) == (True, is_simple, 2)

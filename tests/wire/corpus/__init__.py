"""The cases, one module a topic."""

from __future__ import annotations

from tests.wire.case import Case
from tests.wire.corpus import (
    bodiless,
    chunks,
    connection,
    content_length,
    delivery,
    early,
    expect_continue,
    field_lines,
    fields,
    host,
    interim,
    intermediary,
    persistence,
    pipelining,
    request_line,
    response_ends,
    response_fields,
    response_framing,
    response_head,
    smuggling,
    targets,
    transfer_encoding,
    upgrade,
)

TOPICS = {
    module.__name__.rpartition(".")[2]: tuple(module.CASES)
    for module in (
        request_line,
        targets,
        fields,
        field_lines,
        host,
        content_length,
        transfer_encoding,
        chunks,
        smuggling,
        pipelining,
        connection,
        persistence,
        expect_continue,
        interim,
        bodiless,
        response_head,
        response_fields,
        response_framing,
        response_ends,
        intermediary,
        upgrade,
        delivery,
        early,
    )
}
CASES: tuple[Case, ...] = tuple(case for cases in TOPICS.values() for case in cases)

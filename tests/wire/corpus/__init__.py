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
    fields,
    host,
    interim,
    intermediary,
    pipelining,
    request_line,
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
        host,
        content_length,
        transfer_encoding,
        chunks,
        smuggling,
        pipelining,
        connection,
        interim,
        bodiless,
        response_head,
        response_framing,
        intermediary,
        upgrade,
        delivery,
        early,
    )
}
CASES: tuple[Case, ...] = tuple(case for cases in TOPICS.values() for case in cases)

"""The column constants must point at the cells that the tables describe."""

from __future__ import annotations

import pytest

from lbproxy.core import ledger
from lbproxy.core.ledger import Column


def offset_of(columns: tuple[Column, ...], metric: str) -> int:
    position = 0
    for column in columns:
        if column.metric == metric:
            return position
        position += column.width
    raise AssertionError(metric)


@pytest.mark.parametrize(
    ("columns", "metric", "constant"),
    [
        (ledger.WORKER_COLUMNS, "worker_generation", ledger.WORKER_GENERATION),
        (ledger.WORKER_COLUMNS, "early_rejections_total", ledger.WORKER_REJECTED),
        (ledger.POOL_COLUMNS, "requests_in_flight", ledger.POOL_IN_FLIGHT),
        (ledger.POOL_COLUMNS, "upgraded_connections_total", ledger.POOL_UPGRADED),
        (ledger.POOL_COLUMNS, "response_bytes_total", ledger.POOL_RESPONSE_BYTES),
        (ledger.POOL_COLUMNS, "requests_rejected_total", ledger.POOL_REJECTED),
        (ledger.POOL_COLUMNS, "route_decisions_total", ledger.POOL_DECISIONS),
        (ledger.POOL_COLUMNS, "retries_total", ledger.POOL_RETRIES),
        (ledger.POOL_COLUMNS, "retries_refused_total", ledger.POOL_RETRIES_REFUSED),
        (ledger.POOL_COLUMNS, "request_duration_seconds", ledger.POOL_DURATION),
        (ledger.POOL_COLUMNS, "upstream_first_byte_seconds", ledger.POOL_FIRST_BYTE),
        (ledger.POOL_COLUMNS, "upstream_connect_duration_seconds", ledger.POOL_CONNECT),
        (ledger.BACKEND_COLUMNS, "upstream_requests_in_flight", ledger.BACKEND_IN_FLIGHT),
        (ledger.BACKEND_COLUMNS, "upstream_connections_opened_total", ledger.BACKEND_OPENED),
        (ledger.BACKEND_COLUMNS, "route_owned_requests_total", ledger.BACKEND_OWNED),
        (ledger.BACKEND_COLUMNS, "route_spills_total", ledger.BACKEND_SPILLS),
        (ledger.BACKEND_COLUMNS, "upstream_errors_total", ledger.BACKEND_ERRORS),
        (ledger.BACKEND_COLUMNS, "upstream_request_duration_seconds", ledger.BACKEND_DURATION),
    ],
)
def test_constants_agree_with_the_tables(columns: tuple[Column, ...], metric: str, constant: int) -> None:
    assert offset_of(columns, metric) == constant


@pytest.mark.parametrize(
    ("words", "prefix"), [(ledger.DECISIONS, ""), (ledger.UPSTREAM_ERRORS, ""), (ledger.RETRY_REASONS, "RETRY_")]
)
def test_every_word_has_a_name_that_says_where_it_stands(words: tuple[str, ...], prefix: str) -> None:
    names = [prefix + word.replace(":", "_").upper() for word in words]
    assert [getattr(ledger, name) for name in names] == list(range(len(words)))


def test_a_duration_lands_in_the_first_bucket_that_holds_it() -> None:
    cells = [0] * (len(ledger.DURATION_BOUNDS) + 2)
    for microseconds in (0, 500, 501, 30_000_001):
        ledger.count_duration(cells, 0, microseconds)
    assert cells[:2] == [2, 1]
    assert cells[-2:] == [1, 500 + 501 + 30_000_001]

"""What a worker tells of sampled requests: whole, within bounds, and read with distrust."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.channel import MAX_REPORT_BYTES, Report, pack_report
from lbproxy.core.exchange import Finished
from lbproxy.core.trace import Trace
from lbproxy.observe import spans
from lbproxy.observe.spans import MOST_PER_FLUSH, SpanLog, SpanRecord, pack, record_of, unpack
from tests.exchanges import ended

TRACE = Trace(b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331", b"00f067aa0ba902b7", b"53995c3f42cd8ad8")
END_NS = 1_796_040_000_123_456_789


def exchange(**changes: Any) -> Finished:
    own = {
        "target": b"http://api.example.com/things?token=secret",
        "path": b"/things?token=secret",
        "trace": TRACE,
        "fields": {b"user-agent": b"curl/8", b"tracestate": b"vendor=1"},
    }
    return ended(**{**own, **changes})


RECORD = record_of(exchange(), TRACE, END_NS)


def test_a_record_says_what_happened_but_not_the_query() -> None:
    assert RECORD.trace_id == TRACE.id.decode()
    assert (RECORD.parent_id, RECORD.server_id, RECORD.client_id) == tuple(part.decode() for part in TRACE[1:])
    assert (RECORD.path, RECORD.host, RECORD.client, RECORD.peer) == (
        "/things",
        "api.example.com",
        "192.0.2.7",
        "10.0.0.1",
    )
    assert (RECORD.decision, RECORD.state, RECORD.agent) == ("owner", "vendor=1", "curl/8")
    assert "secret" not in pack([RECORD])
    assert record_of(exchange(decision=-1), TRACE, END_NS).decision == ""


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 10**12)), max_size=5))
def test_records_come_through_whatever_octets_clients_send(parts: list[tuple[bytes, bytes, int]]) -> None:
    records = [
        record_of(exchange(path=path, host=host, duration_us=duration), TRACE, END_NS) for path, host, duration in parts
    ]
    assert unpack(json.loads(json.dumps(pack(records)))) == records


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "7",
        "[" * 100_000,
        "[7, null, {}, []]",
        json.dumps([RECORD[:-1]]),
        json.dumps([[*RECORD, 0]]),
        json.dumps([RECORD._replace(status=True)]),
        json.dumps([RECORD._replace(end_ns=1.5)]),  # type: ignore[arg-type]
        json.dumps([RECORD._replace(trace_id="0" * 32)]),
        json.dumps([RECORD._replace(server_id="x" * 16)]),
        json.dumps([RECORD._replace(client_id=RECORD.client_id[1:])]),
        json.dumps([RECORD._replace(parent_id="1")]),
    ],
)
def test_what_is_no_record_is_left_out(text: str) -> None:
    assert unpack(text) == []


def test_one_bad_record_does_not_hide_the_others() -> None:
    assert unpack(json.dumps([RECORD, "nonsense", RECORD])) == [RECORD, RECORD]


def test_long_values_are_cut_and_too_long_a_state_is_left_out() -> None:
    long = b"x" * 20_000
    record = record_of(
        exchange(path=long, host=long, method=long, fields={b"user-agent": long, b"tracestate": long}), TRACE, END_NS
    )
    assert {len(record.path), len(record.host), len(record.method), len(record.agent)} == {spans.LONGEST}
    assert record.state == ""


class Teller:
    """A span log with what it told whom."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.logged: list[Finished] = []
        self.told: list[tuple[list[SpanRecord], int]] = []
        self.sizes: list[int] = []
        self.takes = True
        self.log = SpanLog(self.logged.append, self.send, loop, lambda: END_NS)

    def send(self, text: str, dropped: int) -> bool:
        if self.takes:
            self.told.append((unpack(text), dropped))
            self.sizes.append(len(pack_report(Report("spans", dropped, fields={"spans": text}))))
        return self.takes

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110  # a timer brings it about
                await asyncio.sleep(0.01)


async def test_only_what_is_sampled_is_told_and_everything_is_logged() -> None:
    teller = Teller(asyncio.get_running_loop())
    sampled, other = exchange(), exchange(trace=None)
    for each in (other, sampled, other):
        teller.log(each)
    assert (teller.logged, teller.told) == ([other, sampled, other], [])
    await teller.until(lambda: teller.told)
    assert teller.told == [([RECORD], 0)]


async def test_what_is_too_much_within_an_interval_is_dropped_and_counted() -> None:
    teller = Teller(asyncio.get_running_loop())
    for _ in range(MOST_PER_FLUSH + 30):
        teller.log(exchange())
    await teller.until(lambda: len(teller.told) > 1)
    assert sum(len(records) for records, _ in teller.told) == MOST_PER_FLUSH
    assert sum(dropped for _, dropped in teller.told) == 30
    teller.log(exchange())
    teller.log.close()
    assert teller.told[-1] == ([RECORD], 0)


async def test_a_supervisor_that_takes_nothing_is_told_later_how_much_it_missed() -> None:
    teller = Teller(asyncio.get_running_loop())
    teller.takes = False
    for _ in range(3):
        teller.log(exchange())
    teller.log.flush()
    teller.takes = True
    teller.log(exchange())
    teller.log.close()
    assert teller.told == [([RECORD], 3)]


async def test_no_message_is_longer_than_the_channel_takes() -> None:
    teller = Teller(asyncio.get_running_loop())
    long = b"\xff" * 20_000  # four characters for each octet, and each of them escaped twice
    for _ in range(MOST_PER_FLUSH):
        fields = {b"user-agent": long, b"tracestate": b"\xff" * spans.LONGEST_STATE}
        teller.log(exchange(path=long, host=long, method=long, request_id=long, fields=fields))
    teller.log.close()
    assert sum(len(records) for records, _ in teller.told) == MOST_PER_FLUSH
    assert max(teller.sizes) < MAX_REPORT_BYTES

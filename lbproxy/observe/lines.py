"""Access log lines: one finished exchange as JSON or in the combined format.

The bytes that a client chose (method, target, host, fields) are checked together, in one C call: when none of them
needs escaping, which is nearly always, the line is one `%`. Otherwise each value is escaped exactly, so that a JSON
line is valid JSON and a combined line is one line whatever was sent. A line is never longer than `LINE_MAX`, the size
up to which a pipe takes a write in one piece; longer values are cut, and end in `...`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Final, TypeAlias, final

from lbproxy.core.exchange import Finished
from lbproxy.core.ledger import DECISIONS

LINE_MAX: Final = 4096
_MEMO_LIMIT: Final = 4096
# Visible ASCII and space, without the quote and the backslash.
SAFE: Final = bytes(octet for octet in range(0x20, 0x7F) if octet not in b'"\\')
# Translates every other octet to another one. (To delete the safe ones and see what is left takes three times as long.)
MARKED: Final = bytes(octet if octet in SAFE else octet ^ 1 for octet in range(256))
_CUT: Final = b"..."
# How much of each value stays in a line that is too long, tried in this order.
_LIMITS: Final = (1024, 256, 64)

_WORDS: Final = tuple(decision.encode() for decision in DECISIONS)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def iso_time(milliseconds: int) -> str:
    """UTC in RFC 3339 with milliseconds."""
    second, rest = divmod(milliseconds, 1000)
    return f"{_iso_second(second)}.{rest:03d}Z"


def _iso_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def common_time(second: int) -> str:
    """The combined format's time, in UTC and in English whatever the locale."""
    now = time.gmtime(second)
    return f"{now.tm_mday:02d}/{_MONTHS[now.tm_mon - 1]}/{now.tm_year}:{time.strftime('%H:%M:%S', now)} +0000"


class _Memo(dict[str, bytes]):
    """Escaped text of the few strings that come again and again: addresses, pools, backends, reasons."""

    def __init__(self, escape: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self._escape = escape

    def __missing__(self, text: str) -> bytes:
        if len(self) >= _MEMO_LIMIT:
            self.clear()
        escaped = self[text] = self._escape(text.encode("utf-8", "surrogateescape"))
        return escaped


def json_text(value: bytes) -> bytes:
    """The inside of a JSON string: UTF-8 as what it means, octets that are not UTF-8 as a visible `\\xHH`."""
    return encode_basestring_ascii(value.decode("utf-8", "backslashreplace"))[1:-1].encode()


def quoted_text(value: bytes) -> bytes:
    """The inside of a combined value's quotes: quote, backslash, control and non-ASCII octets as `\\xHH`."""
    return b"".join([b"%c" % octet if octet in SAFE else b"\\x%02X" % octet for octet in value])


def _bare_text(value: bytes) -> bytes:
    """A combined value outside quotes, where a space would end it; nothing as `-`."""
    return quoted_text(value).replace(b" ", b"\\x20") or b"-"


def _cut(value: bytes, limit: int) -> bytes:
    return value if len(value) <= limit else value[:limit] + _CUT


# The values that many exchanges share, most of which stand together in a line: HTTP's minor version, status, pool,
# backend, decision, reason, attempts, upgraded.
_Common: TypeAlias = tuple[int, int, str, str, int, str, int, bool]


class Lines:
    """Makes the line of an exchange that has just ended. This is what the formats share: one check of all that the
    client chose, the exact way round when it fails, and the pieces of lines that many exchanges have in common, each
    made once.
    """

    def __init__(self, with_key: bool, memo: _Memo, wall_ns: Callable[[], int]) -> None:
        self._with_key = with_key
        self._memo = memo
        self._wall_ns = wall_ns
        self._tick = -1
        self._time = b""
        self._pieces: dict[_Common, bytes] = {}

    def line(self, x: Finished) -> bytes:
        """The exchange's line, newline included."""
        key = x.key if self._with_key else None
        common = (x.minor, x.status, x.pool_name, x.backend_name, x.decision, x.reason, x.attempts, x.upgraded)
        piece = self._pieces.get(common) or self._learn(common)
        said = b"%b%b%b%b%b%b%b" % (x.method, x.host, x.target, x.request_id, x.agent, x.referer, key or b"")
        if said.translate(MARKED) == said:
            line = self._fill(x, piece, key)
            if len(line) <= LINE_MAX:
                return line
        return self._escaped_line(x, piece, key)

    def _escaped_line(self, x: Finished, piece: bytes, key: bytes | None) -> bytes:
        """The line with what the client chose escaped, and cut until the line is short enough."""
        line = b""
        shown = Finished()  # with all that `_fill` reads
        shown.minor = x.minor
        shown.status = x.status
        shown.client = x.client
        shown.trace_id = x.trace_id
        shown.request_bytes = x.request_bytes
        shown.response_bytes = x.response_bytes
        shown.duration_us = x.duration_us
        shown.connect_us = x.connect_us
        shown.first_byte_us = x.first_byte_us
        for limit in (sys.maxsize, *_LIMITS):
            shown.method = self._escape(_cut(x.method, limit))
            shown.host = self._escape(_cut(x.host, limit))
            shown.target = self._escape(_cut(x.target, limit))
            shown.request_id = self._escape(_cut(x.request_id, limit))
            shown.agent = self._escape(_cut(x.agent, limit))
            shown.referer = self._escape(_cut(x.referer, limit))
            line = self._fill(shown, piece, None if key is None else self._escape(_cut(key, limit)))
            if len(line) <= LINE_MAX:
                break
        return line

    def _learn(self, common: _Common) -> bytes:
        if len(self._pieces) >= _MEMO_LIMIT:
            self._pieces.clear()
        _, _, pool, backend, decision, reason, _, _ = common
        word = _WORDS[decision] if decision >= 0 else b""
        names = [self._memo[name] for name in (pool, backend, reason)]
        piece = self._pieces[common] = self._piece(common, names, word)
        return piece

    def _piece(self, common: _Common, names: list[bytes], decision: bytes) -> bytes:
        """The values that many exchanges share, as they stand in a line; `names` are the pool's, the backend's and the
        reason, escaped."""
        raise NotImplementedError

    def _escape(self, value: bytes) -> bytes:
        raise NotImplementedError

    def _fill(self, x: Finished, piece: bytes, key: bytes | None) -> bytes:
        """The line with the exchange's values as they are. (The formats are constants in their places because such ones
        are taken apart when they are compiled: a line takes 390 ns, and with a template that is looked up 650.)"""
        raise NotImplementedError


class JsonLines(Lines):
    """One JSON object a line. Durations are in microseconds; null is a reused connection or no answer."""

    def __init__(self, with_key: bool = False, wall_ns: Callable[[], int] = time.time_ns) -> None:
        super().__init__(with_key, _Memo(json_text), wall_ns)
        self._second = -1
        self._second_text = b""

    def _escape(self, value: bytes) -> bytes:
        return json_text(value)

    def _piece(self, common: _Common, names: list[bytes], decision: bytes) -> bytes:
        minor, status, _, _, _, _, attempts, upgraded = common
        pool, backend, reason = names
        return (
            b'"protocol":"HTTP/1.%d","status":%d,"pool":"%b","backend":"%b","decision":"%b","reason":"%b","attempts":%d,'
            b'"upgraded":%b'
        ) % (
            minor,
            status,
            pool,
            backend,
            decision,
            reason,
            attempts,
            b"true" if upgraded else b"false",
        )

    def _fill(self, x: Finished, piece: bytes, key: bytes | None) -> bytes:
        connect_us = x.connect_us
        first_byte_us = x.first_byte_us
        tick = self._wall_ns() // 1_000_000
        if tick != self._tick:
            self._tick = tick
            second = tick // 1000
            if second != self._second:
                self._second = second
                self._second_text = _iso_second(second).encode()
            self._time = b"%b.%03dZ" % (self._second_text, tick - second * 1000)
        return (
            b'{"time":"%b","client":"%b","method":"%b","host":"%b","target":"%b",%b,'
            b'"request_bytes":%d,"response_bytes":%d,"duration_us":%d,"connect_us":%b,"first_byte_us":%b,'
            b'"request_id":"%b","trace_id":"%b","user_agent":"%b","referer":"%b"%b}\n'
        ) % (
            self._time,
            self._memo[x.client],
            x.method,
            x.host,
            x.target,
            piece,
            x.request_bytes,
            x.response_bytes,
            x.duration_us,
            b"%d" % connect_us if connect_us >= 0 else b"null",
            b"%d" % first_byte_us if first_byte_us >= 0 else b"null",
            x.request_id,
            x.trace_id,
            x.agent,
            x.referer,
            b"" if key is None else b',"key":"%b"' % key,
        )


class CombinedLines(Lines):
    """The combined format that log analysers read, with what a proxy knows behind it as `name=value`."""

    def __init__(self, with_key: bool = False, wall_ns: Callable[[], int] = time.time_ns) -> None:
        super().__init__(with_key, _Memo(_bare_text), wall_ns)

    def _escape(self, value: bytes) -> bytes:
        return quoted_text(value)

    def _piece(self, common: _Common, names: list[bytes], decision: bytes) -> bytes:
        *_, attempts, _ = common
        pool, backend, reason = names
        return b"pool=%b backend=%b decision=%b reason=%b attempts=%d" % (
            pool,
            backend,
            decision or b"-",
            reason,
            attempts,
        )

    def _fill(self, x: Finished, piece: bytes, key: bytes | None) -> bytes:
        connect_us = x.connect_us
        first_byte_us = x.first_byte_us
        tick = self._wall_ns() // 1_000_000_000
        if tick != self._tick:
            self._tick = tick
            self._time = common_time(tick).encode()
        return (
            b'%b - - [%b] "%b %b HTTP/1.%d" %d %d "%b" "%b" "%b" %b request_bytes=%d duration_us=%d connect_us=%b '
            b'first_byte_us=%b request_id="%b" trace_id=%b%b\n'
        ) % (
            self._memo[x.client],
            self._time,
            x.method or b"-",
            x.target or b"-",
            x.minor,
            x.status,
            x.response_bytes,
            x.referer or b"-",
            x.agent or b"-",
            x.host or b"-",
            piece,
            x.request_bytes,
            x.duration_us,
            b"%d" % connect_us if connect_us >= 0 else b"-",
            b"%d" % first_byte_us if first_byte_us >= 0 else b"-",
            x.request_id or b"-",
            x.trace_id or b"-",
            b"" if key is None else b' key="%b"' % key,
        )


@final
class Gathered:
    """Lines that wait to be handed on together. It stands on every request's way and is compiled, which the log that
    owns it is not: a call of an interpreted function is a tenth of what a line costs."""

    __slots__ = ("_enough", "_on_enough", "format", "lines", "size")

    def __init__(self, enough: int, on_enough: Callable[[], None]) -> None:
        """With `enough` octets together `on_enough` is called."""
        self._enough = enough
        self._on_enough = on_enough
        self.format: Lines | None = None  # nothing is logged
        self.lines: list[bytes] = []
        self.size = 0

    def add(self, x: Finished) -> None:
        """Make the line of an exchange and keep it."""
        format = self.format
        if format is None:
            return
        line = format.line(x)
        self.lines.append(line)
        self.size += len(line)
        if self.size >= self._enough:
            self._on_enough()

    def take(self) -> tuple[list[bytes], int]:
        """What has been gathered, with its size; nothing is left."""
        taken = self.lines, self.size
        self.lines = []
        self.size = 0
        return taken

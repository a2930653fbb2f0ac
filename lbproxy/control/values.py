"""How amounts are written in the file: numbers, durations, sizes, shares. Text in, plain values out, and back.

Every `read_*` takes the text of a scalar and raises `BadValue`, whose message says what is wrong and whose hint, where
there is a likely one, is what was probably meant. Nothing is guessed: a duration or a size without a unit, and what
YAML 1.1 would silently turn into something else (`010`, `0x1F`, `1:30`, `yes`), is refused with the way to write it.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

LONGEST_DURATION_S: Final = 366 * 86400
SHORTEST_DURATION_S: Final = 0.001

DURATION_PATTERN: Final = (
    r"^(?=[0-9])([0-9]{1,9}(\.[0-9]{1,18})?h)?([0-9]{1,9}(\.[0-9]{1,18})?m)?"
    r"([0-9]{1,9}(\.[0-9]{1,18})?s)?([0-9]{1,9}(\.[0-9]{1,18})?ms)?$"
)
SIZE_PATTERN: Final = r"^([0-9]{1,15}(?:\.[0-9]{1,9})?)(B|kB|KB|MB|GB|KiB|MiB|GiB)$"
PACE_PATTERN: Final = r"^[0-9]{1,3}(\.[0-9]{1,18})?%/(s|min|h)$"
SHARE_PATTERN: Final = r"^[0-9]{1,3}(\.[0-9]{1,18})?%$"

_DURATION: Final = re.compile(DURATION_PATTERN)
_SIZE: Final = re.compile(SIZE_PATTERN)
_SHARE: Final = re.compile(SHARE_PATTERN)
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NUMBER_AND_WORD: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) *([A-Za-z]*)")
_CLOCK: Final = re.compile(r"([0-9]{1,4}):([0-5][0-9])")
_OTHER_BASE: Final = re.compile(r"0x[0-9a-fA-F_]+|0b[01_]+|0o[0-7]+|0[0-9_]+")

_SECONDS: Final = {"h": Decimal(3600), "m": Decimal(60), "s": Decimal(1), "ms": Decimal("0.001")}
_BYTES: Final = {
    "GiB": 1 << 30, "GB": 10**9, "MiB": 1 << 20, "MB": 10**6, "KiB": 1 << 10, "KB": 1000, "kB": 1000, "B": 1,
}  # fmt: skip
_PACE_UNITS: Final = {"s": 1, "min": 60, "h": 3600}
_DURATION_WORDS: Final = {
    "": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "S": "s", "s": "s",
    "M": "m", "m": "m", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
    "H": "h", "h": "h", "hr": "h", "hour": "h", "hours": "h",
    "msec": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms", "ms": "ms", "MS": "ms",
}  # fmt: skip
_SIZE_WORDS: Final = {
    "": "B", "b": "B", "byte": "B", "bytes": "B", "k": "KiB", "kb": "KB", "ki": "KiB", "kib": "KiB",
    "m": "MiB", "mb": "MB", "mi": "MiB", "mib": "MiB", "g": "GiB", "gb": "GB", "gi": "GiB", "gib": "GiB",
}  # fmt: skip
_TRUTH: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TRUTH_WORDS: Final = {"on": "true", "yes": "true", "y": "true", "1": "true", "t": "true"} | {
    "off": "false", "no": "false", "n": "false", "0": "false", "f": "false"
}  # fmt: skip


class BadValue(ValueError):
    """A value that does not read as what it should be. `hint` is what was probably meant, or ""."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def quote(text: str) -> str:
    """`text` as a message shows it: in quotes, on one line, cut when long."""
    shown = text if len(text) <= 60 else text[:57] + "..."
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown) + '"'


# Numbers and truth


def read_whole(text: str) -> int:
    """A whole number in plain decimal."""
    if re.fullmatch(r"[+-]?(?:0|[1-9][0-9]{0,17})", text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        raise BadValue(
            f"{quote(text)} is read differently by different YAML versions, write plain decimal", _base(text)
        )
    if re.fullmatch(r"[0-9]{1,3}(?:[_,][0-9]{3})+", text):
        raise BadValue(f"{quote(text)} is not a whole number", re.sub(r"[_,]", "", text))
    raise BadValue(f"{quote(text)} is not a whole number")


def _base(text: str) -> str:
    if len(text) > 30:  # nobody meant that
        return ""
    return text.lstrip("0_") or "0" if text[1].isdigit() or text[1] == "_" else str(int(text.replace("_", ""), 0))


def read_number(text: str) -> float:
    """A finite decimal number."""
    if re.fullmatch(r"[+-]?0[0-9_]+(?:\..*)?|0[xob].*", text):
        hint = _base(text) if _OTHER_BASE.fullmatch(text) else ""
        raise BadValue(f"{quote(text)} is read differently by different YAML versions, write plain decimal", hint)
    if not _NUMBER.fullmatch(text):
        raise BadValue(f"{quote(text)} is not a number")
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise BadValue(f"{quote(text)} is too large")
    return value


def read_truth(text: str) -> bool:
    """`true` or `false`; the words that YAML 1.1 takes for them are refused."""
    if text in _TRUTH:
        return _TRUTH[text]
    raise BadValue(f"{quote(text)} is not true or false", _TRUTH_WORDS.get(text.lower(), ""))


# Amounts with units


def read_duration(text: str) -> float:
    """Seconds of `250ms`, `1.5s`, `2m`, `1h` or parts in that order from large to small, such as `1m30s`."""
    if not _DURATION.fullmatch(text):
        raise _bad_duration(text)
    parts = re.findall(r"([0-9.]+)(ms|h|m|s)", text)
    seconds = float(sum((Decimal(number) * _SECONDS[unit] for number, unit in parts), Decimal(0)))
    if seconds < SHORTEST_DURATION_S:
        raise BadValue(f"{quote(text)} must be at least 1ms")
    if seconds > LONGEST_DURATION_S:
        raise BadValue(f"{quote(text)} is longer than a year")
    return seconds


def read_span(text: str) -> float:
    """As `read_duration`, and `0` or `0s` for none at all."""
    return 0.0 if text in ("0", "0s") else read_duration(text)


def write_span(seconds: float) -> str:
    """The inverse of `read_span`."""
    return write_duration(seconds) if seconds else "0s"


def _bad_duration(text: str) -> BadValue:
    if clock := _CLOCK.fullmatch(text):
        return BadValue(f"{quote(text)} is not a duration", f"{int(clock[1])}m{int(clock[2])}s")
    found = _NUMBER_AND_WORD.fullmatch(text)
    if found is None:
        return BadValue(f"{quote(text)} is not a duration such as 250ms, 5s, 2m or 1h")
    number, word = found.groups()
    what = "has no unit (ms, s, m, h)" if word == "" else "is not a duration such as 250ms, 5s, 2m or 1h"
    if word in ("d", "day", "days"):
        return BadValue(f"{quote(text)} {what}", f"{_plain(Decimal(number) * 24)}h")
    if word == "" and Decimal(number) >= 1000:  # milliseconds, as HAProxy has them, or seconds: who knows
        return BadValue(f"{quote(text)} {what}")
    unit = _DURATION_WORDS.get(word) or _DURATION_WORDS.get(word.lower(), "")
    return BadValue(f"{quote(text)} {what}", number + unit if unit else "")


def write_duration(seconds: float) -> str:
    """The shortest text that `read_duration` turns back into exactly `seconds`."""
    exact = Decimal(repr(seconds))
    for unit in ("h", "m"):
        if exact % _SECONDS[unit] == 0:
            return f"{_plain(exact / _SECONDS[unit])}{unit}"
    return f"{_plain(exact * 1000)}ms" if exact < 1 else f"{_plain(exact)}s"


def read_size(text: str) -> int:
    """Bytes of `64KiB`, `1MB`, `512B` or plain `0`. KiB, MiB, GiB are powers of 1024; kB, KB, MB, GB of 1000."""
    if text == "0":
        return 0
    found = _SIZE.fullmatch(text)
    if found is None:
        raise _bad_size(text)
    size = Decimal(found[1]) * _BYTES[found[2]]
    if size != int(size):
        raise BadValue(f"{quote(text)} is not a whole number of bytes")
    return int(size)


def _bad_size(text: str) -> BadValue:
    found = _NUMBER_AND_WORD.fullmatch(text)
    if found is None:
        return BadValue(f"{quote(text)} is not a size such as 512B, 64KiB or 1MB")
    number, word = found.groups()
    unit = _SIZE_WORDS.get(word.lower(), "")
    what = "has no unit (B, KiB, MiB, GiB, KB, MB, GB)" if word == "" else "is not a size such as 512B, 64KiB or 1MB"
    return BadValue(f"{quote(text)} {what}", number + unit if unit else "")


def write_size(size: int) -> str:
    """The shortest text that `read_size` turns back into `size`."""
    if size == 0:
        return "0"
    return next(f"{size // factor}{unit}" for unit, factor in _BYTES.items() if size % factor == 0)


def read_share(text: str) -> float:
    """0 to 1 of `0%` to `100%`."""
    if not _SHARE.fullmatch(text):
        raise _bad_share(text)
    share = Decimal(text[:-1]) / 100
    if share > 1:
        raise BadValue(f"{quote(text)} is more than 100%")
    return float(share)


def _bad_share(text: str) -> BadValue:
    if not re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{1,15})?", text):
        return BadValue(f"{quote(text)} is not a percentage such as 20%")
    number = Decimal(text)
    percent = number * 100 if number <= 1 and "." in text else number
    return BadValue(f"{quote(text)} has no %", f"{_plain(percent)}%")


def write_share(share: float) -> str:
    """The shortest text that `read_share` turns back into exactly `share`."""
    return f"{_plain(Decimal(repr(share)) * 100)}%"


def read_pace(text: str) -> float:
    """Shares per second of `5%/min`, `1%/s` or `50%/h`."""
    share, slash, unit = text.partition("/")
    if not slash or unit not in _PACE_UNITS:
        raise BadValue(f"{quote(text)} is not a pace such as 5%/min", f"{share}/min" if unit in ("", "m") else "")
    pace = read_share(share) / _PACE_UNITS[unit]
    if not pace:
        raise BadValue(f"{quote(text)} would never move anything")
    return pace


def _plain(number: Decimal) -> str:
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text

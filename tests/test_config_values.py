"""Durations, sizes, shares, numbers and addresses: what reads, what is refused with which hint, and the way back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from lbproxy.control import addresses, values
from lbproxy.control.fields import Duration, Share, Size, Truth, Whole
from lbproxy.control.values import BadValue
from lbproxy.core.spec import Address

READERS: list[Callable[[str], Any]] = [
    values.read_whole,
    values.read_number,
    values.read_truth,
    values.read_duration,
    values.read_size,
    values.read_share,
    addresses.read_bind,
    addresses.read_tcp_bind,
    addresses.read_socket_path,
    addresses.read_backend_url,
    addresses.read_network,
    addresses.read_match_host,
    addresses.read_match_path,
]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("5s", 5), ("2m", 120), ("1h", 3600), ("1.5s", 1.5), ("1m30s", 90), ("1h1ms", 3600.001)],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.read_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("5", "5s"),
        ("0.5", "0.5s"),
        ("999", "999s"),
        ("1000", ""),  # milliseconds for HAProxy, seconds for others
        ("1e9", ""),
        ("5 s", "5s"),
        ("5sec", "5s"),
        ("5S", "5s"),
        ("10 minutes", "10m"),
        ("1:30", "1m30s"),
        ("2d", "48h"),
        ("1.5 days", "36h"),
        ("5MS", "5ms"),
        ("5 parsecs", ""),
        ("", ""),
        ("-5s", ""),
        ("s", ""),
        ("30s1m", ""),
        ("\u0665s", ""),
        ("5s\n", ""),
        ("0s", ""),
        ("0.1ms", ""),
        ("999999h", ""),
    ],
)
def test_what_is_no_duration(text: str, hint: str) -> None:
    with pytest.raises(BadValue) as caught:
        values.read_duration(text)
    assert caught.value.hint == hint


@given(st.floats(min_value=values.SHORTEST_DURATION_S, max_value=values.LONGEST_DURATION_S))
def test_a_written_duration_reads_as_the_same(seconds: float) -> None:
    assert values.read_duration(values.write_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512B", 512),
        ("64KiB", 65536),
        ("1MB", 1_000_000),
        ("1kB", 1000),
        ("1.5MiB", 1572864),
        ("1GiB", 1 << 30),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert values.read_size(text) == size


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1024", "1024B"),
        ("64K", "64KiB"),
        ("64kib", "64KiB"),
        ("1mb", "1MB"),
        ("1 MB", "1MB"),
        ("0.3B", ""),
        ("-1B", ""),
        ("00", "00B"),
        ("many", ""),
    ],
)
def test_what_is_no_size(text: str, hint: str) -> None:
    with pytest.raises(BadValue) as caught:
        values.read_size(text)
    assert caught.value.hint == hint


@given(st.integers(min_value=0, max_value=10**15 - 1))
def test_a_written_size_reads_as_the_same(size: int) -> None:
    assert values.read_size(values.write_size(size)) == size


@pytest.mark.parametrize(("text", "share"), [("20%", 0.2), ("0%", 0), ("100%", 1), ("12.5%", 0.125), ("0.1%", 0.001)])
def test_shares(text: str, share: float) -> None:
    assert values.read_share(text) == share


@pytest.mark.parametrize(
    ("text", "hint"),
    [("0.5", "50%"), ("20", "20%"), ("1", "1%"), ("101%", ""), ("-1%", ""), ("half", ""), ("20 %", "")],
)
def test_what_is_no_share(text: str, hint: str) -> None:
    with pytest.raises(BadValue) as caught:
        values.read_share(text)
    assert caught.value.hint == hint


@given(st.integers(min_value=0, max_value=10**6).map(lambda millionths: millionths / 10**6))
def test_a_written_share_reads_as_the_same(share: float) -> None:
    assert values.read_share(values.write_share(share)) == share


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("010", "10"),
        ("0x1F", "31"),
        ("0b11", "3"),
        ("0o17", "15"),
        ("1_000", "1000"),
        ("1,000", "1000"),
        ("1:30", ""),
        ("1.0", ""),
        ("", ""),
        ("\u0663", ""),
        (" 1", ""),
        ("1e3", ""),
        ("9" * 40, ""),
    ],
)
def test_only_plain_decimal_is_a_whole_number(text: str, hint: str) -> None:
    with pytest.raises(BadValue) as caught:
        values.read_whole(text)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    "text", ["inf", ".inf", "nan", ".nan", "1e999", "010", "0x10", "1:30", "1_0", "one", "", "\u0663"]
)
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(BadValue):
        values.read_number(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_as_python_writes_them(number: float) -> None:
    assert values.read_number(repr(number)) == number


@pytest.mark.parametrize(
    ("text", "hint"), [("on", "true"), ("YES", "true"), ("y", "true"), ("off", "false"), ("No", "false"), ("maybe", "")]
)
def test_only_true_and_false_are_truth(text: str, hint: str) -> None:
    with pytest.raises(BadValue) as caught:
        values.read_truth(text)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:8080", Address("0.0.0.0", 8080)),
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:80", Address("::1", 80)),
        ("[0:0::1]:80", Address("::1", 80)),
        ("localhost:80", Address("localhost", 80)),
        ("unix:/run/lb.sock", Address("", 0, "/run/lb.sock")),
    ],
)
def test_binds(text: str, address: Address) -> None:
    assert addresses.read_bind(text) == address
    assert addresses.read_bind(str(address)) == address


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("8080", "0.0.0.0:8080"),
        (":8080", "0.0.0.0:8080"),
        ("*:8080", "0.0.0.0:8080"),
        ("http://0.0.0.0:80/", "0.0.0.0:80"),
        ("::1:80", "[::1]:80"),
        ("fe80::1:2:3:4:5:6:7:8", ""),
        ("0.0.0.0", ""),
        ("0.0.0.0:", ""),
        ("0.0.0.0:65536", ""),
        ("0.0.0.0:080", ""),
        ("0.0.0.0:\u0668", ""),
        ("300.0.0.1:80", ""),
        ("1.2.3:80", ""),
        ("[::1]", ""),
        ("[::1]80", ""),
        ("[1.2.3.4]:80", ""),
        ("[::1:80", ""),
        ("a b:80", ""),
        ("bücher.example:80", ""),
        ("unix:run/x.sock", "/run/x.sock"),
        ("unix:x.sock", ""),
        ("unix:/" + "x" * 120, ""),
        ("", ""),
    ],
)
def test_what_is_no_bind(text: str, hint: str) -> None:
    with pytest.raises(BadValue) as caught:
        addresses.read_bind(text)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://10.0.0.1:8080", Address("10.0.0.1", 8080)),
        ("http://app.internal", Address("app.internal", 80)),
        ("HTTP://App.Internal/", Address("app.internal", 80)),
        ("http://[fd00::1]:81", Address("fd00::1", 81)),
        ("http://[fd00::1]", Address("fd00::1", 80)),
    ],
)
def test_backend_urls(text: str, address: Address) -> None:
    assert addresses.read_backend_url(text) == address


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("10.0.0.1:8080", "has no scheme", "http://10.0.0.1:8080"),
        ("app", "has no scheme", "http://app"),
        ("https://app", "TLS to the backend, which is not available yet", ""),
        ("ftp://app", "is not an http:// URL", ""),
        ("http://u:p@app", "holds credentials", ""),
        ("http://app/x", "goes on after the address", "http://app"),
        ("http://app?x=1", "goes on after the address", "http://app"),
        ("http://app#x", "goes on after the address", "http://app"),
        ("http://", "has no host", ""),
        ("http://app:", "has no port", ""),
        ("http://app:0", "port 0", ""),
        ("http://app:http", "has no port from 0 to 65535", ""),
        ("http://::1", "without brackets", "http://[::1]"),
        ("http://a..b", "no valid host name", ""),
        ("http://-a", "no valid host name", ""),
    ],
)
def test_what_is_no_backend_url(text: str, says: str, hint: str) -> None:
    with pytest.raises(BadValue) as caught:
        addresses.read_backend_url(text)
    assert says in str(caught.value)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("text", "network"), [("10.0.0.0/8", "10.0.0.0/8"), ("10.0.0.1", "10.0.0.1/32"), ("FD00::/8", "fd00::/8")]
)
def test_networks(text: str, network: str) -> None:
    assert addresses.read_network(text) == network


def test_a_network_with_host_bits_is_refused_with_the_network_that_was_meant() -> None:
    with pytest.raises(BadValue, match="bits set after its prefix") as caught:
        addresses.read_network("10.0.0.1/8")
    assert caught.value.hint == "10.0.0.0/8"


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("API.example.com", "api.example.com"),
        ("api.example.com.", "api.example.com"),
        ("*.example.com", "*.example.com"),
        ("10.0.0.1", "10.0.0.1"),
        ("[::1]", "[::1]"),
    ],
)
def test_hosts_to_match(text: str, host: str) -> None:
    assert addresses.read_match_host(text) == host


@pytest.mark.parametrize(
    "text", ["", "*", "a.*.com", "*a.com", "api:80", "[::1]:80", "[::1", "http://a", "a/b", "bücher.example", "a b"]
)
def test_what_is_no_host_to_match(text: str) -> None:
    with pytest.raises(BadValue):
        addresses.read_match_host(text)


@pytest.mark.parametrize("text", ["", "api", "/a?b", "/a#b", "/api/*", "/a b", "/bücher"])
def test_what_is_no_path_to_match(text: str) -> None:
    with pytest.raises(BadValue):
        addresses.read_match_path(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/x", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.evil.example:1", False),
    ],
)
def test_loopback(text: str, expected: bool) -> None:
    assert addresses.is_loopback(addresses.read_bind(text)) is expected


@pytest.mark.parametrize("read", READERS)
@given(text=st.one_of(st.text(), st.from_regex(r"[0-9a-fx:./%_\[\]+-]{0,12}(ms|s|KiB|%)?")))
def test_readers_raise_nothing_but_bad_value(read: Callable[[str], Any], text: str) -> None:
    message, value = "", None
    try:
        value = read(text)
    except BadValue as bad:
        message = str(bad)
    assert message.isprintable()
    assert not isinstance(value, float) or math.isfinite(value)


@given(text=st.from_regex(r"[0-9]{1,3}[.: ]?[0-9]{0,3} ?(ms|s|sec|d|days|K|kib|MB|%|x|)", fullmatch=True))
def test_a_hint_is_something_that_reads(text: str) -> None:
    for kind in (Duration, Size, Share, Truth, Whole):
        try:
            TypeAdapter(kind).validate_python(text)
        except ValidationError as error:
            cause = error.errors()[0].get("ctx", {}).get("error")
            if isinstance(cause, BadValue) and cause.hint:
                TypeAdapter(kind).validate_python(cause.hint)


@pytest.mark.parametrize(
    ("text", "shown"), [("a\nb", '"a\\nb"'), ("x" * 80, '"' + "x" * 57 + '..."'), ("\ud800", '"\\ud800"')]
)
def test_quoting_keeps_a_message_on_one_line(text: str, shown: str) -> None:
    assert values.quote(text) == shown

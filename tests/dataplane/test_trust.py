"""Whom a listener believes, and about whom."""

from __future__ import annotations

from lbproxy.core.spec import Address, Limits, ListenerSpec, ListenerTimeouts
from lbproxy.dataplane.plane import Trust


def trust_in(*networks: str) -> Trust:
    address = Address("127.0.0.1", 0)
    return Trust(ListenerSpec("l", address, ListenerTimeouts(), Limits(), trusted_proxies=networks))


def test_the_client_is_the_last_one_who_is_no_proxy() -> None:
    trust = trust_in("10.0.0.0/8", "fe80::/10")
    assert trust.client_of(b"6.6.6.6, 1.2.3.4, 10.0.0.2", "10.0.0.1") == "1.2.3.4"
    assert trust.client_of(b"nonsense, 10.0.0.2", "10.0.0.1") == "10.0.0.2"
    assert trust.client_of(b"[2001:db8::1], fe80::1%eth0", "10.0.0.1") == "2001:db8::1"


def test_a_port_behind_an_address_is_no_part_of_it() -> None:
    trust = trust_in("10.0.0.0/8")
    assert trust.client_of(b"6.6.6.6, 1.2.3.4:50123, 10.0.0.2:80", "10.0.0.1") == "1.2.3.4"
    assert trust.client_of(b"[2001:db8::1]:50123", "10.0.0.1") == "2001:db8::1"
    assert trust.client_of(b"2001:db8::1", "10.0.0.1") == "2001:db8::1"
    for nonsense in (b":80", b"[", b"[]:80", b"1.2.3.4:80:90", b"[10.0.0.9", b"x:1"):
        assert trust.client_of(nonsense, "10.0.0.1") in ("10.0.0.1", "10.0.0.9")


def test_a_chain_of_proxies_is_followed_so_far_and_no_further() -> None:
    """A client that stands behind a proxy may send a chain as long as a head may be, which took 45 ms to follow."""
    trust = trust_in("10.0.0.0/8")
    assert trust.client_of(b"1.2.3.4" + b", 10.0.0.2" * 31, "10.0.0.1") == "1.2.3.4"
    assert trust.client_of(b"[2001:db8::1], 10.0.0.3" + b", 10.0.0.2" * 32, "10.0.0.1") == "10.0.0.2"


def test_an_address_is_one_client_however_it_is_spelled() -> None:
    trust = trust_in("10.0.0.0/8")
    for spelled in (b"2001:DB8:0:0::1", b"2001:db8::0001", b"[2001:db8::1]"):
        assert trust.client_of(spelled, "10.0.0.1") == "2001:db8::1"
    assert trust.client_of(b"::ffff:1.2.3.4, ::FFFF:10.0.0.2", "10.0.0.1") == "1.2.3.4"


def test_an_address_with_an_endless_zone_is_none() -> None:
    """It would be kept, logged and taken for a key."""
    trust = trust_in("0.0.0.0/0", "::/0")
    assert trust.client_of(b"fe80::1%eth0", "10.0.0.1") == "fe80::1%eth0"
    assert trust.client_of(b"fe80::1%" + b"x" * 5000, "10.0.0.1") == "10.0.0.1"

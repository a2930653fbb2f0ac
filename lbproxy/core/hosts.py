"""What a host is: an address, or a name that stands for one."""

from __future__ import annotations

from ipaddress import ip_address


def is_address(host: str) -> bool:
    """Whether it is an address, IPv4 or IPv6, and nobody need be asked where it is."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True

"""Where connections and requests come from, as far as limits tell sources apart."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

_IPV6_HOST_BITS = 64
"""One customer's network: who has one address of it has all (RFC 6177)."""

Source = int | str


def source_of_address(address: str) -> Source:
    """What counts as one source: an address, or the network of an IPv6 address; a Unix socket's clients, who have none, are one."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return int(parsed)
    if parsed.is_loopback:
        return str(parsed)
    mapped = parsed.ipv4_mapped
    return int(mapped) if mapped is not None else f"{int(parsed) >> _IPV6_HOST_BITS:x}/64"

"""Source of connections and requests: the unit by which limits tell clients apart."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

_IPV6_HOST_BITS = 64
"""A customer gets a whole /64 network at least (RFC 6177), so a client may use any address of it."""

Source = int | str


def source_of_address(address: str) -> Source:
    """Return the source of an address: the address itself, or the /64 network of an IPv6 address.

    All clients of a Unix socket, which have no address, are one source.
    """
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

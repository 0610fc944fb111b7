"""Client address behind proxies: the source of a request, as far as it can be believed. Pure; called by
`auth/access`.

Every proxy appends the address it was reached from to X-Forwarded-For. So the list is read from its end, and
only as far as trusted proxies wrote it: entries before that may have been made up by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address


def client_address_of(peer: str, forwarded_for: str | None, trusted: Sequence[IPv4Network | IPv6Network]) -> str:
    """Return the last address in the chain that is not a trusted proxy's; that is `peer` itself unless `peer`
    is one.

    `forwarded_for` is the value of X-Forwarded-For; several such headers are joined by commas in their order.
    """
    if forwarded_for is None or not trusted:
        return peer
    address = _read(peer)
    if address is None or not _is_in(address, trusted):
        return peer
    for entry in reversed(forwarded_for.split(",")):
        before = _read_entry(entry.strip())
        if before is None:  # no address, such as `unknown` (RFC 7239): the last proxy that is known counts as the source
            break
        address = before
        if not _is_in(address, trusted):
            break
    return str(address)


def _is_in(address: IPv4Address | IPv6Address, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    return any(address in network for network in networks)


def _read_entry(entry: str) -> IPv4Address | IPv6Address | None:
    """Parse an address, with or without a port: some proxies write `1.2.3.4:5` and `[::1]:5`. None if
    it is neither.
    """
    if entry.startswith("["):
        return _read(entry[1:].partition("]")[0])
    return _read(entry.partition(":")[0] if entry.count(":") == 1 else entry)


def _read(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address, normalised so that each client has one spelling; None if it is none."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:  # a dual-stack socket reports an IPv4 peer as ::ffff:1.2.3.4
        return address.ipv4_mapped
    return IPv6Address(int(address))  # without a zone (%eth0), which has a meaning on one machine only

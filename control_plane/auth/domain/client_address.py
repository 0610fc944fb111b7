"""Where a request came from, as far as it can be believed; used by the doors.

Every proxy appends the address that it was reached from (X-Forwarded-For), so the list is read from its end, and only as
far as trusted proxies have written it: what stands before that the caller may have made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address


def source_of(peer: str, forwarded_for: str | None, trusted: Sequence[IPv4Network | IPv6Network]) -> str:
    """The last address that is no trusted proxy's; `peer` itself where it is none.

    `forwarded_for` is the header's value, of several such headers joined by commas in their order.
    """
    if forwarded_for is None or not trusted:
        return peer
    address = _read(peer)
    if address is None or not _is_in(address, trusted):
        return peer
    for entry in reversed(forwarded_for.split(",")):
        before = _read_entry(entry.strip())
        if before is None:
            break
        address = before
        if not _is_in(address, trusted):
            break
    return str(address)


def _is_in(address: IPv4Address | IPv6Address, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    return any(address in network for network in networks)


def _read_entry(entry: str) -> IPv4Address | IPv6Address | None:
    """An address, also with a port: some proxies write `1.2.3.4:5` and `[::1]:5`."""
    if entry.startswith("["):
        return _read(entry[1:].partition("]")[0])
    return _read(entry.partition(":")[0] if entry.count(":") == 1 else entry)


def _read(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:  # what a socket for both protocols says of an IPv4 peer
        return address.ipv4_mapped
    return IPv6Address(int(address))  # without a zone, which means something on one machine only

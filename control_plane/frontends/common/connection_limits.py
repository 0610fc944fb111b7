"""How many connections a port takes, and how many of them one source may hold; asked by `frontends/common/connection_server`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address

from control_plane.auth.domain.source import Source, source_of_address

Network = IPv4Network | IPv6Network

_FOR_THE_REST = 256
"""Descriptors for all that is no connection of a client or to Triton: libraries, logs, pipes, listening sockets, those just refused."""


class PortConnections:
    """The connections of one port, counted by source; all that is known of a source is gone with its last one."""

    def __init__(self, most: int, *, share: float = 1.0, exempt: Sequence[Network] = ()) -> None:
        """One source gets that `share` of them at most, except trusted proxies, which stand for many."""
        self._most = most
        self._most_per_source = max(1, int(most * share))
        self._exempt = exempt
        self._held: Counter[Source] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, address: str) -> Source | None:
        """Let one more connection in from there, and say for whom it is to be given back; None: there are too many."""
        if self._count >= self._most:
            return None
        source = source_of_address(address)
        if self._held[source] >= self._most_per_source and not self._is_exempt(address):
            return None
        self._held[source] += 1
        self._count += 1
        return source

    def give(self, source: Source) -> None:
        """One of its connections has closed."""
        self._count -= 1
        self._held[source] -= 1
        if not self._held[source]:
            del self._held[source]

    def _is_exempt(self, address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._exempt)


@dataclass(frozen=True, slots=True)
class ConnectionCaps:
    """What each port of a process takes at most."""

    data: int
    """The HTTP port, and as many the gRPC port."""
    service: int
    """The admin port, and as many the metrics port."""


def descriptors_wanted(caps: ConnectionCaps, upstream: int) -> int:
    """For all ports full at the same time, and all connections to Tritons that there may be."""
    return _FOR_THE_REST + upstream + 2 * (caps.data + caps.service)


def fit(caps: ConnectionCaps, *, upstream: int, descriptors: int) -> ConnectionCaps:
    """`caps` as far as so many descriptors go: each port has its own, so that a flood of one leaves the others theirs.

    Where they do not suffice the service ports get an eighth, connections to Triton a quarter, and the data ports the rest.
    """
    if descriptors_wanted(caps, upstream) <= descriptors:
        return caps
    free = descriptors - min(_FOR_THE_REST, descriptors // 4)
    service = max(1, min(caps.service, free // 16))
    data = (free - 2 * service - min(upstream, free // 4)) // 2
    return ConnectionCaps(data=max(1, min(caps.data, data)), service=service)

"""Connection limits: how many connections a port accepts, and how many of them one source may hold.

Called by `frontends/common/connection_server`; `app` fits the limits to the process's file descriptors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address

from control_plane.auth.domain.source import Source, source_of_address

Network = IPv4Network | IPv6Network

_FOR_THE_REST = 256
"""File descriptors for everything but connections of clients and to Triton: libraries, logs, pipes, listening
sockets, connections that are just being refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits that a server of either protocol sets for each connection; its own are in `HttpLimits` and `GrpcLimits`."""

    max_connections: int
    max_header_bytes: int = 16 * 2**10
    header_timeout_s: float = 10.0
    """Seconds from a head's first byte to its last; for a connection's preface over gRPC."""
    body_timeout_s: float = 60.0
    """Seconds without progress: in receiving a body or message, in waiting for memory for one, in sending an answer."""
    idle_timeout_s: float = 300.0
    """Seconds that a connection may be without requests; 0 means no limit."""
    source_share: float = 1.0
    """Part (0 to 1) of the connections that one source may hold."""
    trusted_proxies: Sequence[Network] = ()
    """Sources that may hold more, since they stand for many clients."""


class PortConnections:
    """Connection counter of one port, by source address; a source's entry is dropped with its last
    connection."""

    def __init__(self, most: int, *, share: float = 1.0, exempt: Sequence[Network] = ()) -> None:
        """One source may hold the `share` (0 to 1) of `most`; `exempt` are trusted proxies, which stand for
        many clients."""
        self._most = most
        self._most_per_source = max(1, int(most * share))
        self._exempt = exempt
        self._held: Counter[Source] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def acquire(self, address: str) -> Source | None:
        """Admit one more connection; returns the source to `release` it for, or None if there are too many."""
        if self._count >= self._most:
            return None
        source = source_of_address(address)
        if self._held[source] >= self._most_per_source and not self.is_exempt(address):
            return None
        self._held[source] += 1
        self._count += 1
        return source

    def release(self, source: Source) -> None:
        """Note that a connection of this source has closed."""
        self._count -= 1
        self._held[source] -= 1
        if not self._held[source]:
            del self._held[source]

    def is_exempt(self, address: str) -> bool:
        """Whether this is a trusted proxy's address."""
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._exempt)


@dataclass(frozen=True, slots=True)
class ConnectionCaps:
    """Most connections of each port of a process."""

    data: int
    """Limit of the HTTP port and, separately, of the gRPC port."""
    service: int
    """Limit of the admin port and, separately, of the metrics port."""


def descriptors_wanted(caps: ConnectionCaps, upstream: int) -> int:
    """The file descriptors that are needed if all ports are full at once; `upstream` counts connections to
    Tritons."""
    return _FOR_THE_REST + upstream + 2 * (caps.data + caps.service)


def fit(caps: ConnectionCaps, *, upstream: int, descriptors: int) -> ConnectionCaps:
    """Reduce `caps` to what so many file descriptors allow; each port keeps its own limit, so a flood of one
    spares the others.

    If the descriptors do not suffice, the service ports together get an eighth of them, connections to Triton
    a quarter, and the data ports the rest.
    """
    if descriptors_wanted(caps, upstream) <= descriptors:
        return caps
    free = descriptors - min(_FOR_THE_REST, descriptors // 4)
    service = max(1, min(caps.service, free // 16))
    data = (free - 2 * service - min(upstream, free // 4)) // 2
    return ConnectionCaps(data=max(1, min(caps.data, data)), service=service)

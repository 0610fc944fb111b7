"""Ports of the other regions: the client of one region's gateway."""

from __future__ import annotations

from typing import Protocol

from control_plane.triton.ports import RegionUpstream


class RegionLink(RegionUpstream, Protocol):
    """Client of another region's gateway: requests, and probes over a connection of their own."""

    async def probe(self, *, timeout_s: float) -> None:
        """Return once the gateway has said that it can serve requests.

        Raises UpstreamUnavailable: it cannot, or cannot be reached; DeadlineExceeded: it says nothing.
        """

    async def close(self) -> None: ...

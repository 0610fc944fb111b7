"""`fleet/ports.LeaseStore` of a fleet that one process has to itself: no other process can be its leader, so
there is nothing to wait for.
"""

from __future__ import annotations

from control_plane.fleet.domain.leadership.lease import Lease


class LocalLease:
    """In-process lease store that grants every request, each time with a new token."""

    def __init__(self) -> None:
        self._token = 0

    async def read(self) -> Lease:
        """Return a released lease, which may be taken at once."""
        return Lease(self._token, "", 0.0, is_released=True)

    async def acquire(self, seen: Lease | None, *, holder: str, ttl_s: float) -> Lease:
        self._token += 1
        return Lease(self._token, holder, ttl_s)

    async def renew(self, lease: Lease) -> Lease:
        return lease

    async def resume(self, lease: Lease) -> None:
        """Never asked for: a lease that may be taken at once need not be resumed."""

    async def release(self, lease: Lease) -> None: ...

    async def close(self) -> None: ...

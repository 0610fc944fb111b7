"""Ports of admission: token buckets that processes share, and the board on which they tell each other their
demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from control_plane.admission.domain.demand import Exchange
from control_plane.admission.domain.rate_limit import Draw, RateLimit


class DemandBoard(Protocol):
    """Board on which the processes that share tenants' limits publish their demand; its contents are
    ephemeral.
    """

    async def exchange(self, process: str, demand: Mapping[str, float]) -> Exchange:
        """Publish this process's demand in requests per second by tenant, replacing its last, and return the
        sum over all.

        A process that has not exchanged for `LIVE_S` is no longer counted; `process` is a name that no other
        has. Raises StoreUnavailable.
        """

    async def leave(self, process: str) -> None:
        """Withdraw this process's demand at once; idempotent. Raises StoreUnavailable."""

    async def close(self) -> None: ...


class TokenBuckets(Protocol):
    """Shared token buckets, one per tenant; a bucket is stored only until it is full again."""

    async def draw(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Draw:
        """Draw tokens from the tenant's bucket, as `admission/domain/rate_limit.draw` does. Raises
        StoreUnavailable.
        """

    async def close(self) -> None: ...

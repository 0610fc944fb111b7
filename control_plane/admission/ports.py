"""What admission needs of others: shared buckets, and what other gateways want."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from control_plane.admission.domain.demand import Exchange
from control_plane.admission.domain.rate_limit import Drawn, RateLimit


class DemandBoard(Protocol):
    """Where processes that share tenants' limits tell each other what is asked of them; nothing of it lasts."""

    async def exchange(self, process: str, demand: Mapping[str, float]) -> Exchange:
        """Tell this process's demand, in place of what it told before, and hear that of all. Raises StoreUnavailable.

        A process that has not exchanged for `LIVE_S` counts no longer; `process` is a name that no other has.
        """

    async def leave(self, process: str) -> None:
        """It counts no longer; idempotent. Raises StoreUnavailable."""

    async def close(self) -> None: ...


class TokenBuckets(Protocol):
    """Tenants' token buckets, which several processes draw from; nothing of it lasts longer than a bucket takes to fill."""

    async def draw(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Drawn:
        """As `admission/domain/rate_limit.draw`, of the tenant's one bucket. Raises StoreUnavailable."""

    async def close(self) -> None: ...

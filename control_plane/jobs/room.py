"""Room for jobs: refuses what is more than a tenant, or all tenants together, may have open. Used by `jobs/jobs`.

The store has the last word when a record is added; what is here refuses a large body before it is read, and while it arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable

from control_plane.core.errors import LimitExceeded
from control_plane.jobs.domain.drain_rate import DrainRate
from control_plane.jobs.ports import Bounds, JobStore, JobTotals
from control_plane.protocols.http1 import BodyPieces


class JobRoom:
    """Bound on the open jobs and the bytes of their bodies, as one process holds its callers to it."""

    def __init__(self, store: JobStore, bounds: Bounds, *, today_s: Callable[[], float]) -> None:
        """`today_s` is seconds since 1970."""
        self._store = store
        self._bounds = bounds
        self._today_s = today_s
        self._drains = DrainRate()
        self._arriving: Counter[str] = Counter()
        """Bytes of each tenant's large bodies that are being received."""
        self.processes: Callable[[], int] = lambda: 1
        """Says how many processes accept jobs to the same store, this one included."""

    async def require(self, tenant: str, size_bytes: int) -> None:
        """Refuse a job with so many bytes that has no room beside what is open. Raises LimitExceeded."""
        self._check(tenant, await self._store.load(tenant), size_bytes)

    async def bounded(
        self, tenant: str, beginning: bytes | bytearray, rest: BodyPieces, *, is_known: bool
    ) -> AsyncGenerator[bytes | bytearray, None]:
        """Yield a large body as far as the tenant has room for it beside its others, or whole if its job `is_known`. Raises
        LimitExceeded."""
        piece: bytes | bytearray | None = beginning
        own_bytes, loads = 0, await self._store.load(tenant)
        try:
            while piece is not None:
                own_bytes += len(piece)
                self._arriving[tenant] += len(piece)
                if not is_known:
                    self._check(tenant, loads, self._arriving[tenant])
                yield piece
                piece = await rest.receive()
        finally:
            self._arriving[tenant] -= own_bytes
            if not self._arriving[tenant]:
                del self._arriving[tenant]

    def full(self, tenant: str, load: JobTotals, *, of_tenant: bool) -> LimitExceeded:
        """Return the refusal of a job for which there is no room, by the tenant's bound or that of all."""
        whose = "this tenant has" if of_tenant else "there are"
        retry_after_s = self._drains.promise(
            tenant if of_tenant else None, ended=load.ended, now_s=self._today_s(), processes=self.processes()
        )
        return LimitExceeded(
            f"{whose} {load.jobs} open jobs with {load.size_bytes} bytes, as many as may be; try again when some have ended",
            retry_after_s=retry_after_s,
        )

    def _check(self, tenant: str, loads: tuple[JobTotals, JobTotals], size_bytes: int) -> None:
        own, everybody = loads
        for load, bound, is_tenants in ((own, self._bounds.of_tenant, True), (everybody, self._bounds.in_all, False)):
            if load.jobs >= bound.jobs or load.size_bytes + size_bytes > bound.size_bytes:
                raise self.full(tenant, load, of_tenant=is_tenants)

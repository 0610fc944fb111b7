"""Removes from the spool what an ended job no longer needs, some time after its end.

Not at once: a store of jobs that is set back, by a power cut, a failover or a restored copy, has jobs as queued that had
ended since, and their bodies are needed once more. What a process that ends leaves is removed with the jobs' records.
Used by `jobs/runner` and `batches/closing`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.ports import Spool

_log = logging.getLogger(__name__)

BODY_KEPT_S = 600.0
"""Seconds for which a body stays after the end of its job, ..."""
MOST_KEPT_BYTES = 2**30
"""... and most bytes of one tenant's bodies that do: they count as open no more, and a tenant whose jobs fail at once would fill
the disk with them."""
_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class _Ended:
    """A job that has ended, and what of it stays."""

    at_s: float
    job_id: str
    keep: str
    size_bytes: int


class Pruner:
    """Queues of ended jobs, one for each tenant, in the order of their ends; `run` prunes those whose time has come."""

    def __init__(self, spool: Spool, *, today_s: Callable[[], float]) -> None:
        """`today_s` is seconds since 1970."""
        self._spool = spool
        self._today_s = today_s
        self._ended: dict[str, deque[_Ended]] = {}
        self._bytes: Counter[str] = Counter()

    def put(self, job_id: str, *, tenant: str, keep: str, size_bytes: int) -> None:
        """Have a job's files removed later, which have `size_bytes`, but not the one of the blob `keep`."""
        self._ended.setdefault(tenant, deque()).append(_Ended(self._today_s(), job_id, keep, size_bytes))
        self._bytes[tenant] += size_bytes

    async def run(self) -> None:
        """Prune, through outages, until cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            try:
                await self.prune()
            except StoreUnavailable as exc:
                _log.warning("bodies of ended jobs stay for now: %s", exc)

    async def prune(self) -> None:
        """Prune the jobs whose time has come, those that ended before the clock was set back by as much, and the oldest of
        a tenant who has too many bytes. Raises StoreUnavailable.
        """
        for tenant, ended in list(self._ended.items()):
            while ended and (self._bytes[tenant] > MOST_KEPT_BYTES or abs(self._today_s() - ended[0].at_s) >= BODY_KEPT_S):
                await self._spool.prune(ended[0].job_id, keep=ended[0].keep)
                self._bytes[tenant] -= ended.popleft().size_bytes
            if not ended:
                del self._ended[tenant], self._bytes[tenant]

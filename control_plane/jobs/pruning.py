"""Removes from the spool what an ended job no longer needs, some time after its end.

Not at once: a store of jobs that is set back, by a power cut, a failover or a restored copy, has jobs as queued that had
ended since, and their bodies are needed once more. What a process that ends leaves is removed with the jobs' records.
Used by `jobs/runner` and `batches/closing`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.ports import Spool

_log = logging.getLogger(__name__)

BODY_KEPT_S = 600.0
"""Seconds for which a body stays after the end of its job. Results stay for a day, so this is little room beside them."""
_PERIOD_S = 1.0


class Pruner:
    """Queue of ended jobs in the order of their ends; `run` prunes those whose time has come."""

    def __init__(self, spool: Spool, *, today_s: Callable[[], float]) -> None:
        """`today_s` is seconds since 1970."""
        self._spool = spool
        self._today_s = today_s
        self._ended: deque[tuple[float, str, str]] = deque()

    def put(self, job_id: str, *, keep: str) -> None:
        """Have a job's files removed later, but not the one of the blob `keep`."""
        self._ended.append((self._today_s(), job_id, keep))

    async def run(self) -> None:
        """Prune, through outages, until cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            try:
                await self.prune()
            except StoreUnavailable as exc:
                _log.warning("bodies of ended jobs stay for now: %s", exc)

    async def prune(self) -> None:
        """Prune the jobs whose time has come, and those that ended before the clock was set back by as much. Raises
        StoreUnavailable.
        """
        while self._ended and abs(self._today_s() - self._ended[0][0]) >= BODY_KEPT_S:
            _, job_id, keep = self._ended[0]
            await self._spool.prune(job_id, keep=keep)
            self._ended.popleft()

"""What waits, runs, or is dead of the jobs that all gateways share, for the metrics page of one of them."""

from __future__ import annotations

import asyncio
import logging

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.ports import Backlog, JobStore

_log = logging.getLogger(__name__)

_TIMEOUT_S = 1.0
"""Prometheus waits 10 s for the whole page, unless it is told otherwise."""


class BacklogReader:
    """Reader of the backlog in a store, with what it read last."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self.latest: Backlog | None = None
        """None: the store could not be reached when it was last asked."""

    async def read(self) -> None:
        """Ask the store, for a second at most."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                self.latest = await self._store.backlog()
        except (StoreUnavailable, TimeoutError) as exc:
            self.latest = None
            _log.debug("the backlog of jobs is missing from the metrics: %s", str(exc) or "the store did not answer")

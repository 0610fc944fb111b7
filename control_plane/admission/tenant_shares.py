"""Exchange of demand among processes, by which each knows its share of every tenant's limits
(`admission/domain/shares`).

Shares apply to concurrency limits and daily quotas, and to rates while the shared token buckets do not answer
(`admission/rate_leases`). While the demand board is away the last shares stay in force. Run by `app/`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from control_plane.admission.admission import Admission
from control_plane.admission.domain.shares import recent_demand, share
from control_plane.admission.ports import DemandBoard
from control_plane.core.errors import StoreUnavailable

_log = logging.getLogger(__name__)

_EVERY_S = 1.0
"""Seconds between exchanges. After a change of demand tenants' limits may be off by about the requests of
this time.
"""


class TenantShares:
    """Background task that keeps this process's shares of tenants' limits up to date."""

    def __init__(self, board: DemandBoard, admission: Admission, process_id: str) -> None:
        self._board = board
        self._admission = admission
        self._process_id = process_id
        self._demand: dict[str, float] = {}
        self._counted_s = 0.0
        self._is_away = False

    async def start(self) -> None:
        """Exchange for the first time, before the first request is admitted. Raises StoreUnavailable."""
        self._counted_s = asyncio.get_running_loop().time()
        await self._exchange()

    async def run(self) -> None:
        """Exchange demand every second until cancelled, also through outages of the board."""
        while True:
            await asyncio.sleep(_EVERY_S)
            self._count()
            try:
                await self._exchange()
            except StoreUnavailable as exc:
                if not self._is_away:
                    _log.warning("what tenants ask of other processes is not known; their limits are shared as before: %s", exc)
                self._is_away = True

    async def stop(self) -> None:
        """Leave the board, so that the other processes take over this one's shares at once.

        If the board is away they do so `LIVE_S` after this process's last exchange.
        """
        with suppress(StoreUnavailable):
            await self._board.leave(self._process_id)

    def _count(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._demand = recent_demand(self._demand, self._admission.drain_demand(), now_s - self._counted_s)
        self._counted_s = now_s

    async def _exchange(self) -> None:
        own = self._demand
        found = await self._board.exchange(self._process_id, own)
        self._is_away = False
        shares = {tenant: share(own.get(tenant, 0.0), total, found.processes) for tenant, total in found.demand.items()}
        self._admission.set_shares(shares, other=share(0, 0, found.processes), processes=found.processes)

"""Exchange of demand among processes, by which each knows its share of every tenant's limits
(`admission/domain/shares`).

Shares apply to concurrency limits and daily quotas, and to rates while the shared token buckets do not answer
(`admission/rate_leases`). While the demand board is away the last shares stay in force. Run by `app/`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress

from control_plane.admission.admission import Admission
from control_plane.admission.domain.demand import Exchange
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
        self._admission.set_shares(_Shares(own, found), other=share(0, 0, found.processes), processes=found.processes)


class _Shares(Mapping[str, float]):
    """Shares of one process in tenants' limits, by tenant, each computed when it is looked up: of 10,000 tenants few are in a
    second."""

    def __init__(self, own: Mapping[str, float], found: Exchange) -> None:
        """`own` is the process's demand, `found` that of all of them."""
        self._own = own
        self._found = found

    def __getitem__(self, tenant: str) -> float:
        return share(self._own.get(tenant, 0.0), self._found.demand[tenant], self._found.processes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found.demand)

    def __len__(self) -> int:
        return len(self._found.demand)

"""A tenant's limits over all processes together: each enforces a part, in proportion to what it is asked (`admission/domain/shares`).

Of rates that is what holds while their buckets are silent (`admission/rate_leases`). While the board is away the last parts stay in force.
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
"""What tenants' limits may be off by, for a change of demand, is about as much as comes in this time."""


class TenantShares:
    """The parts of tenants' limits that this process enforces."""

    def __init__(self, board: DemandBoard, admission: Admission, process_id: str) -> None:
        self._board = board
        self._admission = admission
        self._process_id = process_id
        self._demand: dict[str, float] = {}
        self._counted_s = 0.0
        self._is_away = False

    async def start(self) -> None:
        """Take part, before the first request. Raises StoreUnavailable."""
        self._counted_s = asyncio.get_running_loop().time()
        await self._exchange()

    async def run(self) -> None:
        """Follow the demand until cancelled, also through the board's outages."""
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
        """Leave its part to the others at once; without the board they take it when they hear no more of this process."""
        with suppress(StoreUnavailable):
            await self._board.leave(self._process_id)

    def _count(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._demand = recent_demand(self._demand, self._admission.take_demand(), now_s - self._counted_s)
        self._counted_s = now_s

    async def _exchange(self) -> None:
        own = self._demand
        found = await self._board.exchange(self._process_id, own)
        self._is_away = False
        shares = {tenant: share(own.get(tenant, 0.0), total, found.processes) for tenant, total in found.demand.items()}
        self._admission.set_shares(shares, other=share(0, 0, found.processes), processes=found.processes)

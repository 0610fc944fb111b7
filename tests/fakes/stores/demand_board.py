from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.admission.domain.demand import LIVE_S, Exchange, exchange_of
from control_plane.core.errors import StoreUnavailable


@dataclass
class FakeDemand:
    """The shared record of demand: process -> (when it told, on the loop's clock; its demand). Several
    `FakeDemandBoard`s may share one."""

    told: dict[str, tuple[float, Mapping[str, float]]] = field(default_factory=dict)


@dataclass
class FakeDemandBoard:
    """In-memory `admission/ports.DemandBoard`; while it `is_away` every call raises StoreUnavailable."""

    demand: FakeDemand = field(default_factory=FakeDemand)
    is_away: bool = False

    async def exchange(self, process: str, demand: Mapping[str, float]) -> Exchange:
        self._reach()
        now_s = asyncio.get_running_loop().time()
        told = self.demand.told
        told[process] = (now_s, dict(demand))
        self.demand.told = {name: entry for name, entry in told.items() if now_s - entry[0] <= LIVE_S}
        return exchange_of([demand for _, demand in self.demand.told.values()])

    async def leave(self, process: str) -> None:
        self._reach()
        self.demand.told.pop(process, None)

    async def close(self) -> None:
        pass

    def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the board is away")

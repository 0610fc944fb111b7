from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from control_plane.core.errors import StoreUnavailable
from control_plane.fleet.domain.leadership.report import LoadReport


@dataclass
class FakeLeaderChannel:
    """In-memory `fleet/ports.LeaderChannel`; while it `is_away` every call raises StoreUnavailable."""

    told: list[LoadReport] = field(default_factory=list)
    is_away: bool = False
    all_told: list[LoadReport] = field(default_factory=list)
    """All reports sent, whether or not they have been taken."""

    async def report(self, report: LoadReport) -> None:
        self._reach()
        self.told.append(report)
        self.all_told.append(report)

    async def receive(self, *, timeout_s: float) -> list[LoadReport]:
        self._reach()
        ends_s = asyncio.get_running_loop().time() + timeout_s
        while not self.told and asyncio.get_running_loop().time() < ends_s:
            await asyncio.sleep(0.01)
        found, self.told = self.told, []
        return found

    async def close(self) -> None: ...

    def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")

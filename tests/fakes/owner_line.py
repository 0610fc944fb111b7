from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from control_plane.domain.errors import StoreUnavailable


@dataclass
class FakeOwnerLine:
    """`ports.OwnerLine` in memory; while it `is_away` it cannot be reached."""

    asked: list[str] = field(default_factory=list)
    is_away: bool = False

    async def ask(self, models: Iterable[str]) -> None:
        self._reach()
        self.asked += models

    async def take(self, *, timeout_s: float) -> list[str]:
        self._reach()
        ends_s = asyncio.get_running_loop().time() + timeout_s
        while not self.asked and asyncio.get_running_loop().time() < ends_s:
            await asyncio.sleep(0.01)
        found, self.asked = self.asked, []
        return list(dict.fromkeys(found))

    async def close(self) -> None: ...

    def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")

"""Fake slot of a request at its model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass
class FakeSlot:
    """`triton/ports.Slot` that counts who keeps it."""

    expected_s: float = 0.0
    is_superfluous: bool = False
    tells_time_left: bool = False
    kept: int = 0
    was_kept: asyncio.Event = field(default_factory=asyncio.Event)
    free: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it was let go."""

    def keep(self) -> None:
        self.kept += 1
        self.was_kept.set()

    def let_go(self) -> None:
        assert self.kept, "it was let go before"
        self.kept -= 1
        self.free.set()

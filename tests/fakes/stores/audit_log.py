from __future__ import annotations

from dataclasses import dataclass, field

from control_plane.audit.domain.entry import Change, Entry, sealed
from control_plane.core.errors import StoreUnavailable


@dataclass
class FakeAuditLog:
    """In-memory `audit/ports.AuditLog`; while it `is_away` every call raises StoreUnavailable."""

    entries: list[Entry] = field(default_factory=list)
    is_away: bool = False
    kept: int | None = None
    """How many of the newest are shown; None: all."""

    async def append(self, change: Change) -> Entry:
        self._reach()
        self.entries.append(sealed(self.entries[-1] if self.entries else None, change, at_s=1_800_000_000.5))
        return self.entries[-1]

    async def page(self, after: int, *, limit: int) -> list[Entry]:
        self._reach()
        first = max(after, len(self.entries) - self.kept) if self.kept is not None else after
        return self.entries[first : first + limit]

    async def newest(self) -> int:
        self._reach()
        return len(self.entries)

    async def close(self) -> None:
        pass

    def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the disk is full", is_full=True)

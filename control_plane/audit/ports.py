"""Port of the audit log's store."""

from __future__ import annotations

from typing import Protocol

from control_plane.audit.domain.entry import Change, Entry


class AuditLog(Protocol):
    """Append-only log of changes, chained by hashes, which several processes may write to. It may keep only the newest.

    Each method raises StoreUnavailable if the store cannot be reached or written to.
    """

    async def append(self, change: Change) -> Entry:
        """Append an entry; it is durable when this returns."""

    async def page(self, after: int, *, limit: int) -> list[Entry]:
        """Return up to `limit` entries with numbers above `after`, oldest first."""

    async def newest(self) -> int:
        """Return the number of the newest entry, 0 if there is none."""

    async def close(self) -> None: ...

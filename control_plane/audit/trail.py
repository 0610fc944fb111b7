"""Audit trail: writes what is about to be changed before it is changed, and refuses the change where it cannot.

A change whose entry is in the log was made, unless an entry `failed` follows it; if the gateway died in between,
neither is certain, and the objects themselves tell.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from control_plane.audit.domain.entry import FAILED, Actor, change_of
from control_plane.audit.ports import AuditLog
from control_plane.core.errors import ControlPlaneError, StoreUnavailable

_log = logging.getLogger(__name__)
_MAX_TOLD_CHARS = 300


class AuditTrail:
    """Audit trail over an `AuditLog`."""

    def __init__(self, log: AuditLog) -> None:
        self.log = log

    @asynccontextmanager
    async def recorded(
        self,
        actor: Actor,
        action: str,
        kind: str,
        name: str,
        *,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[None]:
        """Write an entry, then run the block, which makes the change; if it fails, say so in another entry.

        Raises StoreUnavailable, before the block, if the entry cannot be written: a change that nobody could trace is
        not made.
        """
        try:
            entry = await self.log.append(change_of(actor, action, kind, name, before=before, after=after))
        except StoreUnavailable as exc:
            raise StoreUnavailable(f"nothing was changed, since the audit log cannot be written: {exc}", is_full=exc.is_full) from exc
        try:
            yield
        except ControlPlaneError as exc:
            told = {"error": str(exc)[:_MAX_TOLD_CHARS], "code": exc.code.value}
            try:
                await self.log.append(change_of(actor, FAILED, kind, name, after=told, of=entry.number))
            except StoreUnavailable as unwritten:
                _log.error("the audit log cannot say that change %d failed: %s", entry.number, unwritten)
            raise

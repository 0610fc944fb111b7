"""Opens the stores that calls of the admin API need, and closes them: the audit log, and the records of idempotency keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from control_plane.admin.idempotency.ports import IdempotencyRecords
from control_plane.app.stores import open_audit_log, open_idempotency_records
from control_plane.audit.ports import AuditLog
from control_plane.core.errors import StartupError, StoreUnavailable
from control_plane.settings import Settings


@asynccontextmanager
async def opened_audit_log(settings: Settings) -> AsyncIterator[AuditLog]:
    """Open the audit log. Raises StartupError: nothing could be changed without it."""
    try:
        state = settings.state
        log = await open_audit_log(state.state_url, settings.process.state_dir, keep=state.audit_keep_entries)
    except StoreUnavailable as exc:
        raise StartupError(f"the audit log cannot be reached, so nothing could be changed: {exc}") from exc
    try:
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def opened_idempotency_records(settings: Settings) -> AsyncIterator[IdempotencyRecords]:
    """Open the records of requests with idempotency keys. Raises StartupError."""
    records = await open_idempotency_records(settings.state.state_url, settings.process.state_dir)
    try:
        yield records
    finally:
        await records.close()

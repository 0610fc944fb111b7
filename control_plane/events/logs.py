"""Logs of events: usage records and the audit log, each event encoded as it is published."""

from __future__ import annotations

from control_plane.audit.ports import AuditLog
from control_plane.events.domain.cloud_event import audit_event, usage_event
from control_plane.events.ports import LoggedEvent
from control_plane.metering.ports import UsageStore


class UsageRecords:
    """Usage as a `NumberedLog`: each sum that is added to the store is an event."""

    def __init__(self, store: UsageStore, source: str) -> None:
        self._store = store
        self._source = source

    async def page(self, after: int, *, limit: int) -> list[LoggedEvent]:
        found = await self._store.recorded(after, limit=limit)
        return [LoggedEvent(record.number, record.id, usage_event(record, source=self._source)) for record in found]

    async def newest(self) -> int:
        return await self._store.newest_record()


class AuditEntries:
    """The audit log as a `NumberedLog`."""

    def __init__(self, log: AuditLog, source: str) -> None:
        self._log = log
        self._source = source

    async def page(self, after: int, *, limit: int) -> list[LoggedEvent]:
        found = await self._log.page(after, limit=limit)
        return [LoggedEvent(entry.number, entry.hash, audit_event(entry, source=self._source)) for entry in found]

    async def newest(self) -> int:
        return await self._log.newest()

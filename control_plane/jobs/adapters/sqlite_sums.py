"""Sums of each tenant's jobs in the SQLite file of jobs, which bounds and retention look at; used by `sqlite_jobs`."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import replace

from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.ports import Load

_READ = "SELECT ifnull(sum(jobs), 0), ifnull(sum(size_bytes), 0), ifnull(sum(ended), 0) FROM tenants"
_ADD = (
    "INSERT INTO tenants (tenant, jobs, size_bytes, ended, kept, kept_bytes) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " jobs = jobs + excluded.jobs, size_bytes = size_bytes + excluded.size_bytes, ended = ended + excluded.ended,"
    " kept = kept + excluded.kept, kept_bytes = kept_bytes + excluded.kept_bytes"
)
_NAMES = ("jobs", "size_bytes", "ended", "kept", "kept_bytes")


class TenantSums:
    """Sums of each tenant within one transaction that changes several jobs: read once, and written once, by `write`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._read: dict[str | None, Load] = {}
        self._changes: dict[str, Counter[str]] = {}

    def load(self, tenant: str) -> tuple[Load, Load]:
        """Return what the tenant has open, and what all have, with what was noted."""
        everybody = sum(self._changes.values(), Counter[str]())
        return self._load(tenant, self._changes.get(tenant)), self._load(None, everybody)

    def note(self, before: Job | None, after: Job | None) -> None:
        """Note that a job was added, changed or removed."""
        job = after or before
        assert job is not None
        opened = int(after is not None and after.is_open) - int(before is not None and before.is_open)
        kept = tuple(new - old for new, old in zip(after.kept if after else (0, 0), before.kept if before else (0, 0), strict=True))
        values = (opened, opened * job.body.size_bytes, max(0, -opened), *kept)
        if opened or any(kept):
            changes = self._changes.setdefault(job.tenant, Counter())
            for name, value in zip(_NAMES, values, strict=True):
                changes[name] += value

    def note_state(self, before: JobState, after: Job) -> None:
        """Note that a job was in another state, with which alone these sums change."""
        was_open = before in (JobState.QUEUED, JobState.RUNNING)
        if before is after.state or (was_open and after.is_open):
            return
        self.note(replace(after, state=before), after)

    def write(self) -> None:
        """Bring the sums up to date with what was noted."""
        rows = [(tenant, *(changes[name] for name in _NAMES)) for tenant, changes in self._changes.items()]
        self._connection.executemany(_ADD, rows)
        self._changes.clear()

    def _load(self, tenant: str | None, changes: Counter[str] | None) -> Load:
        """Return what is open of a tenant, or of all."""
        read = self._read.get(tenant)
        if read is None:
            read = self._read[tenant] = read_load(self._connection, tenant)
        if not changes:
            return read
        return Load(read.jobs + changes["jobs"], read.size_bytes + changes["size_bytes"], read.ended + changes["ended"])


def read_load(connection: sqlite3.Connection, tenant: str | None) -> Load:
    """Return what is open of a tenant, or of all."""
    where, values = ("", ()) if tenant is None else (" WHERE tenant = ?", (tenant,))
    return Load(*connection.execute(_READ + where, values).fetchone())

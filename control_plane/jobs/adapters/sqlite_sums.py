"""Sums of each tenant's jobs in the SQLite file of jobs, which bounds and retention look at; used by `sqlite_jobs`."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from operator import add

from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.ports import JobTotals

_READ = "SELECT ifnull(sum(jobs), 0), ifnull(sum(size_bytes), 0), ifnull(sum(ended), 0) FROM tenants"
_ADD = (
    "INSERT INTO tenants (tenant, jobs, size_bytes, ended, kept, kept_bytes) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " jobs = jobs + excluded.jobs, size_bytes = size_bytes + excluded.size_bytes, ended = ended + excluded.ended,"
    " kept = kept + excluded.kept, kept_bytes = kept_bytes + excluded.kept_bytes"
)


class TenantSums:
    """Sums of each tenant within one transaction that changes several jobs: read once, and written once, by `write`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._read: dict[str | None, JobTotals] = {}
        self._changes: dict[str | None, tuple[int, ...]] = {}
        """Changes of the sums that were noted, by tenant; under None those of all tenants together."""

    def load(self, tenant: str) -> tuple[JobTotals, JobTotals]:
        """Return what the tenant has open, and what all have, with what was noted."""
        return self._load(tenant), self._load(None)

    def note(self, before: Job | None, after: Job | None) -> None:
        """Note that a job was added, changed or removed."""
        job = after or before
        assert job is not None
        opened = int(after is not None and after.is_open) - int(before is not None and before.is_open)
        (kept, kept_bytes), (were_kept, were_kept_bytes) = (each.kept if each else (0, 0) for each in (after, before))
        self._note(job, opened, kept - were_kept, kept_bytes - were_kept_bytes)

    def note_state(self, before: JobState, after: Job) -> None:
        """Note that a job was in another state, with which alone these sums change."""
        was_open = before in (JobState.QUEUED, JobState.RUNNING)
        if before is after.state or (was_open and after.is_open):
            return
        if was_open:
            self._note(after, -1, *after.kept)
        else:
            self.note(replace(after, state=before), after)

    def write(self) -> None:
        """Bring the sums up to date with what was noted."""
        self._connection.executemany(_ADD, [(tenant, *sums) for tenant, sums in self._changes.items() if tenant is not None])
        self._changes.clear()

    def _note(self, job: Job, opened: int, kept: int, kept_bytes: int) -> None:
        if not (opened or kept or kept_bytes):
            return
        amounts = opened, opened * job.body.size_bytes, max(0, -opened), kept, kept_bytes
        for tenant in (job.tenant, None):
            sums = self._changes.get(tenant)
            self._changes[tenant] = amounts if sums is None else tuple(map(add, sums, amounts))

    def _load(self, tenant: str | None) -> JobTotals:
        read = self._read.get(tenant)
        if read is None:
            read = self._read[tenant] = read_load(self._connection, tenant)
        changes = self._changes.get(tenant)
        return read if changes is None else JobTotals(read.jobs + changes[0], read.size_bytes + changes[1], read.ended + changes[2])


def read_load(connection: sqlite3.Connection, tenant: str | None) -> JobTotals:
    """Return what is open of a tenant, or of all."""
    where, values = ("", ()) if tenant is None else (" WHERE tenant = ?", (tenant,))
    return JobTotals(*connection.execute(_READ + where, values).fetchone())

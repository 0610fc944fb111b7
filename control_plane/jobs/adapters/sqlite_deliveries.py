"""Index of deliveries in the SQLite file of jobs; implements `jobs/ports.DeliveryIndex`.

`sqlite_jobs` keeps it in step, in the transactions that change the records.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial

from control_plane.jobs.domain.job import Job
from control_plane.storage.sqlite import SqliteFile, transaction

LAYOUT = (
    "CREATE TABLE deliveries (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, due_s REAL NOT NULL) WITHOUT ROWID",
    "CREATE INDEX deliveries_of_tenant ON deliveries (tenant, due_s)",
    "CREATE TABLE ended_receivers (tenant TEXT, url TEXT, until_s REAL NOT NULL, PRIMARY KEY (tenant, url)) WITHOUT ROWID",
)
"""Statements that make its tables."""

_TENANTS = (  # from one to the next: DISTINCT looks at each of the 100,000 deliveries that a tenant may have, at every look
    "WITH RECURSIVE found (tenant) AS (SELECT min(tenant) FROM deliveries UNION ALL SELECT (SELECT min(tenant) FROM deliveries"
    " WHERE tenant > found.tenant) FROM found WHERE found.tenant IS NOT NULL) SELECT tenant FROM found WHERE tenant IS NOT NULL"
)


class SqliteDeliveries:
    """Index of deliveries in an SQLite file."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def due(self, now_s: float, *, of_tenant: int) -> Mapping[str, Sequence[str]]:
        return await self._file.run(partial(_due, now_s=now_s, of_tenant=of_tenant))

    async def end(self, tenant: str, url: str, *, now_s: float, until_s: float) -> None:
        def write(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute("DELETE FROM ended_receivers WHERE until_s <= ?", (now_s,))
                connection.execute("INSERT OR REPLACE INTO ended_receivers VALUES (?, ?, ?)", (tenant, url, until_s))

        await self._file.run(write)

    async def has_ended(self, tenant: str, url: str, *, now_s: float) -> bool:
        query = "SELECT 1 FROM ended_receivers WHERE tenant = ? AND url = ? AND until_s > ?"
        return await self._file.run(lambda connection: connection.execute(query, (tenant, url, now_s)).fetchone() is not None)


def note_delivery(connection: sqlite3.Connection, job_id: str, job: Job | None) -> None:
    """Bring the index up to date with a job's record; None: it is removed."""
    if job is not None and job.due is not None:
        row = (job_id, job.tenant, job.due[1].due_s)
        connection.execute("INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?)", row)
    else:
        connection.execute("DELETE FROM deliveries WHERE id = ?", (job_id,))


def _due(connection: sqlite3.Connection, *, now_s: float, of_tenant: int) -> Mapping[str, Sequence[str]]:
    query = "SELECT id FROM deliveries WHERE tenant = ? AND due_s <= ? ORDER BY due_s LIMIT ?"
    tenants = [tenant for (tenant,) in connection.execute(_TENANTS)]
    found = {tenant: [job_id for (job_id,) in connection.execute(query, (tenant, now_s, of_tenant))] for tenant in tenants}
    return {tenant: ids for tenant, ids in found.items() if ids}

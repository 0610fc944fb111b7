"""Job store in an SQLite file; implements `jobs/ports.JobStore` for one gateway and its workers.

A row holds the record as JSON, with a small body or result in it, and in columns what it is found by. So one flush to
disk accepts a job, and one ends it. A table of tenants keeps their sums, in the same transactions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from control_plane.jobs.adapters.sqlite_deliveries import LAYOUT, SqliteDeliveries, note_delivery
from control_plane.jobs.adapters.sqlite_sums import TenantSums, read_load
from control_plane.jobs.domain.claims import HEADS, TenantQueue, WaitingJob
from control_plane.jobs.domain.job import Job, JobState, PriceClass
from control_plane.jobs.domain.job_text import decode_job, encode_job
from control_plane.jobs.domain.sweeps import surplus
from control_plane.jobs.domain.transitions import WrongState
from control_plane.jobs.ports import MOST_PLACES, Backlog, Bounds, DeliveryIndex, JobsFull, JobTotals
from control_plane.storage.sqlite import SqliteFile, open_sqlite, transaction

_MIGRATIONS = (
    (
        (
            "CREATE TABLE jobs (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, state TEXT NOT NULL, revision INTEGER NOT NULL,"
            " model TEXT NOT NULL, price_class TEXT NOT NULL, submitted_s REAL NOT NULL, due_s REAL NOT NULL, ready_s REAL NOT NULL,"
            " look_at_s REAL NOT NULL, idempotency_key TEXT, text TEXT NOT NULL) WITHOUT ROWID"
        ),
        "CREATE INDEX waiting_jobs ON jobs (tenant, due_s, id) WHERE state = 'queued'",
        "CREATE INDEX ready_jobs ON jobs (ready_s) WHERE state = 'queued'",
        "CREATE INDEX running_jobs ON jobs (tenant) WHERE state = 'running'",
        "CREATE INDEX jobs_to_look_at ON jobs (look_at_s)",
        "CREATE INDEX jobs_of_tenant ON jobs (tenant, submitted_s, id)",
        "CREATE INDEX jobs_in_state ON jobs (state, submitted_s, id)",
        "CREATE UNIQUE INDEX jobs_by_key ON jobs (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL",
        (
            "CREATE TABLE tenants (tenant TEXT PRIMARY KEY, jobs INTEGER NOT NULL, size_bytes INTEGER NOT NULL,"
            " ended INTEGER NOT NULL, last_claimed_s REAL NOT NULL DEFAULT 0) WITHOUT ROWID"
        ),
    ),
    (
        "ALTER TABLE tenants ADD COLUMN kept INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tenants ADD COLUMN kept_bytes INTEGER NOT NULL DEFAULT 0",
        (
            "UPDATE tenants SET (kept, kept_bytes) = (SELECT count(*), ifnull(sum(ifnull(json_extract(text, '$.result.blob.size_bytes'), 0)"
            " + iif(state = 'dead', json_extract(text, '$.body.size_bytes'), 0)), 0) FROM jobs WHERE jobs.tenant = tenants.tenant"
            " AND state NOT IN ('queued', 'running') AND ifnull(json_extract(text, '$.keep_at_least_until_s'), 0) = 0)"
        ),
    ),
    (  # by rowid: of a WITHOUT ROWID table what exceeds a quarter of a page is on pages of its own, and ids are random places
        "ALTER TABLE jobs RENAME TO jobs_by_id",
        (
            "CREATE TABLE jobs (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, state TEXT NOT NULL,"
            " revision INTEGER NOT NULL, model TEXT NOT NULL, price_class TEXT NOT NULL, submitted_s REAL NOT NULL, due_s REAL NOT NULL,"
            " ready_s REAL NOT NULL, look_at_s REAL NOT NULL, idempotency_key TEXT, text TEXT NOT NULL)"
        ),
        (
            "INSERT INTO jobs SELECT NULL, id, tenant, state, revision, model, price_class, submitted_s, due_s, ready_s, look_at_s,"
            " idempotency_key, text FROM jobs_by_id ORDER BY submitted_s, id"
        ),
        "DROP TABLE jobs_by_id",
        "CREATE INDEX waiting_jobs ON jobs (tenant, due_s, id) WHERE state = 'queued'",
        "CREATE INDEX ready_jobs ON jobs (ready_s) WHERE state = 'queued'",
        "CREATE INDEX running_jobs ON jobs (tenant) WHERE state = 'running'",
        "CREATE INDEX jobs_to_look_at ON jobs (look_at_s)",
        "CREATE INDEX jobs_of_tenant ON jobs (tenant, submitted_s, id)",
        "CREATE INDEX dead_jobs ON jobs (submitted_s, id) WHERE state = 'dead'",
        "CREATE UNIQUE INDEX jobs_by_key ON jobs (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL",
    ),
    LAYOUT,
    (  # without it a tenant that has kept 100,000 jobs looks at all of them for its failed ones, while others' wait
        (
            "CREATE INDEX unsuccessful_jobs ON jobs (tenant, state, submitted_s, id)"
            " WHERE state = 'failed' OR state = 'cancelled' OR state = 'expired' OR state = 'dead'"
        ),
    ),
)
_INSERT = "INSERT INTO jobs VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE = (
    "UPDATE jobs SET state = ?, revision = ?, due_s = ?, ready_s = ?, look_at_s = ?, text = ? WHERE id = ? AND revision = ? AND state = ?"
)
_CHARGED = (  # by SQLite: a record that is copied and encoded anew for one of its fields costs three times as much
    "UPDATE jobs SET revision = revision + 1, look_at_s = ?,"
    " text = json_set(text, '$.revision', revision + 1, '$.is_charged', json('true')) WHERE id = ? AND revision = ?"
)
_WAITING = (
    "SELECT id, model, due_s, price_class FROM jobs WHERE state = 'queued' AND tenant = ? AND ready_s <= ? ORDER BY due_s, id LIMIT ?"
)
_BACKLOG = (
    "SELECT (SELECT ifnull(sum(jobs), 0) FROM tenants), (SELECT count(*) FROM jobs WHERE state = 'running'),"
    " (SELECT count(*) FROM jobs INDEXED BY dead_jobs WHERE state = 'dead'),"
    " (SELECT submitted_s FROM jobs WHERE number = (SELECT min(number) FROM ("
    # The first in the order of their numbers, which no index has: of those never tried it is the first in the one by `ready_s`.
    "SELECT min(number) AS number FROM jobs INDEXED BY ready_jobs WHERE state = 'queued' AND ready_s = 0"
    " UNION ALL SELECT min(number) FROM jobs INDEXED BY ready_jobs WHERE state = 'queued' AND ready_s > 0)))"
)
_CARRIES_BYTES = 32_768
"""Beyond some pages of the file a file of its own costs less than what each change of the record copies."""
_FRESH, _FRESH_BYTES = 1024, 4096
"""Jobs that were added last and have small bodies are kept in memory until they are claimed, so many at most."""
_PATIENCE_S = 0.003
"""Time for which a change waits for others, which are flushed to disk with it: a flush costs as much CPU as a change, or more."""


class SqliteJobStore:
    """Job store in an SQLite file; `open_sqlite_jobs` opens it."""

    def __init__(self, file: SqliteFile, *, carries_bytes: int = _CARRIES_BYTES) -> None:
        self._file = file
        self.deliveries: DeliveryIndex = SqliteDeliveries(file)
        self.carries_bytes = carries_bytes
        self._fresh: dict[str, Job] = {}
        """Jobs that were added last, which are claimed without being read again; for the file's thread only."""
        self._add_all = partial(_add_all, fresh=self._fresh)

    async def add(self, job: Job, bounds: Bounds) -> Job:
        return await self._file.run_with_others(self._add_all, (job, bounds), patience_s=_PATIENCE_S)

    async def get(self, job_id: str) -> Job | None:
        return await self._file.run(partial(_get, job_id=job_id))

    async def knows_key(self, tenant: str, idempotency_key: str) -> bool:
        query = "SELECT 1 FROM jobs WHERE tenant = ? AND idempotency_key = ?"
        return await self._file.run(lambda connection: connection.execute(query, (tenant, idempotency_key)).fetchone() is not None)

    async def replace(self, job: Job) -> bool:
        return await self._file.run_with_others(_replace_all, job, patience_s=_PATIENCE_S)

    async def note_charged(self, jobs: Sequence[Job]) -> None:
        def note(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.executemany(_CHARGED, [(job.may_go_s, job.id, job.revision) for job in jobs])

        await self._file.run(note, patience_s=_PATIENCE_S)

    async def claim(self, ids: Sequence[str], step: Callable[[Job], Job], *, most: int) -> list[Job]:
        return await self._file.run(partial(_claim, ids=ids, step=step, most=most, fresh=self._fresh), patience_s=_PATIENCE_S)

    async def remove(self, job: Job) -> bool:
        return await self._file.run(partial(_remove, job=job))

    async def waiting(self, now_s: float, *, heads: int = HEADS) -> list[TenantQueue]:
        return await self._file.run(partial(_waiting, now_s=now_s, heads=heads))

    async def ready(self, now_s: float, *, limit: int) -> int:
        query = "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE state = 'queued' AND ready_s <= ? LIMIT ?)"
        return await self._file.run(lambda connection: int(connection.execute(query, (now_s, limit)).fetchone()[0]))

    async def neglected(self, now_s: float, *, limit: int) -> list[Job]:
        query = "SELECT text FROM jobs WHERE look_at_s <= ? ORDER BY look_at_s LIMIT ?"
        return await self._file.run(lambda connection: _jobs(connection.execute(query, (now_s, limit))))

    async def surplus(self, kept: JobTotals, *, limit: int) -> list[Job]:
        return await self._file.run(partial(_surplus, kept=kept, limit=limit))

    async def place(self, job: Job) -> int:
        query = "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE state = 'queued' AND tenant = ? AND (due_s, id) < (?, ?) LIMIT ?)"
        values = (job.tenant, *job.order, MOST_PLACES)
        return await self._file.run(lambda connection: int(connection.execute(query, values).fetchone()[0]))

    async def jobs_of(self, tenant: str | None, *, state: JobState | None, before: str, limit: int) -> list[Job]:
        return await self._file.run(partial(_jobs_of, tenant=tenant, state=state, before=before, limit=limit))

    async def load(self, tenant: str) -> tuple[JobTotals, JobTotals]:
        return await self._file.run(lambda connection: (read_load(connection, tenant), read_load(connection, None)))

    async def backlog(self) -> Backlog:
        open_, running, dead, oldest_s = await self._file.run(lambda connection: connection.execute(_BACKLOG).fetchone())
        return Backlog(open_ - running, running, dead, oldest_s)

    async def close(self) -> None:
        await self._file.close()


async def open_sqlite_jobs(path: Path, *, carries_bytes: int = _CARRIES_BYTES) -> SqliteJobStore:
    """Open the file, creating or migrating it. Raises StartupError."""
    return SqliteJobStore(await open_sqlite(path, _MIGRATIONS), carries_bytes=carries_bytes)


def _add_all(connection: sqlite3.Connection, given: Sequence[tuple[Job, Bounds]], *, fresh: dict[str, Job]) -> list[Job | Exception]:
    """Add jobs in one transaction: what is open is read once for all of them, and noted once."""
    with transaction(connection):
        sums = TenantSums(connection)
        added = [_add(connection, job, bounds, sums) for job, bounds in given]
        sums.write()
    fresh.update((job.id, job) for (job, _), held in zip(given, added, strict=True) if held is job and _is_small(job))
    while len(fresh) > _FRESH:
        del fresh[next(iter(fresh))]
    return added


def _is_small(job: Job) -> bool:
    return len(job.body.data or b"") <= _FRESH_BYTES


def _add(connection: sqlite3.Connection, job: Job, bounds: Bounds, sums: TenantSums) -> Job | Exception:
    key = job.idempotency_key or None
    query = "SELECT text FROM jobs WHERE tenant = ? AND idempotency_key = ?"
    if key is not None and (known := connection.execute(query, (job.tenant, key)).fetchone()) is not None:
        return decode_job(known[0])
    for load, bound, is_tenants in zip(sums.load(job.tenant), (bounds.of_tenant, bounds.in_all), (True, False), strict=True):
        if load.jobs + 1 > bound.jobs or load.size_bytes + job.body.size_bytes > bound.size_bytes:
            return JobsFull(of_tenant=is_tenants, load=load)
    try:
        text = encode_job(job).decode()
    except TypeError as exc:  # it alone is refused
        return exc
    row = (job.id, job.tenant, job.state, job.revision, job.model, job.price_class, job.submitted_s, job.due_s, job.ready_s)
    connection.execute(_INSERT, (*row, job.look_at_s, key, text))
    sums.note(None, job)
    return job


def _get(connection: sqlite3.Connection, *, job_id: str) -> Job | None:
    row = connection.execute("SELECT text FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return None if row is None else decode_job(row[0])


def _replace_all(connection: sqlite3.Connection, jobs: Sequence[Job]) -> list[bool | Exception]:
    """Replace each caller's record, all in one transaction: a savepoint for each would cost more than the change."""
    with transaction(connection):
        sums = TenantSums(connection)
        replaced = [_replace(connection, job, sums) for job in jobs]
        sums.write()
    return replaced


def _replace(connection: sqlite3.Connection, job: Job, sums: TenantSums) -> bool | Exception:
    try:
        text = encode_job(job).decode()
    except TypeError as exc:  # it alone stays as it is
        return exc
    before = job.state if job.is_charged else JobState.RUNNING  # as it mostly was, which saves looking
    if not _update(connection, before, job, text, sums):
        row = connection.execute("SELECT state FROM jobs WHERE id = ? AND revision = ?", (job.id, job.revision - 1)).fetchone()
        if row is None:
            return False
        before = JobState(row[0])
        _update(connection, before, job, text, sums)
    if before is not job.state is JobState.RUNNING:
        _note_claims(connection, (job,))
    return True


def _update(connection: sqlite3.Connection, before: JobState, job: Job, text: str, sums: TenantSums) -> bool:
    """Write the next version of a record, which was in the state `before`; False: it was not."""
    columns = (job.state, job.revision, job.due_s, job.ready_s, job.look_at_s, text)
    if connection.execute(_UPDATE, (*columns, job.id, job.revision - 1, before)).rowcount == 0:
        return False
    if job.has_deliveries:
        note_delivery(connection, job.id, job)
    sums.note_state(before, job)
    return True


def _claim(
    connection: sqlite3.Connection, *, ids: Sequence[str], step: Callable[[Job], Job], most: int, fresh: dict[str, Job]
) -> list[Job]:
    found: list[Job] = []
    with transaction(connection):
        sums = TenantSums(connection)
        for job_id in ids:
            if len(found) == most:
                break
            known = fresh.pop(job_id, None)
            new = known and _claim_one(connection, known, step, sums)
            if new is None and (job := _get(connection, job_id=job_id)) is not None:  # others may have changed it
                new = _claim_one(connection, job, step, sums)
            if new is not None:
                found.append(new)
        sums.write()
        _note_claims(connection, found)
    return found


def _claim_one(connection: sqlite3.Connection, job: Job, step: Callable[[Job], Job], sums: TenantSums) -> Job | None:
    """Claim a job in this version; None: it cannot be claimed, or is not in this version any more."""
    try:
        new = step(job)
    except WrongState:
        return None
    return new if _update(connection, job.state, new, encode_job(new).decode(), sums) else None


def _note_claims(connection: sqlite3.Connection, jobs: Sequence[Job]) -> None:
    """Note when the tenants of those that run now last had a job claimed; others were claimed for a delivery."""
    for tenant, claimed_s in {job.tenant: job.started_s for job in jobs if job.state is JobState.RUNNING}.items():
        connection.execute("UPDATE tenants SET last_claimed_s = ? WHERE tenant = ?", (claimed_s, tenant))


def _remove(connection: sqlite3.Connection, *, job: Job) -> bool:
    with transaction(connection):
        removed = connection.execute("DELETE FROM jobs WHERE id = ? AND revision = ?", (job.id, job.revision)).rowcount == 1
        if removed:
            sums = TenantSums(connection)
            sums.note(job, None)
            sums.write()
            note_delivery(connection, job.id, None)
    return removed


def _surplus(connection: sqlite3.Connection, *, kept: JobTotals, limit: int) -> list[Job]:
    too_many = "SELECT tenant, kept - ?1, kept_bytes - ?2 FROM tenants WHERE kept > ?1 OR kept_bytes > ?2"
    ended = (  # parts of batches do not count, and there may be a hundred thousand: they are known by the blank in their key
        "SELECT text FROM jobs WHERE tenant = ? AND state NOT IN ('queued', 'running') AND instr(ifnull(idempotency_key, ''), ' ') = 0"
        " ORDER BY submitted_s, id"
    )
    found: list[Job] = []
    for tenant, jobs, size_bytes in connection.execute(too_many, (kept.jobs, kept.size_bytes)).fetchall():
        rows = (decode_job(text) for (text,) in connection.execute(ended, (tenant,)))
        found += surplus(rows, jobs=jobs, size_bytes=size_bytes, limit=limit)
    return found


def _waiting(connection: sqlite3.Connection, *, now_s: float, heads: int) -> list[TenantQueue]:
    running = dict(connection.execute("SELECT tenant, count(*) FROM jobs WHERE state = 'running' GROUP BY tenant").fetchall())
    tenants = connection.execute("SELECT tenant, last_claimed_s FROM tenants WHERE jobs > 0").fetchall()
    queues = []
    for tenant, last_claimed_s in tenants:
        rows = connection.execute(_WAITING, (tenant, now_s, heads))
        jobs = tuple(WaitingJob(job_id, model, due_s, PriceClass(price_class)) for job_id, model, due_s, price_class in rows)
        queues.append(TenantQueue(tenant, running.get(tenant, 0), last_claimed_s, jobs))
    return [queue for queue in queues if queue.waiting]


def _jobs_of(connection: sqlite3.Connection, *, tenant: str | None, state: JobState | None, before: str, limit: int) -> list[Job]:
    query, values = _listing(tenant, state, before)
    return _jobs(connection.execute(query, (*values, limit)))


def _listing(tenant: str | None, state: JobState | None, before: str) -> tuple[str, list[object]]:
    """Return the query for jobs, the newest first, and its values but for the last, their number."""
    filters: list[tuple[str, tuple[object, ...]]] = []
    if tenant is not None:
        filters.append(("tenant = ?", (tenant,)))
    if state is not None:
        filters.append((f"state = '{state}'", ()))  # as a parameter it would not be known to be that of an index
    if before:
        filters.append(("(submitted_s, id) < (SELECT submitted_s, id FROM jobs WHERE id = ?)", (before,)))
    where = " AND ".join(text for text, _ in filters) or "true"
    values = [value for _, several in filters for value in several]
    index = " INDEXED BY running_jobs" if state is JobState.RUNNING else ""  # few, which may be older than all that ended
    return f"SELECT text FROM jobs{index} WHERE {where} ORDER BY submitted_s DESC, id DESC LIMIT ?", values  # noqa: S608


def _jobs(rows: sqlite3.Cursor) -> list[Job]:
    return [decode_job(text) for (text,) in rows]

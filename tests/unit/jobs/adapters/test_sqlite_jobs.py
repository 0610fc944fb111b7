"""Jobs that an earlier layout of the database has are there in this one, and found by what they were found by."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from control_plane.jobs.adapters.sqlite_jobs import _INSERT, _MIGRATIONS, open_sqlite_jobs
from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.domain.job_text import encode_job
from control_plane.storage.sqlite import open_sqlite
from tests.fakes.jobs import ROOMY, job

OLD_INSERT = _INSERT.replace("NULL, ", "", 1)


def row(of: Job) -> tuple[object, ...]:
    found = (of.id, of.tenant, of.state, of.revision, of.model, of.price_class, of.submitted_s, of.due_s, of.ready_s)
    return (*found, of.look_at_s, of.idempotency_key or None, encode_job(of).decode())


async def test_jobs_of_the_layout_before_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    jobs = [job(number, idempotency_key=f"key {number}") for number in range(3)]
    file = await open_sqlite(path, _MIGRATIONS[:2])
    for each in jobs:
        await file.run(lambda connection, each=each: connection.execute(OLD_INSERT, row(each)))
    await file.close()

    store = await open_sqlite_jobs(path)
    assert [await store.get(each.id) for each in jobs] == jobs
    assert await store.ready(1e12, limit=10) == 3
    assert await store.knows_key(jobs[1].tenant, "key 1")
    assert (await store.add(job(7, idempotency_key="key 2"), ROOMY)).id == jobs[2].id
    assert await store.jobs_of(None, state=JobState.DEAD, before="", limit=10) == []
    assert len(await store.jobs_of(jobs[0].tenant, state=JobState.QUEUED, before="", limit=10)) == 3
    await store.close()


async def test_receivers_that_wanted_no_more_are_forgotten_in_time(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    store = await open_sqlite_jobs(path)
    for number in range(3):  # callers choose how many there are
        await store.deliveries.end("team", f"https://test/{number}", now_s=10.0 * number, until_s=10.0 * number + 10.0)
    await store.close()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT url FROM ended_receivers").fetchall() == [("https://test/2",)]

"""What only the job store in an SQLite file has: layouts before, changes made together, jobs known from their addition."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from orjson import JSONEncodeError

from control_plane.jobs.adapters.sqlite_deliveries import _due
from control_plane.jobs.adapters.sqlite_jobs import _INSERT, _MIGRATIONS, _listing, open_sqlite_jobs
from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.domain.job_text import encode_job
from control_plane.jobs.domain.transitions import RetryPolicy, cancelled, claimed, released
from control_plane.jobs.ports import Bounds, JobsFull, JobTotals
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


async def test_bounds_and_keys_hold_among_jobs_that_are_added_together(tmp_path: Path) -> None:
    store = await open_sqlite_jobs(tmp_path / "jobs.sqlite")
    bounds = Bounds(of_tenant=JobTotals(3, 10**9), in_all=JobTotals(100, 10**9))
    same = [job(number, idempotency_key="same") for number in range(2)]
    added = await asyncio.gather(*(store.add(each, bounds) for each in (*same, *map(job, range(2, 6)))), return_exceptions=True)
    assert [each.id if isinstance(each, Job) else type(each) for each in added] == [
        *(same[0].id, same[0].id, job(2).id, job(3).id),
        *(JobsFull, JobsFull),
    ]
    assert (await store.load(same[0].tenant))[0].jobs == 3
    await store.close()


async def test_a_record_that_cannot_be_written_is_refused_alone(tmp_path: Path) -> None:
    store = await open_sqlite_jobs(tmp_path / "jobs.sqlite")
    good, bad = job(1), replace(job(2), error="\ud800")
    added = await asyncio.gather(store.add(good, ROOMY), store.add(bad, ROOMY), return_exceptions=True)
    assert (added[0], type(added[1])) == (good, JSONEncodeError)
    changed = [cancelled(good, now_s=20.0, policy=RetryPolicy()), replace(good, revision=2, error="\ud800")]
    replaced = await asyncio.gather(*map(store.replace, changed), return_exceptions=True)
    assert (replaced[0], type(replaced[1])) == (True, JSONEncodeError)
    await store.close()


async def test_a_job_that_another_process_has_changed_since_it_was_added_is_claimed_as_it_is_now(tmp_path: Path) -> None:
    def claim(job: Job) -> Job:
        return claimed(job, holder="here", now_s=20.0, policy=RetryPolicy())

    here, there = [await open_sqlite_jobs(tmp_path / "jobs.sqlite") for _ in range(2)]
    ended, returned = [await here.add(job(number), ROOMY) for number in range(2)]
    assert await there.replace(cancelled(ended, now_s=15.0, policy=RetryPolicy()))
    (taken,) = await there.claim([returned.id], claim, most=1)
    assert await there.replace(released(taken, now_s=15.0))
    (found,) = await here.claim([ended.id, returned.id], claim, most=2)
    assert (found.id, found.fence, found.revision) == (returned.id, 2, 4)
    assert await there.get(returned.id) == found
    assert (await here.load(returned.tenant))[0].jobs == 1
    for store in (here, there):
        await store.close()


@pytest.mark.parametrize(
    ("state", "index"),
    [
        pytest.param(None, "jobs_of_tenant", id="all"),
        pytest.param(JobState.RUNNING, "running_jobs", id="running"),
        pytest.param(JobState.FAILED, "unsuccessful_jobs", id="failed"),
        pytest.param(JobState.CANCELLED, "unsuccessful_jobs", id="cancelled"),
        pytest.param(JobState.DEAD, "unsuccessful_jobs", id="dead"),
    ],
)
@pytest.mark.parametrize("before", ["", job(1).id])
async def test_a_tenants_few_jobs_in_a_state_are_found_without_a_look_at_all_others(
    tmp_path: Path, state: JobState | None, index: str, before: str
) -> None:
    store = await open_sqlite_jobs(tmp_path / "jobs.sqlite")
    await store.close()
    query, values = _listing("team", state, before)
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as file:
        plan = [step for *_, step in file.execute(f"EXPLAIN QUERY PLAN {query}", (*values, 10))]
    assert any(step.startswith(f"SEARCH jobs USING INDEX {index} (tenant=?") for step in plan), plan
    assert state is JobState.RUNNING or not any("TEMP B-TREE" in step for step in plan), "they are sorted"


async def test_jobs_are_listed_by_state_after_one_that_was_listed(tmp_path: Path) -> None:
    store = await open_sqlite_jobs(tmp_path / "jobs.sqlite")
    jobs = [await store.add(job(number, submitted_s=float(number)), ROOMY) for number in range(6)]
    for each in jobs[:4]:
        await store.replace(cancelled(each, now_s=10.0, policy=RetryPolicy()))
    assert await store.claim([jobs[5].id], lambda job: claimed(job, holder="h", now_s=20.0, policy=RetryPolicy()), most=1)

    async def listed(state: JobState, before: str = "") -> list[str]:
        return [each.id for each in await store.jobs_of(jobs[0].tenant, state=state, before=before, limit=2)]

    assert await listed(JobState.CANCELLED) == [jobs[3].id, jobs[2].id]
    assert await listed(JobState.CANCELLED, jobs[2].id) == [jobs[1].id, jobs[0].id]
    assert (await listed(JobState.RUNNING), await listed(JobState.DEAD)) == ([jobs[5].id], [])
    await store.close()


async def test_what_is_due_is_found_without_a_look_at_all_that_is_to_be_delivered(tmp_path: Path) -> None:
    store = await open_sqlite_jobs(tmp_path / "jobs.sqlite")
    await store.close()
    looks = count()
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as file:
        waiting = [("", 5.0), ("a", 9.0), *(("b", 100.0 + number) for number in range(20_000)), ("c", 7.0)]
        file.executemany("INSERT INTO deliveries VALUES (?, ?, ?)", ((f"job-{number}", *each) for number, each in enumerate(waiting)))
        file.set_progress_handler(lambda: 0 * next(looks), 100)
        assert _due(file, now_s=101.0, of_tenant=2) == {"": ["job-0"], "a": ["job-1"], "b": ["job-2", "job-3"], "c": ["job-20002"]}
    assert next(looks) < 20, "hundreds of steps of SQLite"


async def test_parts_of_batches_are_not_read_for_those_that_a_tenant_has_too_many_of(tmp_path: Path) -> None:
    store = await open_sqlite_jobs(tmp_path / "jobs.sqlite")
    await store.add(job(1), ROOMY)
    assert await store.replace(cancelled(job(1), now_s=9.0, policy=RetryPolicy()))
    part = job(2, idempotency_key="batch_1 0", state=JobState.CANCELLED, submitted_s=-1.0)
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as file, file:
        file.execute(_INSERT, (*row(part)[:-1], "who reads this fails"))
    assert [each.id for each in await store.surplus(JobTotals(0, 99), limit=9)] == [job(1).id]
    await store.close()


async def test_of_the_jobs_before_one_that_waits_a_thousand_are_counted(tmp_path: Path) -> None:
    store, jobs = await open_sqlite_jobs(tmp_path / "jobs.sqlite"), [job(number) for number in range(1100)]
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as file, file:
        file.executemany(_INSERT, map(row, jobs))
    assert [await store.place(jobs[number]) for number in (0, 999, 1099)] == [0, 999, 1000]
    await store.close()

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from control_plane.admin.errors import answer_errors
from control_plane.admin.paths.jobs import add_job_paths
from control_plane.audit.trail import AuditTrail
from control_plane.jobs.domain.job import JobState
from control_plane.jobs.domain.transitions import broken, claimed
from control_plane.jobs.jobs import Jobs
from tests.fakes.jobs import job_id
from tests.fakes.stores.audit_log import FakeAuditLog
from tests.unit.jobs.world import World, world


def client(jobs: Jobs | None, audit: FakeAuditLog | None = None) -> AsyncClient:
    app = FastAPI()
    answer_errors(app)
    add_job_paths(app, jobs, AuditTrail(audit or FakeAuditLog()))
    return AsyncClient(transport=ASGITransport(app), base_url="http://h")


async def a_dead_job(here: World) -> str:
    made = await here.submit()
    running = claimed(made, holder="h", now_s=here.clock_s, policy=here.policy)
    assert await here.store.replace(running)
    assert await here.store.replace(broken(running, error="its body is gone", now_s=here.clock_s, policy=here.policy))
    return made.id


async def test_dead_jobs_are_listed_queued_again_and_dropped(tmp_path: Path) -> None:
    audit = FakeAuditLog()
    async with world(tmp_path) as here, client(here.jobs(), audit) as admin:
        one, other, waiting = await a_dead_job(here), await a_dead_job(here), await here.submit()
        listed = (await admin.get("/dead-jobs")).json()
        assert {each["id"] for each in listed} == {one, other}
        assert {(each["tenant"], each["error"], each["attempts"]) for each in listed} == {("team", "its body is gone", 1)}

        assert (await admin.post(f"/dead-jobs/{one}/requeue")).status_code == 204
        assert (await admin.delete(f"/dead-jobs/{other}")).status_code == 204

        assert [(entry.change.action, entry.change.name) for entry in audit.entries] == [("requeue", one), ("drop", other)]
        assert (await here.job(one)).state is JobState.QUEUED
        assert await here.store.get(other) is None
        assert len(here.files()) == 2
        for alive in (one, waiting.id):
            assert (await admin.delete(f"/dead-jobs/{alive}")).status_code == 409
        assert (await admin.post(f"/dead-jobs/{job_id(9)}/requeue")).status_code == 404
        assert (await admin.delete("/dead-jobs/1")).status_code == 400


async def test_dead_jobs_by_pages(tmp_path: Path) -> None:
    async with world(tmp_path) as here, client(here.jobs()) as admin:
        made = [await a_dead_job(here) for _ in range(3)]
        whole = [each["id"] for each in (await admin.get("/dead-jobs")).json()]
        first = await admin.get("/dead-jobs?limit=2")
        second = await admin.get(first.links["next"]["url"])
        assert [each["id"] for page in (first, second) for each in page.json()] == whole
        assert sorted(whole) == sorted(made)
        assert "link" not in second.headers
        assert (await admin.delete(f"/dead-jobs/{whole[1]}")).status_code == 204
        gone = await admin.get(first.links["next"]["url"])
        assert (gone.status_code, "list anew" in gone.json()["error"]) == (409, True), "rather than an end that is none"


async def test_where_jobs_are_switched_off_there_are_none() -> None:
    async with client(None) as admin:
        assert (await admin.get("/dead-jobs")).status_code == 404

"""Paths of the admin API for dead jobs: those whose every attempt has failed, of all tenants."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Self

from fastapi import FastAPI, Path
from pydantic import BaseModel, Field

from control_plane.admin.actor import By
from control_plane.admin.errors import error_responses
from control_plane.admin.paging import MAX_LIMIT, Paged
from control_plane.audit.trail import AuditTrail
from control_plane.core.errors import Conflict, ErrorCode, RouteNotFound
from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.jobs import JOB_ID, Jobs

_LIST_ERRORS = error_responses(ErrorCode.STORE_UNAVAILABLE, ErrorCode.ROUTE_NOT_FOUND, ErrorCode.INVALID_ARGUMENT)
_ERRORS = _LIST_ERRORS | error_responses(ErrorCode.INVALID_ARGUMENT, ErrorCode.OBJECT_NOT_FOUND, ErrorCode.CONFLICT)

JobId = Annotated[str, Path(pattern=f"^{JOB_ID.pattern}$", description="The job's id.")]


class DeadJobView(BaseModel):
    """A job whose every attempt has failed."""

    id: str
    tenant: str
    model: str
    attempts: Annotated[int, Field(ge=0)]
    error: str
    submitted_at: str
    ended_at: str

    @classmethod
    def of(cls, job: Job) -> Self:
        submitted_at, ended_at = (datetime.fromtimestamp(time_s or 0.0, UTC).isoformat() for time_s in (job.submitted_s, job.ended_s))
        return cls(
            id=job.id,
            tenant=job.tenant,
            model=job.model,
            attempts=job.attempts,
            error=job.error,
            submitted_at=submitted_at,
            ended_at=ended_at,
        )


def add_job_paths(app: FastAPI, jobs: Jobs | None, trail: AuditTrail) -> None:
    """Add `/dead-jobs` and the paths below it; `jobs` is None where they are switched off."""

    def service() -> Jobs:
        if jobs is None:
            raise RouteNotFound("asynchronous jobs are switched off on this server (TIDEGATE_JOBS)")
        return jobs

    @app.get("/dead-jobs", tags=["jobs"], responses=_LIST_ERRORS | error_responses(ErrorCode.CONFLICT))
    async def list_dead_jobs(paging: Paged) -> list[DeadJobView]:
        """List the dead jobs of all tenants, the newest first, 1000 at most."""
        asked, limit, before = service(), paging.limit or MAX_LIMIT, paging.after(str) or ""
        if before and not await asked.is_known(before):
            raise Conflict("the job that the page before ended with is gone, and with it the place where this one begins; list anew")
        found = await asked.jobs_of(None, state=JobState.DEAD, before=before, limit=limit + 1)
        return [DeadJobView.of(job) for job in paging.cut(found, key=lambda job: job.id)[:limit]]

    @app.post("/dead-jobs/{job_id}/requeue", tags=["jobs"], status_code=204, responses=_ERRORS)
    async def requeue_dead_job(job_id: JobId, by: By) -> None:
        """Queue a dead job anew, with all its attempts and all its time before it."""
        asked = service()
        async with trail.recorded(by, "requeue", "Job", job_id):
            await asked.requeue(job_id)

    @app.delete("/dead-jobs/{job_id}", tags=["jobs"], status_code=204, responses=_ERRORS)
    async def drop_dead_job(job_id: JobId, by: By) -> None:
        """Remove a dead job, with its body."""
        asked = service()
        async with trail.recorded(by, "drop", "Job", job_id):
            await asked.drop(job_id)

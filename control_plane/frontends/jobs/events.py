"""Events of one job as server-sent events: each change of its state until its end, whichever gateway runs it.

The record is polled in the same way as for `Prefer: wait`, so a reader costs the same; the number of readers is bounded. The server
closes the connection of one that does not read, as it does any connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import orjson

from control_plane.core.errors import LimitExceeded, ObjectNotFound, Overloaded, StoreUnavailable
from control_plane.core.principal import Principal
from control_plane.frontends.http.answers.event_stream import HEAD, HEARTBEAT, HEARTBEAT_S, RETRY, render_event
from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.job_view import view_of
from control_plane.jobs.jobs import Jobs

MAX_READERS, MAX_READERS_OF_TENANT = 256, 32
_FIRST_LOOK_S, _LAST_LOOK_S = 0.05, 0.5
_RETRY_AFTER_S = 5.0


class JobEvents:
    """Registry of this process's readers of job events, which bounds them."""

    def __init__(self, jobs: Jobs, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._jobs = jobs
        self._heartbeat_s = heartbeat_s
        self._readers: Counter[str] = Counter()

    def read(self, principal: Principal, job: Job) -> JobEventStream:
        """Begin to read a job's events, from its present state on.

        Raises LimitExceeded, Overloaded: the tenant, or all together, read too many already.
        """
        if self._readers[principal.tenant] >= MAX_READERS_OF_TENANT:
            raise LimitExceeded(f"this tenant reads the events of {MAX_READERS_OF_TENANT} jobs already", retry_after_s=_RETRY_AFTER_S)
        if self._readers.total() >= MAX_READERS:
            raise Overloaded(f"{MAX_READERS} streams of jobs' events are open already; try again later")
        self._readers[principal.tenant] += 1
        return JobEventStream(self, self._jobs, principal, job, heartbeat_s=self._heartbeat_s)

    def forget(self, tenant: str) -> None:
        """Let one of a tenant's readers go."""
        self._readers[tenant] -= 1
        self._readers += Counter()  # drops those without any


class JobEventStream:
    """Stream of one job's events to one caller: a `triton/ports.HttpStream`, which the server reads as fast as its client."""

    status = 200
    head = HEAD

    def __init__(self, readers: JobEvents, jobs: Jobs, principal: Principal, job: Job, *, heartbeat_s: float) -> None:
        self._readers = readers
        self._jobs = jobs
        self._principal = principal
        self._job = job
        self._heartbeat_s = heartbeat_s
        self._is_begun = self._is_over = self._is_closed = False

    async def receive(self) -> bytes | None:
        """Return the next event, a heartbeat after a time without any, or None after that of the final state."""
        if not self._is_begun:
            self._is_begun = True
            return RETRY + self._event(self._job)
        if self._is_over or not await self._has_next():
            return None
        return HEARTBEAT if self._job is self._told else self._event(self._job)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._readers.forget(self._principal.tenant)

    async def _has_next(self) -> bool:
        """Wait for another state, for a heartbeat at most; False: there will be none."""
        loop = asyncio.get_running_loop()
        until_s, pause_s = loop.time() + self._heartbeat_s, _FIRST_LOOK_S
        while (left_s := until_s - loop.time()) > 0:
            if self._jobs.is_draining:  # the reader finds another gateway
                return False
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LAST_LOOK_S)
            try:
                found = await self._jobs.get(self._principal, self._job.id)
            except StoreUnavailable:
                continue  # an outage ends no stream
            except ObjectNotFound:
                return False
            if (found.state, found.fence) != (self._job.state, self._job.fence):
                self._job = found
                return True
        return True

    def _event(self, job: Job) -> bytes:
        self._told = job
        self._is_over = not job.is_open
        return render_event(job.state, orjson.dumps(view_of(job, None)), id=str(job.revision))

"""Streams of a job's events: what is sent without a socket, through silence, outages and a drain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from control_plane.core.errors import LimitExceeded, Overloaded, StoreUnavailable
from control_plane.core.principal import Principal
from control_plane.core.scope import EVERYTHING
from control_plane.frontends.http.answers.event_stream import HEARTBEAT
from control_plane.frontends.jobs.events import MAX_READERS, MAX_READERS_OF_TENANT, JobEvents, JobEventStream
from control_plane.jobs.jobs import Jobs
from tests.unit.jobs.world import CALLER, World, running, world


class Outage:
    """A store that cannot be reached a few times."""

    def __init__(self, store: Any, times: int) -> None:
        self._store, self.left = store, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, job_id: str) -> Any:
        if self.left:
            self.left -= 1
            raise StoreUnavailable("away")
        return await self._store.get(job_id)


def jobs_of(here: World, store: Any) -> Jobs:
    made = here.jobs()
    made._store = store
    return made


def state_of(piece: bytes | None) -> str:
    assert piece is not None
    return str(orjson.loads(piece.rpartition(b"data: ")[2])["state"])


async def pieces(stream: JobEventStream) -> list[bytes]:
    found = []
    while (piece := await stream.receive()) is not None:
        found.append(piece)
    return found


async def test_it_begins_with_the_present_state_and_ends_after_the_final_one(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        job = await here.submit()
        stream = JobEvents(here.jobs()).read(CALLER, job)
        assert state_of(await stream.receive()) == "queued"
        async with running(here.runner()):
            states = [state_of(each) for each in await pieces(stream)]
        assert states in (["running", "succeeded"], ["succeeded"])
        ended = JobEvents(here.jobs()).read(CALLER, await here.job(job.id))
        assert [state_of(each) for each in await pieces(ended)] == ["succeeded"]


async def test_silence_is_filled_with_heartbeats_and_an_outage_ends_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        job = await here.submit()
        outage = Outage(here.store, 3)
        stream = JobEvents(jobs_of(here, outage), heartbeat_s=0.01).read(CALLER, job)
        await stream.receive()
        while outage.left:
            assert await stream.receive() == HEARTBEAT
        await here.jobs().cancel(CALLER, job.id)
        assert state_of((await pieces(stream))[-1]) == "cancelled"


async def test_of_a_job_that_is_removed_and_in_a_drain_it_ends(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        jobs, removed, other = here.jobs(), await here.submit(), await here.submit(1)
        streams = [JobEvents(jobs).read(CALLER, each) for each in (removed, other)]
        for each in streams:
            await each.receive()
        assert await here.store.remove(removed)
        assert await pieces(streams[0]) == []
        jobs.drain(30.0)
        assert await pieces(streams[1]) == []


async def test_readers_are_bounded_for_each_tenant_and_in_all_until_they_leave(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        events, job = JobEvents(here.jobs()), await here.submit()
        own = [events.read(CALLER, job) for _ in range(MAX_READERS_OF_TENANT)]
        with pytest.raises(LimitExceeded):
            events.read(CALLER, job)
        own[0].close()
        own[0].close()
        own[0] = events.read(CALLER, job)
        with pytest.raises(LimitExceeded):
            events.read(CALLER, job)
        others = [Principal(f"t{number // MAX_READERS_OF_TENANT}", "k", EVERYTHING) for number in range(MAX_READERS - len(own))]
        held = [events.read(each, job) for each in others]
        with pytest.raises(Overloaded):
            events.read(Principal("last", "k", EVERYTHING), job)
        held[0].close()
        events.read(Principal("last", "k", EVERYTHING), job)

"""`GET /v2/jobs/ID/events` on real sockets: who may read it, and how it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

from control_plane.frontends.jobs.events import MAX_READERS_OF_TENANT
from control_plane.frontends.jobs.http import JobsHttp
from control_plane.objects.domain.tenant import Tenant
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.unit.jobs.world import running, world
from tests.wire.gateway import Client, gateway
from tests.wire.jobs.jobs_bench import MINE, Caller, serving


async def opened(caller: Caller, job_id: str, method: str = "GET") -> Client:
    """A connection on which a stream has begun; its head is read."""
    client = await caller._gateway.connect()
    head = f"{method} /v2/jobs/{job_id}/events HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key_text(caller._key)}\r\n\r\n"
    await client.send(head.encode())
    return client


async def test_states_come_as_they_change_also_when_another_process_runs_the_job(tmp_path: Path) -> None:
    async with serving(tmp_path) as (here, mine, _, _):
        job = await mine.submit()
        client = await opened(mine, job["id"])
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"\r\nContent-Type: text/event-stream\r\n" in head
        assert b"event: queued\n" in await client.reader.readuntil(b"\n\n\r\n")
        async with running(here.runner()):
            rest = await client.reader.readuntil(b"\r\n0\r\n\r\n")
        assert b"event: succeeded\n" in rest
        assert f'"result":"/v2/jobs/{job["id"]}/result"'.encode() in rest
        await client.send(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.answer()).status == 200, "the connection goes on"


async def test_who_may_not_see_a_job_may_not_see_its_events(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, mine, others, not_for_m):
        job = await mine.submit()
        for caller in (others, not_for_m):
            assert (await caller.ask("GET", f"/v2/jobs/{job['id']}/events")).status == 404
        assert (await mine.ask("GET", "/v2/jobs/job-1/events")).status == 404
        client = await opened(mine, job["id"], "HEAD")
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"text/event-stream" in head


async def test_a_tenants_readers_are_bounded_and_one_that_leaves_is_let_go(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, mine, _, _):
        job = await mine.submit()
        clients = [await opened(mine, job["id"]) for _ in range(MAX_READERS_OF_TENANT)]
        for each in clients:
            await each.reader.readuntil(b"\r\n\r\n")
        path = f"/v2/jobs/{job['id']}/events"
        assert (await mine.ask("GET", path)).status == 429
        await clients[0].close()
        while True:
            client = await opened(mine, job["id"])
            if (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"):
                break
            await asyncio.sleep(0.01)


async def test_it_ends_with_its_readers_key(tmp_path: Path) -> None:
    known = known_state(keys=(api_key(MINE, "infer:m"),), tenants=(Tenant("team"),))
    async with (
        world(tmp_path) as here,
        gateway(governed=governance(known, authentication=True), jobs=JobsHttp(here.jobs())) as it,
    ):
        mine = Caller(it, MINE)
        job = await mine.submit()
        client = await opened(mine, job["id"])
        await client.reader.readuntil(b"event: queued\n")
        known.keys, known.generation = {}, known.generation + 1
        assert b'data: {"error":"the API key is not valid"}' in await client.reader.readuntil(b"\r\n0\r\n\r\n")

"""Runners in processes of their own, and the gateway that computes for them, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.frontends.jobs.http import JobsHttp
from control_plane.jobs.adapters.gateway_compute import GatewayCompute
from control_plane.jobs.attempts import RECORD_BYTES
from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.ports import TryAgain
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.http1 import HttpAnswer
from control_plane.triton.adapters.http.client import HttpClient
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.fakes.jobs import FakeCompute, job
from tests.unit.jobs.world import CALLER as SUBMITTER
from tests.unit.jobs.world import World, running, world
from tests.wire.gateway import LIMITS, gateway

ADMIN, CALLER = 1, 2


@asynccontextmanager
async def computing(folder: Path, *, key: int = ADMIN) -> AsyncIterator[tuple[World, FakeCompute, GatewayCompute]]:
    """A gateway, what computes there, and a runner's view of it with this key."""
    keys = (api_key(ADMIN, "admin"), api_key(CALLER, "infer:*"))
    governed = governance(known_state(keys=keys, tenants=(Tenant("team"),)), authentication=True)
    async with world(folder) as here:
        jobs, there = JobsHttp(here.jobs()), FakeCompute()
        jobs.compute = there
        async with gateway(governed=governed, jobs=jobs) as it:
            headers = (("Authorization", f"Bearer {key_text(key)}"),)
            compute = GatewayCompute([HttpClient(TcpAddress("127.0.0.1", it.port), max_connections=9, headers=headers)])
            try:
                yield here, there, compute
            finally:
                await compute.close()


async def test_a_job_is_computed_by_the_gateway_and_ended_by_the_runner(tmp_path: Path) -> None:
    async with computing(tmp_path) as (here, there, compute):
        made = [await here.submit(number) for number in range(5)]
        async with running(here.runner(compute=compute, slots=3)):
            for each in made:
                await here.until(lambda job: job.is_charged, each.id)
        ended = await here.job(made[3].id)
        assert (ended.state, ended.attempts) == (JobState.SUCCEEDED, 1)
        assert (await here.jobs().result(ended)).endswith(b"\r\n\r\nbody 3")
        assert sorted(there.begun) == sorted(each.id for each in made)
        assert here.usage.requests() == 5


async def test_a_runner_that_gives_up_ends_the_computing_at_the_gateway(tmp_path: Path) -> None:
    async with computing(tmp_path) as (_, there, compute):
        there.may_answer.clear()
        asking = asyncio.get_running_loop().create_task(compute.compute(job(), b""))
        while not there.begun:
            await asyncio.sleep(0.005)
        asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(60.0):
            while there.under_way:
                await asyncio.sleep(0.005)


async def test_a_running_job_that_is_cancelled_ends_at_the_gateway_that_computes_it(tmp_path: Path) -> None:
    async with computing(tmp_path) as (here, there, compute):
        there.may_answer.clear()
        made = await here.submit()
        async with running(here.runner(compute=compute)):
            await here.until(lambda job: job.state is JobState.RUNNING, made.id)
            async with asyncio.timeout(60.0):
                while not there.begun:
                    await asyncio.sleep(0.005)
                assert there.under_way == 1
                await here.jobs().cancel(SUBMITTER, made.id)
                while there.under_way:
                    await asyncio.sleep(0.005)
        assert (await here.job(made.id)).state is JobState.CANCELLED


async def test_the_largest_body_that_is_accepted_is_computed_and_no_larger_one(tmp_path: Path) -> None:
    """An attempt has the job's record before its body."""
    async with computing(tmp_path) as (_, there, compute):
        largest = job(headers=(("x-a", "\xe4" * 4093),), scopes=tuple(f"infer:model-{number}" for number in range(1000)))
        body = b"b" * LIMITS.max_body_bytes
        assert (await compute.compute(largest, body)).answer.body == body
        with pytest.raises(TryAgain, match="413"):
            await compute.compute(largest, body + bytes(RECORD_BYTES))
        assert len(there.begun) == 1


async def test_what_is_to_be_tried_again_is_told_to_the_runner(tmp_path: Path) -> None:
    async with computing(tmp_path) as (_, there, compute):

        def busy(job: Job, body: bytes) -> HttpAnswer:
            raise TryAgain("busy", was_computed=False, retry_after_s=7.0, is_crowded=True)

        there.answer = busy
        with pytest.raises(TryAgain) as again:
            await compute.compute(job(), b"")
        assert (again.value.was_computed, again.value.retry_after_s, again.value.is_crowded) == (False, 7.0, True)


@pytest.mark.parametrize("target", ["/v2/repository/models/m/load", "/v2/models/m/generate", "/v2/jobs"])
async def test_only_inferences_are_computed(tmp_path: Path, target: str) -> None:
    async with computing(tmp_path) as (_, there, compute):
        with pytest.raises(TryAgain):
            await compute.compute(job(target=target), b"")
        assert there.begun == []


async def test_a_key_that_is_no_administrators_computes_nothing(tmp_path: Path) -> None:
    async with computing(tmp_path, key=CALLER) as (_, there, compute):
        with pytest.raises(TryAgain, match="403"):
            await compute.compute(job(), b"")
        assert there.begun == []


async def test_a_gateway_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    """It takes connections and requests, as a process that is stopped, or a host that is half open."""
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: taken.append(writer), "127.0.0.1", 0)
    client = HttpClient(TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1]), max_connections=2)
    compute = GatewayCompute([client], asked_every_s=0.1)
    try:
        with pytest.raises(TryAgain, match="says nothing any more") as again:
            await asyncio.wait_for(compute.compute(job(), b"body"), 120.0)
        assert again.value.was_computed
        with pytest.raises(TryAgain, match="the gateway says nothing") as again:
            await asyncio.wait_for(compute.compute(job(), b"body"), 120.0)
        assert not again.value.was_computed
    finally:
        await compute.close()
        for writer in taken:
            writer.close()
        server.close()

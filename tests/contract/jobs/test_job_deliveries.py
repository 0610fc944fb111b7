"""What every store of jobs knows of the deliveries that are due: the SQLite file and the real Redis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.app.stores import open_job_store
from control_plane.jobs.domain.delivery import Delivery, delivered, tried
from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.transitions import RetryPolicy, broken, cancelled, claimed, requeued
from control_plane.jobs.ports import JobStore
from tests.contract.stores.stores import Opening, address, handles
from tests.fakes.jobs import ROOMY, job, job_id

POLICY = RetryPolicy(max_attempts=1, keep_s=50.0)
URL = "https://a.example/größe ' \" %s".replace("ö", "%C3%B6").replace("ß", "%C3%9F").replace(" ", "+")


@pytest.fixture(params=["sqlite", "redis"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening[JobStore]:
    where = address(request.param, request, tmp_path)
    return lambda: open_job_store(*where)


async def ended(store: JobStore, number: int, *, now_s: float, tenant: str = "team") -> Job:
    """Add a job with a webhook, and end it."""
    found = await store.add(job(number, tenant=tenant, webhook=Delivery(URL)), ROOMY)
    return await changed(store, cancelled(found, now_s=now_s, policy=POLICY))


async def changed(store: JobStore, new: Job) -> Job:
    assert await store.replace(new)
    return new


def noted(found: Job, webhook: Delivery | None) -> Job:
    return replace(found, revision=found.revision + 1, webhook=webhook)


async def due(store: JobStore, now_s: float, *, of_tenant: int = 9) -> dict[str, list[str]]:
    return {tenant: list(ids) for tenant, ids in (await store.deliveries.due(now_s, of_tenant=of_tenant)).items()}


async def test_a_delivery_is_due_from_the_change_that_ends_the_job_until_it_is_delivered(opening: Opening[JobStore]) -> None:
    async with handles(opening, 2) as (one, other):
        first = await ended(one, 1, now_s=5.0)
        await other.add(job(2, webhook=Delivery(URL)), ROOMY)
        await changed(other, cancelled(await other.add(job(3), ROOMY), now_s=5.0, policy=POLICY))
        assert first.webhook is not None
        assert (await due(other, 4.9), await due(other, 5.0)) == ({}, {"team": [job_id(1)]})
        taken = await changed(other, noted(first, tried(first.webhook, now_s=6.0)))
        assert taken.webhook is not None
        assert (await due(one, 6.0), await due(one, taken.webhook.due_s)) == ({}, {"team": [job_id(1)]})
        await changed(one, noted(taken, delivered(taken.webhook)))
        assert await due(other, 1e9) == {}


async def test_each_tenant_has_its_own_line_with_the_longest_due_first(opening: Opening[JobStore]) -> None:
    async with handles(opening, 2) as (one, other):
        for number, tenant in enumerate(("größe ' :*", "", "all")):
            for each in (3, 1, 2):
                await ended(one, 10 * number + each, now_s=float(each), tenant=tenant)
        assert await due(other, 2.5, of_tenant=2) == {
            tenant: [job_id(10 * number + 1), job_id(10 * number + 2)] for number, tenant in enumerate(("größe ' :*", "", "all"))
        }
        assert {len(each) for each in (await due(other, 9.0, of_tenant=2)).values()} == {2}


async def test_of_a_job_that_is_removed_or_queued_again_nothing_is_due(opening: Opening[JobStore]) -> None:
    async with handles(opening, 1) as (store,):
        assert await store.remove(await ended(store, 1, now_s=5.0))
        running = await changed(store, claimed(await store.add(job(2, webhook=Delivery(URL)), ROOMY), holder="h", now_s=1.0, policy=POLICY))
        dead = await changed(store, broken(running, error="e", now_s=2.0, policy=POLICY))
        assert await due(store, 9.0) == {"team": [job_id(2)]}
        again = await changed(store, requeued(dead, now_s=3.0))
        assert await due(store, 1e9) == {}
        await changed(store, cancelled(again, now_s=4.0, policy=POLICY))
        assert await due(store, 4.0) == {"team": [job_id(2)]}


async def test_a_receiver_that_wants_no_more_is_left_alone_for_a_time_by_its_tenant(opening: Opening[JobStore]) -> None:
    async with handles(opening, 2) as (one, other):
        await one.deliveries.end("team", URL, now_s=0.0, until_s=10.0)
        assert await other.deliveries.has_ended("team", URL, now_s=9.9)
        assert not await other.deliveries.has_ended("other", URL, now_s=1.0)
        assert not await other.deliveries.has_ended("team", URL + "/", now_s=1.0)
        await other.deliveries.end("team", URL, now_s=9.0, until_s=20.0)
        assert await one.deliveries.has_ended("team", URL, now_s=10.0)
        assert not await one.deliveries.has_ended("team", URL, now_s=20.0)

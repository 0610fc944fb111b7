"""Reads what jobs have left in stores, spool and broker, and holds usage and remains against what they should be."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aio_pika
import redis
from pydantic import SecretStr

from control_plane.app.stores import open_job_store, open_usage_store
from control_plane.batches.adapters.folder_shelf import FolderShelf
from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.adapters.folder_spool import FolderSpool
from control_plane.jobs.adapters.polled_tickets import PolledTickets
from control_plane.jobs.domain.job import UNCHARGED_S, Job
from control_plane.jobs.domain.transitions import RetryPolicy
from control_plane.jobs.ports import JobBackend, JobStore, JobTotals
from control_plane.jobs.sweeper import Sweeper
from control_plane.metering.domain.usage import EVERY_DAY, Usage
from perf.chaos_jobs.findings import Findings
from perf.chaos_jobs.site import Site
from perf.chaos_jobs.work import TENANTS

QUEUE, DEAD_LETTERS = "tidegate.jobs", "tidegate.jobs.dead"
_PAGE = 200
_TRIES = 30
_MUCH_LATER_S = 400 * 86_400.0
_EVERYTHING = JobTotals(1 << 40, 1 << 60)

T = TypeVar("T")


async def records(site: Site) -> list[Job]:
    """Return every job's record."""
    found: list[Job] = []
    async with _store(site) as store:
        for tenant in TENANTS:
            before = ""
            while page := await _patiently(partial(store.jobs_of, tenant, state=None, before=before, limit=_PAGE)):
                found += page
                before = page[-1].id
    return found


async def open_jobs(site: Site) -> int:
    """Return how many jobs have not ended, as the store's sums say."""
    async with _store(site) as store:
        _, everybody = await _patiently(partial(store.load, TENANTS[0]))
        return everybody.jobs


async def is_charged(site: Site) -> bool:
    """Whether every job that has ended is charged."""
    async with _store(site) as store:
        return not await _patiently(partial(store.neglected, time.time() + 2 * UNCHARGED_S, limit=1))


@asynccontextmanager
async def _store(site: Site) -> AsyncIterator[JobStore]:
    store = await _patiently(partial(open_job_store, SecretStr(site.redis.url), Path()))
    try:
        yield store
    finally:
        await store.close()


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask a store that a busy machine may keep from answering in time. Raises StoreUnavailable."""
    for _ in range(_TRIES):
        with suppress(StoreUnavailable):
            return await ask()
        await asyncio.sleep(1.0)
    return await ask()


async def tickets(site: Site, queue: str) -> int:
    """Return how many messages are ready in a queue."""
    connection = await aio_pika.connect(site.broker.url)
    async with connection:
        channel = await connection.channel()
        declared = await channel.declare_queue(queue, passive=True)
        return declared.declaration_result.message_count or 0


async def delete_queue(site: Site) -> None:
    """Delete the queue of tickets with all that is in it."""
    connection = await aio_pika.connect(site.broker.url)
    async with connection:
        await (await connection.channel()).queue_delete(QUEUE)


async def judge_usage(site: Site, known: Sequence[Job], findings: Findings) -> None:
    """Hold the usage that was charged against that of the jobs; nothing else was asked for yet."""
    store = await open_usage_store(SecretStr(site.redis.url), Path())
    try:
        totals = await store.totals(since_day=EVERY_DAY[0], until_day=EVERY_DAY[1])
    finally:
        await store.close()
    due: Counter[tuple[str, ...]] = Counter()
    for job in known:
        if job.charge is not None:
            if not job.is_charged:
                findings.add("miscounted", f"{job.id} is not charged")
            due.update(_counts(job.tenant, job.charge.model, job.charge.usage))
    charged: Counter[tuple[str, ...]] = Counter()
    for key, usage in totals:
        charged.update(_counts(key.tenant, key.model, usage))
    for each in due.keys() | charged.keys():
        if due[each] != charged[each]:
            findings.add("miscounted", f"{each}: {due[each]} due, {charged[each]} charged", abs(due[each] - charged[each]))


def _counts(tenant: str, model: str, usage: Usage) -> dict[tuple[str, ...], int]:
    return {(tenant, model, name): getattr(usage, name) for name in ("requests", "failed", "refused", "rows", "cache_hits")}


async def judge_broker(site: Site, findings: Findings) -> None:
    """Hold the broker to having nothing left."""
    for queue in (QUEUE, DEAD_LETTERS):
        if count := await tickets(site, queue):
            findings.add("left_behind", f"{count} tickets in {queue}", count)


async def judge_remains(site: Site, findings: Findings) -> None:
    """Sweep as if everything that is kept were over, and hold the stores to having nothing left. Every process has ended."""
    much_later_s = time.time() + _MUCH_LATER_S
    usage = await open_usage_store(SecretStr(site.redis.url), Path())
    spool, shelf = FolderSpool(site.spool), FolderShelf(site.spool / "batches")
    async with _store(site) as store:
        sweeper = Sweeper(
            JobBackend(store, PolledTickets(store), spool),
            usage=usage,
            policy=RetryPolicy(),
            kept=_EVERYTHING,
            today_s=lambda: much_later_s,
        )
        while await _patiently(partial(store.jobs_of, None, state=None, before="", limit=1)):
            await _patiently(sweeper.sweep)
        for _ in range(256):  # each looks at one part of the spool, or more, for files without a record
            await _patiently(sweeper.sweep)
    await shelf.remove_older(much_later_s, unfinished_before_s=much_later_s)
    for each in (shelf, spool, usage):
        await each.close()
    for path in site.spool.rglob("*"):
        if path.is_file():
            findings.add("left_behind", f"the file {path.relative_to(site.spool)}")
    with redis.Redis.from_url(site.redis.url, decode_responses=True) as client:
        for key in client.scan_iter("tidegate:jobs:*"):
            for left in _left_in(client, key):
                findings.add("left_behind", f"{left} in {key}")


def _left_in(client: Any, key: str) -> list[str]:
    """Return what one Redis key of the jobs' store still holds of jobs."""
    match client.type(key):
        case "zset":
            return list(client.zrange(key, 0, -1))
        case "hash" if key.endswith((":ended", ":claimed")):
            return []  # how many have ended, and when each tenant had its last turn
        case "hash":
            return [f"{name}={value}" for name, value in client.hgetall(key).items() if value != "0"]
        case _:
            return []

"""What every `jobs/ports.JobStore` does: the SQLite file and the real Redis."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.app.stores import open_job_store
from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.domain.claims import HEADS
from control_plane.jobs.domain.delivery import Delivery
from control_plane.jobs.domain.job import Blob, Charge, Job, JobState, PriceClass, Result, carried
from control_plane.jobs.domain.transitions import (
    RetryPolicy,
    attempt_failed,
    broken,
    cancelled,
    charged,
    claimed,
    finished,
    released,
    renewed,
)
from control_plane.jobs.ports import Backlog, Bounds, JobsFull, JobStore, JobTotals
from control_plane.metering.domain.usage import Usage
from tests.contract.stores.stores import Opening, address, empty_redis, handles
from tests.fakes.jobs import ROOMY, job, job_id
from tests.redis_server import RedisServer

POLICY = RetryPolicy(max_attempts=3, lease_s=10.0, keep_s=50.0)
RESULT = Result(Blob("b", 1, "d"), 200, 0)


@pytest.fixture(params=["sqlite", "redis"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening[JobStore]:
    where = address(request.param, request, tmp_path)
    return lambda: open_job_store(*where)


def claim(found: Job, now_s: float = 1.0) -> Job:
    return claimed(found, holder="h", now_s=now_s, policy=POLICY)


async def put(store: JobStore, *jobs: Job) -> None:
    for each in jobs:
        assert await store.add(each, ROOMY) == each


async def changed(store: JobStore, new: Job) -> Job:
    assert await store.replace(new)
    return new


async def test_a_record_comes_back_whole_and_unknown_ones_do_not_exist(opening: Opening[JobStore]) -> None:
    odd = job(headers=(("x-größe", "名前 ' \" \\"),), model="a b", error="e\n\0", tenant="größe 名前 %s ' \" :*")
    async with handles(opening, 2) as (one, other):
        await put(one, odd)
        assert await other.get(odd.id) == odd
        assert await other.get(job_id(2)) is None
        ended = await changed(other, finished(await changed(one, claim(odd)), RESULT, Charge("d", "m", Usage(1)), now_s=2.0, policy=POLICY))
        assert await one.get(odd.id) == ended


async def test_of_two_changes_of_one_version_one_is_made(opening: Opening[JobStore]) -> None:
    async with handles(opening, 2) as (one, other):
        await put(one, job())
        contenders = [replace(claim(job()), holder=str(number)) for number in range(8)]
        done = await asyncio.gather(*((one, other)[number % 2].replace(each) for number, each in enumerate(contenders)))
        assert sorted(done) == [False] * 7 + [True]
        assert await one.get(job().id) == contenders[done.index(True)]
        assert not await one.replace(claim(job()))
        assert not await one.replace(claim(job(5))), "one that does not exist is not made"
        assert not await one.remove(job())


async def test_bytes_that_a_record_carries_come_back_until_it_ends(opening: Opening[JobStore]) -> None:
    async with handles(opening, 2) as (one, other):
        body, answer = carried(job_id(1), "body", bytes(range(256))), carried(job_id(1), "result-1", b"\0answer\xff")
        await put(one, job(1, body=body))
        running = await changed(other, claim(await one.get(job_id(1)) or job()))
        assert running.body == body
        await changed(one, finished(running, Result(answer, 200, 1), None, now_s=2.0, policy=POLICY))
        ended = await other.get(job_id(1))
        assert ended is not None
        assert ended.result is not None
        assert (ended.result.blob, ended.body.sha256, ended.body.data) == (answer, body.sha256, b"")
        assert await other.load("team") == (JobTotals(0, 0, 1), JobTotals(0, 0, 1))


async def test_several_are_claimed_at_once_and_each_by_one(opening: Opening[JobStore]) -> None:
    async with handles(opening, 2) as (one, other):
        await put(one, *(job(number) for number in range(6)))
        await changed(one, cancelled(job(1), now_s=0.5, policy=POLICY))
        ids = [job_id(number) for number in (9, 0, 1, 2, 3, 4, 5)]

        claims = await asyncio.gather(one.claim(ids, claim, most=2), other.claim(ids, claim, most=2))

        assert [len(each) for each in claims] == [2, 2]
        held = {each.id: each for each in (*claims[0], *claims[1])}
        assert len(held) == 4
        assert not held.keys() & {job_id(9), job_id(1)}
        assert [await other.get(job_id) for job_id in held] == list(held.values())
        (queue,) = await one.waiting(5.0)
        assert (queue.running, queue.last_claimed_s) == (4, 1.0)
        assert len(await one.claim(ids, claim, most=9)) == 1
        assert await one.claim(ids, claim, most=9) == []


async def test_of_several_that_are_charged_those_are_noted_that_are_in_the_same_version_yet(opening: Opening[JobStore]) -> None:
    charge = Charge("d", "größe \\u0000 '", Usage(1, compute_units=0.1))
    result = replace(RESULT, blob=carried("b", "r", bytes(range(256))))
    async with handles(opening, 2) as (store, other):
        ended = []
        for number in range(4):
            begun = job(number, webhook=Delivery("https://test") if number == 3 else None, tenant="größe 名前 %s ' \" :*")
            await put(store, begun)
            held = await changed(store, claim(begun))
            ended.append(await changed(store, finished(held, result, charge, now_s=10.0 / 3, policy=POLICY)))
        first, second, third, last = ended
        await changed(other, charged(second))
        await store.remove(third)
        for jobs in (ended, ended, []):
            await store.note_charged(jobs)
            assert [await other.get(each.id) for each in ended] == [charged(first), charged(second), None, charged(last)]
        assert await store.neglected(first.keep_until_s - 0.01, limit=9) == []
        assert [each.id for each in await store.neglected(first.keep_until_s, limit=9)] == [first.id, second.id]
        assert [each.id for each in await store.neglected(charged(last).look_at_s, limit=9)] == [first.id, second.id, last.id]
        assert await other.deliveries.due(10.0, of_tenant=9) == {last.tenant: [last.id]}
        assert await store.remove(charged(first)), "the next change is of that version"


async def test_waiting_jobs_are_told_by_tenant_in_order_of_their_due_times(opening: Opening[JobStore]) -> None:
    async with handles(opening, 1) as (store,):
        assert await store.waiting(5.0) == []
        many = [job(number, due_s=1000.0 - number, tenant="many") for number in range(10, 10 + 2 * HEADS)]
        few = [job(2, due_s=9.0), job(1, due_s=9.0, model="n", price_class=PriceClass.ECONOMY), job(3, due_s=8.0, ready_s=6.0)]
        await put(store, *many, *few, job(4, tenant=""))
        await changed(store, claim(job(4, tenant=""), 2.5))

        queues = {queue.tenant: queue for queue in await store.waiting(5.0)}

        assert set(queues) == {"many", "team"}, "the third has only one that runs"
        assert [each.id for each in queues["many"].waiting] == [each.id for each in reversed(many)][:HEADS]
        assert [len(queue.waiting) for queue in await store.waiting(5.0, heads=3) if queue.tenant == "many"] == [3]
        first, second = queues["team"].waiting
        assert (first.id, first.model, first.due_s, first.price_class) == (job_id(1), "n", 9.0, PriceClass.ECONOMY)
        assert second.id == job_id(2)
        assert (await store.ready(5.0, limit=99), await store.ready(6.0, limit=99)) == (2 * HEADS + 2, 2 * HEADS + 3)
        assert await store.ready(6.0, limit=4) == 4
        assert [await store.place(each) for each in (*few, many[0])] == [2, 1, 0, 2 * HEADS - 1]


async def test_what_runs_and_the_last_claim_count_for_the_tenant(opening: Opening[JobStore]) -> None:
    async with handles(opening, 1) as (store,):
        await put(store, *(job(number) for number in range(4)))
        running = await changed(store, claim(job(0), 3.0))
        await changed(store, claim(job(1), 4.0))
        (queue,) = await store.waiting(5.0)
        assert (queue.running, queue.last_claimed_s, len(queue.waiting)) == (2, 4.0, 2)

        await changed(store, renewed(running, now_s=9.0, policy=POLICY))
        await changed(store, released(await store.get(job_id(1)) or job(), now_s=5.0, delay_s=10.0))
        (queue,) = await store.waiting(6.0)
        assert (queue.running, queue.last_claimed_s, len(queue.waiting)) == (1, 4.0, 2), "one waits for its next attempt"
        assert len((await store.waiting(15.0))[0].waiting) == 3


async def test_the_backlog_is_what_waits_and_runs_or_is_dead_of_all_tenants(opening: Opening[JobStore]) -> None:
    async with handles(opening, 1) as (store,):
        assert await store.backlog() == Backlog(0, 0, 0, None)
        await put(store, *(job(number, tenant=tenant, submitted_s=10.0 + number) for number, tenant in enumerate("abab")))
        assert await store.backlog() == Backlog(4, 0, 0, 10.0)
        await changed(store, claim(job(0, tenant="a", submitted_s=10.0), 20.0))
        second = await changed(store, claim(job(1, tenant="b", submitted_s=11.0), 20.0))
        assert await store.backlog() == Backlog(2, 2, 0, 12.0)

        await changed(store, released(second, now_s=21.0, delay_s=10.0))
        assert await store.backlog() == Backlog(3, 1, 0, 11.0), "one that waits for its next attempt waits, too"
        await changed(store, broken(await store.get(job_id(0)) or job(), error="why", now_s=22.0, policy=POLICY))
        assert await store.backlog() == Backlog(3, 0, 1, 11.0)


async def test_neglected_jobs_are_those_to_look_at_the_longest_first(opening: Opening[JobStore]) -> None:
    async with handles(opening, 1) as (store,):
        await put(store, job(1), job(2, deadline_s=20.0), job(3))
        held = await changed(store, claim(job(3), 5.0))
        assert await store.neglected(7.4, limit=9) == [], "the last half of a lease is watched"
        assert [each.id for each in await store.neglected(20.0, limit=9)] == [job_id(3), job_id(2)]
        assert [each.id for each in await store.neglected(20.0, limit=1)] == [job_id(3)]

        held = await changed(store, renewed(held, now_s=30.0, policy=POLICY))
        assert [each.id for each in await store.neglected(32.4, limit=9)] == [job_id(2)]
        ended = await changed(store, finished(held, RESULT, Charge("d", "m", Usage(1)), now_s=35.0, policy=POLICY))
        assert [each.id for each in await store.neglected(40.0, limit=9)] == [job_id(2), job_id(3)]
        await changed(store, charged(ended))
        assert [each.id for each in await store.neglected(84.0, limit=9)] == [job_id(2)]
        assert [each.id for each in await store.neglected(85.0, limit=9)] == [job_id(2), job_id(3)]


async def test_a_tenants_jobs_in_a_state_are_listed_beside_more_of_its_own_and_of_others(opening: Opening[JobStore]) -> None:
    async with handles(opening, 1) as (store,):
        theirs = [job(number, tenant="others", submitted_s=float(number)) for number in range(10, 14)]
        own = [job(number, submitted_s=float(number)) for number in range(5)]
        await put(store, *theirs, *own)
        for each in (own[1], own[3], *theirs):
            await changed(store, cancelled(each, now_s=20.0, policy=POLICY))
        await changed(store, claim(own[2]))

        async def listed(tenant: str | None, state: JobState | None, before: str = "") -> list[str]:
            return [each.id for each in await store.jobs_of(tenant, state=state, before=before, limit=3)]

        assert await listed("team", JobState.CANCELLED) == [job_id(3), job_id(1)]
        assert await listed("team", JobState.CANCELLED, job_id(3)) == [job_id(1)]
        assert await listed("team", JobState.QUEUED) == [job_id(4), job_id(0)]
        assert (await listed("team", JobState.RUNNING), await listed("others", JobState.QUEUED)) == ([job_id(2)], [])
        assert await listed("others", JobState.CANCELLED) == [job_id(13), job_id(12), job_id(11)]
        assert await listed(None, JobState.CANCELLED, job_id(11)) == [job_id(10), job_id(3), job_id(1)]


async def test_bounds_hold_for_a_tenant_and_for_all_and_what_ends_makes_room(opening: Opening[JobStore]) -> None:
    bounds = Bounds(of_tenant=JobTotals(2, 100), in_all=JobTotals(3, 7))
    small, large = Blob("b", 1, "d"), Blob("b", 6, "d")
    async with handles(opening, 1) as (store,):
        for number in (1, 2):
            await store.add(job(number, body=small), bounds)
        with pytest.raises(JobsFull) as full:
            await store.add(job(3, body=small), bounds)
        assert (full.value.of_tenant, full.value.load) == (True, JobTotals(2, 2, 0))
        with pytest.raises(JobsFull) as full:
            await store.add(job(3, body=large, tenant="other"), bounds)
        assert (full.value.of_tenant, full.value.load) == (False, JobTotals(2, 2, 0))
        await store.add(job(3, body=small, tenant="other"), bounds)
        assert await store.load("team") == (JobTotals(2, 2, 0), JobTotals(3, 3, 0))
        assert await store.load("nobody") == (JobTotals(), JobTotals(3, 3, 0))
        assert await store.get(job_id(4)) is None

        running = await changed(store, claim(job(1, body=small)))
        assert (await store.load("team"))[0] == JobTotals(2, 2, 0), "one that runs is still open"
        await changed(store, cancelled(running, now_s=2.0, policy=POLICY))
        assert await store.load("team") == (JobTotals(1, 1, 1), JobTotals(2, 2, 1))
        await store.add(job(4, body=small), bounds)
        dead = await changed(store, claim(job(2, body=small)))
        for _ in range(2):
            dead = await changed(store, attempt_failed(dead, error="e", now_s=2.0, policy=POLICY))
            dead = await changed(store, claim(dead, dead.ready_s))
        await changed(store, attempt_failed(dead, error="e", now_s=99.0, policy=POLICY))
        assert (await store.load("team"))[0] == JobTotals(1, 1, 2)


async def test_an_idempotency_key_makes_one_job_of_its_tenant_until_that_is_removed(opening: Opening[JobStore]) -> None:
    def keyed(number: int, tenant: str = "team") -> Job:
        return job(number, tenant=tenant, idempotency_key="k")

    async with handles(opening, 2) as (one, other):
        made = await asyncio.gather(*((one, other)[number % 2].add(keyed(number), ROOMY) for number in range(6)))
        assert len({each.id for each in made}) == 1
        assert (await one.load("team"))[0].jobs == 1
        assert (await one.add(keyed(7, "other"), ROOMY)).id == job_id(7)
        await put(one, job(8), job(9))  # without a key
        ended = await changed(one, cancelled(made[0], now_s=1.0, policy=POLICY))
        assert (await other.add(keyed(10), ROOMY)) == ended
        assert await other.knows_key("team", "k")
        assert not await other.knows_key("others", "k")
        assert await one.remove(ended)
        assert not await other.knows_key("team", "k")
        assert (await one.add(keyed(11), ROOMY)).id == job_id(11)


async def test_jobs_are_listed_newest_first_by_page_tenant_and_state(opening: Opening[JobStore]) -> None:
    async with handles(opening, 1) as (store,):
        jobs = [job(number, submitted_s=float(number // 2), tenant="ab"[number % 2]) for number in range(8)]
        await put(store, *jobs)
        for each in jobs[:3]:
            await changed(store, cancelled(each, now_s=1.0, policy=POLICY))

        async def listed(tenant: str | None, state: JobState | None = None, before: str = "", limit: int = 9) -> list[int]:
            return [int(each.id[4:], 16) for each in await store.jobs_of(tenant, state=state, before=before, limit=limit)]

        assert await listed(None) == [7, 6, 5, 4, 3, 2, 1, 0]
        assert await listed("a") == [6, 4, 2, 0]
        assert await listed("b", before=job_id(5)) == [3, 1]
        assert await listed(None, limit=3, before=job_id(6)) == [5, 4, 3]
        assert await listed(None, JobState.CANCELLED) == [2, 1, 0]
        assert await listed("a", JobState.CANCELLED) == [2, 0]
        assert await listed("b", JobState.QUEUED, limit=2) == [7, 5]
        assert await listed("c") == []
        # The list goes on where the job was that has left its state or is another tenant's, and ends where it is gone.
        assert await listed(None, JobState.QUEUED, before=job_id(2)) == []
        assert await listed(None, JobState.CANCELLED, before=job_id(4)) == [2, 1, 0]
        assert await listed("a", before=job_id(5)) == [4, 2, 0]
        assert await store.remove(jobs[7])
        assert await listed(None, before=job_id(7)) == await listed("b", JobState.QUEUED, before=job_id(7)) == []


async def test_nothing_of_a_removed_job_is_left(opening: Opening[JobStore], request: pytest.FixtureRequest) -> None:
    async with handles(opening, 1) as (store,):
        await put(store, job(idempotency_key="k"))
        running = await changed(store, claim(job(idempotency_key="k")))
        assert await store.remove(running)

        assert await store.get(running.id) is None
        assert await store.load("team") == (JobTotals(0, 0, 1), JobTotals(0, 0, 1))
        assert (await store.waiting(5.0), await store.ready(5.0, limit=9), await store.neglected(1e9, limit=9)) == ([], 0, [])
        assert await store.jobs_of(None, state=None, before="", limit=9) == []


async def test_while_it_is_away_it_says_so(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server = empty_redis(request)
    store = await open_job_store(*address("redis", request, tmp_path))
    server.stop()
    try:
        with pytest.raises(StoreUnavailable):
            await store.add(job(), ROOMY)
    finally:
        server.start()
    assert await store.add(job(), ROOMY) == job()
    await store.close()


async def test_the_oldest_of_too_many_ended_jobs_are_told_and_no_part_of_a_batch(opening: Opening[JobStore]) -> None:
    async with handles(opening, 2) as (one, other):
        part = job(1, submitted_s=1.0, keep_at_least_until_s=1e9)
        due = job(2, submitted_s=2.0)
        plain = [job(number, submitted_s=float(number)) for number in range(3, 7)]
        elsewhere = job(9, tenant="other")
        await put(one, part, due, *plain, elsewhere, job(7, submitted_s=7.0))
        for each in (part, *plain, elsewhere):
            await changed(one, cancelled(each, now_s=9.0, policy=POLICY))
        running = await changed(one, claim(due))
        computed = await changed(one, finished(running, RESULT, Charge("d", "m", Usage(1)), now_s=9.0, policy=POLICY))

        async def surplus(jobs: int, size_bytes: int = 99, limit: int = 9) -> list[str]:
            return [each.id for each in await other.surplus(JobTotals(jobs, size_bytes), limit=limit)]

        assert await surplus(5) == []
        assert await surplus(3) == [job_id(3), job_id(4)], "the second is not charged yet"
        assert await surplus(1, limit=2) == [job_id(3), job_id(4)]
        await changed(one, charged(computed))
        assert await surplus(5, size_bytes=0) == [job_id(2)], "no other has bytes"
        (oldest,) = await other.surplus(JobTotals(4, 99), limit=9)
        assert await other.remove(oldest)
        assert await surplus(4) == []


@pytest.mark.parametrize("name", ["sqlite", "redis"])
async def test_jobs_that_had_ended_before_they_were_counted_are_counted(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    where = address(name, request, tmp_path)
    async with handles(lambda: open_job_store(*where), 1) as (store,):
        await put(store, *(job(number, submitted_s=float(number)) for number in range(1, 7)))
        for number in (1, 2, 3):
            running = await changed(store, claim(job(number, submitted_s=float(number))))
            await changed(store, finished(running, RESULT, None, now_s=9.0, policy=POLICY))
        await changed(store, cancelled(job(4, submitted_s=4.0), now_s=9.0, policy=POLICY))
        dead = await changed(store, claim(job(5, submitted_s=5.0)))
        await changed(store, broken(dead, error="e", now_s=9.0, policy=POLICY))  # keeps its body, of 3 bytes

    if name == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        server.call("DEL", "tidegate:jobs:kept", "tidegate:jobs:kept-bytes")
        server.call("SET", "tidegate:jobs:layout", "1")
    else:
        with closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as file:
            later = "DROP TABLE deliveries; DROP TABLE ended_receivers;"
            counted = "ALTER TABLE tenants DROP COLUMN kept; ALTER TABLE tenants DROP COLUMN kept_bytes;"
            file.executescript(f"{later} {counted} PRAGMA user_version = 1")

    async with handles(lambda: open_job_store(*where), 1) as (store,):
        assert await store.surplus(JobTotals(5, 6), limit=9) == []
        assert [each.id for each in await store.surplus(JobTotals(4, 9), limit=9)] == [job_id(1)]
        assert [each.id for each in await store.surplus(JobTotals(9, 4), limit=9)] == [job_id(1), job_id(2)]


async def test_in_redis_no_sums_stay_of_tenants_without_jobs(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Each claim looks at every tenant that has one."""
    server, where = empty_redis(request), address("redis", request, tmp_path)
    async with handles(lambda: open_job_store(*where), 1) as (store,):
        await put(store, job(1, tenant="gone"))
        running = await changed(store, claim(job(1, tenant="gone")))
        ended = await changed(store, finished(running, RESULT, None, now_s=9.0, policy=POLICY))
        assert server.call("HEXISTS", "tidegate:jobs:open", "of:gone") == b":0\r\n"
        assert await store.remove(ended)
    for name in ("open", "bytes", "running", "kept", "kept-bytes", "deliveries"):
        assert server.call("EXISTS", f"tidegate:jobs:{name}") == b":0\r\n", name


async def test_a_redis_that_was_emptied_beside_gateways_counts_what_is_kept_once(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server, where = empty_redis(request), address("redis", request, tmp_path)
    async with handles(lambda: open_job_store(*where), 1) as (store,):
        assert server.call("FLUSHALL") == b"+OK\r\n"
        for number in (1, 2):
            await put(store, job(number, submitted_s=float(number)))
            await changed(store, cancelled(job(number, submitted_s=float(number)), now_s=9.0, policy=POLICY))
    async with handles(lambda: open_job_store(*where), 1) as (store,):
        assert await store.surplus(JobTotals(2, 99), limit=9) == []
        assert [each.id for each in await store.surplus(JobTotals(1, 99), limit=9)] == [job_id(1)]

"""What every `jobs/ports.JobQueue` does: without a broker, over the store's own records, and the real RabbitMQ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from pydantic import SecretStr

from control_plane.core.errors import StoreUnavailable
from control_plane.core.principal import Principal
from control_plane.core.scope import EVERYTHING
from control_plane.jobs.adapters.folder_spool import FolderSpool
from control_plane.jobs.adapters.polled_tickets import PolledTickets
from control_plane.jobs.adapters.rabbitmq_tickets import DEAD_LETTERS, QUEUE, RabbitmqTickets
from control_plane.jobs.adapters.redis_jobs import open_redis_jobs
from control_plane.jobs.adapters.sqlite_jobs import SqliteJobStore, open_sqlite_jobs
from control_plane.jobs.domain.gate import BulkGate
from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.transitions import RetryPolicy, claimed
from control_plane.jobs.jobs import Jobs, Submission
from control_plane.jobs.ports import JobBackend, JobQueue, JobStore, JobTotals, Ticket
from control_plane.jobs.runner import JobRunner
from control_plane.jobs.sweeper import Sweeper
from perf.servers.rabbitmq import RabbitmqServer
from tests.fakes.jobs import PLENTY, ROOMY, FakeCompute, FakeUsage, job
from tests.redis_server import RedisServer
from tests.unit.jobs.world import Fate

SOON_S = 200.0


class Bench:
    """Jobs that wait in a store, and processes with a queue of tickets for them."""

    def __init__(self, name: str, store: SqliteJobStore, url: str, held: AsyncExitStack) -> None:
        self._name, self._store, self._url, self._held = name, store, url, held
        self._made = 0

    async def process(self) -> JobQueue:
        """The queue as one more process has it, until the end of the test."""
        return await self._held.enter_async_context(self.a_process())

    @asynccontextmanager
    async def a_process(self) -> AsyncIterator[JobQueue]:
        queue: JobQueue = RabbitmqTickets(SecretStr(self._url)) if self._name == "rabbitmq" else PolledTickets(self._store)
        keeping = asyncio.get_running_loop().create_task(queue.run())
        try:
            await eventually(queue.depth)
            yield queue
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            await queue.close()

    async def accept(self, queue: JobQueue, count: int = 1) -> None:
        for _ in range(count):
            self._made += 1
            await self._store.add(job(self._made, deadline_s=1e12), ROOMY)
        await queue.publish(count)

    async def claim(self) -> None:
        """Claim one of the jobs, as the holder of a ticket does."""
        (queue,) = await self._store.waiting(time.time())
        found = await self._store.get(queue.waiting[0].id)
        assert isinstance(found, Job)
        assert await self._store.replace(claimed(found, holder="h", now_s=time.time(), policy=RetryPolicy()))


async def eventually(ask: Callable[[], Awaitable[int]], expected: int | None = None) -> None:
    """Ask until there is an answer, the expected one."""
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                if await ask() == expected or expected is None:
                    return
            except StoreUnavailable:
                pass
            await asyncio.sleep(0.05)


@pytest.fixture(params=["polled", "rabbitmq"])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "rabbitmq":
        server: RabbitmqServer = request.getfixturevalue("rabbitmq")
        _delete(server)
    return str(request.param)


@pytest.fixture
def url(name: str, request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("rabbitmq").url if name == "rabbitmq" else ""


def _delete(server: RabbitmqServer) -> None:
    async def main() -> None:
        connection = await aio_pika.connect(server.url, timeout=SOON_S)
        channel = await connection.channel()
        for queue in (QUEUE, DEAD_LETTERS):
            await channel.queue_delete(queue)
        await connection.close()

    asyncio.run(main())


@asynccontextmanager
async def bench(name: str, url: str, folder: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as held:
        store = await open_sqlite_jobs(folder / "jobs.sqlite")
        held.push_async_callback(store.close)
        yield Bench(name, store, url, held)


async def taken(queue: JobQueue) -> Ticket:
    (ticket,) = await asyncio.wait_for(queue.take(), SOON_S)
    return ticket


async def nothing_comes(queue: JobQueue) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.take(), 0.7)


async def test_for_each_job_there_is_a_ticket_for_one_of_the_processes(name: str, url: str, tmp_path: Path) -> None:
    async with bench(name, url, tmp_path) as it:
        one, other = await it.process(), await it.process()
        await it.accept(one, 3)
        assert await one.depth() == await other.depth() == 3
        for queue in (one, other, one):
            ticket = await taken(queue)
            await it.claim()
            ticket.claimed()
            await ticket.ack()
        assert await other.depth() == 0
        await nothing_comes(one)
        await nothing_comes(other)


async def test_as_many_tickets_come_at_once_as_there_are_and_are_wanted(name: str, url: str, tmp_path: Path) -> None:
    async with bench(name, url, tmp_path) as it:
        queue = await it.process()
        await it.accept(queue, 3)
        first = await queue.take(2)
        rest = await queue.take(9)
        assert (len(first), len(rest)) == (2, 1)
        for ticket in (*first, *rest):
            await ticket.give_back()
        again = await queue.take(9)
        assert len(again) == 3
        for ticket in again:
            await it.claim()
            ticket.claimed()
            await ticket.ack()
        await nothing_comes(queue)


async def test_who_waits_already_is_woken(name: str, url: str, tmp_path: Path) -> None:
    async with bench(name, url, tmp_path) as it:
        one, other = await it.process(), await it.process()
        waiting = asyncio.get_running_loop().create_task(other.take())
        await asyncio.sleep(0.5)
        await it.accept(one)
        (ticket,) = await asyncio.wait_for(waiting, SOON_S)
        await ticket.ack()


async def test_a_ticket_that_is_given_back_comes_again(name: str, url: str, tmp_path: Path) -> None:
    async with bench(name, url, tmp_path) as it:
        queue = await it.process()
        await it.accept(queue)
        ticket = await taken(queue)
        await nothing_comes(queue)
        await ticket.give_back()
        again = await taken(queue)
        await it.claim()
        again.claimed()
        await again.ack()
        await nothing_comes(queue)


async def test_a_ticket_of_a_process_that_ends_comes_to_another(name: str, url: str, tmp_path: Path) -> None:
    async with bench(name, url, tmp_path) as it:
        other = await it.process()
        async with it.a_process() as ending:
            await it.accept(ending)
            await taken(ending)
        await taken(other)


async def test_a_process_that_gives_up_waiting_loses_no_ticket(name: str, url: str, tmp_path: Path) -> None:
    async with bench(name, url, tmp_path) as it:
        queue = await it.process()
        for _ in range(5):
            waiting = asyncio.get_running_loop().create_task(queue.take())
            await asyncio.sleep(0.05)
            await it.accept(queue)
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                await waiting.result()[0].give_back()
        await eventually(queue.depth, 5)


@pytest.fixture
def broker(rabbitmq: RabbitmqServer) -> RabbitmqServer:
    _delete(rabbitmq)
    return rabbitmq


async def test_after_the_kill_of_the_broker_who_waits_goes_on(broker: RabbitmqServer, tmp_path: Path) -> None:
    async with bench("rabbitmq", broker.url, tmp_path) as it:
        queue = await it.process()
        broker.kill()
        with pytest.raises(StoreUnavailable):
            await queue.publish()
        waiting = asyncio.get_running_loop().create_task(queue.take())
        await asyncio.to_thread(broker.start)
        async with asyncio.timeout(SOON_S):
            while not waiting.done():  # as the sweeper does
                with suppress(StoreUnavailable):
                    await queue.publish()
                await asyncio.sleep(0.5)
        await waiting.result()[0].ack()


async def test_a_broker_that_says_nothing_is_away(broker: RabbitmqServer, tmp_path: Path) -> None:
    async with bench("rabbitmq", broker.url, tmp_path) as it:
        queue = await it.process()
        broker.hold()
        try:
            with pytest.raises(StoreUnavailable):
                await queue.publish()
        finally:
            broker.go_on()
        await eventually(queue.depth)
        await it.accept(queue)
        await taken(queue)


async def test_a_broker_that_says_nothing_holds_up_no_end(broker: RabbitmqServer, tmp_path: Path) -> None:
    async with bench("rabbitmq", broker.url, tmp_path) as it:
        queue = await it.process()
        taking = asyncio.get_running_loop().create_task(queue.take())
        await asyncio.sleep(1.0)  # it waits with a consumer by now
        broker.hold()
        try:
            began_s = asyncio.get_running_loop().time()
            taking.cancel()
            await asyncio.wait([taking])
            assert asyncio.get_running_loop().time() - began_s < 4.0
        finally:
            broker.go_on()


async def test_a_queue_that_somebody_deletes_is_made_anew_and_the_loss_is_told(broker: RabbitmqServer, tmp_path: Path) -> None:
    async with bench("rabbitmq", broker.url, tmp_path) as it:
        queue = await it.process()
        await it.accept(queue)
        await asyncio.to_thread(_delete, broker)
        with pytest.raises(StoreUnavailable):
            await queue.publish()
        await eventually(queue.depth, 0)
        await queue.publish()
        assert await queue.depth() == 1


async def test_a_ticket_that_is_delivered_too_often_is_a_dead_letter(broker: RabbitmqServer, tmp_path: Path) -> None:
    async with bench("rabbitmq", broker.url, tmp_path) as it:
        queue = await it.process()
        await it.accept(queue)
        for _ in range(21):
            await (await taken(queue)).give_back()
        connection = await aio_pika.connect(broker.url)
        dead = await (await connection.channel()).declare_queue(DEAD_LETTERS, passive=True)

        async def dead_letters() -> int:
            return (await dead.declare()).message_count or 0

        dead.passive = True
        await eventually(dead_letters, 1)
        assert await queue.depth() == 0
        await connection.close()


async def test_jobs_over_rabbitmq_and_redis_end_once_each_whoever_is_killed(
    broker: RabbitmqServer, redis: RedisServer, tmp_path: Path
) -> None:
    """Two processes, of which one dies among its jobs, and a broker that is killed: all that was accepted is done, once."""
    assert redis.call("FLUSHALL") == b"+OK\r\n"
    async with AsyncExitStack() as held:
        store = await open_redis_jobs(SecretStr(redis.url))
        held.push_async_callback(store.close)
        spool = FolderSpool(tmp_path / "spool")
        held.push_async_callback(spool.close)
        usage, policy = FakeUsage(), RetryPolicy(lease_s=3.0, still_s=1.5, first_delay_s=0.1)
        there = await _processes(held, broker, store, spool, usage, policy)
        first, second = there
        first.compute.may_answer.clear()
        caller = Principal("team", "k", EVERYTHING)
        wanted = [Submission("m", "/v2/models/m/infer", (), b"%d" % number) for number in range(30)]
        accepted = [await first.jobs.submit(caller, each) for each in wanted[:20]]
        async with asyncio.timeout(SOON_S):
            while not first.compute.begun or not second.compute.begun:
                await asyncio.sleep(0.02)
        first.die()
        broker.kill()
        accepted += [await second.jobs.submit(caller, each) for each in wanted[20:]]
        await asyncio.to_thread(broker.start)

        for number, each in enumerate(accepted):
            ended = await second.jobs.wait(each, SOON_S)
            assert (await second.jobs.result(ended)).endswith(b"\r\n\r\n%d" % number)
        async with asyncio.timeout(SOON_S):
            while usage.requests() < len(accepted):
                await asyncio.sleep(0.05)
        assert len(usage.batches) == len(accepted)
        assert (await store.load("team"))[0] == JobTotals(0, 0, len(accepted))


class _Process:
    """A process with runner and sweeper, over a connection of its own to the broker."""

    def __init__(self, broker: RabbitmqServer, store: JobStore, spool: FolderSpool, usage: FakeUsage, policy: RetryPolicy) -> None:
        self.compute = FakeCompute()
        self._fate = Fate()
        store, usage = self._fate.of(store), self._fate.of(usage)
        queue = RabbitmqTickets(SecretStr(broker.url))
        backend = JobBackend(store, queue, spool)
        self.jobs = Jobs(backend, bounds=ROOMY, policy=policy, expire_s=1e4)
        self._queue = queue
        runner = JobRunner(backend, compute=self.compute, usage=usage, gate=BulkGate(2, 2.0), holder="h", policy=policy)
        sweeper = Sweeper(backend, usage=usage, policy=policy, kept=PLENTY)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each.run()) for each in (queue, runner, sweeper)]

    def die(self) -> None:
        """End as by kill -9: from now on nothing of it reaches the stores, so that no claim is released."""
        self._fate.is_dead = True
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self.die()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._queue.close()


async def _processes(held: AsyncExitStack, broker: RabbitmqServer, *parts: Any) -> list[_Process]:
    made = []
    for _ in range(2):
        made.append(_Process(broker, *parts))
        held.push_async_callback(made[-1].close)
        await eventually(made[-1]._queue.depth)
    return made

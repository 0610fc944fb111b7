from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded, GatewayStopping, LimitExceeded, Overloaded, UpstreamUnavailable
from control_plane.core.principal import Principal
from control_plane.core.scope import EVERYTHING
from control_plane.inference.caching.singleflight import Singleflight
from tests.aio import run, settle

KEY = b"k"


class Work:
    """A computation that ends when the test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self.was_cancelled = False
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> str:
        self.begun += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        if self.error is not None:
            raise self.error
        return "result"


class Leader:
    """Fake `AuthorizedRequest`, with what a flight needs of it."""

    def __init__(self, tenant: str = "team") -> None:
        self.principal = Principal(tenant, "k", EVERYTHING)
        self.permit = SimpleNamespace(is_waiting=False)
        self.server = "s0"
        self.ended = 0

    def flight_ended(self, permit: object) -> None:
        assert permit is self.permit
        self.ended += 1


class Bench:
    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.tasks = tasks
        self.flights: Singleflight[str] = Singleflight()
        self.flights.begin(tasks)
        self.work = Work()
        self.leader: Any = Leader()
        self.other: Any = Leader()
        self.other.server = ""

    async def lead(self) -> asyncio.Task[Any]:
        return await self.start(self.flights.lead(KEY, self.leader, self.work))

    async def join(self, *, timeout_s: float = 30.0) -> asyncio.Task[Any]:
        return await self.start(self.flights.join(KEY, self.other, timeout_s=timeout_s))

    async def start(self, waiting: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(waiting)
        await settle()
        return task


def fly(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            await test(Bench(tasks))

    run(main())


def test_all_who_wait_get_one_result() -> None:
    async def test(bench: Bench) -> None:
        waiting = [await bench.lead(), *[await bench.join() for _ in range(9)]]
        bench.work.may_end.set()
        assert await asyncio.gather(*waiting) == ["result"] * 10
        assert (bench.work.begun, bench.leader.ended, bench.flights.is_under_way(KEY)) == (1, 1, False)
        assert bench.other.server == "s0"  # where it was computed

    fly(test)


@pytest.mark.parametrize("leaves", [0, 1], ids=["the leader", "another"])
def test_one_that_leaves_does_not_end_it(leaves: int) -> None:
    async def test(bench: Bench) -> None:
        waiting = [await bench.lead(), await bench.join()]
        waiting[leaves].cancel()
        await settle()
        assert bench.flights.is_under_way(KEY)
        bench.work.may_end.set()
        assert await waiting[1 - leaves] == "result"
        assert waiting[leaves].cancelled()

    fly(test)


def test_it_ends_with_the_last_of_those_who_wait() -> None:
    async def test(bench: Bench) -> None:
        waiting = [await bench.lead(), await bench.join()]
        for task in waiting:
            assert not bench.work.was_cancelled
            task.cancel()
            await settle()
        assert (bench.work.was_cancelled, bench.leader.ended, bench.flights.is_under_way(KEY)) == (True, 1, False)

    fly(test)


def test_whoever_comes_after_the_last_has_left_begins_anew() -> None:
    async def test(bench: Bench) -> None:
        first = await bench.lead()
        first.cancel()
        await asyncio.sleep(0)  # its cancellation is on its way, the computation has not ended
        assert not bench.flights.is_under_way(KEY)
        second = await bench.lead()
        bench.work.may_end.set()
        assert await second == "result"
        assert bench.work.begun == 2

    fly(test)


def test_all_who_wait_get_its_error_and_the_next_begins_anew() -> None:
    async def test(bench: Bench) -> None:
        waiting = [await bench.lead(), await bench.join()]
        bench.work.error = UpstreamUnavailable("none")
        bench.work.may_end.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(result) for result in results] == ["none", "none"]
        bench.work.error = None
        assert await bench.flights.lead(KEY, bench.leader, bench.work) == "result"

    fly(test)


@pytest.mark.parametrize("error", [DeadlineExceeded("late"), Overloaded("busy"), LimitExceeded("no more")])
def test_what_is_its_leaders_own_lot_is_not_the_others(error: Exception) -> None:
    async def test(bench: Bench) -> None:
        leader, other = await bench.lead(), await bench.join()
        bench.work.error = error
        bench.work.may_end.set()
        assert await other is None
        with pytest.raises(type(error)):
            await leader

    fly(test)


def test_one_who_joins_waits_no_longer_than_it_says() -> None:
    async def test(bench: Bench) -> None:
        leader, other = await bench.lead(), await bench.join(timeout_s=0.01)
        with pytest.raises(DeadlineExceeded):
            await other
        bench.work.may_end.set()
        assert await leader == "result"

    fly(test)


@pytest.mark.parametrize(("waits", "tenant", "place"), [(False, "other", KEY), (True, "team", KEY), (True, "other", (KEY, "other"))])
def test_nobody_joins_one_in_another_tenants_line(waits: bool, tenant: str, place: object) -> None:
    async def test(bench: Bench) -> None:
        other: Any = Leader(tenant)
        assert bench.flights.key_for(KEY, other) == KEY
        leader = await bench.lead()
        bench.leader.permit.is_waiting = waits
        assert bench.flights.key_for(KEY, other) == place
        bench.work.may_end.set()
        await leader

    fly(test)


async def test_a_stop_of_the_gateway_is_told_and_not_taken_for_a_callers_leaving() -> None:
    waiting: list[asyncio.Task[Any]] = []

    async def stop() -> None:
        async with asyncio.TaskGroup() as tasks:
            waiting.append(await Bench(tasks).lead())
            raise RuntimeError("stop")

    with pytest.raises(ExceptionGroup):
        await stop()
    with pytest.raises(GatewayStopping):
        await waiting[0]


@pytest.mark.parametrize("by", ["an error", "a result"])
def test_who_joins_in_the_turn_in_which_its_leaders_own_lot_ended_it_finds_none_afterwards(by: str) -> None:
    """The flight's callbacks run a turn later; who tried again until then would try for ever."""

    async def test(bench: Bench) -> None:
        found: list[tuple[str | None, bool]] = []

        async def join() -> None:
            answer = await bench.flights.join(KEY, bench.other, timeout_s=1.0, is_leaders_own=lambda result: result == "late")
            found.append((answer, bench.flights.is_under_way(KEY)))

        async def work() -> str:
            bench.tasks.create_task(join())  # its first step comes before the flight's callbacks
            if by == "a result":
                return "late"
            raise Overloaded("too busy", retry_after_s=1.0)

        with suppress(Overloaded):
            await bench.flights.lead(KEY, bench.leader, work)
        await settle()
        assert found == [(None, False)]

    fly(test)

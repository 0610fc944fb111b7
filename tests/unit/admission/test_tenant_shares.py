"""Several processes share tenants' limits through a demand board: in virtual time, each with an admission of
its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from control_plane.admission.admission import Admission
from control_plane.admission.concurrency_limiter import SlotLimits
from control_plane.admission.domain.demand import Exchange
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.admission.tenant_shares import TenantShares
from control_plane.core.errors import LimitExceeded, StoreUnavailable
from control_plane.objects.domain.tenant import Tenant
from tests.fakes.stores.demand_board import FakeDemand, FakeDemandBoard
from tests.sharing import Tenants

pytestmark = pytest.mark.virtual_time

LIMIT = 100.0
STEP_S = 0.05
FLOOR = 0.25


class SeenAdmission(Admission):
    """Admission that records the shares it was told to enforce."""

    parts: Mapping[str, float] = {}
    other = 1.0

    def set_shares(self, shares: Mapping[str, float], *, other: float = 1.0, processes: int = 1) -> None:
        self.parts, self.other = shares, other
        super().set_shares(shares, other=other, processes=processes)


class SeenBoard(FakeDemandBoard):
    """Demand board that records what processes published, and may be slow."""

    seen: list[Exchange]
    delay_s = 0.0

    async def exchange(self, process: str, demand: Mapping[str, float]) -> Exchange:
        await asyncio.sleep(self.delay_s)
        found = await super().exchange(process, demand)
        self.seen.append(found)
        return found


class Process:
    """One of several processes on a board; tenant `t` may send `LIMIT` requests per second over all
    of them.
    """

    def __init__(self, demand: FakeDemand, name: str, seen: list[Exchange] | None = None) -> None:
        self.board = SeenBoard(demand)
        self.board.seen = seen if seen is not None else []
        tenants = Tenants(Tenant("t", requests_per_s=LIMIT), Tenant("other", requests_per_s=LIMIT))
        now_s = asyncio.get_running_loop().time
        self.admission = SeenAdmission(tenants, slots=SlotLimits(1, 1), queue=QueueLimits(), now_s=now_s)
        self.shares = TenantShares(self.board, self.admission, name)
        self.admitted = 0
        self._owed = 0.0

    def part(self, tenant: str = "t") -> float:
        return self.admission.parts.get(tenant, self.admission.other)

    def come(self, requests: int) -> None:
        for _ in range(requests):
            try:
                self.admission.admit("t").release()
            except LimitExceeded:
                continue
            self.admitted += 1

    def come_at(self, requests_per_s: float) -> None:
        """Send the requests of one step at that rate."""
        self._owed += requests_per_s * STEP_S
        self.come(int(self._owed))
        self._owed -= int(self._owed)


async def send(seconds: float, rates: Mapping[Process, float]) -> int:
    """Send requests to each process at that rate, and return how many were admitted."""
    before = sum(process.admitted for process in rates)
    for _ in range(round(seconds / STEP_S)):
        for process, rate in rates.items():
            process.come_at(rate)
        await asyncio.sleep(STEP_S)
    return sum(process.admitted for process in rates) - before


@asynccontextmanager
async def taking_part(count: int, seen: list[Exchange] | None = None) -> AsyncIterator[tuple[list[Process], list[asyncio.Task[None]]]]:
    """Run so many processes, started one after the other within a second, with their tasks."""
    demand = FakeDemand()
    processes = [Process(demand, f"p{number}", seen) for number in range(count)]
    async with asyncio.TaskGroup() as tasks:
        running = []
        for process in processes:
            await process.shares.start()
            running.append(tasks.create_task(process.shares.run()))
            await asyncio.sleep(1.0 / count)
        yield processes, running
        for task in running:
            task.cancel()


def parts(processes: Sequence[Process]) -> list[float]:
    return [process.part() for process in processes]


async def test_alone_it_has_all_of_every_limit() -> None:
    async with taking_part(1) as ((process,), _):
        assert parts([process]) == [1.0]
        await send(3.0, {process: 3 * LIMIT})
        assert await send(5.0, {process: 3 * LIMIT}) == pytest.approx(5 * LIMIT, abs=2)
        assert (process.part(), process.part("other")) == (1.0, 1.0)


async def test_before_anybody_asks_the_parts_are_equal_from_the_start_on() -> None:
    demand = FakeDemand()
    one, other = Process(demand, "p1"), Process(demand, "p2")
    await one.shares.start()
    await other.shares.start()
    assert (one.part(), other.part()) == (1.0, 0.5)
    async with taking_part(4) as (processes, _):
        await asyncio.sleep(1.0)
        assert parts(processes) == [0.25] * 4


async def test_one_that_joins_is_left_its_part_by_those_that_are_busy() -> None:
    async with taking_part(2) as (busy, _):
        await send(6.0, dict.fromkeys(busy, LIMIT))
        late = Process(busy[0].board.demand, "late")
        await late.shares.start()
        assert late.part() == pytest.approx(FLOOR / 3)
        await send(1.1, dict.fromkeys(busy, LIMIT))
        assert sum(parts([*busy, late])) == pytest.approx(1.0, abs=0.01)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=5))
async def test_of_steady_demand_each_has_its_proportion_and_all_of_them_the_whole(rates: list[int]) -> None:
    assume(sum(rates) > 0)
    async with taking_part(len(rates)) as (processes, _):
        await send(8.0, dict(zip(processes, rates, strict=True)))
        found = parts(processes)
    expected = [FLOOR / len(rates) + (1 - FLOOR) * rate / sum(rates) for rate in rates]
    assert found == pytest.approx(expected, abs=0.1)  # a process hears of another's second when its own is over
    assert sum(found) == pytest.approx(1.0, abs=0.1)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4).flatmap(lambda count: st.lists(st.lists(st.integers(0, 40), min_size=count, max_size=count), max_size=12)))
async def test_all_parts_are_off_the_whole_by_no_more_than_demand_has_changed_in_a_second(requests: list[list[int]]) -> None:
    """`requests` has for each second how many come to each process.

    If T is the total demand that a process last heard of, then the shares own/T sum up to at most max T / min
    T.
    """
    assume(requests)
    count = len(requests[0])
    seen: list[Exchange] = []
    async with taking_part(count, seen) as (processes, _):
        await asyncio.sleep(1.01)  # each has heard of all
        del seen[:-count]
        for second in requests:
            for process, number in zip(processes, second, strict=True):
                process.come(number)
            for _ in range(count):
                await asyncio.sleep(1.0 / count)  # one exchange
                totals = [exchange.demand.get("t", 0.0) for exchange in seen[-count:]]
                if min(totals) > 0:
                    change = max(totals) / min(totals)
                    assert FLOOR + (1 - FLOOR) / change - 1e-6 <= sum(parts(processes)) <= FLOOR + (1 - FLOOR) * change + 1e-6
    assert len(seen) >= count * (len(requests) + 1)


async def test_who_gets_all_requests_of_a_tenant_has_nearly_its_whole_limit_in_a_few_seconds() -> None:
    async with taking_part(4) as (processes, _):
        busy = processes[1]
        await send(4.0, {busy: 5 * LIMIT})
        assert parts(processes) == pytest.approx([FLOOR / 4, 1 - 3 * FLOOR / 4, FLOOR / 4, FLOOR / 4], abs=0.01)
        assert await send(5.0, {busy: 5 * LIMIT}) == pytest.approx(5 * LIMIT * busy.part(), abs=5)
        assert [process.part("other") for process in processes] == [0.25] * 4


async def test_so_it_has_when_they_move_to_another_process() -> None:
    async with taking_part(4) as (processes, _):
        await send(6.0, {processes[0]: 5 * LIMIT})
        await send(5.0, {processes[3]: 5 * LIMIT})
        assert processes[3].part() > 0.75
        assert processes[0].part() < 0.15
        await send(5.0, {processes[3]: 5 * LIMIT})
        assert sum(parts(processes)) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    "factors",
    [
        pytest.param([5, 5, 5, 5], id="all alike"),
        pytest.param([20, 5, 1, 0.5], id="some more than others"),
    ],
)
async def test_a_flood_everywhere_gets_the_limit_over_all(factors: list[float]) -> None:
    async with taking_part(4) as (processes, _):
        rates = {process: factor * LIMIT for process, factor in zip(processes, factors, strict=True)}
        await send(4.0, rates)
        assert await send(10.0, rates) == pytest.approx(10 * LIMIT, rel=0.03)


async def test_a_flood_that_keeps_moving_gets_little_more_than_the_limit() -> None:
    async with taking_part(4) as (processes, _):
        admitted = sum([await send(2.5, {processes[turn % 4]: 5 * LIMIT}) for turn in range(12)])
        # When the flood reaches a process, that process has its share of a second's burst in its bucket.
        assert admitted <= 30 * LIMIT * 1.15 + LIMIT


async def test_one_that_dies_gives_its_part_back_within_6_s() -> None:
    async with taking_part(2) as ((dies, stays), running):
        await send(5.0, {dies: LIMIT, stays: LIMIT})
        running[0].cancel()
        await send(4.0, {stays: LIMIT})
        assert stays.part() < 0.95  # it may be slow only
        await send(2.0, {stays: LIMIT})
        assert stays.part() == 1.0


async def test_one_that_stops_gives_it_back_at_once() -> None:
    async with taking_part(2) as ((stops, stays), running):
        await send(5.0, {stops: LIMIT, stays: LIMIT})
        assert stays.part() == pytest.approx(0.5, abs=0.01)
        running[0].cancel()
        await stops.shares.stop()
        await asyncio.sleep(1.0)
        assert stays.part() == 1.0


async def test_one_to_which_the_board_is_slow_asks_for_no_more_than_others() -> None:
    async with taking_part(2) as ((slow, quick), _):
        slow.board.delay_s = 0.9
        await send(15.0, {slow: LIMIT, quick: LIMIT})
        assert parts([slow, quick]) == pytest.approx([0.5, 0.5], abs=0.02)


async def test_while_the_board_is_away_the_last_parts_stay_and_then_they_follow_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with taking_part(2) as ((one, other), _):
        for process, rate in ((one, LIMIT), (other, LIMIT / 4)):
            await send(5.0, {process: rate})
        before = parts([one, other])
        one.board.is_away = other.board.is_away = True
        await send(20.0, {one: LIMIT})
        assert parts([one, other]) == before
        one.board.is_away = other.board.is_away = False
        await send(2.0, {one: LIMIT})
        assert parts([one, other]) == pytest.approx([1 - FLOOR / 2, FLOOR / 2], abs=0.01)
        one.board.is_away = True
        await asyncio.sleep(2.0)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "what tenants ask of other processes is not known"
    ] * 3  # once for each that it was away from, each time


async def test_it_does_not_start_without_the_board_and_stops_without_it() -> None:
    process = Process(FakeDemand(), "p1")
    process.board.is_away = True
    with pytest.raises(StoreUnavailable):
        await process.shares.start()
    await process.shares.stop()
    process.board.is_away = False
    await process.shares.start()
    await process.shares.stop()
    assert process.board.demand.told == {}

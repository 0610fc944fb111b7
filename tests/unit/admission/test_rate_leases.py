"""Several processes draw from the same token buckets, in virtual time: what they admit together, and which
requests wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from random import Random

import pytest

from control_plane.admission.admission import Admission
from control_plane.admission.concurrency_limiter import SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.admission.domain.rate_limit import Draw, RateLimit
from control_plane.admission.rate_leases import RateLeases
from control_plane.core.errors import LimitExceeded, StoreUnavailable
from control_plane.objects.domain.tenant import Tenant
from control_plane.telemetry.shed_reason import ShedReason
from control_plane.workers.token_buckets import TokenBuckets
from tests.aio import run_in_virtual_time, settle
from tests.sharing import Tenants

pytestmark = pytest.mark.virtual_time

SPAN_S = 60.0
ROUND_TRIP_S = 0.001


class Buckets(TokenBuckets):
    """Fake shared buckets, a round trip away; they may fall silent or fail."""

    def __init__(self) -> None:
        super().__init__(now_s=asyncio.get_running_loop().time)
        self.delay_s = ROUND_TRIP_S
        self.failure: StoreUnavailable | None = None
        self.draws = 0

    async def draw(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Draw:
        self.draws += 1
        await asyncio.sleep(self.delay_s / 2)
        if self.failure is not None:
            raise self.failure
        found = self.draw_now(tenant, limit, want=want, spent=spent)
        await asyncio.sleep(self.delay_s / 2)
        return found


class Process:
    def __init__(self, buckets: Buckets, tenants: Tenants, count: int) -> None:
        now_s = asyncio.get_running_loop().time
        self.leases = RateLeases(buckets, now_s=now_s)
        self.admission = Admission(tenants, slots=SlotLimits(9, 9), queue=QueueLimits(), now_s=now_s, leases=self.leases)
        self.admission.set_shares({}, other=1.0 / count, processes=count)
        self.waited = 0

    def come_at_once(self, tenant: str) -> bool | None:
        """Whether a request is admitted at once; None if it has to wait for the bucket."""
        try:
            permit = self.admission.admit(tenant)
        except LimitExceeded:
            return False
        if permit is not None:
            permit.release()
        return None if permit is None else True

    async def come_when_told(self, tenant: str) -> bool:
        self.waited += 1
        try:
            (await self.admission.admit_when_synced(tenant)).release()
        except LimitExceeded:
            return False
        return True

    async def come(self, tenant: str = "t") -> bool:
        """Whether a request is admitted, after waiting for the bucket where it must."""
        is_admitted = self.come_at_once(tenant)
        return await self.come_when_told(tenant) if is_admitted is None else is_admitted


class Site:
    def __init__(self, tenants: Tenants, count: int) -> None:
        self.buckets = Buckets()
        self.tenants = tenants
        self.processes = [Process(self.buckets, tenants, count) for _ in range(count)]

    @property
    def waited(self) -> int:
        return sum(process.waited for process in self.processes)


@asynccontextmanager
async def site(*tenants: Tenant, processes: int = 2) -> AsyncIterator[Site]:
    made = Site(Tenants(*tenants), processes)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(process.leases.run()) for process in made.processes]
        yield made
        for task in running:
            task.cancel()


async def flood(processes: Sequence[Process], rate: float, *, seconds: float = SPAN_S, seed: int = 0) -> int:
    """Send requests at random times, at that rate, each to a random process; return how many are admitted."""
    random, now_s = Random(seed), asyncio.get_running_loop().time
    until_s, admitted = now_s() + seconds, list[bool]()

    async def come_when_told(process: Process) -> None:
        admitted.append(await process.come_when_told("t"))

    async with asyncio.TaskGroup() as tasks:
        while now_s() < until_s:
            await asyncio.sleep(random.expovariate(rate))
            process = random.choice(processes)
            is_admitted = process.come_at_once("t")
            if is_admitted is None:
                tasks.create_task(come_when_told(process))
            else:
                admitted.append(is_admitted)
    return sum(admitted)


@pytest.mark.parametrize(
    ("rate", "burst", "processes"),
    [
        pytest.param(0.5, None, 8, id="one in two seconds"),
        pytest.param(3.0, None, 2, id="three"),
        pytest.param(3.0, 20, 8, id="three, twenty at once"),
        pytest.param(50.0, None, 8, id="fifty"),
        pytest.param(300.0, None, 2, id="three hundred"),
        pytest.param(300.0, 5, 8, id="three hundred, five at once"),
    ],
)
@pytest.mark.parametrize("factor", [0.9, 4.0])
async def test_a_minute_admits_what_the_limit_says_within_a_twentieth(
    rate: float, burst: int | None, processes: int, factor: float
) -> None:
    """And of less than the limit all requests are admitted."""
    async with site(Tenant("t", requests_per_s=rate, burst=burst), processes=processes) as all_:
        seconds = min(SPAN_S, 2000 / (factor * rate))  # of more a test would take long
        alone = await reference(rate, burst, factor, seconds)
        admitted = await flood(all_.processes, factor * rate, seconds=seconds)
        allowed = rate * seconds + (burst or max(1.0, rate))
        assert admitted <= 1.05 * allowed
        assert admitted >= 0.95 * alone - 1


async def reference(rate: float, burst: int | None, factor: float, seconds: float) -> int:
    """Return how many of the same requests a single process admits."""
    alone = Site(Tenants(Tenant("t", requests_per_s=rate, burst=burst)), 1)
    (process,) = alone.processes
    process.leases = RateLeases(now_s=asyncio.get_running_loop().time)
    process.admission = Admission(
        alone.tenants, slots=SlotLimits(9, 9), queue=QueueLimits(), now_s=asyncio.get_running_loop().time, leases=process.leases
    )
    return await flood([process], factor * rate, seconds=seconds)


@pytest.mark.parametrize(("rate", "burst"), [(3.0, None), (3.0, 10), (50.0, None), (1000.0, 100)])
@pytest.mark.parametrize("lands", ["on one", "on all in turn"])
async def test_a_burst_is_honoured_wherever_it_lands(rate: float, burst: int | None, lands: str) -> None:
    async with site(Tenant("t", requests_per_s=rate, burst=burst), processes=4) as all_:
        size = int(burst or rate)
        for turn in range(5):
            await asyncio.sleep(size / rate + 2.0)
            ways = cycle(all_.processes if lands == "on all in turn" else [all_.processes[turn % 4]])
            began_s = asyncio.get_running_loop().time()
            admitted = [await next(ways).come() for _ in range(2 * size)]
            refilled = rate * (asyncio.get_running_loop().time() - began_s)
            assert all(admitted[:size]), f"{admitted[:size].count(False)} refused"
            assert sum(admitted) <= size + refilled + 1


async def test_requests_that_come_at_the_same_time_are_decided_one_by_one() -> None:
    async with site(Tenant("t", requests_per_s=3.0), processes=2) as all_:
        one, other = all_.processes
        admitted = await asyncio.gather(*(process.come() for process in (one, other) * 5))
        assert sum(admitted) == 3


async def test_far_from_the_limit_nobody_waits_for_the_buckets() -> None:
    async with site(Tenant("t", requests_per_s=1000.0), processes=4) as all_:
        all_.buckets.delay_s = 0.02
        assert await flood(all_.processes, 300.0, seconds=10.0) == pytest.approx(3000, rel=0.05)
        assert all_.waited == 0
        assert all_.buckets.draws < 1000


async def test_a_flood_asks_the_buckets_seldom() -> None:
    async with site(Tenant("t", requests_per_s=100.0), processes=2) as all_:
        await flood(all_.processes, 2000.0, seconds=3.0)
        assert all_.buckets.draws < 2 * 3.0 / 0.02 * 1.2


async def test_a_flood_that_moves_takes_all_of_the_limit_along() -> None:
    async with site(Tenant("t", requests_per_s=40.0), processes=4) as all_:
        await flood(all_.processes[:1], 200.0, seconds=5.0)
        for turn in range(1, 8):
            admitted = await flood([all_.processes[turn % 4]], 200.0, seconds=2.0, seed=turn)
            assert admitted == pytest.approx(80, rel=0.1)


async def test_tokens_that_nobody_wants_any_more_are_given_back() -> None:
    async with site(Tenant("t", requests_per_s=100.0), processes=2) as all_:
        one, other = all_.processes
        await flood([one], 60.0, seconds=3.0)
        await asyncio.sleep(2.0)
        assert sum([await other.come() for _ in range(120)]) >= 100


async def test_a_process_that_stops_gives_back_what_it_holds() -> None:
    async with site(Tenant("t", requests_per_s=100.0), processes=2) as all_:
        one, other = all_.processes
        await flood([one], 90.0, seconds=1.0)
        await one.leases.stop()
        await asyncio.sleep(1.0)
        assert sum([await other.come() for _ in range(100)]) == 100


async def test_a_refusal_says_what_holds_for_all_processes() -> None:
    async with site(Tenant("t", requests_per_s=0.5, burst=3), processes=2) as all_:
        one, other = all_.processes
        assert [await process.come() for process in (one, other, one)] == [True] * 3
        for process in (one, other):
            with pytest.raises(LimitExceeded) as refused:
                await process.admission.admit_when_synced("t")
            assert str(refused.value) == "tenant 't' may send 0.5 requests per second, 3 at once"
            assert dict(refused.value.limits) == {"RateLimit-Limit": "3", "RateLimit-Remaining": "0", "RateLimit-Reset": "6"}
            assert refused.value.retry_after_s == pytest.approx(2.0, abs=0.02)
            with pytest.raises(LimitExceeded):  # from now on it is known here
                process.admission.admit("t")
            with pytest.raises(LimitExceeded):
                process.admission.check("t")
            assert dict(process.admission.counts) == {("t", ShedReason.RATE): 3}
        await asyncio.sleep(refused.value.retry_after_s)
        assert await other.come()
        assert not await one.come()


async def test_what_waits_and_is_cancelled_has_used_no_token() -> None:
    async with site(Tenant("t", requests_per_s=0.01, burst=1), processes=2) as all_:
        one, other = all_.processes
        for delay_s in (0.0, 0.5 * ROUND_TRIP_S, ROUND_TRIP_S):
            asking = asyncio.get_running_loop().create_task(one.come())
            await asyncio.sleep(delay_s)
            asking.cancel()
            await asyncio.wait([asking])
            await asyncio.sleep(2.0)
        assert await other.come()
        assert one.admission.account("t").in_flight == 0


async def test_one_that_waits_counts_as_under_way() -> None:
    async with site(Tenant("t", requests_per_s=3.0, concurrency=2), processes=1) as all_:
        (one,) = all_.processes
        asked = [asyncio.get_running_loop().create_task(one.come()) for _ in range(5)]
        await asyncio.wait(asked)
        assert sum(task.result() for task in asked) == 2


@pytest.mark.parametrize("how", ["silent", "away"])
@pytest.mark.parametrize("rate", [3.0, 40.0])
def test_while_the_buckets_are_silent_each_enforces_its_part_and_nobody_waits_for_them(
    how: str, rate: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with site(Tenant("t", requests_per_s=rate), processes=2) as all_:
            await flood(all_.processes, 5 * rate, seconds=5.0)
            if how == "silent":
                all_.buckets.delay_s = 1e6
            else:
                all_.buckets.failure = StoreUnavailable("the Redis is away")
            await flood(all_.processes, 5 * rate, seconds=1.0)
            all_.processes[0].waited = all_.processes[1].waited = 0
            admitted = await flood(all_.processes, 5 * rate, seconds=30.0)
            assert all_.waited == 0
            assert 0.9 * 30 * rate <= admitted <= 1.05 * 30 * rate + rate
            all_.buckets.delay_s, all_.buckets.failure = ROUND_TRIP_S, None
            again = await flood(all_.processes, 5 * rate, seconds=20.0)
            assert 0.9 * 20 * rate <= again <= 1.05 * 20 * rate + rate
            await asyncio.sleep(2.0)
            assert sum([await all_.processes[0].come() for _ in range(int(rate))]) == int(rate), "not its part, all of it"

    run_in_virtual_time(main())
    told = [record.getMessage().partition(",")[0] for record in caplog.records]
    silent, again = (
        "tenants' rates are enforced by each process for its part",
        "tenants' rates are enforced over all processes together again",
    )
    assert sorted(told) == [silent] * 2 + [again] * 2


async def test_no_request_waits_for_silent_buckets_for_longer_than_half_a_second() -> None:
    async with site(Tenant("t", requests_per_s=3.0), processes=2) as all_:
        all_.buckets.delay_s = 1e6
        began_s = asyncio.get_running_loop().time()
        assert await all_.processes[0].come()
        assert asyncio.get_running_loop().time() - began_s <= 0.5


async def test_a_limit_that_is_changed_holds_at_once() -> None:
    async with site(Tenant("t", requests_per_s=3.0), processes=2) as all_:
        one, other = all_.processes
        assert [await one.come() for _ in range(4)] == [True, True, True, False]
        all_.tenants.tenants = {"t": Tenant("t")}
        assert all([await other.come() for _ in range(100)])
        all_.tenants.tenants = {"t": Tenant("t", requests_per_s=0.0)}
        assert not any([await process.come() for process in (one, other)])
        all_.tenants.tenants = {"t": Tenant("t", requests_per_s=3.0)}
        await asyncio.sleep(2.0)
        assert [await other.come() for _ in range(4)] == [True, True, True, False]


async def test_a_rate_that_is_taken_away_while_a_request_waits_lets_it_in() -> None:
    async with site(Tenant("t", requests_per_s=3.0), processes=2) as all_:
        asking = asyncio.get_running_loop().create_task(all_.processes[0].come())
        await settle()
        all_.tenants.tenants = {"t": Tenant("t")}
        all_.processes[0].admission.account("t")
        assert await asking

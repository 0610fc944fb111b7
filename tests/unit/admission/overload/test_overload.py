"""Overload of a model in an open loop, in virtual time: what is sent is answered in time, and the rest is
refused at once.

The simulated Triton computes whatever it was sent, also after the deadline, when the caller has gone; the
permit's slot is kept for as long as `triton/adapters` do.
"""

from __future__ import annotations

import asyncio

import pytest

from control_plane.admission.concurrency_limiter import SlotLimits
from control_plane.objects.domain.tenant import Tenant
from tests.aio import run_in_virtual_time
from tests.unit.admission.overload.overload_bench import (
    BATCH,
    DEADLINE_S,
    LIMITED,
    NO_TENANTS,
    OPEN,
    PEAK_PER_S,
    SERVICE_S,
    TENANTS,
    Batching,
    Bench,
    Seen,
    Triton,
    jitter,
)

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    ("slots", "tenants", "instances", "part"),
    [
        pytest.param(OPEN, NO_TENANTS, 1, 0.0, id="without authentication"),
        pytest.param(OPEN, NO_TENANTS, 1, 0.9, id="without authentication, unsteady"),
        pytest.param(LIMITED, TENANTS, 1, 0.2, id="three tenants"),
        pytest.param(LIMITED, TENANTS, 4, 0.2, id="three tenants, four instances"),
        pytest.param(SlotLimits(10, 10), TENANTS, 1, 0.2, id="few slots"),
    ],
)
async def test_thrice_the_capacity_leaves_nine_tenths_of_the_peak(
    slots: SlotLimits, tenants: tuple[Tenant, ...], instances: int, part: float
) -> None:
    peak_per_s = instances * PEAK_PER_S
    seconds = 6.0 if instances > 1 else 40.0 if part > 0.5 else 20.0
    bench = Bench(slots, Triton(instances, jitter(part)), tenants)
    await bench.load(seconds, 3 * peak_per_s)
    seen = bench.seen
    assert seen.per_s(0.0, seconds) >= 0.9 * peak_per_s, seen.late
    assert len(seen.refused_after_s) > 1.5 * seconds * peak_per_s
    at_once = sum(after_s <= 0.02 for after_s in seen.refused_after_s)
    assert at_once >= 0.99 * len(seen.refused_after_s)
    assert min(seen.retry_after_s) >= 1.0
    # Normal again within two seconds.
    await asyncio.sleep(1.0)
    before, ended_s = len(seen.refused_after_s), bench.loop.time()
    await bench.load(4.0, 0.3 * peak_per_s)
    assert len(seen.refused_after_s) == before
    assert seen.per_s(ended_s, ended_s + 4.0) >= 0.2 * peak_per_s


@pytest.mark.parametrize(
    ("first_s", "known_cost"),
    [
        pytest.param(SERVICE_S, 30.0, id="a row, then milliseconds"),
        pytest.param(SERVICE_S, 0.03, id="a row, then a fraction of one"),
        pytest.param(2.0, 1.0, id="a first request that warms the model up"),
    ],
)
async def test_what_the_first_request_took_misleads_nobody_though_the_model_is_never_idle_again(first_s: float, known_cost: float) -> None:
    """Eight callers come at once, and the cost of a request is known a moment later."""
    times = iter([first_s])
    bench = Bench(OPEN, Triton(1, lambda: next(times, SERVICE_S)))
    bench.cost_units = lambda: 1.0 if bench.loop.time() < first_s + SERVICE_S else known_cost

    async def caller() -> None:
        while bench.loop.time() < 5.0:
            await bench._request("", "", 10.0)

    await asyncio.gather(*(caller() for _ in range(8)))
    began_s = bench.loop.time()
    await bench.load(10.0, 3 * PEAK_PER_S)
    assert bench.seen.per_s(began_s + 2.0, began_s + 10.0) >= 0.9 * PEAK_PER_S, bench.seen.late


async def test_several_gateways_that_do_not_know_of_each_other_share_what_triton_computes() -> None:
    triton = Triton(1, jitter(0.2))
    gateways = [Bench(SlotLimits(64, 64), triton) for _ in range(4)]
    async with asyncio.TaskGroup() as tasks:
        for number, bench in enumerate(gateways):
            tasks.create_task(bench.load(20.0, 0.75 * PEAK_PER_S, f"{number}"))
    shares = [bench.seen.per_s(0.0, 20.0) / PEAK_PER_S for bench in gateways]
    assert sum(shares) >= 0.9, shares
    assert min(shares) >= 0.1, shares


async def test_a_model_that_becomes_slower_and_faster_is_followed() -> None:
    times = 1.0
    bench = Bench(OPEN, Triton(1, lambda: times * SERVICE_S))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.load(50.0, 3 * PEAK_PER_S))
        for times in (1.0, 2.0, 1.0, 4.0, 1.0):
            began_s = bench.loop.time()
            await asyncio.sleep(10.0)
            assert bench.seen.per_s(began_s, began_s + 10.0) >= 0.8 * PEAK_PER_S / times, times


async def test_a_burst_that_nothing_announced_is_over_when_triton_has_done_it() -> None:
    bench = Bench(OPEN, Triton())
    await bench.load(2.0, 10.0)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(200):
            tasks.create_task(bench._request("", "", DEADLINE_S))
    await asyncio.sleep(8.0)
    began_s = bench.loop.time()
    await bench.load(10.0, 3 * PEAK_PER_S)
    assert bench.seen.per_s(began_s, began_s + 10.0) >= 0.9 * PEAK_PER_S


@pytest.mark.parametrize("deadline_s", [0.1, 1.0])
async def test_a_model_that_batches_gets_what_fills_its_batches(deadline_s: float) -> None:
    peak_per_s = BATCH * PEAK_PER_S
    bench = Bench(OPEN, Batching(), leaves_after_s=deadline_s)
    await bench.load(5.0, 3 * peak_per_s, deadline_s=deadline_s)
    assert bench.seen.per_s(2.0, 5.0) >= 0.9 * peak_per_s, bench.seen.late


async def test_two_protocols_get_alike() -> None:
    bench = Bench(OPEN, Triton())
    async with asyncio.TaskGroup() as tasks:
        for caller in ("http", "grpc"):
            tasks.create_task(bench.load(30.0, 1.5 * PEAK_PER_S, caller))
    http, grpc = bench.seen.by_caller["http"], bench.seen.by_caller["grpc"]
    assert 0.8 < http / grpc < 1.25


async def test_below_its_capacity_nothing_is_refused() -> None:
    bench = Bench(OPEN, Triton(1, jitter(0.5)))
    await bench.load(30.0, 0.7 * PEAK_PER_S)
    assert bench.seen.refused_after_s == []
    assert bench.seen.late == 0


@pytest.mark.parametrize(
    ("slots", "before", "instances"),
    [
        pytest.param(OPEN, 0, 1, id="open, first request ever"),
        pytest.param(OPEN, 50, 4, id="open, known as quick, four instances"),
        pytest.param(LIMITED, 0, 4, id="limited, first request ever, four instances"),
        pytest.param(LIMITED, 50, 1, id="limited, known as quick"),
    ],
)
def test_a_request_that_held_up_all_others_takes_none_of_them_with_it(slots: SlotLimits, before: int, instances: int) -> None:
    """What those behind it have waited is not what the next will wait."""

    async def main() -> Seen:
        times_s = iter([0.001] * before + [20.0] * instances)
        bench = Bench(slots, Triton(instances, lambda: next(times_s, 0.001)), leaves_after_s=30.0)
        for _ in range(before):  # one after the other
            await bench._request("", "", 30.0)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(1000):
                tasks.create_task(bench._request("", "", 30.0))
        assert len(bench.seen.in_time_s) == before + 1000, len(bench.seen.in_time_s)
        return bench.seen

    seen = run_in_virtual_time(main())
    assert seen.late == 0
    assert seen.refused_after_s == []


async def test_after_a_request_that_held_up_all_others_an_overload_is_shed_as_ever() -> None:
    stalls = False

    def service_s() -> float:
        nonlocal stalls
        stalled, stalls = stalls, False
        return 0.8 if stalled else SERVICE_S

    bench = Bench(OPEN, Triton(1, service_s))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.load(20.0, 3 * PEAK_PER_S))
        for _ in range(3):
            await asyncio.sleep(5.0)
            stalls = True
    # Each stall costs 0.8 s, and 0.8 s more of whatever was sent before it and is late by then.
    lost_s = 3 * 2 * 0.8
    assert bench.seen.per_s(0.0, 20.0) >= 0.9 * PEAK_PER_S * (20.0 - lost_s) / 20.0, bench.seen.late


@pytest.mark.parametrize("slots", [pytest.param(OPEN, id="open"), pytest.param(LIMITED, id="limited")])
async def test_a_model_that_has_become_slow_for_good_sheds_what_it_cannot_do(slots: SlotLimits) -> None:
    """From one request to the next it takes 20 times as long: then what waits is hopeless, and is not sent in vain."""
    times = 1.0
    bench = Bench(slots, Triton(1, lambda: times * SERVICE_S), leaves_after_s=3.0)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.load(60.0, 3 * PEAK_PER_S, deadline_s=3.0))
        await asyncio.sleep(10.0)
        times, late = 20.0, bench.seen.late
        await asyncio.sleep(10.0)
        late, bench.seen.late = bench.seen.late - late, 0
    assert bench.seen.per_s(20.0, 60.0) >= 0.8 * PEAK_PER_S / times
    assert bench.seen.late <= 0.2 * 40.0 * PEAK_PER_S / times, (late, bench.seen.late)

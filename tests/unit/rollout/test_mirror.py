"""A route's mirror: which requests are copied to it, what is counted of them, and what it may never do to anybody."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.inference.domain.retry_budget import SHARE
from control_plane.inference.retries.retry_budget import RetryBudget, RetryKind
from control_plane.objects.domain.rollout import Phase
from control_plane.objects.domain.route import WHOLE, Mirror, Route
from control_plane.rollout.copy_order import order_of
from control_plane.rollout.shadow import MAX_TO_ONE, MIRROR_RESERVE
from control_plane.telemetry.request_counts import BUCKETS_S, Copied, CopiedCount, Half
from tests.unit.rollout.shadow_bench import ROLLOUT, ROUTE, Bench, Request, answer

pytestmark = pytest.mark.virtual_time

MIRRORED = replace(ROUTE, mirror=Mirror("next", weight=WHOLE))


def mirroring(*routes: Route, **how: Any) -> Bench:
    return Bench(rollout=None, routes=routes or (MIRRORED,), **how)


async def mirrored(request: Request, route: Route = MIRRORED, *, original: Any = None) -> Bench:
    """A bench that has copied one request, or not."""
    async with mirroring(route).running() as bench:
        bench.offer(request, stable=original)
        await asyncio.sleep(30.0)
    return bench


@pytest.mark.parametrize(
    ("reply", "original", "counted"),
    [
        pytest.param(answer(), None, Copied.ANSWERED, id="answered"),
        pytest.param(answer(2.0), None, Copied.ANSWERED, id="otherwise, which nobody compares"),
        pytest.param(answer(0, 500), None, Copied.FAILED, id="fails"),
        pytest.param(answer(0, 400), None, Copied.FAILED, id="refuses what the route's model takes"),
        pytest.param(UpstreamUnavailable("gone"), None, Copied.FAILED, id="its server dies"),
        pytest.param(answer(0, 404), None, Copied.UNCOUNTED, id="is not there"),
        pytest.param(answer(), answer(0, 500), Copied.ANSWERED, id="the original failed"),
        pytest.param(answer(0, 400), answer(0, 500), Copied.ANSWERED, id="refuses what had failed"),
    ],
)
async def test_what_becomes_of_a_copy_is_counted_and_no_rollout_hears_of_it(reply: Any, original: Any, counted: Copied) -> None:
    request = Request(reply=reply)
    bench = await mirrored(request, original=original)
    assert [(model, version) for model, version, _ in request.sent] == [("next", "")]
    assert [each for each in bench.shadow.counts.results() if each.count] == [CopiedCount("r", "next", counted, 1)]
    assert (bench.observations.take(), bench.dispatch.idle) == ((), 100)


async def test_a_version_is_copied_to_and_named() -> None:
    request = Request()
    bench = await mirrored(request, replace(ROUTE, version="1", mirror=Mirror("v1", "2", WHOLE)))
    assert [(model, version) for model, version, _ in request.sent] == [("v1", "2")]
    assert {each.model for each in bench.shadow.counts.results()} == {"v1@2"}


async def test_equal_requests_are_copied_alike_and_of_others_the_part() -> None:
    routes = [replace(MIRRORED, name=name, mirror=Mirror("next", weight=1000)) for name in ("r", "other")]
    bench = mirroring(*routes)
    chosen = []
    for route in (*routes, routes[0]):
        order = order_of(bench.shadow._access, route)
        assert order is not None
        chosen.append({number for number in range(5000) if order.chooses((b"%d" % number,))})
    assert chosen[0] == chosen[2] != chosen[1], "another route has others"
    assert all(400 < len(each) < 600 for each in chosen)
    async with bench.running():
        equal, other = [Request(b"%d" % min(chosen[0])) for _ in range(3)], Request(b"%d" % min({*range(5000)} - chosen[0]))
        bench.offer(*equal, other)
        await asyncio.sleep(1.0)
        assert [len(each.sent) for each in (*equal, other)] == [1, 1, 1, 0]


@pytest.mark.parametrize("place", [0, 5_000, 500_000, 999_999])
async def test_wherever_large_requests_differ_they_are_chosen_apart(place: int) -> None:
    order = order_of(mirroring().shadow._access, replace(MIRRORED, mirror=Mirror("next", weight=5000)))
    assert order is not None
    large = bytearray(1_000_000)
    chosen = set[bool]()
    for number in range(50):
        large[place] = number
        chosen.add(order.chooses((bytes(large),)))
    assert chosen == {True, False}


async def test_while_a_rollout_of_the_route_is_under_way_its_mirror_rests() -> None:
    async with Bench(routes=(MIRRORED,)).running() as bench:
        in_shadow, in_canary, afterwards = Request(), Request(), Request()
        bench.offer(in_shadow)
        await asyncio.sleep(1.0)
        bench.known.shadows, bench.known.rollouts = {}, {"r": replace(ROLLOUT, phase=Phase.CANARY)}
        bench.offer(in_canary)
        await asyncio.sleep(1.0)
        bench.known.rollout_ids = {}
        bench.offer(afterwards)
        await asyncio.sleep(1.0)
        sent = [[model for model, *_ in each.sent] for each in (in_shadow, in_canary, afterwards)]
        assert sent == [["v2"], [], ["next"]]


@pytest.mark.parametrize("mirror", [None, Mirror("another", weight=WHOLE)], ids=["taken away", "another one"])
async def test_what_waits_for_a_mirror_that_is_no_more_is_dropped(mirror: Mirror | None) -> None:
    async with mirroring().running() as bench:
        request = Request()
        bench.offer(request)
        bench.known.routes = {"r": replace(MIRRORED, mirror=mirror)}
        await asyncio.sleep(1.0)
        assert (request.sent, bench.counts) == ([], {Copied.DROPPED: 1})


async def test_how_long_both_took_is_counted_where_both_have_answered() -> None:
    async with mirroring().running() as bench:
        bench.offer(Request(takes_s=0.2), Request(reply=answer(0, 500), takes_s=0.1), Request(is_whole=False))
        bench.offer(Request(), stable=answer(0, 500))
        await asyncio.sleep(5.0)
        original, copy = bench.shadow.counts.durations()
        assert [(each.route, each.model, each.half) for each in (original, copy)] == [
            ("r", "next", Half.ORIGINAL),
            ("r", "next", Half.COPY),
        ]
        assert (original.seconds, copy.seconds) == (pytest.approx(0.02), pytest.approx(0.2))
        assert [sum(each.buckets) for each in (original, copy)] == [1, 1]
        assert copy.buckets[BUCKETS_S.index(0.25)] == 1


async def test_a_frozen_mirror_leaves_room_for_others() -> None:
    frozen, good = replace(MIRRORED, mirror=Mirror("frozen", weight=WHOLE)), replace(MIRRORED, name="s")
    async with mirroring(frozen, good).running() as bench:
        stuck = [Request(b"%d" % number, takes_s=1e6) for number in range(60)]
        bench.offer(*stuck)
        await asyncio.sleep(0.1)
        others = [Request(b"%d" % number, takes_s=0.001) for number in range(100)]
        for each in others:
            bench.offer(each, route="s")
            await asyncio.sleep(0.02)
        assert sum(len(each.sent) for each in others) == 100
        assert sum(len(each.sent) for each in stuck) == MAX_TO_ONE
        await asyncio.sleep(30.0)
        assert (bench.dispatch.idle, bench.shadow._under_way.total()) == (100, 0)
        failed = {each.model: each.count for each in bench.shadow.counts.results() if each.result is Copied.FAILED}
        assert failed == {"frozen": MAX_TO_ONE, "next": 0}


async def test_a_flood_of_one_tenants_is_copied_within_the_budget_of_which_a_part_is_left_for_resends() -> None:
    async with mirroring().running() as bench:
        retries = bench.dispatch.retries = RetryBudget(now_s=lambda: asyncio.get_running_loop().time())
        for number in range(20_000):
            retries.asked(1.0)
            bench.offer(Request(b"%d" % number))
            if number % 4 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(1.0)
        assert 0.9 * (1.0 - MIRROR_RESERVE) <= bench.counts[Copied.ANSWERED] / (SHARE * 20_000) <= 1.05 * (1.0 - MIRROR_RESERVE)
        assert retries.counts[RetryKind.MIRROR, True] == bench.counts[Copied.ANSWERED]
        in_a_burst = sum(retries.try_spend(1.0) for _ in range(1000))
        assert in_a_burst > 250, "what 400 requests a second ask for in most of a second"


async def test_with_little_traffic_the_spare_request_is_a_resends() -> None:
    async with mirroring().running() as bench:
        retries = bench.dispatch.retries = RetryBudget(now_s=lambda: asyncio.get_running_loop().time())
        retries.asked(1.0)
        bench.offer(Request())
        await asyncio.sleep(1.0)
        assert bench.counts == {Copied.OVER_BUDGET: 1}
        assert retries.try_spend(1.0)

"""Copies of answered requests: which are made, when they are sent, and what is seen of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from control_plane.core.errors import Overloaded, UpstreamUnavailable
from control_plane.inference.domain.observation import Observation, Pair
from control_plane.inference.retries.retry_budget import RetryBudget, RetryKind
from control_plane.inference.routes.shadowing import MAX_COPIED_BYTES
from control_plane.objects.domain.rollout import Agreement, Rollout, Step
from control_plane.objects.domain.route import Mirror, Route
from control_plane.protocols.http1 import make_answer
from control_plane.rollout.shadow import MAX_AT_ONCE, MAX_HELD, MAX_HELD_BYTES, MAX_TO_ONE, PAUSE_S, STALE_S
from control_plane.telemetry.request_counts import Copied
from tests.unit.rollout.shadow_bench import CALL, ROLLOUT, Bench, Request, answer

pytestmark = pytest.mark.virtual_time


async def paired(request: Request, *, stable: Any = None, rollout: Rollout = ROLLOUT) -> tuple[dict[Copied, int], tuple[Observation, ...]]:
    """What is counted and seen of one request."""
    async with Bench(rollout=rollout).running() as bench:
        bench.offer(request, stable=stable)
        await asyncio.sleep(30.0)
        return bench.counts, bench.observations.take()


DEAD = make_answer(
    500, b"{\"error\":\"Failed to process the request(s) for model instance 'v2_0', message: Stub process 'v2_0' is not healthy.\"}"
)


@pytest.mark.parametrize(
    ("reply", "stable", "counted", "pair", "is_fault", "is_death"),
    [
        pytest.param(answer(), None, Copied.AGREES, Pair(False, False), False, False, id="agrees"),
        pytest.param(answer(2.0), None, Copied.DIFFERS, Pair(False, True), False, False, id="differs"),
        pytest.param(answer(0, 500), None, Copied.FAILED, Pair(False), True, False, id="fails"),
        pytest.param(answer(0, 400), None, Copied.FAILED, Pair(False), True, False, id="refuses what stable takes"),
        pytest.param(answer(), answer(0, 500), Copied.ANSWERED, Pair(True), False, False, id="stable fails"),
        pytest.param(answer(0, 500), answer(0, 500), Copied.FAILED, Pair(True), True, False, id="both fail"),
        pytest.param(UpstreamUnavailable("gone"), None, Copied.FAILED, Pair(False), True, True, id="its server dies"),
        pytest.param(make_answer(200, b"unreadable"), None, Copied.DIFFERS, Pair(False, True), False, False, id="unreadable"),
        pytest.param(answer(), make_answer(200, b"unreadable"), Copied.ANSWERED, Pair(False), False, False, id="stable's is unreadable"),
    ],
)
async def test_what_is_seen_of_a_copy(reply: Any, stable: Any, counted: Copied, pair: Pair, is_fault: bool, is_death: bool) -> None:
    counts, (seen,) = await paired(Request(reply=reply), stable=stable)
    assert counts == {counted: 1}
    assert (seen.pair, seen.is_fault, seen.is_death, seen.is_stable, seen.rollout) == (pair, is_fault, is_death, False, ROLLOUT.id)
    assert seen.tenant == "ann"


@pytest.mark.parametrize("reply", [answer(0, 404), Overloaded("busy")], ids=["not loaded", "busy"])
async def test_that_it_is_loading_or_busy_says_nothing(reply: Any) -> None:
    assert await paired(Request(reply=reply)) == ({Copied.UNCOUNTED: 1}, ())


async def test_one_that_takes_ten_times_as_long_has_failed() -> None:
    request = Request(takes_s=5.0)
    counts, (seen,) = await paired(request)
    assert (counts, seen.is_fault, request.sent) == ({Copied.FAILED: 1}, True, [("v2", "", 3.0)])


async def test_a_dead_stub_is_heard_of_though_triton_takes_more_than_a_second_to_say_so() -> None:
    _, (seen,) = await paired(Request(reply=DEAD, takes_s=1.2))
    assert (seen.is_fault, seen.is_death) == (True, True)


async def test_without_an_agreement_answers_are_not_compared() -> None:
    counts, (seen,) = await paired(Request(reply=answer(2.0)), rollout=replace(ROLLOUT, agreement=None))
    assert (counts, seen.pair) == ({Copied.ANSWERED: 1}, Pair(False))


async def test_a_version_is_sent_to_and_an_unknown_agreement_is_none() -> None:
    request = Request()
    counts, _ = await paired(request, rollout=replace(ROLLOUT, model="v1", version="2", agreement=Agreement("of-tomorrow")))
    assert (counts, request.sent) == ({Copied.ANSWERED: 1}, [("v1", "2", 3.0)])


@pytest.mark.parametrize(
    ("how", "stable"),
    [
        pytest.param({"sent_s": None}, None, id="not computed"),
        pytest.param({"is_cache_hit": True}, None, id="a hit, or joined another"),
        pytest.param({"is_repeatable": False}, None, id="not to be computed twice"),
        pytest.param({"call": replace(CALL, sequence_id="7")}, None, id="a sequence"),
        pytest.param({"call": replace(CALL, uses_shared_memory=True)}, None, id="shared memory"),
        pytest.param({"call": replace(CALL, classified=("Y",))}, None, id="classes, which the other model may not have"),
        pytest.param({}, answer(0, 400), id="its caller's mistake"),
        pytest.param({}, DEAD, id="stable's process died"),
        pytest.param({}, answer(0, 404), id="stable is not loaded"),
    ],
)
async def test_what_is_never_copied(how: dict[str, Any], stable: Any) -> None:
    async with Bench().running() as bench:
        request = Request()
        bench.offer(request, stable=stable, **how)
        await asyncio.sleep(5.0)
        assert (request.sent, bench.counts, bench.observations.take()) == ([], {}, ())


async def test_of_other_routes_and_of_ended_shadows_nothing_is_copied() -> None:
    async with Bench().running() as bench:
        held = Request()
        bench.offer(held)
        bench.known.shadows = {}
        bench.offer(Request())
        await asyncio.sleep(5.0)
        assert (held.sent, bench.counts) == ([], {Copied.DROPPED: 1})


@pytest.mark.parametrize(("draw", "copied"), [(0.0999, 1), (0.1001, 0)])
async def test_a_part_is_drawn(draw: float, copied: int) -> None:
    async with Bench(rollout=replace(ROLLOUT, shadow=Step(1000, 5, 0.0)), draw=draw).running() as bench:
        bench.offer(Request())
        await asyncio.sleep(1.0)
        assert sum(bench.counts.values()) == copied


async def test_the_caller_has_the_answer_before_anything_is_sent() -> None:
    async with Bench().running() as bench:
        request = Request()
        bench.offer(request)
        await asyncio.sleep(0.9 * PAUSE_S)
        assert request.sent == []
        await asyncio.sleep(0.2 * PAUSE_S)
        assert request.sent != []


async def test_only_idle_copies_are_sent_to_and_each_is_given_back() -> None:
    async with Bench(idle=1).running() as bench:
        bench.offer(*(Request(takes_s=0.5) for _ in range(3)))
        await asyncio.sleep(0.1)
        assert (bench.counts, bench.dispatch.idle) == ({Copied.BUSY: 2}, 0)
        await asyncio.sleep(1.0)
        assert (bench.counts, bench.dispatch.idle) == ({Copied.BUSY: 2, Copied.AGREES: 1}, 1)
        bench.is_idle = False
        bench.offer(Request())
        await asyncio.sleep(1.0)
        assert bench.counts[Copied.BUSY] == 3


async def test_without_budget_it_is_dropped_and_the_copy_is_given_back() -> None:
    async with Bench(idle=2).running() as bench:
        bench.dispatch.retries = RetryBudget(now_s=lambda: asyncio.get_running_loop().time())
        bench.dispatch.retries.processes = lambda: 1000
        bench.offer(Request(), Request())
        await asyncio.sleep(1.0)
        assert bench.counts == {Copied.AGREES: 1, Copied.OVER_BUDGET: 1}, "one may go beyond it"
        assert bench.dispatch.retries.totals[RetryKind.MIRROR, False] == 1
        assert bench.dispatch.idle == 2


async def test_what_waits_is_bounded_in_number_in_bytes_and_in_time() -> None:
    routes = [Route(f"r{number}", "v1", mirror=Mirror(f"n{number}", weight=10_000)) for number in range(3)]
    async with Bench(rollout=None, routes=tuple(routes)).running() as bench:
        for route in routes:
            bench.offer(*(Request(takes_s=1.5) for _ in range(MAX_TO_ONE)), route=route.name)
        await asyncio.sleep(0.1)
        assert bench.shadow._under_way.total() == MAX_AT_ONCE == len(bench.shadow._held) + MAX_TO_ONE
        await asyncio.sleep(10 * STALE_S)
        assert bench.counts == {Copied.ANSWERED: MAX_AT_ONCE, Copied.DROPPED: MAX_TO_ONE}, "the last ones' originals were long answered"


async def test_what_is_offered_at_once_is_bounded_in_number_and_in_bytes() -> None:
    async with Bench().running() as bench:
        bench.offer(*(Request(takes_s=0.8) for _ in range(MAX_HELD + 20)))
        assert bench.counts == {Copied.DROPPED: 20}
        await asyncio.sleep(10 * STALE_S)
        assert bench.counts == {Copied.DROPPED: 20, Copied.AGREES: MAX_TO_ONE, Copied.BUSY: MAX_HELD - MAX_TO_ONE}
        large = [Request(size_bytes=MAX_COPIED_BYTES, takes_s=0.8) for _ in range(40)]
        bench.offer(*large)
        assert len(bench.shadow._held) == MAX_HELD_BYTES // MAX_COPIED_BYTES
        await asyncio.sleep(10 * STALE_S)
        assert bench.shadow._held_bytes == 0
        bench.offer(Request(size_bytes=MAX_COPIED_BYTES + 1))
        assert bench.counts[Copied.TOO_LARGE] == 1


async def test_equal_requests_are_one_unit_and_others_others() -> None:
    async with Bench().running() as bench:
        bench.offer(Request(b"a"), Request(b"a"), Request(b"b"))
        await asyncio.sleep(1.0)
        one, same, other = (seen.digest for seen in bench.observations.take())
        assert one == same != other


async def test_a_defect_in_comparing_is_counted_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with Bench(idle=5).running() as bench:
        bench.offer(Request(reply=RuntimeError("a defect")), Request(reply=object()), Request())
        await asyncio.sleep(1.0)
        assert bench.counts == {Copied.UNREADABLE: 2, Copied.AGREES: 1}
        assert (bench.dispatch.idle, bench.shadow._under_way.total()) == (5, 0)
        assert caplog.messages.count("the answer to a copied request cannot be compared") == 2


async def test_a_stop_ends_the_copies_under_way() -> None:
    bench = Bench(idle=2)
    async with bench.running():
        bench.offer(Request(takes_s=0.9))
        await asyncio.sleep(0.1)
        assert bench.dispatch.idle == 1
    assert (bench.dispatch.idle, bench.shadow._under_way.total()) == (2, 0)
    bench.offer(Request())
    assert bench.counts == {Copied.DROPPED: 1}

"""Callers whose flight is taken back from a silent Triton, or refused, with other regions that answer as a test says."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from control_plane.core.errors import Overloaded, UpstreamUnavailable
from control_plane.inference.dispatch.region_failover import OtherRegions, RegionFailover
from tests.aio import settle
from tests.unit.inference.caching.cached_inference_bench import Bench, with_bench


class Regions:
    """Other regions that have one answer for all; None: none of them answers."""

    def __init__(self, answer: str | None, *, takes_s: float = 0.1, would_take: bool = True) -> None:
        self.answer, self.count, self.is_any_well = answer, 0, True
        self.takes_s, self.takes = takes_s, would_take

    def asked(self) -> None: ...

    def would_take(self, running: Any, *, left_s: float) -> bool:
        return self.takes

    async def ask(self, request: Any, running: Any, *, left_s: float, is_model_missing: bool) -> str | None:
        self.count += 1
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        if self.answer is not None:
            running.answered_in("there")
        return self.answer


def know(bench: Bench, regions: Regions) -> None:
    now_s = asyncio.get_running_loop().time
    bench.service.region_failover = RegionFailover(cast("OtherRegions", regions), bench.servers, bench.service.dispatch, now_s=now_s)


@pytest.mark.parametrize("answer", [":theirs", None])
def test_all_callers_of_a_flight_that_is_taken_back_are_answered(answer: str | None) -> None:
    async def test(bench: Bench) -> None:
        regions = Regions(answer)
        know(bench, regions)
        bench.model.takes_s = 5.0
        asking = [await bench.start(bench.request()) for _ in range(3)]
        bench.servers.fell_silent()
        asyncio.get_running_loop().call_later(1.0, bench.servers.heard)
        assert await asyncio.gather(*asking) == [answer or ":answer to x"] * 3
        assert regions.count == 3 if answer is not None else regions.count > 3, "who was refused asks again while Triton is silent"
        assert bench.admission.account("").in_flight == 0
        assert bench.admission.account("team").in_flight == 0
        if answer is not None:
            assert [event.server for event in bench.meter.events] == ["region:there"] * 3
            assert not bench.meter.added

    with_bench(test)


def test_callers_that_no_region_takes_are_answered_here_once_triton_answers() -> None:
    async def test(bench: Bench) -> None:
        know(bench, Regions(None, takes_s=0.0, would_take=False))
        bench.model.takes_s = 0.5
        asking = [await bench.start(bench.request()) for _ in range(3)]
        bench.servers.fell_silent()
        asyncio.get_running_loop().call_later(1.0, bench.servers.heard)
        assert await asyncio.gather(*asking) == [":answer to x"] * 3
        assert bench.admission.account("team").in_flight == 0

    with_bench(test)


def test_one_that_was_taken_back_in_vain_is_answered_by_a_flight_that_went_on() -> None:
    async def test(bench: Bench) -> None:
        know(bench, Regions(None))
        bench.model.takes_s = 5.0
        leader = await bench.start(bench.request())
        bench.service.region_failover = None
        follower = await bench.start(bench.request())
        bench.servers.fell_silent()
        assert await asyncio.gather(leader, follower) == [":answer to x"] * 2
        assert bench.model.calls == ["x"], "it is joined again"

    with_bench(test)


@pytest.mark.parametrize("is_any_well", [True, False])
def test_one_that_was_taken_back_in_vain_is_computed_by_a_flight_of_its_own_where_the_first_is_refused(is_any_well: bool) -> None:
    async def test(bench: Bench) -> None:
        know(bench, regions := Regions(None))
        bench.model.takes_s, bench.model.errors = 5.0, [Overloaded("busy")]
        leader = await bench.start(bench.request())
        bench.service.region_failover = None
        follower = await bench.start(bench.request())
        bench.servers.fell_silent()
        regions.is_any_well = is_any_well
        await asyncio.sleep(1.0)
        bench.servers.heard()
        await asyncio.sleep(1.0)
        follower.cancel()
        assert await leader == ":answer to x"
        assert bench.model.calls == ["x", "x"]
        assert bench.admission.account("team").in_flight == 0

    with_bench(test)


@pytest.mark.parametrize("error", [Overloaded("busy"), UpstreamUnavailable("down", is_not_sent=True)])
def test_a_flight_that_is_refused_leaves_with_a_permit_of_its_own(error: Exception) -> None:
    async def test(bench: Bench) -> None:
        know(bench, Regions(":theirs"))
        bench.model.errors = cast("Any", [error])
        asking = await bench.start(bench.request())
        await settle()
        assert bench.admission.account("team").in_flight == 1, "it counts for its tenant while it is there"
        assert await asking == ":theirs"
        assert bench.admission.account("team").in_flight == 0

    with_bench(test)

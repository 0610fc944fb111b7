"""Models of a fleet that only an object store has, over fake Tritons and tiers in virtual time;
`test_model_tiers` tests the fetching.
"""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import ControlPlaneError, ModelLoadFailed, Overloaded, StoreUnavailable, UpstreamUnavailable
from control_plane.models.domain.description import Tier
from tests.unit.fleet.fleet_bench import LOADING, READY, FleetBench, model, running

pytestmark = pytest.mark.virtual_time


async def cold(bench: FleetBench, *names: str) -> FleetBench:
    bench.described.cold = set(names)
    await bench.files.describe()
    return bench


async def test_it_is_fetched_before_it_is_decided_where_it_goes() -> None:
    """Placed before its size was known, the model would be put beside another one, and find no room there."""
    bench = await cold(FleetBench(model("a", 60), model("b", 60), servers=2), "b")
    assert bench.state.fleet.models["b"].spec.resident_bytes is None
    async with running(bench):
        first = await bench.use("a")
        began_s = bench.now_s()
        async with asyncio.TaskGroup() as tasks:
            request = tasks.create_task(bench.use("b"))
            await asyncio.sleep(5.0)
            assert "b" not in bench.state.fleet.holders
            assert bench.router.loads.is_loading("b")
            assert not bench.said[1:], "and nobody has gone for it"
        assert await request != first
        assert bench.now_s() - began_s == pytest.approx(11.0)
        facts = bench.state.fleet.models["b"]
        assert (facts.spec.resident_bytes, facts.tier) == (60, Tier.WARM)


async def test_the_server_goes_on_loading_others_meanwhile() -> None:
    bench = await cold(FleetBench(model("a"), model("b")), "b")
    async with running(bench), asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.use("b"))
        await asyncio.sleep(1.0)
        assert await bench.use("a", 2.5) == "s0"
        assert bench.said == ["load a"]


async def test_nor_does_it_wait_while_what_is_warm_is_verified() -> None:
    bench = FleetBench(model("a"), model("b"))
    async with running(bench), asyncio.TaskGroup() as tasks:
        bench.tiers.verify_s = 20.0
        tasks.create_task(bench.use("a"))
        await asyncio.sleep(1.0)
        bench.tiers.verify_s = 0.0
        assert await bench.use("b", 5.0) == "s0"
        assert bench.now_s() == pytest.approx(2.0)
        assert bench.said == ["load b"], "the other is announced"
        assert bench.replica("a").state is LOADING


async def test_many_requests_are_one_fetch_and_one_load_and_the_fetch_outlives_them() -> None:
    bench = await cold(FleetBench(servers=2), "a")
    async with running(bench):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.0):
                await asyncio.gather(*(bench.use("a") for _ in range(20)))
        await asyncio.gather(*(bench.use("a") for _ in range(20)))
        assert bench.tiers.fetched == ["a"]
        assert bench.said == ["load a"]
        assert bench.now_s() == pytest.approx(11.0)


async def test_who_cannot_wait_is_told_how_long_fetch_and_load_take() -> None:
    async with running(await cold(FleetBench(), "a")) as bench:
        with pytest.raises(Overloaded, match=r"'a' is being loaded, which is expected to take 12\.0 s") as caught:
            await bench.use("a", 5.0)
        assert caught.value.retry_after_s == pytest.approx(12.0)
        await asyncio.sleep(6.0)
        with pytest.raises(Overloaded, match=r"expected to take 6\.0 s"):
            await bench.use("a", 5.0)
        await asyncio.sleep(6.0)
        assert await bench.use("a", 0.01) == "s0"


async def test_its_files_stay_until_its_load_is_over() -> None:
    bench = await cold(FleetBench(), "a")
    bench.tritons["s0"].load_s["a"] = 5.0
    async with running(bench), asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.use("a"))
        await asyncio.sleep(14.0)
        assert bench.tiers.pins["a"] > 0
        await asyncio.sleep(2.0)
        assert bench.replica("a").state is READY
        assert not bench.tiers.pins["a"], "whoever has loaded it holds it from now on"


@pytest.mark.parametrize(
    "error", [ModelLoadFailed("it is damaged"), StoreUnavailable("the store is away"), StoreUnavailable("the disk is full", is_full=True)]
)
async def test_a_fetch_that_fails_is_told_and_tried_again_later(error: ControlPlaneError) -> None:
    bench = await cold(FleetBench(), "a")
    bench.tiers.failures["a"] = error
    async with running(bench):
        with pytest.raises(Overloaded, match=str(error)):
            await bench.use("a", 25.5)
        assert bench.told() == [("failed", "a")]
        assert not bench.router.loads.is_loading("a")
        assert bench.now_s() == pytest.approx(10.0)
        bench.tiers.failures.clear()
        await asyncio.sleep(5.0)
        with pytest.raises(Overloaded, match="is being tried again"):
            await bench.use("a", 25.5)
        await asyncio.sleep(15.0)
        assert await bench.use("a", 0.001) == "s0"
        assert not bench.state.measurements.record_of("a").is_on_trial


async def test_one_that_an_administrator_unloads_meanwhile_is_not_loaded() -> None:
    async with running(await cold(FleetBench(), "a")) as bench:
        with pytest.raises(Overloaded):
            await bench.use("a", 1.0)
        await bench.models.unload("a")
        await asyncio.sleep(20.0)
        assert not bench.said


async def test_where_it_finds_no_room_then_it_waits_for_it() -> None:
    bench = await cold(FleetBench(model("a", 60), model("b", 60)), "b")
    async with running(bench), asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.use("a", for_s=20.0))
        await asyncio.sleep(1.5)
        assert await bench.use("b", 28.0) == "s0"
        assert bench.said == ["load a", "unload a", "load b"]


async def test_before_and_after_it_runs_nothing_is_fetched_nor_waited_for() -> None:
    bench = await cold(FleetBench(), "a", "b")
    with pytest.raises(UpstreamUnavailable, match="starts or stops"):
        await bench.use("a")
    assert not bench.router.loads.is_loading("a")
    async with running(bench):
        assert await bench.use("a", 20.0) == "s0"
    with pytest.raises(UpstreamUnavailable, match="starts or stops"):
        await bench.use("b")
    assert bench.tiers.fetched == ["a"]


async def test_one_that_turns_out_too_large_is_told_at_once() -> None:
    async with running(await cold(FleetBench(model("huge", 101)), "huge")) as bench:
        with pytest.raises(Overloaded, match="'huge' needs 101 bytes"):
            await bench.router.ensure_loaded("huge", deadline_s=1000.0)
        assert bench.now_s() == pytest.approx(10.0)

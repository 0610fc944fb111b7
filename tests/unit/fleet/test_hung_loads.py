"""Loads that never end: one more server gets the model, and no third one."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.model import ModelState
from control_plane.fleet.domain.snapshot import ReplicaSnapshot
from control_plane.fleet.view.mirror import FleetMirror
from tests.unit.fleet.fleet_bench import FleetBench, model, running
from tests.unit.fleet.routing.model_router.bench import refused

pytestmark = pytest.mark.virtual_time

_AT_LAST_S = 1000.0
"""When a load ends that hangs; 300 s are how long one may take."""


def _bench(*, servers: int) -> FleetBench:
    bench = FleetBench(model("a", max_replicas=1), servers=servers)
    for triton in bench.tritons.values():
        triton.load_s["a"] = _AT_LAST_S
    return bench


def _asked(bench: FleetBench) -> set[str]:
    return {server for server, triton in bench.tritons.items() if "a" in triton.loads}


async def _loaded_elsewhere(bench: FleetBench) -> tuple[str, str]:
    """Let the first load of the model hang, but no other; return its server, and the one that serves."""
    await refused(bench.use("a", 1.0))
    await asyncio.sleep(1.0)
    (stuck,) = _asked(bench)
    for server in bench.tritons.keys() - {stuck}:
        bench.tritons[server].load_s["a"] = 1.0
    await asyncio.sleep(290.0)
    await refused(bench.use("a", 1.0))
    assert _asked(bench) == {stuck}
    await asyncio.sleep(20.0)
    await refused(bench.use("a", 1.0))
    await asyncio.sleep(3.0)
    return stuck, await bench.use("a", 0.001)


async def test_a_model_whose_load_hangs_on_one_server_is_loaded_on_another() -> None:
    bench = _bench(servers=3)
    async with running(bench, reconciles=True):
        stuck, serves = await _loaded_elsewhere(bench)
        assert serves != stuck
        assert bench.replica("a", stuck).state is ModelState.LOADING
        assert bench.violations == []


async def test_of_one_that_is_ready_after_all_one_replica_stays() -> None:
    bench = _bench(servers=2)
    async with running(bench, reconciles=True):
        await _loaded_elsewhere(bench)
        while bench.now_s() < 2 * _AT_LAST_S:
            await asyncio.sleep(50.0)
            await bench.use("a", 0.001)
        assert len(bench.state.fleet.ready_replicas("a")) == 1
        assert sum("a" in triton.states for triton in bench.tritons.values()) == 1


async def test_one_that_hangs_on_two_servers_takes_no_third() -> None:
    bench = _bench(servers=4)
    async with running(bench, reconciles=True):
        while bench.now_s() < _AT_LAST_S - 100.0:
            await refused(bench.use("a", 1.0))
            await asyncio.sleep(20.0)
        assert len(_asked(bench)) == 2


async def test_one_that_may_have_more_replicas_takes_two_servers_while_it_hangs() -> None:
    bench = FleetBench(model("a"), servers=4)
    for triton in bench.tritons.values():
        triton.load_s["a"] = _AT_LAST_S
    async with running(bench, reconciles=True):
        while bench.now_s() < 280.0:
            await refused(bench.use("a", 5.0))
            await asyncio.sleep(5.0)
        assert len(_asked(bench)) == 2


async def test_a_worker_knows_it_too_and_asks_for_another() -> None:
    bench = _bench(servers=2)
    mirror = FleetMirror(bench.state, bench.servers)
    for hangs in (False, True):
        mirror.apply_replicas("s0", {"a": ReplicaSnapshot(1, ModelState.LOADING, 40, 0.0, 1.0, hangs=hangs)})
        assert bench.state.fleet.is_loading("a") is not hangs

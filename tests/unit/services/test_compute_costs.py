from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from control_plane.domain.compute_time import ComputeTime
from control_plane.domain.errors import UpstreamFailed
from control_plane.domain.inference import InferCall
from control_plane.domain.tensor import Tensor
from control_plane.policy.compute_units import ModelCost, UnitTable
from control_plane.services.compute_costs import ComputeCosts
from control_plane.services.servers import Servers
from tests.aio import run
from tests.fakes import FakeUpstream

POLL_S = 0.002
TABLE = UnitTable((8,), (2.0,))


class FakeModels:
    """`ports.ModelCosts`."""

    def __init__(self, **costs: ModelCost) -> None:
        self.costs: Mapping[str, ModelCost] = costs
        self.reads = 0

    def read(self) -> Mapping[str, ModelCost]:
        self.reads += 1
        return self.costs


class Bench:
    def __init__(self, **costs: ModelCost) -> None:
        self.models, self.upstream, self.servers = FakeModels(**costs), FakeUpstream(), Servers()
        self.servers.up(self.upstream)
        self.costs = ComputeCosts(self.models, self.servers, poll_s=POLL_S)

    async def polled(self) -> None:
        """Return when what is so now has been seen."""
        polls = self.upstream.control.polls
        while self.upstream.control.polls < polls + 2:
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.costs.run())
            await self.polled()
            yield
            task.cancel()


def call(model: str, rows: int = 2) -> InferCall:
    return InferCall(model, "", "", (Tensor("X", "INT64", (rows, 8)),))


def test_with_a_table_estimate_and_charge_are_its_units() -> None:
    async def main() -> None:
        bench = Bench(m=ModelCost(TABLE), fixed=ModelCost(TABLE, is_batched=False))
        await bench.costs.read_models()
        assert (bench.costs.estimate(call("m")), bench.costs.charged(call("m"), 9.0), bench.costs.rows(call("m"))) == (4.0, 4.0, 2)
        assert (bench.costs.estimate(call("fixed")), bench.costs.rows(call("fixed"))) == (2.0, 1)

    run(main())


def test_of_what_nothing_is_known_the_time_at_triton_is_charged() -> None:
    costs = Bench().costs
    assert costs.charged(call("m"), 0.25) == 250.0
    assert costs.estimate(call("m", rows=3)) == 3 * costs.estimate(call("m", rows=1)) > 0


def test_what_triton_has_measured_is_charged_where_there_is_no_table() -> None:
    async def main() -> None:
        bench = Bench(tabled=ModelCost(TABLE), e=ModelCost(steps=("m", "tabled")))
        bench.upstream.control.compute = {"m": ComputeTime(10, 5_000_000), "tabled": ComputeTime(10, 1), "idle": ComputeTime()}
        async with bench.running():
            assert bench.costs.charged(call("m"), 9.0) == bench.costs.estimate(call("m")) == 1.0
            assert bench.costs.charged(call("tabled"), 9.0) == 4.0
            assert bench.costs.charged(call("e"), 9.0) == 5.0
            assert bench.costs.charged(call("idle"), 0.25) == 250.0

    run(main())


def test_polls_see_what_is_new_and_survive_a_triton_that_is_away() -> None:
    async def main() -> None:
        bench = Bench()
        bench.upstream.control.compute = {"m": ComputeTime(10, 10_000_000)}
        async with bench.running():
            assert bench.costs.charged(call("m"), 9.0) == 2.0
            bench.upstream.control.compute = UpstreamFailed("no statistics")
            await bench.polled()
            bench.servers.down("restarting")
            await asyncio.sleep(5 * POLL_S)
            assert bench.costs.charged(call("m"), 9.0) == 2.0
            bench.upstream.control.compute = {"m": ComputeTime(20, 30_000_000)}
            bench.servers.up(bench.upstream)
            await bench.polled()
            assert bench.costs.charged(call("m"), 9.0) == pytest.approx(2 * 1.3)

    run(main())


def test_a_model_that_is_built_anew_has_its_new_costs_soon() -> None:
    async def main() -> None:
        bench = Bench(m=ModelCost(TABLE))
        async with bench.running():
            assert bench.costs.estimate(call("m")) == 4.0
            bench.models.costs = {"m": ModelCost(UnitTable((8,), (1.0,)))}
            while bench.costs.estimate(call("m")) != 2.0:
                await asyncio.sleep(POLL_S)
            assert bench.models.reads > 1

    run(main())

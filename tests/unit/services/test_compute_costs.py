from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from control_plane.domain.compute_time import ComputeTime
from control_plane.domain.errors import UpstreamFailed, UpstreamUnavailable
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


def test_a_request_costs_what_the_table_says() -> None:
    async def main() -> None:
        bench = Bench(m=ModelCost(TABLE), fixed=ModelCost(TABLE, is_batched=False))
        await bench.costs.read_models()
        assert bench.costs.of(call("m")) == (2, 4.0)
        assert bench.costs.of(call("fixed")) == (1, 2.0)

    run(main())


def test_of_what_nothing_is_known_only_the_rows_are() -> None:
    costs = Bench().costs
    assert costs.of(call("m", rows=3)) == (3, None)


def test_what_triton_has_measured_is_charged_where_there_is_no_table() -> None:
    async def main() -> None:
        bench = Bench(tabled=ModelCost(TABLE), e=ModelCost(steps=("m", "tabled")))
        bench.upstream.control.compute = {"m": ComputeTime(10, 5_000_000), "tabled": ComputeTime(10, 1), "idle": ComputeTime()}
        async with bench.running():
            assert bench.costs.of(call("m"))[1] == 1.0
            assert bench.costs.of(call("tabled"))[1] == 4.0
            assert bench.costs.of(call("e"))[1] == 5.0
            assert bench.costs.of(call("idle"))[1] is None

    run(main())


def test_polls_see_what_is_new_and_survive_a_triton_that_is_away() -> None:
    async def main() -> None:
        bench = Bench()
        bench.upstream.control.compute = {"m": ComputeTime(10, 10_000_000)}
        async with bench.running():
            assert bench.costs.of(call("m"))[1] == 2.0
            bench.upstream.control.compute = UpstreamFailed("no statistics")
            await bench.polled()
            bench.servers.down("restarting")
            await asyncio.sleep(5 * POLL_S)
            assert bench.costs.of(call("m"))[1] == 2.0
            bench.upstream.control.compute = {"m": ComputeTime(20, 30_000_000)}
            bench.servers.up(bench.upstream)
            await bench.polled()
            assert bench.costs.of(call("m"))[1] == pytest.approx(2 * 1.3)

    run(main())


def test_a_model_that_is_built_anew_has_its_new_costs_soon() -> None:
    async def main() -> None:
        bench = Bench(m=ModelCost(TABLE))
        async with bench.running():
            assert bench.costs.of(call("m"))[1] == 4.0
            bench.models.costs = {"m": ModelCost(UnitTable((8,), (1.0,)))}
            while bench.costs.of(call("m"))[1] != 2.0:
                await asyncio.sleep(POLL_S)
            assert bench.models.reads > 1

    run(main())


def test_a_model_costs_what_the_variant_that_it_serves_does_also_while_nobody_can_say_which() -> None:
    tables = {name: UnitTable((8,), (ms,)) for name, ms in (("fp32", 9.0), ("int8", 4.0))}

    async def main() -> None:
        bench = Bench(m=ModelCost(tables["fp32"], by_variant=tables))
        async with bench.running():
            assert bench.costs.of(call("m"))[1] == 18.0
            bench.upstream.metrics = b'tidegate_served_variant{model="m",reason="it is fast",variant="int8",version="1"} 1\n'
            await bench.polled()
            assert bench.costs.of(call("m"))[1] == 8.0
            bench.upstream.metrics = UpstreamUnavailable("no metrics")
            await bench.polled()
            assert bench.costs.of(call("m"))[1] == 8.0
            bench.upstream.metrics = b'tidegate_served_variant{model="m",reason="named",variant="fp32",version="1"} 2\n'
            while bench.costs.of(call("m"))[1] != 18.0:
                await asyncio.sleep(POLL_S)

    run(main())

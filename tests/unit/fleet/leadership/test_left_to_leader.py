from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import Overloaded
from control_plane.core.model import ModelVersion
from tests.unit.fleet.fleet_bench import READY, FleetBench, model, running

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("leader_loads", [True, False])
async def test_what_its_leader_may_load_all_the_same_another_process_does_not_refuse_at_once(leader_loads: bool) -> None:
    """What this process takes for churn may be none by what the leader knows of other processes' use."""
    async with running(FleetBench(model("a", 90), model("b", 90))) as bench:
        await bench.use("a")
        bench.state.fleet.models["a"].rate_fast = bench.state.fleet.models["a"].rate_slow = 1000.0
        with pytest.raises(Overloaded, match="b"):
            await bench.use("b", _SHORT_S)
        assert bench.now_s() == 1.0, "the leader refuses at once"
        bench.request_replica = lambda model, pool: True
        asyncio.get_running_loop().call_later(0.5, bench.state.observe, "s0", [line("b" if leader_loads else "a")])
        if leader_loads:
            assert await bench.use("b", _SHORT_S) == "s0"
            assert bench.now_s() == pytest.approx(1.5)
        else:
            with pytest.raises(Overloaded, match="b"):
                await bench.use("b", _SHORT_S)
            assert 1.5 < bench.now_s() <= 2.0


_SHORT_S = 1.2
"""Less than it is asked to come back after."""


def line(name: str) -> ModelVersion:
    return ModelVersion(name, "1", READY, "")

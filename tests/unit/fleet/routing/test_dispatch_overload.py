"""Overload of a fleet's model from its first request, for which it has to be loaded: as with a single server, what is
sent is answered in time.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded, Overloaded
from control_plane.inference.inference import InferenceService
from control_plane.triton.ports import Slot, Upstream
from tests.fakes import FakeRecorder
from tests.fakes.governance import FakeMeter, governance
from tests.unit.admission.overload.overload_bench import PEAK_PER_S, Triton
from tests.unit.fleet.fleet_bench import FleetBench, running
from tests.unit.fleet.routing.faults.overdue_watch_bench import Wedged
from tests.unit.inference.governed_bench import Request

pytestmark = pytest.mark.virtual_time

LASTS_S = 30.0


class Computed(Request):
    """Request that a simulated Triton computes, to its end, whenever its caller leaves."""

    slot: Slot | None = None

    def __init__(self, tritons: dict[Upstream, Triton], *, timeout_s: float) -> None:
        super().__init__(timeout_s=timeout_s)
        self.name = "a"
        self._tritons = tritons

    async def send(self, server: Upstream, *, timeout_s: float) -> Any:
        loop = asyncio.get_running_loop()
        ends_s = self._tritons.setdefault(server, Triton()).ends_s(loop.time())
        if ends_s > loop.time() + timeout_s:
            assert self.slot is not None
            self.slot.keep()
            loop.call_at(ends_s, self.slot.let_go)
            await asyncio.sleep(timeout_s)
            raise DeadlineExceeded("too late")
        await asyncio.sleep(ends_s - loop.time())
        return "answer"


async def test_thrice_the_capacity_leaves_nine_tenths_of_the_peak() -> None:
    loop = asyncio.get_running_loop()
    async with running(FleetBench()) as bench, asyncio.TaskGroup() as tasks:
        rights = governance(max_in_flight_per_model=256, now_s=loop.time, meter=FakeMeter(has_log=False))
        service = InferenceService(
            servers=bench.servers,
            recorder=FakeRecorder(),
            governance=rights,
            default_timeout_s=30.0,
            dispatch=bench.dispatch,  # type: ignore[arg-type]
            now_s=loop.time,
        )
        tritons = dict[Upstream, Triton]()
        answered, ended = list[float](), {"late": 0, "refused": 0}

        async def ask() -> None:
            try:
                await service.infer(Computed(tritons, timeout_s=1.0))  # type: ignore[arg-type]
                answered.append(loop.time())
            except DeadlineExceeded:
                ended["late"] += 1
            except Overloaded:
                ended["refused"] += 1

        for _ in range(int(3 * PEAK_PER_S * LASTS_S)):
            await asyncio.sleep(1 / (3 * PEAK_PER_S))
            tasks.create_task(ask())
    # Without the second in which it loads, and the one in which those are answered that waited for that.
    assert sum(at_s > 2.5 for at_s in answered) >= 0.9 * PEAK_PER_S * (LASTS_S - 2.5), ended
    assert ended["refused"] > PEAK_PER_S * LASTS_S


async def test_a_model_that_is_never_idle_gets_a_second_replica() -> None:
    """64 callers without a pause of a model that takes 50 ms, beside an idle server: what a request takes is learned
    while the replica is busy, not when it runs empty, which it never does."""
    async with running(FleetBench(servers=2), reconciles=True) as bench, asyncio.TaskGroup() as tasks:
        servers, until_s = Wedged(bench), bench.now_s() + 20.0

        async def call() -> None:
            while bench.now_s() < until_s:
                await servers.ask(0.05, timeout_s=60.0, is_repeatable=False)

        callers = [tasks.create_task(call()) for _ in range(64)]
        await asyncio.sleep(5.0)
        assert len(bench.state.fleet.ready_replicas("a")) == 2
        assert bench.state.fleet.models["a"].service_s == pytest.approx(0.05, rel=0.1)
        first, second = (server.replicas["a"].in_flight for server in bench.state.fleet.servers.values())
        assert abs(first - second) <= 6
        await asyncio.gather(*callers)

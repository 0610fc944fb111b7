"""Validates hedging in the simulator: the same requests through it and through production's services in virtual time
give about the same tail, and as many executions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from control_plane.fleet.simulation.engine import simulate
from control_plane.fleet.simulation.production_router import ProductionRouter
from control_plane.fleet.simulation.workload import FleetShape, ModelCost, Request, Workload
from control_plane.objects.domain.route import HedgingPolicy
from control_plane.triton.ports import CANCEL_AFTER_S, Slot
from tests.aio import run_in_virtual_time
from tests.unit.fleet.routing.hedging_bench import REPEATABLE, Hedged, Service, serving

SERVERS, INSTANCES, HEEDS_AFTER_S = 3, 2, 0.005
LEARN, REQUESTS, STRAGGLERS = 1_500, 4_500, 60
PAUSE_S = 2.0
"""Between what is learned by and what counts: nothing of the former is left then."""


def trace(load: float) -> list[Request]:
    """Requests of 5 ms, of which one in a hundred takes 200 ms longer."""
    random, now_s = Random(7), 10.0
    straggle = [{*random.sample(range(LEARN + REQUESTS), STRAGGLERS)} for _ in range(2)]
    made = []
    for number in range(LEARN + REQUESTS):
        now_s += random.expovariate(load * SERVERS * INSTANCES / 0.007) + (PAUSE_S if number == LEARN else 0.0)
        first_s, second_s = (random.gauss(0.005, 0.0002) + 0.2 * (number in each) for each in straggle)
        made.append(Request(now_s, "a", first_s, second_s))
    return made


def foretold(load: float, *, is_on: bool) -> tuple[float, float, float]:
    """The 99.5th and 99.9th percentile in seconds, and executions of each request, in the simulation."""
    requests = trace(load)
    shape = FleetShape(SERVERS, 40, parallel=INSTANCES, routed_as=1, counted_from_s=requests[LEARN].at_s - PAUSE_S / 2)
    cost = ModelCost(40, 0.1, min_replicas=SERVERS, is_repeatable=True, heeds_after_s=HEEDS_AFTER_S)
    outcome = simulate(Workload(requests, {"a": cost}), shape, ProductionRouter(Random(1)), hedging=HedgingPolicy(is_on=is_on))
    assert outcome.answered == REQUESTS
    return outcome.quantile_s(0.995), outcome.quantile_s(0.999), outcome.executions / REQUESTS


class Triton:
    """Instances of one Triton, which drop what is cancelled before they begin, and heed a cancellation."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(INSTANCES)
        self.executions = 0

    async def compute(self, takes_s: float, cancelled: asyncio.Event) -> None:
        async with self.free:
            if not cancelled.is_set():
                self.executions += 1
                try:
                    await asyncio.wait_for(cancelled.wait(), takes_s)
                    await asyncio.sleep(HEEDS_AFTER_S)
                except TimeoutError:
                    pass


class Sent(Hedged):
    """A request of the trace, as Triton's gRPC client sends it."""

    def __init__(self, service: Service, tritons: dict[str, Triton], request: Request) -> None:
        super().__init__(service.bench, service.tritons, frontend=service.frontend, name="a", timeout_s=20.0)
        self._places = tritons
        self._takes_s = [request.service_s, request.again_s or 0.0]

    async def _compute(self, server: str, timeout_s: float, slot: Slot | None) -> str:
        loop, cancelled = asyncio.get_running_loop(), asyncio.Event()
        computing = loop.create_task(self._places[server].compute(self._takes_s.pop(0), cancelled))
        try:
            await asyncio.shield(computing)
        except asyncio.CancelledError:
            assert slot is not None
            slot.keep()

            def end(*_: object) -> None:
                cancelled.set()
                computing.remove_done_callback(end)
                timer.cancel()
                slot.let_go()

            timer = loop.call_later(CANCEL_AFTER_S, end)
            computing.add_done_callback(end)
            raise
        return server


def happened(load: float, *, is_on: bool) -> tuple[float, float, float]:
    """The same, by the real services."""

    async def main() -> tuple[float, float, float]:
        described = replace(REPEATABLE, spec=replace(REPEATABLE.spec, instances=INSTANCES))
        async with serving(described=described, servers=SERVERS, is_on=is_on) as service:
            service.bench.dispatch.hedging._budget = service.bench.dispatch.retries
            draw = Random(2)
            service.bench.router._draw = draw.random
            tritons = {name: Triton() for name in service.bench.tritons}
            latencies_s, executions = await ask(service, tritons, trace(load))
            ordered = sorted(latencies_s[LEARN:])
            return ordered[int(0.995 * REQUESTS) - 1], ordered[int(0.999 * REQUESTS) - 1], executions / REQUESTS

    return run_in_virtual_time(main())


async def ask(service: Service, tritons: dict[str, Triton], requests: Sequence[Request]) -> tuple[list[float], int]:
    """Latencies of all requests in their order, and the executions of those that count."""
    loop = asyncio.get_running_loop()
    latencies_s, began_s, before = [0.0] * len(requests), loop.time(), 0

    async def one(number: int, request: Request) -> None:
        sent: Any = Sent(service, tritons, request)
        sent_s = loop.time()
        await service.inference.infer(sent)
        latencies_s[number] = loop.time() - sent_s

    async with asyncio.TaskGroup() as tasks:
        for number, request in enumerate(requests):
            await asyncio.sleep(began_s + request.at_s - loop.time())
            if number == LEARN:
                before = sum(each.executions for each in tritons.values())
            tasks.create_task(one(number, request))
    return latencies_s, sum(each.executions for each in tritons.values()) - before


@pytest.mark.parametrize(("load", "is_on"), [(0.4, False), (0.4, True)])
def test_the_same_tail_and_as_many_executions(load: float, is_on: bool) -> None:
    simulated, real = foretold(load, is_on=is_on), happened(load, is_on=is_on)
    assert [one / other for one, other in zip(simulated, real, strict=True)] == pytest.approx([1.0, 1.0, 1.0], abs=0.2)
    assert simulated[2] - 1.0 == pytest.approx(real[2] - 1.0, rel=0.2, abs=0.001)

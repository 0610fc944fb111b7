"""Validates the simulator: the same requests through it and through production's services in virtual time
give about the same loads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from statistics import fmean

from control_plane.fleet.simulation.engine import simulate
from control_plane.fleet.simulation.generators import drifting, model_names, poisson
from control_plane.fleet.simulation.production_router import ProductionRouter
from control_plane.fleet.simulation.workload import FleetShape, ModelCost, Request, Workload
from tests.aio import run_in_virtual_time
from tests.unit.fleet.fleet_bench import FleetBench, model, running

SERVERS, BUDGET_BYTES, PATIENCE_S = 3, 4 * 90, 300.0
MODELS = {name: ModelCost(50 + 6 * number, 1.5 + number / 8, unload_s=1.3) for number, name in enumerate(model_names(16))}
"""Like the text encoders of `perf/fleet`: 50 to 140 bytes (there megabytes), and loads of 1.5 to 3.4 s; a server
has room for four of them."""
SEEDS = range(3)


def requests(seed: int) -> list[Request]:
    """Draw 600 requests in a minute."""
    names = Random(seed).sample(list(MODELS), len(MODELS))
    return poisson(Random(seed), drifting(Random(seed), names, 600, 0.9), 10.0, 0.020)


def foretold(seed: int) -> int:
    """Return the number of loads in the simulation."""
    shape = FleetShape(SERVERS, BUDGET_BYTES, deadline_s=PATIENCE_S)
    outcome = simulate(Workload(requests(seed), MODELS), shape, ProductionRouter(Random(seed)))
    assert outcome.refused == 0
    return outcome.loads


def happened(seed: int) -> int:
    """Return the number of loads by the real services, which are told sizes, and must find out how long loads
    and requests take."""

    async def main() -> int:
        known = [model(name, cost.resident_bytes) for name, cost in MODELS.items()]
        bench = FleetBench(*known, servers=SERVERS, budget_bytes=BUDGET_BYTES, wait_s=PATIENCE_S)
        for triton in bench.tritons.values():
            triton.load_s.update({name: cost.load_s for name, cost in MODELS.items()})
            triton.drain_s = 1.3
        async with running(bench, reconciles=True):
            await replay(bench, requests(seed))
        return sum(each.startswith("load ") for each in bench.said)

    return run_in_virtual_time(main())


async def replay(bench: FleetBench, trace: Sequence[Request]) -> None:
    """Play the requests to the services; a server works on one at a time."""
    turns = {name: asyncio.Lock() for name in bench.tritons}

    async def ask(request: Request) -> None:
        claim = await bench.claim(request.model, PATIENCE_S)
        async with turns[claim.server.name]:
            await asyncio.sleep(request.service_s)
        claim.release(answered=True)

    began_s = bench.now_s()
    async with asyncio.TaskGroup() as tasks:
        for request in trace:
            await asyncio.sleep(began_s + request.at_s - bench.now_s())
            tasks.create_task(ask(request))


def test_as_many_loads_on_average() -> None:
    """Single runs differ by a few loads: one that comes a moment later changes all that follow."""
    simulated, real = (fmean(map(loads, SEEDS)) for loads in (foretold, happened))
    assert abs(simulated / real - 1.0) < 0.1, (simulated, real)

"""What the simulator says of a run of `perf.fleet`, given what was measured: sizes, the run's loads, each model's service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from control_plane.fleet.simulation.engine import simulate
from control_plane.fleet.simulation.outcome import SimulationResult
from control_plane.fleet.simulation.production_router import ProductionRouter
from control_plane.fleet.simulation.router import Router
from control_plane.fleet.simulation.workload import FleetShape, ModelCost, Request, Workload
from perf.fleet.alone import Alone
from perf.fleet.clients import PATIENCE_S
from perf.fleet.report import ROUND_ROBIN, STICKY_HASH
from perf.simulate.baselines import ConsistentHash, RoundRobin

_SEED = 23


@dataclass(frozen=True, slots=True)
class Costs:
    """Memory and times of the models as they were measured, which the simulator is given."""

    resident_bytes: Mapping[str, int]
    alone: Mapping[str, Alone]
    service_s: Mapping[str, float]
    load_s: float
    """The run's mean: loads beside others take longer than alone, each model's by the same factor."""
    unload_s: float
    """Until the memory is free, on average."""


def predict(way: str, requests: Sequence[Request], costs: Costs, *, servers: int, budget_bytes: int) -> SimulationResult:
    shape = FleetShape(servers, budget_bytes, deadline_s=PATIENCE_S)
    served = [request._replace(service_s=costs.service_s[request.model]) for request in requests]
    workload = Workload(served, {name: _cost(name, costs) for name in costs.alone})
    return simulate(workload, shape, _router(way))


def _cost(name: str, costs: Costs) -> ModelCost:
    slower = costs.load_s / fmean(model.load_s for model in costs.alone.values())
    return ModelCost(costs.resident_bytes[name], costs.alone[name].load_s * slower, unload_s=costs.unload_s)


def _router(way: str) -> Router:
    if way == ROUND_ROBIN:
        return RoundRobin()
    return ConsistentHash() if way == STICKY_HASH else ProductionRouter(Random(_SEED))

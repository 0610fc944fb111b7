"""What the simulator foretells of a run: its tail and its executions, from how long requests took without hedging.

Services and their stragglers are drawn from the latencies of one run without hedging at little load, where requests
hardly wait for each other. Where the times are known that the model takes, a request's service is the one of them that is
nearest, and the rest is added outside of the servers: the gateway sees little of a client's noise, and hedges none of it.
Else what client, gateway and Triton add to the computing is the same for each.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from control_plane.fleet.simulation.engine import simulate
from control_plane.fleet.simulation.production_router import ProductionRouter
from control_plane.fleet.simulation.workload import FleetShape, ModelCost, Request, Workload
from control_plane.objects.domain.route import HedgingPolicy

_MODEL = "m"
_READY_S = 10.0
"""When all replicas are loaded, long before."""
LEARNED_BY = 2_000
"""Requests before those that count: as many as the gateway remembers."""
_SETTLE_S = 2.0
_LEAST_S = 1e-4


@dataclass(frozen=True, slots=True)
class Sample:
    """Latencies of one run without hedging."""

    latencies_s: Sequence[float]
    compute_s: float
    """Mean time at Triton's instances."""
    kinds_s: Sequence[float] = ()
    """The times that the model takes, where they are known: the usual one, and that of stragglers."""

    @property
    def overhead_s(self) -> float:
        """Mean time in seconds that a request takes beyond its computing."""
        return max(0.0, fmean(self.latencies_s) - self.compute_s)

    def services_s(self) -> Sequence[float]:
        """Time in seconds of each request at Triton's instances."""
        computed_s = [max(_LEAST_S, latency_s - self.overhead_s) for latency_s in self.latencies_s]
        if not self.kinds_s:
            return computed_s
        nearest_s = [min(self.kinds_s, key=lambda kind_s: abs(kind_s - each_s)) for each_s in computed_s]
        more_s = self.compute_s - fmean(nearest_s)
        return [max(_LEAST_S, each_s + more_s) for each_s in nearest_s]


@dataclass(frozen=True, slots=True)
class Forecast:
    p999_s: float
    executions: float
    """For each request."""


def foretold(
    sample: Sample,
    policy: HedgingPolicy,
    *,
    requests: int,
    per_s: float,
    servers: int,
    instances: int,
    heeds_after_s: float | None,
    seed: int,
) -> Forecast:
    """Simulate so many requests, on average `per_s` of them a second, at servers with so many instances each."""
    draw, services_s = random.Random(seed), sample.services_s()
    outside_s = [max(0.0, latency_s - service_s) for latency_s, service_s in zip(sample.latencies_s, services_s, strict=True)]
    at_s, trace = _READY_S, []
    for number in range(LEARNED_BY + requests):
        at_s += draw.expovariate(per_s) + (_SETTLE_S if number == LEARNED_BY else 0.0)
        trace.append(Request(at_s, _MODEL, draw.choice(services_s), draw.choice(services_s)))
    cost = ModelCost(1, 0.001, min_replicas=servers, is_repeatable=True, heeds_after_s=heeds_after_s)
    shape = FleetShape(servers, 1, parallel=instances, routed_as=1, counted_from_s=trace[LEARNED_BY].at_s - _SETTLE_S / 2)
    outcome = simulate(Workload(trace, {_MODEL: cost}), shape, ProductionRouter(draw), hedging=policy)
    latencies_s = [outcome.quantile_s((rank + 1) / outcome.answered) + draw.choice(outside_s) for rank in range(outcome.answered)]
    return Forecast(float(np.percentile(latencies_s, 99.9)), outcome.executions / outcome.answered)

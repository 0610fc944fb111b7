"""What the simulator foretells of a run: its tail and its executions, from how long requests took without hedging.

Services and their stragglers are drawn from the latencies of one run without hedging at little load, where requests
hardly wait for each other, at regular intervals as the model has them: with twice as many stragglers in two thousand as
there are, hedges seem to pay that do not. What gateway, network and Triton add to the computing is the same for each: no
instance is busy with it, but the gateway learns latencies with it. How late the client sends a request the gateway does
not see.
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
"""When the first request comes: all replicas are loaded long before."""
LEARNED_BY = 2_000
"""Requests before those that count: as many as the gateway remembers."""
_SETTLE_S = 2.0
_LEAST_S = 1e-4
_GOLDEN = (5**0.5 - 1) / 2
"""Step of a sequence in (0, 1) each piece of which covers it evenly."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Latencies of one run without hedging."""

    latencies_s: Sequence[float]
    compute_s: float
    """Mean time at Triton's instances."""
    client_late_s: Sequence[float] = ()
    """Part of each latency that passed in the client before it sent the request; none: nothing."""

    @property
    def gateway_s(self) -> Sequence[float]:
        """Time in seconds of each request from its sending to its answer."""
        if not self.client_late_s:
            return self.latencies_s
        return [latency_s - late_s for latency_s, late_s in zip(self.latencies_s, self.client_late_s, strict=True)]

    @property
    def overhead_s(self) -> float:
        """Mean time in seconds that a request takes beyond its computing, once it is sent."""
        return max(0.0, fmean(self.gateway_s) - self.compute_s)

    def services_s(self) -> Sequence[float]:
        """Time in seconds of each request at Triton's instances."""
        return [max(_LEAST_S, latency_s - self.overhead_s) for latency_s in self.gateway_s]


@dataclass(frozen=True, slots=True)
class Forecast:
    p999_s: float
    executions: float
    """Executions for each request."""


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
    draw, services_s, overhead_s = random.Random(seed), sorted(sample.services_s()), sample.overhead_s
    at_s, place, trace = _READY_S, draw.random(), []
    for number in range(LEARNED_BY + requests):
        at_s += draw.expovariate(per_s) + (_SETTLE_S if number == LEARNED_BY else 0.0)
        place = (place + _GOLDEN) % 1.0
        service_s = services_s[int(place * len(services_s))]
        trace.append(Request(at_s, _MODEL, service_s, draw.choice(services_s), overhead_s))
    cost = ModelCost(1, 0.001, min_replicas=servers, is_repeatable=True, heeds_after_s=heeds_after_s)
    shape = FleetShape(servers, 1, parallel=instances, routed_as=1, counted_from_s=trace[LEARNED_BY].at_s - _SETTLE_S / 2)
    outcome = simulate(Workload(trace, {_MODEL: cost}), shape, ProductionRouter(draw), hedging=policy)
    late_s = sample.client_late_s or (0.0,)
    latencies_s = [outcome.quantile_s((rank + 1) / outcome.answered) + draw.choice(late_s) for rank in range(outcome.answered)]
    return Forecast(float(np.percentile(latencies_s, 99.9)), outcome.executions / outcome.answered)

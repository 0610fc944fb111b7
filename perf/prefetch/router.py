"""Prefetching beside production's decisions: which model an idle server loads ahead of demand.

In placement's currency, seconds of waiting: a prefetch saves one load of the model, times the probability that it is asked for
within a horizon; it costs one load of each model that goes, times the same for that one, and what a load that demand asks for on
this server meanwhile has to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import expm1, inf
from random import Random

from control_plane.fleet.domain.fleet import Fleet, Server
from control_plane.fleet.domain.placement.placement import victims_on
from control_plane.fleet.simulation.production_router import ProductionRouter
from control_plane.fleet.simulation.router import LoadReplica, RefuseRequest, SendRequest, UnloadReplica
from control_plane.fleet.simulation.workload import Request
from perf.prefetch.forecasts import Forecast


@dataclass(frozen=True, slots=True)
class PrefetchLimits:
    horizon_loads: float = 40.0
    """A model is worth its prefetch if it is asked for within so many load times; so long it is not evicted either."""
    least_probability: float = 0.5
    """With less, more than half of the prefetches would be for nothing."""
    min_gain_loads: float = 0.1
    """What has to be gained, in load times."""


class PrefetchingRouter(ProductionRouter):
    """Production's router, with prefetches by a forecast on servers that have nothing to do."""

    tick_s = 0.05
    _RECONCILED_EVERY = 10
    """Ticks: the reconciler's half second."""

    def __init__(self, random: Random, forecast: Forecast, limits: PrefetchLimits | None = None) -> None:
        super().__init__(random)
        self._forecast = forecast
        self._limits = limits or PrefetchLimits()
        self._ticks = 0
        self._demand_loads: dict[str, int] = {}
        """Server -> loads that were not prefetched."""
        self._kept: dict[str, float] = {}
        """Models that were prefetched and have not been asked for -> until when they are kept."""

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> SendRequest | RefuseRequest:
        self._forecast.used(request.model, now_s)
        if self._kept.pop(request.model, None) is not None:
            _pin(fleet, request.model, 0)
        return super().choose(request, fleet, now_s)

    def victims(self, model: str, server: str, fleet: Fleet, now_s: float) -> Sequence[str] | None:
        if model not in self._kept:
            self._demand_loads[server] = self._demand_loads.get(server, 0) + 1
        return super().victims(model, server, fleet, now_s)

    def tick(self, fleet: Fleet, now_s: float) -> Iterable[LoadReplica | UnloadReplica]:
        self._ticks += 1
        if self._ticks % self._RECONCILED_EVERY == 0:
            yield from super().tick(fleet, now_s)
        self._let_go(fleet, now_s)
        idle = [server for server in fleet.servers.values() if not server.work_s and server.loads_until_s <= now_s]
        wanted = self._wanted_soon(fleet, now_s) if idle else {}
        for server in idle:
            if wanted and (model := self._best_for(server, wanted, fleet, now_s)) is not None:
                del wanted[model]
                self._kept[model] = now_s + self._horizon_s(fleet, model)
                _pin(fleet, model, 1)
                yield LoadReplica(model, server.name, is_prefetch=True)

    def _let_go(self, fleet: Fleet, now_s: float) -> None:
        """Forget prefetched models that nobody asked for in time, or that were not loaded after all: they are as any other."""
        for model in [model for model, until_s in self._kept.items() if now_s >= until_s or model not in fleet.holders]:
            del self._kept[model]
            _pin(fleet, model, 0)

    def _wanted_soon(self, fleet: Fleet, now_s: float) -> dict[str, float]:
        """Models that are nowhere and are likely to be asked for, with the probability of that."""
        missing = fleet.models.keys() - fleet.holders.keys()
        chances = {name: self._forecast.probability(name, now_s, self._horizon_s(fleet, name)) for name in sorted(missing)}
        return {name: chance for name, chance in chances.items() if chance >= self._limits.least_probability}

    def _best_for(self, server: Server, wanted: Mapping[str, float], fleet: Fleet, now_s: float) -> str | None:
        """The model whose prefetch on this server gains the most; None if none gains enough."""
        gains = [(self._gain_loads(server, name, chance, fleet, now_s), name) for name, chance in wanted.items()]
        gain_loads, model = max(gains)
        return model if gain_loads > self._limits.min_gain_loads else None

    def _gain_loads(self, server: Server, name: str, chance: float, fleet: Fleet, now_s: float) -> float:
        """What the model's prefetch gains, in its own load times."""
        facts, victims = fleet.models[name], victims_on(fleet, server, name, now_s)
        if victims is None:
            return -inf
        horizon_s = self._horizon_s(fleet, name)
        cost_s = sum(self._harm_s(fleet, victim, now_s, horizon_s) for victim in victims) if self._forecast.weighs else 0.0
        return chance - (cost_s + self._delay_s(server, facts.load_s, now_s)) / facts.load_s

    def _harm_s(self, fleet: Fleet, victim: str, now_s: float, horizon_s: float) -> float:
        facts = fleet.models[victim]
        by_rate = -expm1(-facts.uses_per_s(now_s) * horizon_s)
        return max(by_rate, self._forecast.probability(victim, now_s, horizon_s)) * facts.load_s

    def _delay_s(self, server: Server, load_s: float, now_s: float) -> float:
        """A load that demand asks for meanwhile waits for half a load on average."""
        return self._demand_loads.get(server.name, 0) / max(now_s, load_s) * load_s * load_s / 2

    def _horizon_s(self, fleet: Fleet, model: str) -> float:
        return self._limits.horizon_loads * fleet.models[model].load_s


def _pin(fleet: Fleet, model: str, replicas: int) -> None:
    """Keep the model's replica from being evicted, or no longer."""
    facts = fleet.models[model]
    facts.spec = replace(facts.spec, min_replicas=replicas)

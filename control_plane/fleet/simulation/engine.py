"""Runs a trace against a simulated fleet, event by event; the same input gives the same outcome.

    outcome = simulate(workload, FleetShape(servers=8, budget_bytes=5 * MIB), router)
    outcome.loads, outcome.quantile_s(0.99), outcome.refused

The fleet is a `fleet/domain/fleet.Fleet`, which the router reads as production's policies do. Requests, loads
and unloads take simulated time, decisions none. Sizes, load times and mean service times of models are known
beforehand; how late requests are, hedging learns as it does in production.
"""

from __future__ import annotations

from collections.abc import Sequence

from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Server
from control_plane.fleet.simulation.clock import Clock
from control_plane.fleet.simulation.hedging import SimulatedHedging
from control_plane.fleet.simulation.instances import SharedState
from control_plane.fleet.simulation.job import Job
from control_plane.fleet.simulation.outcome import SimulationResult
from control_plane.fleet.simulation.router import LoadReplica, RefuseRequest, Router
from control_plane.fleet.simulation.simulated_server import SimulatedServer
from control_plane.fleet.simulation.workload import FleetShape, Joins, Leaves, Pauses, Request, Workload
from control_plane.models.domain.description import ModelSpec
from control_plane.objects.domain.route import HedgingPolicy

# Shortest pause before a refused request asks again: without one, simulated time would stand still.
_MIN_PAUSE_S = 0.001

_NO_HEDGING = HedgingPolicy(is_on=False)


def simulate(workload: Workload, shape: FleetShape, router: Router, *, hedging: HedgingPolicy = _NO_HEDGING) -> SimulationResult:
    """Run every request once, or on two servers where `hedging` says so and its model is repeatable. It is answered, or
    refused if the router finds no server for it or its deadline passes.

    Raises:
        ValueError: the router wanted the impossible, such as a load without room for it.
    """
    return _Simulation(workload, shape, router, hedging).run()


class _Simulation:
    """One run of a trace: it sends requests where the router says, and carries out the router's loads and
    unloads."""

    def __init__(self, workload: Workload, shape: FleetShape, router: Router, hedging: HedgingPolicy) -> None:
        self._workload, self._shape, self._router = workload, shape, router
        self._clock, self._outcome = Clock(), SimulationResult()
        self._fleet = Fleet(models=_facts(workload, shape))
        self._sites: dict[str, SimulatedServer] = {}
        hedges = SimulatedHedging(hedging, self._clock, self._fleet, self._outcome, self._sites)
        self._around = SharedState(self._clock, self._fleet, self._outcome, workload.models, hedges, self._victims, self._reroute)
        for name in shape.names():
            self._join(name)

    def run(self) -> SimulationResult:
        for change in self._shape.changes:
            self._clock.at(change.at_s, self._change, change)
        if self._router.tick_s is not None:
            self._clock.at(self._router.tick_s, self._tick)
        if self._shape.counted_from_s > 0.0:
            self._clock.at(self._shape.counted_from_s, self._outcome.begin_anew)
        for request in self._workload.requests:
            self._clock.run_until(request.at_s)
            self._arrive(request)
        self._clock.run_out()
        # These requests still wait for room, which never comes.
        self._outcome.refused += sum(len(site.leave()) for site in self._sites.values())
        return self._outcome

    def _arrive(self, request: Request) -> None:
        facts = self._fleet.models[request.model]
        facts.count_uses(self._clock.now_s)
        self._send(Job(request, facts.service_s, request.at_s + self._shape.deadline_s))

    def _send(self, job: Job) -> None:
        """Route a request, now or after a refusal's retry delay."""
        now_s = self._clock.now_s
        choice = self._router.choose(job.request, self._fleet, now_s)
        if not isinstance(choice, RefuseRequest):
            self._sites[choice.server].admit(job)
        elif choice.retry_after_s is not None and (again_s := now_s + max(choice.retry_after_s, _MIN_PAUSE_S)) <= job.deadline_s:
            self._clock.at(again_s, self._send, job)
        else:
            self._outcome.refused += 1

    def _victims(self, model: str, server: str) -> Sequence[str] | None:
        return self._router.victims(model, server, self._fleet, self._clock.now_s)

    def _reroute(self, model: str) -> None:
        """Send the requests that wait for a load of this model anew, since their situation has changed."""
        if self._router.requests_may_move:
            for server, _ in self._fleet.replicas(model):
                for job in self._sites[server.name].give_up(model):
                    self._clock.at(self._clock.now_s, self._send, job)

    def _tick(self) -> None:
        """Let the router reconcile."""
        tick_s, now_s = self._router.tick_s, self._clock.now_s
        for change in self._router.tick(self._fleet, now_s):
            site = self._sites[change.server]
            if isinstance(change, LoadReplica):
                site.want(change.model, is_prefetch=change.is_prefetch)
            else:
                site.unload(change.model)
        # Ticks end after the last deadline, or the simulation never would.
        requests = self._workload.requests
        if tick_s is not None and requests and now_s < requests[-1].at_s + self._shape.deadline_s:
            self._clock.at(now_s + tick_s, self._tick)

    def _change(self, change: Joins | Leaves | Pauses) -> None:
        """Let a server join, stand still, or fail."""
        if isinstance(change, Joins):
            self._join(change.server)
            return
        if isinstance(change, Pauses):
            self._sites[change.server].instances.pause(change.for_s)
            return
        self._fleet.servers[change.server].is_up = False
        self._fleet.remove_server(change.server)
        for job in self._sites.pop(change.server).leave():
            self._outcome.rerouted += 1
            self._send(job.anew())

    def _join(self, name: str) -> None:
        shape = self._shape
        routed_as = shape.parallel if shape.routed_as is None else shape.routed_as
        server = Server(name, shape.budget_bytes, parallel=routed_as, serves_while_loading=shape.serves_while_loading)
        self._fleet.add_server(server)
        self._sites[name] = SimulatedServer(server, shape.parallel, self._around)


def _facts(workload: Workload, shape: FleetShape) -> dict[str, ModelFacts]:
    service_s = workload.mean_service_s()
    return {
        name: ModelFacts(
            ModelSpec(
                name,
                cost.resident_bytes,
                latency_objective_s=cost.latency_objective_s,
                min_replicas=cost.min_replicas,
                is_repeatable=cost.is_repeatable,
                instances=shape.parallel,
            ),
            cost.resident_bytes,
            cost.load_s,
            service_s.get(name, 0.0),
        )
        for name, cost in workload.models.items()
    }

"""Runs a trace against a simulated fleet, event by event; the same input gives the same outcome.

    outcome = simulate(workload, FleetShape(servers=8, budget_bytes=5 * MIB), router)
    outcome.loads, outcome.quantile_s(0.99), outcome.refused

The fleet is a `fleet/domain/fleet.Fleet`, which the router reads as production's policies do. Requests, loads
and unloads take simulated time, decisions none. Sizes, load times and mean service times of models are known
beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence

from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Server
from control_plane.fleet.simulation.clock import Clock
from control_plane.fleet.simulation.outcome import Outcome
from control_plane.fleet.simulation.router import Load, Refusal, Router
from control_plane.fleet.simulation.simulated_server import Job, SharedState, SimulatedServer
from control_plane.fleet.simulation.workload import FleetShape, Joins, Leaves, Request, Workload
from control_plane.models.domain.description import ModelSpec

# Shortest pause before a refused request asks again: without one, simulated time would stand still.
_MIN_PAUSE_S = 0.001


def simulate(workload: Workload, shape: FleetShape, router: Router) -> Outcome:
    """Run every request once. It is answered, or refused if the router finds no server for it or its deadline
    passes.

    Raises:
        ValueError: the router wanted the impossible, such as a load without room for it.
    """
    return _Simulation(workload, shape, router).run()


class _Simulation:
    """One run of a trace: it sends requests where the router says, and carries out the router's loads and
    unloads."""

    def __init__(self, workload: Workload, shape: FleetShape, router: Router) -> None:
        self._workload, self._shape, self._router = workload, shape, router
        self._clock, self._outcome = Clock(), Outcome()
        self._fleet = Fleet(models=_facts(workload))
        self._sites: dict[str, SimulatedServer] = {}
        unload_s = {name: cost.unload_s for name, cost in workload.models.items()}
        self._around = SharedState(self._clock, self._fleet, self._outcome, unload_s, self._victims, self._reroute)
        for name in shape.names():
            self._join(name)

    def run(self) -> Outcome:
        for change in self._shape.changes:
            self._clock.at(change.at_s, self._change, change)
        if self._router.tick_s is not None:
            self._clock.at(self._router.tick_s, self._tick)
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
        if not isinstance(choice, Refusal):
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
            if isinstance(change, Load):
                site.want(change.model, is_prefetch=change.is_prefetch)
            else:
                site.unload(change.model)
        # Ticks end after the last deadline, or the simulation never would.
        requests = self._workload.requests
        if tick_s is not None and requests and now_s < requests[-1].at_s + self._shape.deadline_s:
            self._clock.at(now_s + tick_s, self._tick)

    def _change(self, change: Joins | Leaves) -> None:
        """Let a server join, or fail."""
        if isinstance(change, Joins):
            self._join(change.server)
            return
        self._fleet.servers[change.server].is_up = False
        self._fleet.remove_server(change.server)
        for job in self._sites.pop(change.server).leave():
            self._outcome.rerouted += 1
            self._send(job)

    def _join(self, name: str) -> None:
        shape = self._shape
        server = Server(name, shape.budget_bytes, parallel=shape.parallel, serves_while_loading=shape.serves_while_loading)
        self._fleet.add_server(server)
        self._sites[name] = SimulatedServer(server, self._around)


def _facts(workload: Workload) -> dict[str, ModelFacts]:
    service_s = workload.mean_service_s()
    return {
        name: ModelFacts(
            ModelSpec(name, cost.resident_bytes, latency_objective_s=cost.latency_objective_s),
            cost.resident_bytes,
            cost.load_s,
            service_s.get(name, 0.0),
        )
        for name, cost in workload.models.items()
    }

"""One server of the simulated fleet: its loads, its memory, and who waits for them.

It behaves as `fleet/routing/model_router` and Triton do together: one load at a time, unloaded memory is free
once the last request there has ended, and requests for a model that is being loaded wait for it while other
requests are served.
"""

from __future__ import annotations

from collections.abc import Sequence

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import NEVER_S, Replica, Server
from control_plane.fleet.simulation.instances import SharedState, SimulatedInstances
from control_plane.fleet.simulation.job import Job


class SimulatedServer:
    """Simulated server, which keeps its `Server` in the fleet true."""

    def __init__(self, server: Server, parallel: int, surroundings: SharedState) -> None:
        """The server works on `parallel` requests at a time."""
        self.server = server
        self._around = surroundings
        self._clock, self._fleet = surroundings.clock, surroundings.fleet
        self.instances = SimulatedInstances(parallel, surroundings, self._end)
        self._waiting: dict[str, list[Job]] = {}
        """Model -> requests that wait for its load."""
        self._wanted: dict[str, None] = {}
        """Models whose plans have not begun, in order (a dict as an ordered set)."""
        self._planned: Replica | None = None
        """The replica whose plan is under way."""
        self._load_is_on = False
        self._is_gone = False
        self._unused_prefetches: dict[str, None] = {}
        """Models that are loaded ahead of demand here and have had no request yet."""

    def admit(self, job: Job) -> None:
        """Take a request: serve it, or let it wait for its model's load."""
        model = job.request.model
        job.server = self.server.name
        replica = self.server.replicas.get(model)
        self.server.work_s += job.expected_s
        if replica is not None and replica.state is not ModelState.UNLOADING:
            replica.in_flight += 1
            replica.last_used_s = self._clock.now_s
        if replica is not None and replica.state is ModelState.READY:
            self.instances.send([job])
        else:
            job.waits_since_s = self._clock.now_s
            self._waiting.setdefault(model, []).append(job)
            self.want(model)
        if model in self._unused_prefetches:
            del self._unused_prefetches[model]
            self._around.outcome.prefetches_used += 1

    def cancel(self, job: Job) -> None:
        """Cancel a job that another server has answered."""
        self.instances.cancel(job)

    def want(self, model: str, *, is_prefetch: bool = False) -> None:
        """Load the model when the plans before it have ended."""
        replica = self.server.replicas.get(model)
        if model in self._wanted or (replica is not None and replica.state is not ModelState.UNLOADING):
            return
        self._wanted[model] = None
        if is_prefetch:
            self._unused_prefetches[model] = None
            self._around.outcome.prefetches += 1
        if replica is None:
            self._announce(model)
        self._begin_plan()

    def unload(self, model: str) -> None:
        """Unload a model; its memory is free once its last request has ended."""
        replica = self.server.replicas[model]
        if replica.state is not ModelState.READY:
            raise ValueError(f"{model} on {self.server.name} is {replica.state.value}: only what is READY can be unloaded")
        replica.state, replica.since_s = ModelState.UNLOADING, self._clock.now_s
        self._unused_prefetches.pop(model, None)
        self._around.outcome.evictions += 1
        if not replica.in_flight:
            self._end_unload(replica)

    def give_up(self, model: str) -> list[Job]:
        """Return the requests that wait here for the model's load, which is now no longer theirs; the load
        goes on."""
        jobs, replica = self._waiting.pop(model, []), self.server.replicas.get(model)
        self._around.outcome.waited_for_loads_s += sum(self._clock.now_s - job.waits_since_s for job in jobs)
        if replica is not None and replica.state is ModelState.LOADING:
            replica.in_flight -= len(jobs)
        self.server.work_s = max(0.0, self.server.work_s - sum(job.expected_s for job in jobs))
        return jobs

    def leave(self) -> list[Job]:
        """Remove the server; returns the requests that were there, but for those that other servers answer."""
        self._is_gone = True
        return [*self.instances.leave(), *(job for jobs in self._waiting.values() for job in jobs)]

    def _announce(self, model: str) -> None:
        """Add the planned replica to the fleet, for the router to see; its memory counts only from its load
        on."""
        now_s, server = self._clock.now_s, self.server
        load_s = self._fleet.models[model].load_s
        server.loads_until_s = max(now_s, server.loads_until_s) + load_s
        # A server without cores to spare does the load as part of its work.
        if not server.serves_while_loading:
            server.work_s += load_s
        waiting = len(self._waiting.get(model, ()))
        replica = Replica(model, ModelState.LOADING, 0, now_s, server.loads_until_s, last_used_s=now_s, in_flight=waiting)
        self._fleet.put_replica(server, replica)

    def _begin_plan(self) -> None:
        """Begin the next plan, unless one is under way or the model is still being unloaded."""
        model = next(iter(self._wanted), None)
        replica = self.server.replicas.get(model) if model is not None else None
        if model is None or replica is None or replica.state is ModelState.UNLOADING or self._planned is not None:
            return
        victims = self._around.victims(model, self.server.name)
        if victims is None:
            self._put_off(replica)
            return
        self._check(model, victims)
        del self._wanted[model]
        self._planned = replica
        for victim in victims:
            self.unload(victim)
        self._load_if_there_is_room()

    def _put_off(self, replica: Replica) -> None:
        """There is no room: route the waiting requests anew, and drop the load if none of them stays."""
        self._around.reroute(replica.model)
        if not replica.in_flight:
            del self._wanted[replica.model]
            self._unused_prefetches.pop(replica.model, None)
            self._fleet.drop_replica(self.server, replica.model)
            self._begin_plan()

    def _check(self, model: str, victims: Sequence[str]) -> None:
        """Raise if the router's victims do not make enough room."""
        server = self.server
        staying = sum(
            replica.bytes
            for replica in server.replicas.values()
            if replica.state is not ModelState.UNLOADING and replica.model not in victims
        )
        if staying + self._fleet.models[model].resident_bytes > server.budget_bytes:
            raise ValueError(f"{model} has no room on {server.name} without {', '.join(victims) or 'anything unloaded'}")

    def _load_if_there_is_room(self) -> None:
        """Begin the planned load as soon as the victims' memory is free."""
        replica = self._planned
        if replica is None or self._load_is_on or self._fleet.models[replica.model].resident_bytes > self.server.free_bytes:
            return
        facts, now_s, outcome = self._fleet.models[replica.model], self._clock.now_s, self._around.outcome
        self._load_is_on = True
        self.instances.may_begin = self.server.serves_while_loading
        # The load begins later than announced if its victims took their time; the loads behind it shift as
        # well.
        self.server.loads_until_s += max(0.0, now_s + facts.load_s - replica.ready_s)
        replica.bytes, replica.since_s, replica.ready_s = facts.resident_bytes, now_s, now_s + facts.load_s
        outcome.loads += 1
        outcome.max_held_bytes = max(outcome.max_held_bytes, self.server.held_bytes)
        self._clock.at(replica.ready_s, self._loaded, replica)

    def _loaded(self, replica: Replica) -> None:
        """End a load: serve the requests that waited for it, and begin the next plan."""
        if self._is_gone:
            return
        replica.state, replica.since_s = ModelState.READY, self._clock.now_s
        facts = self._fleet.models[replica.model]
        facts.refused_since_s = NEVER_S
        if not self.server.serves_while_loading:
            self.server.work_s = max(0.0, self.server.work_s - facts.load_s)
        self._planned, self._load_is_on = None, False
        self.instances.may_begin = True
        waited = self._waiting.pop(replica.model, [])
        self._around.outcome.waited_for_loads_s += sum(self._clock.now_s - job.waits_since_s for job in waited)
        self._begin_plan()
        self.instances.send(waited)
        self._around.reroute(replica.model)

    def _end_unload(self, replica: Replica) -> None:
        self._clock.at(self._clock.now_s + self._around.costs[replica.model].unload_s, self._release, replica)

    def _release(self, replica: Replica) -> None:
        if self._is_gone:
            return
        self._fleet.drop_replica(self.server, replica.model)
        if replica.model in self._wanted:
            self._announce(replica.model)
        self._load_if_there_is_room()
        self._begin_plan()

    def _end(self, job: Job) -> None:
        """Subtract a request that has ended; the last one of an unloading model ends its unload."""
        server = self.server
        # Never below zero: it is a sum of floats.
        server.work_s = max(0.0, server.work_s - job.expected_s)
        replica = server.replicas[job.request.model]
        replica.in_flight -= 1
        self._around.hedging.freed(server, job.request.model)
        if replica.state is ModelState.UNLOADING and not replica.in_flight:
            self._end_unload(replica)
        elif self._wanted and self._planned is None:
            self._begin_plan()

"""Control loop of a fleet: every tick it compares the desired with the observed state of the models, and starts what is missing.

It is level-triggered: it receives no events and keeps no history, so whatever happened in between (a crash of ours or of Triton's,
a load by somebody else) is found and corrected at the next tick. `fleet/fleet_service` runs it in every process; only the leader's
changes anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

from control_plane.concurrency.task_owner import TaskOwner
from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import ModelState
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import ModelFacts, Server
from control_plane.fleet.domain.placement.autoscaling import desired_replicas, pool_to_grow, replica_to_remove
from control_plane.fleet.domain.placement.placement import excess
from control_plane.fleet.routing.model_router import ModelRouter
from control_plane.fleet.view.files import FleetFiles
from control_plane.fleet.view.state import FleetState

_log = logging.getLogger(__name__)

_TICK_S = 0.5
"""Time between two ticks."""
_LOOK_TIMEOUT_S = 5.0
"""Timeout of a look. A Triton with many models that has been up for days was seen to take four seconds for
its index."""
_PATIENCE_S = 0.25
"""Time for which a tick waits for looks: most have ended by then. What slower ones find counts at a later
tick, and meanwhile nobody waits for them."""
_AT_ONCE = 50
"""Models that are looked after without letting requests through in between: each takes some ten microseconds, and more
with many servers."""
_DESCRIBE_EVERY = 10
"""Ticks between two reads of the models' folders: new folders are known within five seconds."""


class ObservedServer(Protocol):
    """Observation of one server: `fleet/loading/server_loads`."""

    async def poll_index(self) -> None:
        """Bring the view in line with Triton's index. Raises ControlPlaneError."""

    async def measure_memory(self) -> None:
        """Correct the sizes of models by the memory that the server holds."""


class Reconciler:
    """Reconciliation loop of a fleet: observes every server and, if this process is the leader, loads and
    unloads replicas."""

    def __init__(
        self,
        state: FleetState,
        observers: Mapping[str, ObservedServer],
        router: ModelRouter,
        files: FleetFiles,
        *,
        is_leader: Callable[[], bool] = lambda: True,
    ) -> None:
        self._state = state
        self._observers = observers
        self._router = router
        self._files = files
        self._is_leader = is_leader
        self._looks = TaskOwner("servers cannot be looked at")
        self._under_way: set[tuple[str, str]] = set()
        """Server and kind of each look that has not ended."""
        self._beyond_budget: set[str] = set()
        """Servers whose excess has been logged; nothing else depends on it."""

    async def run(self) -> None:
        """Tick until cancelled."""
        async with self._looks.open():
            while True:
                await self._files.describe()
                await self._of_all("memory", lambda observer: observer.measure_memory())
                # Reading folders and memory is expensive, so it happens only once in so many ticks.
                for _ in range(_DESCRIBE_EVERY):
                    await self.tick()
                    await asyncio.sleep(_TICK_S)

    async def tick(self) -> None:
        """Reconcile once: observe all servers, judge outliers, and begin what is missing."""
        await self.poll_index()
        # A safety net: requests that wait look again at each tick, even if a wake-up was missed.
        self._state.changed()
        self._state.ejection.judge()
        await self._adjust_all()
        for server in list(self._state.fleet.servers.values()):
            if not self._is_leader():
                return
            if self._state.fleet.servers.get(server.name) is server:  # else it has left meanwhile
                self._evict_excess(server)
                await asyncio.sleep(0)

    async def poll_index(self) -> None:
        """Read every server's index, of slow servers later."""
        await self._of_all("index", lambda observer: observer.poll_index())

    async def _of_all(self, what: str, ask: Callable[[ObservedServer], Awaitable[None]]) -> None:
        """Look at all servers at the same time, and wait a moment for what they say; while `run` does not, as
        at the start, for as long as it takes. One that is still busy with the last look is not asked again."""
        if not self._looks.is_open:
            async with self._looks.open():
                await self._of_all(what, ask)
            return
        begun = []
        for name in self._observers.keys() & self._state.live():
            if (name, what) not in self._under_way:
                self._under_way.add((name, what))
                begun.append(self._looks.create_task(self._ask(name, what, ask), name=f"{what}-of-{name}"))
        if begun:
            await asyncio.wait(begun, timeout=_PATIENCE_S)

    async def _ask(self, server: str, what: str, ask: Callable[[ObservedServer], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                await ask(self._observers[server])
        except (ControlPlaneError, TimeoutError) as exc:
            # Not a warning: the server is down or silent, and that is logged elsewhere.
            _log.debug("server %s could not be observed: %s", server, exc)
        finally:
            self._under_way.discard((server, what))

    async def _adjust_all(self) -> None:
        """Adjust the replicas of all models, for as long as this process is the leader."""
        models = self._state.fleet.models
        for number, facts in enumerate(list(models.values())):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
                if not self._is_leader():
                    return
            if models.get(facts.name) is facts:  # else it was forgotten meanwhile
                self._adjust(facts)

    def _adjust(self, facts: ModelFacts) -> None:
        """Begin to load one more replica of a model, or to unload one, if there are too few or too many."""
        fleet, now_s = self._state.fleet, self._state.now_s()
        wanted = desired_replicas(facts, fleet, now_s)
        if len(fleet.staying_replicas(facts.name)) < wanted:
            self._router.loads.load_if_none_is(facts.name, pool=pool_to_grow(facts, fleet))
        elif self._count_kept(facts.name) > wanted and (server := replica_to_remove(facts, fleet, now_s)) is not None:
            reason = "it has more replicas than its requests need"
            still = partial(self._is_excess_replica, facts, fleet.servers[server])
            self._router.loads.schedule_unload(facts.name, server, kind=FleetEventKind.UNLOADED, reason=reason, still=still)

    def _is_excess_replica(self, facts: ModelFacts, server: Server) -> bool:
        """Whether the replica is still one too many when its turn to go has come: it may be in use by now, or
        another one may have gone."""
        replica = server.replicas.get(facts.name)
        if replica is None or replica.in_flight or replica.sequences:
            return False
        # This replica waits for its turn, too, and is not among those that are kept: count it as one.
        have = self._count_kept(facts.name) + server.is_staying
        return have > desired_replicas(facts, self._state.fleet, self._state.now_s())

    def _evict_excess(self, server: Server) -> None:
        """Evict models from a server that holds more than its budget, since models have grown or others have
        loaded there."""
        self._tell_budget(server)
        loads, missing = self._router.loads, -server.free_bytes - self._going_bytes(server)
        if not server.is_up or missing <= 0:
            return
        reason = f"the models on '{server.name}' hold more than its budget"
        for model in self._excess(server):
            if missing > 0 and not loads.is_being_unloaded(model, server.name):
                missing -= server.replicas[model].bytes
                still = partial(self._is_in_excess, model, server)
                loads.schedule_unload(model, server.name, kind=FleetEventKind.EVICTED, reason=reason, still=still)

    def _tell_budget(self, server: Server) -> None:
        """Log when a server's models begin to hold more than its budget, and when they no longer do."""
        excess_bytes = -server.free_bytes if server.is_up else 0
        if (excess_bytes > 0) is (server.name in self._beyond_budget):
            return
        fields = {"server": server.name}
        if excess_bytes > 0:
            self._beyond_budget.add(server.name)
            text = "the models on server %s hold %d bytes, %d more than its budget"
            _log.warning(text, server.name, server.held_bytes, excess_bytes, extra=fields)
        else:
            self._beyond_budget.discard(server.name)
            _log.info("the models on server %s are within its budget again", server.name, extra=fields)

    def _going_bytes(self, server: Server) -> int:
        """Memory of replicas that are on their way out."""
        loads = self._router.loads
        going = (
            replica
            for replica in server.replicas.values()
            if replica.state is ModelState.UNLOADING or loads.is_being_unloaded(replica.model, server.name)
        )
        return sum(replica.bytes for replica in going)

    def _excess(self, server: Server) -> tuple[str, ...]:
        return excess(self._state.fleet, server, self._state.now_s())

    def _is_in_excess(self, model: str, server: Server) -> bool:
        return model in self._excess(server)

    def _count_kept(self, model: str) -> int:
        """Count the replicas that stay, without those that wait for their turn to be unloaded."""
        loads = self._router.loads
        return sum(not loads.is_being_unloaded(model, server.name) for server, _ in self._state.fleet.staying_replicas(model))

"""Drains a server that is to leave a running fleet: no request in flight is lost, and none of the fleet's models stays loaded there.

As soon as draining begins the server gets no new requests and no models (`fleet/domain/routing` and `fleet/domain/placement` heed
`Server.is_draining`). `fleet/membership/members` calls this, and closes the connections afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from control_plane.core.errors import ControlPlaneError, UpstreamUnavailable
from control_plane.core.model import ModelState
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import SLOW_S, Fleet, ModelFacts, Replica, Server
from control_plane.fleet.domain.placement.limits import LIMITS
from control_plane.fleet.domain.placement.placement import Obstacle, Refusal, place
from control_plane.fleet.loading.replica_loader import ReplicaLoader
from control_plane.fleet.view.state import FleetState

_log = logging.getLogger(__name__)

_PASSING = {Obstacle.IN_USE, Obstacle.CHURN, Obstacle.LATE, Obstacle.QUARANTINED}
"""Obstacles that keep a model off another server only for now."""

_FREE_ROOM = replace(LIMITS, evicts=False, stays_in_pool=True)
"""Limits for models that nobody waits for."""

_LOOK_S = 1.0
"""Longest time between two looks, even if nothing is said to have changed."""


@dataclass(frozen=True, slots=True)
class DrainLimits:
    """Upper bounds of the phases of a drain, in seconds."""

    move_s: float = 60.0
    """Time for loading elsewhere the models that must have replicas, and for beginning to load those that were used lately."""

    end_s: float = 60.0
    """Time for requests and sequences to end. The longest request takes half of it, and a sequence that lies idle
    for so long is over."""

    unload_s: float = 60.0
    """Time for unloading models, together with requests that other processes have sent there."""

    report_grace_s: float = 5.0
    """Time for other processes to see that the server leaves (each gateway reads the list every second) and to
    report what they have in flight there."""


class Drainer:
    """Drainer of servers that leave, as far as that is this process's part: the leader loads elsewhere and
    unloads, the others only wait for their own requests."""

    def __init__(
        self,
        state: FleetState,
        loads: ReplicaLoader,
        *,
        is_leader: Callable[[], bool],
        limits: DrainLimits | None = None,
    ) -> None:
        self._state = state
        self._loads = loads
        self._is_leader = is_leader
        self._limits = limits or DrainLimits()

    async def drain(self, name: str) -> None:
        """Drain a server: return when nothing is in flight and nothing is loaded there any more, or when its
        time is over."""
        server = self._state.fleet.servers[name]
        self._state.drain(server)
        _log.info("server %s leaves the fleet", name)
        # Only these are unloaded in the end: another fleet that takes the server over may load models of its
        # own meanwhile.
        there = set(server.replicas)
        if self._is_leader():
            await self._until(lambda: not self._move(server), self._limits.move_s, for_room=False)
        if server.is_up:
            # Other processes may still have requests here that they have not reported; only their next
            # reports show them.
            await asyncio.sleep(self._limits.report_grace_s)
        if not await self._until(lambda: not any(map(_is_busy, server.replicas.values())), self._limits.end_s):
            busy = ", ".join(sorted(replica.model for replica in server.replicas.values() if _is_busy(replica)))
            _log.warning("server %s leaves with requests or sequences under way: %s", name, busy)
        if self._is_leader():
            await self._unload(server, there)

    def _move(self, server: Server) -> bool:
        """Begin to load elsewhere what can be loaded there now; whether anything of it has to be waited for."""
        models, now_s = self._state.fleet.models, self._state.now_s()
        there = [models[name] for name, replica in server.replicas.items() if not replica.is_step and name in models]
        # What is used most comes first, as the time may not be enough for all.
        there.sort(key=lambda facts: facts.uses_per_s(now_s), reverse=True)
        return any([any(map(self._must_be_elsewhere, there)), any(self._waits_to_follow(facts, server) for facts in there)])

    def _must_be_elsewhere(self, facts: ModelFacts) -> bool:
        """Whether a model needs more replicas than the other servers have, and can get them; the reconciler loads those."""
        fleet = self._state.fleet
        if _ready_to_stay(fleet, facts.name) >= fleet.least_replicas(facts):
            return False
        if self._loads.is_loading(facts.name):
            return True
        found = place(fleet, facts.name, self._state.now_s())
        return not isinstance(found, Refusal) or found.obstacle in _PASSING

    def _waits_to_follow(self, facts: ModelFacts, server: Server) -> bool:
        """Load elsewhere a model that has lately been used and that no other server has, if memory is free; whether that has to
        wait, since the loads that requests wait for come first."""
        fleet, now_s, pool = self._state.fleet, self._state.now_s(), server.pool or None
        is_used = now_s - facts.last_used_s < SLOW_S and server.replicas[facts.name].state is ModelState.READY
        if not is_used or fleet.staying_replicas(facts.name) or self._loads.is_loading(facts.name):
            return False
        found = place(fleet, facts.name, now_s, pool=pool, limits=_FREE_ROOM)
        if isinstance(found, Refusal):
            return False
        if fleet.servers[found.server].loads_until_s > now_s:
            return True
        with suppress(UpstreamUnavailable):  # this process starts or stops
            self._loads.load_replica(facts, pool=pool, limits=_FREE_ROOM)
        return False

    async def _unload(self, server: Server, models: set[str]) -> None:
        """Unload what the fleet has loaded, so that the server is free for whoever uses it next."""
        try:
            async with asyncio.timeout(self._limits.unload_s):
                await self._unload_each(server, models)
        except TimeoutError:
            left = ", ".join(sorted(models & server.replicas.keys()))
            _log.warning("server %s has left the fleet with models loaded: %s", server.name, left)

    async def _unload_each(self, server: Server, models: set[str]) -> None:
        """Unload the models one by one; a failure does not keep the others from being unloaded."""
        tried = set[str]()
        while (replica := _next_to_go(server, models - tried)) is not None:
            # Tried once each: a model that cannot be unloaded must not keep the others loaded.
            tried.add(replica.model)
            try:
                await self._loads.unload(
                    replica.model, server.name, kind=FleetEventKind.UNLOADED, reason=f"'{server.name}' leaves the fleet"
                )
            except ControlPlaneError as exc:
                _log.warning("a replica could not be unloaded: %s", exc, extra={"model": replica.model, "server": server.name})

    async def _until(self, is_so: Callable[[], bool], timeout_s: float, *, for_room: bool = True) -> bool:
        """Wait until `is_so` holds; False if the time is over first."""
        deadline_s = self._state.now_s() + timeout_s
        while not is_so():
            left_s = deadline_s - self._state.now_s()
            if left_s <= 0:
                return False
            await self._state.wait_for_change(min(left_s, _LOOK_S), for_room=for_room)
        return True


def _is_busy(replica: Replica) -> bool:
    """Whether the replica has requests, sequences or a running load, which Triton cannot cancel. A load that
    still waits for its turn, and takes no memory yet, does not count: it is given up when its turn comes."""
    is_loading = replica.state is ModelState.LOADING and replica.bytes > 0
    return bool(replica.in_flight or replica.sequences) or is_loading


def _ready_to_stay(fleet: Fleet, model: str) -> int:
    """The number of replicas that stay and are ready."""
    return sum(replica.state is ModelState.READY for _, replica in fleet.staying_replicas(model))


def _next_to_go(server: Server, models: set[str]) -> Replica | None:
    """The next model to unload. Steps are not chosen: they go with their ensembles, or after them."""
    ready = (replica for replica in server.replicas.values() if replica.state is ModelState.READY and not replica.is_step)
    return next((replica for replica in ready if replica.model in models), None)

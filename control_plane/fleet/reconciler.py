"""Compares what the fleet should be with what it is, every tick, and begins what is missing; told nothing and remembering nothing.

So whatever happens in between, a crash of ours or of Triton's, a load by somebody else, is found and put right a tick later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import ModelState
from control_plane.fleet.domain.copies import copy_to_drop, pool_to_grow, wanted_copies
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import ModelFacts, Server
from control_plane.fleet.domain.placement import surplus
from control_plane.fleet.routing.residency import Residency
from control_plane.fleet.view.files import FleetFiles
from control_plane.fleet.view.state import FleetState

_log = logging.getLogger(__name__)

_TICK_S = 0.5
_LOOK_S = 5.0
"""A Triton with many models that has been up for days was seen to take four for its index; one that hangs holds ticks up for no longer."""
_DESCRIBE_EVERY = 10
"""Ticks: folders that have just been added are known within five seconds."""


class Looking(Protocol):
    """`fleet/loading/server_loads` of one server."""

    async def look(self) -> None:
        """Bring the picture in line with Triton. Raises ControlPlaneError."""

    async def weigh(self) -> None:
        """Correct what models are taken to hold by what the server does."""


class Reconciler:
    """The fleet owner's reconciliation loop."""

    def __init__(
        self,
        state: FleetState,
        looking: Mapping[str, Looking],
        residency: Residency,
        files: FleetFiles,
        *,
        is_owner: Callable[[], bool] = lambda: True,
    ) -> None:
        self._state = state
        self._looking = looking
        self._residency = residency
        self._files = files
        self._is_owner = is_owner

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await self._files.describe()
            await self._of_all(lambda looking: looking.weigh())
            for _ in range(_DESCRIBE_EVERY):
                await self.tick()
                await asyncio.sleep(_TICK_S)

    async def tick(self) -> None:
        """One look at everything."""
        await self.look()
        self._state.changed()  # who waits looks again, whatever it was woken for in vain
        self._residency.judge_servers()
        if self._is_owner():
            for facts in list(self._state.fleet.models.values()):
                self._adjust(facts)
            for server in self._state.fleet.servers.values():
                self._relieve(server)

    async def look(self) -> None:
        """At what every server has."""
        await self._of_all(lambda looking: looking.look())

    async def _of_all(self, ask: Callable[[Looking], Awaitable[None]]) -> None:
        """At once, since one that hangs must not keep the others waiting."""
        async with asyncio.TaskGroup() as tasks:
            for name in self._looking.keys() & self._state.live():
                tasks.create_task(self._ask(name, self._looking[name], ask), name=f"look-at-{name}")

    async def _ask(self, server: str, looking: Looking, ask: Callable[[Looking], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_LOOK_S):
                await ask(looking)
        except (ControlPlaneError, TimeoutError) as exc:
            _log.debug("server %s tells nothing of its models: %s", server, exc)  # it is down, which others say aloud

    def _adjust(self, facts: ModelFacts) -> None:
        fleet, now_s = self._state.fleet, self._state.now_s()
        have, wanted = self._copies(facts.name), wanted_copies(facts, fleet, now_s)
        if have < wanted:
            self._residency.loads.want(facts.name, pool=pool_to_grow(facts, fleet))
        elif have - self._leaving(facts.name) > wanted and (server := copy_to_drop(facts, fleet, now_s)) is not None:
            reason = "its copies are more than its requests need"
            still = partial(self._is_surplus_copy, facts, fleet.servers[server])
            self._residency.loads.let_go(facts.name, server, kind=FleetEventKind.UNLOADED, reason=reason, still=still)

    def _is_surplus_copy(self, facts: ModelFacts, server: Server) -> bool:
        """When it is its turn to go: it may have come into use, and another may have gone."""
        copy = server.copies.get(facts.name)
        if copy is None or copy.in_flight or copy.sequences:
            return False
        have = self._copies(facts.name) - self._leaving(facts.name) + 1
        return have > wanted_copies(facts, self._state.fleet, self._state.now_s())

    def _relieve(self, server: Server) -> None:
        """Of what it holds too much, since models have grown or others have loaded there."""
        loads, missing = self._residency.loads, -server.free_bytes - self._going_bytes(server)
        if not server.is_up or missing <= 0:
            return
        reason = f"what is on '{server.name}' holds more than its budget"
        for model in self._surplus(server):
            if missing > 0 and not loads.leaves(model, server.name):
                missing -= server.copies[model].bytes
                still = partial(self._is_in_surplus, model, server)
                loads.let_go(model, server.name, kind=FleetEventKind.EVICTED, reason=reason, still=still)

    def _going_bytes(self, server: Server) -> int:
        """Of what has been told to go, and is not gone yet."""
        loads = self._residency.loads
        going = (copy for copy in server.copies.values() if copy.state is ModelState.UNLOADING or loads.leaves(copy.model, server.name))
        return sum(copy.bytes for copy in going)

    def _surplus(self, server: Server) -> tuple[str, ...]:
        return surplus(self._state.fleet, server, self._state.now_s())

    def _is_in_surplus(self, model: str, server: Server) -> bool:
        return model in self._surplus(server)

    def _copies(self, model: str) -> int:
        holders = self._state.fleet.holders.get(model, {})
        staying = (server for server in holders.values() if server.is_up and not server.is_leaving)
        return sum(server.copies[model].state is not ModelState.UNLOADING for server in staying)

    def _leaving(self, model: str) -> int:
        """Of these copies, those that wait for their turn to go."""
        loads, holders = self._residency.loads, self._state.fleet.holders.get(model, {})
        waiting = (server for server in holders.values() if loads.leaves(model, server.name))
        return sum(server.copies[model].state is not ModelState.UNLOADING for server in waiting)

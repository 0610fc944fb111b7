"""Compares what the fleet should be with what it is, every tick, and begins what is missing; told nothing and remembering nothing.

So whatever happens in between, a crash of ours or of Triton's, a load by somebody else, is found and put right a tick later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from control_plane.domain.errors import ControlPlaneError
from control_plane.domain.fleet import DescribedModel, ModelFacts, ModelSpec, Server
from control_plane.domain.fleet_event import FleetEventKind
from control_plane.domain.model import ModelState
from control_plane.policy.copies import copy_to_drop, wanted_copies
from control_plane.policy.placement import surplus
from control_plane.ports import ModelDescriptions
from control_plane.services.fleet_state import FleetState
from control_plane.services.model_tiers import ModelTiers
from control_plane.services.residency import Residency

_log = logging.getLogger(__name__)

_TICK_S = 0.5
_DESCRIBE_EVERY = 10
"""Ticks: folders that have just been added are known within five seconds."""


class Looking(Protocol):
    """`services.server_loads` of one server."""

    async def look(self) -> None:
        """Bring the picture in line with Triton. Raises ControlPlaneError."""

    async def weigh(self) -> None:
        """Correct what models are taken to hold by what the server does."""


class Reconciler:
    """Of the fleet's owner."""

    def __init__(
        self,
        state: FleetState,
        looking: Mapping[str, Looking],
        residency: Residency,
        descriptions: ModelDescriptions,
        *,
        is_owner: Callable[[], bool] = lambda: True,
        tiers: ModelTiers | None = None,
    ) -> None:
        self._state = state
        self._looking = looking
        self._residency = residency
        self._descriptions = descriptions
        self._is_owner = is_owner
        self._tiers = tiers

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await self.describe()
            for looking in self._looking.values():
                await looking.weigh()
            for _ in range(_DESCRIBE_EVERY):
                await self.tick()
                await asyncio.sleep(_TICK_S)

    async def describe(self) -> None:
        """Look at the models' folders."""
        described = dict(await asyncio.to_thread(self._descriptions.read))
        if self._tiers is not None:
            cold = set(self._tiers.names()) - described.keys()  # their configurations are read once they have been fetched
            described |= {name: DescribedModel(ModelSpec(name), file_bytes=0) for name in cold}
        elsewhere = set().union(*self._state.listed.values()) - described.keys()  # Tritons that others run have folders of their own
        described |= {name: DescribedModel(ModelSpec(name), file_bytes=0) for name in elsewhere}
        self._state.describe(described, self._tiers)

    async def tick(self) -> None:
        """One look at everything."""
        for name, server in self._state.fleet.servers.items():
            if server.is_up:
                await self._look(name)
        self._residency.judge_servers()
        if self._is_owner():
            for facts in list(self._state.fleet.models.values()):
                self._adjust(facts)
            for server in self._state.fleet.servers.values():
                self._relieve(server)

    async def _look(self, server: str) -> None:
        try:
            await self._looking[server].look()
        except ControlPlaneError as exc:
            _log.debug("server %s tells nothing of its models: %s", server, exc)  # it is down, which others say aloud

    def _adjust(self, facts: ModelFacts) -> None:
        fleet, now_s = self._state.fleet, self._state.now_s()
        have, wanted = self._copies(facts.name), wanted_copies(facts, fleet, now_s)
        if have < wanted:
            self._residency.loads.want(facts.name)
        elif have > wanted and (server := copy_to_drop(facts, fleet, now_s)) is not None:
            reason = "its copies are more than its requests need"
            self._residency.loads.let_go(facts.name, server, kind=FleetEventKind.UNLOADED, reason=reason)

    def _relieve(self, server: Server) -> None:
        """Of what it holds too much, since models have grown or others have loaded there."""
        if server.is_up and server.free_bytes < 0:
            for model in surplus(self._state.fleet, server, self._state.now_s()):
                reason = f"what is on '{server.name}' holds more than its budget"
                self._residency.loads.let_go(model, server.name, kind=FleetEventKind.EVICTED, reason=reason)

    def _copies(self, model: str) -> int:
        holders = self._state.fleet.holders.get(model, {})
        return sum(server.is_up and server.copies[model].state is not ModelState.UNLOADING for server in holders.values())

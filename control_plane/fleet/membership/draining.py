"""Sees a server off that is to leave a running fleet: nothing that is under way there is lost, and nothing of ours stays.

It gets no new requests and no models from the first moment on (`fleet/domain/routing` and `fleet/domain/placement`, by
`Server.is_leaving`). Called by `fleet/membership/members`, which closes the connections afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import ModelState
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import Copy, Fleet, Server
from control_plane.fleet.domain.placement import Obstacle, Refusal, place
from control_plane.fleet.loading.copy_loads import CopyLoads
from control_plane.fleet.view.state import FleetState

_log = logging.getLogger(__name__)

_PASSING = {Obstacle.IN_USE, Obstacle.CHURN, Obstacle.LATE, Obstacle.QUARANTINED}
"""What keeps a model from another server only for now."""

_LOOK_S = 1.0
"""Between two looks, if nothing is said to have changed."""


@dataclass(frozen=True, slots=True)
class LeavingLimits:
    """How long a server is kept for what is left there, in seconds."""

    move_s: float = 60.0
    """For models that must have copies to be loaded elsewhere."""

    end_s: float = 60.0
    """For requests and sequences; the longest request takes half of it, and a sequence that lies idle for so long is over."""

    unload_s: float = 60.0
    """For models to go, with requests that others have sent there."""

    others_s: float = 5.0
    """For other processes to hear of it (gateways read the list by themselves, every second) and tell what they have under way there."""


class FleetLeaving:
    """Drains leaving servers, as far as one process has to. Only the fleet's owner loads elsewhere and unloads; the
    others wait for what they have under way themselves."""

    def __init__(
        self,
        state: FleetState,
        loads: CopyLoads,
        *,
        is_owner: Callable[[], bool],
        limits: LeavingLimits | None = None,
    ) -> None:
        self._state = state
        self._loads = loads
        self._is_owner = is_owner
        self._limits = limits or LeavingLimits()

    async def see_off(self, name: str) -> None:
        """Return when nothing is under way there any more and nothing is loaded, or the time for that is over."""
        server = self._state.fleet.servers[name]
        server.is_leaving = True
        self._state.changed()
        _log.info("server %s leaves the fleet", name)
        there = set(server.copies)  # whoever takes the server over may load others meanwhile
        if self._is_owner():
            await self._until(lambda: not self._has_to_move(server), self._limits.move_s)
        if server.is_up:
            await asyncio.sleep(self._limits.others_s)
        if not await self._until(lambda: not any(map(_is_busy, server.copies.values())), self._limits.end_s):
            busy = ", ".join(sorted(copy.model for copy in server.copies.values() if _is_busy(copy)))
            _log.warning("server %s leaves with requests or sequences under way: %s", name, busy)
        if self._is_owner():
            await self._unload(server, there)

    def _has_to_move(self, server: Server) -> bool:
        """Whether a model is there that must have more copies than the others have, and will."""
        return any(self._must_be_elsewhere(copy.model) for copy in server.copies.values() if not copy.is_step)

    def _must_be_elsewhere(self, model: str) -> bool:
        fleet, facts = self._state.fleet, self._state.fleet.models.get(model)
        if facts is None or _staying(fleet, model) >= facts.spec.min_copies:
            return False
        if self._loads.is_loading(model):
            return True
        found = place(fleet, model, self._state.now_s())
        return not isinstance(found, Refusal) or found.obstacle in _PASSING

    async def _unload(self, server: Server, models: set[str]) -> None:
        """What the fleet has loaded, so that the server is free for whoever has it next."""
        try:
            async with asyncio.timeout(self._limits.unload_s):
                await self._unload_each(server, models)
        except TimeoutError:
            left = ", ".join(sorted(models & server.copies.keys()))
            _log.warning("server %s has left the fleet with models loaded: %s", server.name, left)

    async def _unload_each(self, server: Server, models: set[str]) -> None:
        tried = set[str]()
        while (copy := _next_to_go(server, models - tried)) is not None:
            tried.add(copy.model)
            try:
                await self._loads.take_out(
                    copy.model, server.name, kind=FleetEventKind.UNLOADED, reason=f"'{server.name}' leaves the fleet"
                )
            except ControlPlaneError as exc:
                _log.warning("a copy could not be unloaded: %s", exc, extra={"model": copy.model, "server": server.name})

    async def _until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """False: it is not so when the time is over."""
        deadline_s = self._state.now_s() + timeout_s
        while not is_so():
            left_s = deadline_s - self._state.now_s()
            if left_s <= 0:
                return False
            await self._state.wait_for_change(min(left_s, _LOOK_S), for_room=True)
        return True


def _is_busy(copy: Copy) -> bool:
    """With a load, too, which Triton cannot cancel; one that waits for its turn, and takes no memory yet, is given up when that comes."""
    is_loading = copy.state is ModelState.LOADING and copy.bytes > 0
    return bool(copy.in_flight or copy.sequences) or is_loading


def _staying(fleet: Fleet, model: str) -> int:
    """Copies that serve, and go on to."""
    holders = fleet.holders.get(model, {}).values()
    return sum(server.is_up and not server.is_leaving and server.copies[model].state is ModelState.READY for server in holders)


def _next_to_go(server: Server, models: set[str]) -> Copy | None:
    """Steps go with their ensembles, or after them."""
    ready = (copy for copy in server.copies.values() if copy.state is ModelState.READY and not copy.is_step)
    return next((copy for copy in ready if copy.model in models), None)

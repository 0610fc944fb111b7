"""A fleet of Tritons with more models than memory, put together: what a gateway with several of them runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from control_plane.domain.errors import ControlPlaneError
from control_plane.ports import ModelDescriptions, OwnerLine
from control_plane.services.asking import Asking
from control_plane.services.dispatch import FleetDispatch
from control_plane.services.fleet_models import FleetModels
from control_plane.services.fleet_state import FleetState
from control_plane.services.model_tiers import ModelTiers
from control_plane.services.models import ALL_MODELS, LoadFailure, ModelService
from control_plane.services.ownership import Ownership
from control_plane.services.reconciler import Reconciler
from control_plane.services.residency import Residency
from control_plane.services.server_loads import ServerLoads
from control_plane.services.servers import Servers


@dataclass(frozen=True, slots=True)
class FleetUnit:
    """What belongs to one server."""

    models: ModelService
    resident_bytes: Callable[[], int | None]
    """What it holds in memory now. Reads files."""


class FleetService:
    """Of one process."""

    def __init__(
        self,
        servers: Servers,
        units: Mapping[str, FleetUnit],
        descriptions: ModelDescriptions,
        ownership: Ownership,
        *,
        budget_bytes: int,
        wait_s: float,
        load_timeout_s: float,
        tiers: ModelTiers | None = None,
        line: OwnerLine | None = None,
    ) -> None:
        """`units` by server, each of which has `budget_bytes` for models; requests wait for loads for `wait_s` at most. `line` where other
        processes may have the same fleet."""
        self.state = FleetState(servers, budget_bytes=budget_bytes)
        self._ownership = ownership
        self._line = line
        loads = {name: self._loads(servers, name, unit, load_timeout_s) for name, unit in units.items()}
        self._asking = None if line is None else Asking(line, ownership, now_s=self.state.now_s)
        ask_owner = self._asking.ask if self._asking is not None else _nobody_else
        self.residency = Residency(self.state, loads, wait_s=wait_s, ask_owner=ask_owner)
        self.dispatch = FleetDispatch(self.residency)
        self.models = FleetModels(state=self.state, servers=servers, residency=self.residency, load_timeout_s=load_timeout_s)
        self._reconciler = Reconciler(self.state, loads, self.residency, descriptions, is_owner=lambda: ownership.is_owner, tiers=tiers)

    async def open(self, load: Sequence[str]) -> list[LoadFailure]:
        """Load and keep these, `*` for all that there are; what fails is told, and the rest is served."""
        if self._asking is None:
            await self._ownership.wait_until_owner()
        await self._reconciler.tick()  # what Tritons that others run have, only they can say
        await self._reconciler.describe()
        await self._reconciler.tick()
        failures = []
        for name in sorted(self.state.described) if ALL_MODELS in load else load:
            if self.state.fleet.ready_copies(name):  # from a life of this gateway before, or another's
                self.state.pin(name, 1)
                continue
            try:
                await self.models.load(name)
            except ControlPlaneError as exc:
                failures.append(LoadFailure(name, str(exc)))
        return failures

    async def run(self) -> None:
        """Keep it as it should be until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ownership.run(), name="ownership")
                tasks.create_task(self.residency.loads.run(), name="residency")
                tasks.create_task(self._reconciler.run(), name="reconciler")
                if self._asking is not None:
                    tasks.create_task(self._asking.run(self._want), name="asking-the-owner")
        finally:
            await self._ownership.stop()
            if self._line is not None:
                await self._line.close()

    def _want(self, model: str) -> None:
        """Another process asks for it."""
        if model in self.state.fleet.models:
            self.state.used(model)
            self.residency.loads.want(model)

    def _loads(self, servers: Servers, name: str, unit: FleetUnit, load_timeout_s: float) -> ServerLoads:
        return ServerLoads(
            servers.members[name],
            unit.models,
            self.state,
            require=self._ownership.require,
            resident_bytes=unit.resident_bytes,
            load_timeout_s=load_timeout_s,
        )


def _nobody_else(model: str) -> bool:
    return False

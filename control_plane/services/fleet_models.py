"""The models of a fleet as its administrators see them: where they are, and loading and unloading them everywhere.

Stands where `services/models` stands for one Triton. `load` pins a model, so that it stays; `unload` takes it from all servers, and it
is not loaded again before somebody asks for that.
"""

from __future__ import annotations

from control_plane.domain.errors import ModelNotFound, NotSupported
from control_plane.domain.fleet_event import FleetEventKind
from control_plane.domain.model import Model, ModelOverride, ModelState, ModelVersion, summarise
from control_plane.services.fleet_state import FleetState
from control_plane.services.residency import Residency
from control_plane.services.servers import Servers


class FleetModels:
    """`ports.ModelAdministration`, and the list of models."""

    def __init__(self, *, state: FleetState, servers: Servers, residency: Residency, load_timeout_s: float) -> None:
        self._state = state
        self._servers = servers
        self._residency = residency
        self._load_timeout_s = load_timeout_s

    async def list_models(self) -> list[Model]:
        """Every model of the repositories and of the servers, by name. Raises UpstreamUnavailable: no server is up."""
        self._servers.pick()
        index = [line for upstream in self._servers.live.values() for line in await upstream.control.index()]
        names = {line.name for line in index} | set(self._state.described)
        return [self._model(name, index) for name in sorted(names)]

    async def get(self, name: str) -> Model:
        """One model. Raises ModelNotFound, UpstreamUnavailable."""
        for model in await self.list_models():
            if model.name == name:
                return model
        raise ModelNotFound(f"no model '{name}' in any repository; `tidegate models list` shows the ones there are")

    async def load(self, name: str, override: ModelOverride | None = None) -> None:
        """Load it where it fits best and keep it loaded; where it is loaded already, load it anew, on one server after the other.

        Raises:
            ModelNotFound, ModelLoadFailed, DeadlineExceeded, UpstreamUnavailable. Overloaded: there is no room for it. NotSupported: a
                load that brings something along.
        """
        if override is not None:  # evicted, it would come back without
            raise NotSupported("a fleet loads models as their folders have them; change the folder, or serve it by one Triton of its own")
        facts = self._state.fleet.models.get(name)
        if facts is None:
            raise ModelNotFound(f"no model '{name}' in any repository; `tidegate models list` shows the ones there are")
        self._residency.offer(name)
        ready = self._ready_on(name)
        for server in ready:
            await self._residency.loads.reload(name, server)
        if not ready:
            deadline_s = self._state.now_s() + self._load_timeout_s
            await self._residency.bring(name, deadline_s=deadline_s)
        self._state.pin(name, max(1, facts.spec.min_copies))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Take it from every server; requests in flight finish. Raises DeadlineExceeded, UpstreamUnavailable."""
        facts = self._state.fleet.models.get(name)
        if facts is not None:
            self._state.pin(name, 0)
            self._residency.withdraw(name)
            await self._residency.loads.settle(name, timeout_s=self._load_timeout_s)
        for server in self._ready_on(name):
            await self._residency.loads.take_out(name, server, kind=FleetEventKind.UNLOADED, reason="an administrator asked for it")

    def _ready_on(self, name: str) -> list[str]:
        holders = self._state.fleet.holders.get(name, {})
        return [server.name for server in holders.values() if server.is_up and server.copies[name].state is ModelState.READY]

    def _model(self, name: str, index: list[ModelVersion]) -> Model:
        facts = self._state.fleet.models.get(name)
        return summarise(name, index, None if facts is None else facts.resident_bytes)

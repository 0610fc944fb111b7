"""A router that does as it is told, and small workloads, for tests of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.simulation.router import LoadReplica, RefuseRequest, SendRequest, UnloadReplica
from control_plane.fleet.simulation.workload import FleetShape, ModelCost, Request, Workload

SLOT = 100
"""Bytes of a model."""
LOAD_S, SERVICE_S = 5.0, 1.0


def workload(*requests: tuple[float, str], models: str = "abc", load_s: float = LOAD_S) -> Workload:
    """Make a workload of models whose names are single letters."""
    return Workload([Request(at_s, model, SERVICE_S) for at_s, model in requests], {name: ModelCost(SLOT, load_s) for name in models})


def shape(servers: int = 1, slots: int = 1, **more: object) -> FleetShape:
    return FleetShape(servers, slots * SLOT, **more)  # type: ignore[arg-type]


class Fixed:
    """Router that sends everything to `where`, evicts the first ready models, and records what it was
    shown."""

    requests_may_move = False

    def __init__(
        self,
        where: Callable[[Request, Fleet], str | None] = lambda request, fleet: "server-0",
        ticks: Sequence[LoadReplica | UnloadReplica] = (),
        tick_s: float | None = None,
    ) -> None:
        self._where, self._ticks = where, list(ticks)
        self.tick_s = tick_s
        self.held: list[int] = []
        """The most bytes on any server, each time it was asked."""
        self.retry_after_s: float | None = None
        self.fleet = Fleet()
        """The one that it was shown."""

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> SendRequest | RefuseRequest:
        self._look(fleet)
        server = self._where(request, fleet)
        return RefuseRequest(self.retry_after_s) if server is None else SendRequest(server)

    def victims(self, model: str, server: str, fleet: Fleet, now_s: float) -> Sequence[str] | None:
        self._look(fleet)
        at, needed = fleet.servers[server], fleet.models[model].resident_bytes
        staying = [replica for replica in at.replicas.values() if replica.state is not ModelState.UNLOADING]
        missing = sum(replica.bytes for replica in staying) + needed - at.budget_bytes
        victims = []
        for replica in staying:
            if missing > 0 and replica.state is ModelState.READY:
                victims.append(replica.model)
                missing -= replica.bytes
        return victims if missing <= 0 else None

    def tick(self, fleet: Fleet, now_s: float) -> Iterable[LoadReplica | UnloadReplica]:
        return [self._ticks.pop(0)] if self._ticks else []

    def _look(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.held.append(max((server.held_bytes for server in fleet.servers.values()), default=0))

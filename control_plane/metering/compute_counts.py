"""Polls the Tritons' statistics and returns the compute time that is new since the last poll.

`metering/compute_costs` learns and charges by it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.core.errors import ControlPlaneError, UpstreamUnavailable
from control_plane.metering.domain.learned_cost import newly_computed
from control_plane.triton.compute_time import NOTHING, Computed, ComputeTime
from control_plane.triton.server_state import ServerState
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PolledComputeTime:
    """Compute time since the last poll by model, summed over all servers that answered."""

    after_loads: dict[str, Computed] = field(default_factory=dict)
    """Compute time that includes the first executions after a load, which are slower than later ones."""
    steady: dict[str, Computed] = field(default_factory=dict)
    old: set[str] = field(default_factory=set)
    """Models computed by a server that was polled for the first time: its compute time may be long past."""
    servers: int = 0
    """Servers that answered."""

    @property
    def computed(self) -> dict[str, Computed]:
        """All compute time since the last poll, by model."""
        return {
            model: self.after_loads.get(model, NOTHING) + self.steady.get(model, NOTHING)
            for model in self.after_loads.keys() | self.steady.keys()
        }


class StatisticsPoller:
    """Poller of the servers' statistics, with the counters of the last poll."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._counted: dict[str, Mapping[str, ComputeTime]] = {}

    @property
    def models(self) -> set[str]:
        """Models that any server has."""
        return set().union(*self._counted.values())

    def server_of(self, model: str) -> ServerState:
        """Return a server that has the model. Raises UpstreamUnavailable: those that had it at the last poll have left."""
        for server, counted in self._counted.items():
            if model in counted and (member := self._servers.members.get(server)) is not None:
                return member
        raise UpstreamUnavailable(f"no server has model {model!r} any more")

    async def poll(self) -> PolledComputeTime:
        """Poll all servers that are up and answer, concurrently; one that falls silent meanwhile is left out."""
        self._counted = {server: counted for server, counted in self._counted.items() if server in self._servers.members}
        new = PolledComputeTime()
        await asyncio.gather(*(self._poll_server(server, new) for server in self._servers.answering.values()))
        return new

    async def _poll_server(self, server: ServerState, new: PolledComputeTime) -> None:
        try:
            counted = await server.ask(lambda upstream: upstream.control.compute_times())
        except ControlPlaneError as exc:
            # debug: others report a server that is down or silent
            _log.debug("the statistics of %s were not read: %s", server.name, exc)
            return
        new.servers += 1
        before = self._counted.get(server.name)
        self._counted[server.name] = counted
        for model, time in counted.items():
            computed, is_after_load = newly_computed(None if before is None else before.get(model), time)
            if computed.rows or computed.ms:
                sums = new.after_loads if is_after_load else new.steady
                sums[model] = sums.get(model, NOTHING) + computed
                if before is None:
                    new.old.add(model)

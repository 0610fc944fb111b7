"""What is new in the Tritons' counts of computing at each look; `metering/compute_costs` learns and charges by it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.core.errors import ControlPlaneError
from control_plane.metering.domain.learned_cost import newly_computed
from control_plane.triton.compute_time import NOTHING, Computed, ComputeTime
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class NewCounts:
    """The compute time that Tritons counted since the last look: all servers that answered, by model."""

    after_loads: dict[str, Computed] = field(default_factory=dict)
    """Where a load's first executions are among it."""
    steady: dict[str, Computed] = field(default_factory=dict)
    old: set[str] = field(default_factory=set)
    """Models that a server which had not been seen before has computed: mostly long ago, for all that is known."""
    servers: int = 0

    @property
    def computed(self) -> dict[str, Computed]:
        return {
            model: self.after_loads.get(model, NOTHING) + self.steady.get(model, NOTHING)
            for model in self.after_loads.keys() | self.steady.keys()
        }


class ComputeCounts:
    """The counts of all servers, at the last look."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._counted: dict[str, Mapping[str, ComputeTime]] = {}

    @property
    def models(self) -> set[str]:
        """That a server has."""
        return set().union(*self._counted.values())

    def server_of(self, model: str) -> str:
        """One that has it."""
        return next(server for server, counted in self._counted.items() if model in counted)

    async def look(self) -> NewCounts:
        """Ask those that are up, all at a time."""
        self._counted = {server: counted for server, counted in self._counted.items() if server in self._servers.members}
        new = NewCounts()
        await asyncio.gather(*(self._look_at(server, upstream, new) for server, upstream in self._servers.live.items()))
        return new

    async def _look_at(self, server: str, upstream: Upstream, new: NewCounts) -> None:
        try:
            counted = await upstream.control.compute_times()
        except ControlPlaneError as exc:
            _log.debug("the statistics of %s were not read: %s", server, exc)  # it is down, which others say aloud
            return
        new.servers += 1
        before = self._counted.get(server)
        self._counted[server] = counted
        for model, time in counted.items():
            computed, is_after_load = newly_computed(None if before is None else before.get(model), time)
            if computed.rows or computed.ms:
                sums = new.after_loads if is_after_load else new.steady
                sums[model] = sums.get(model, NOTHING) + computed
                if before is None:
                    new.old.add(model)

"""Mutual exclusion on each of a fleet's servers: one load, unload or repair runs at a time, in a background task.

`fleet/loading/replica_loader` and `fleet/loading/replica_repairs` share it: the tasks, the servers' loaders and locks, and the
recording of failed loads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from control_plane.concurrency.task_owner import TaskOwner
from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    GatewayStopping,
    ModelLoadFailed,
    Overloaded,
    StoreUnavailable,
    UpstreamUnavailable,
)
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import ModelFacts
from control_plane.fleet.view.state import FleetState

_log = logging.getLogger(__name__)

_PAUSE_S = 0.5
"""Pause after a load that could not even begin; tried again at once it would fail at once, in a loop."""


class ServerLoader(Protocol):
    """Port through which one server's models are loaded and unloaded: `fleet/loading/server_loads`."""

    async def load_after_evicting(self, model: ModelFacts, victims: tuple[str, ...]) -> None:
        """Unload the victims, wait for their memory, and load the model. Raises ControlPlaneError: it is not
        there, or that is unknown."""

    async def reload(self, model: ModelFacts) -> None:
        """Load a model anew over itself, which for a while takes its memory twice. Raises
        ControlPlaneError."""

    async def repair(self, model: ModelFacts, dead: str) -> None:
        """Load a model anew whose stub, or that of its step `dead`, has died. Raises ControlPlaneError."""

    async def unload(self, model: str) -> None:
        """Unload a model. Raises ControlPlaneError."""


class ServerTurns:
    """Locks of all servers of a fleet, by which one change at a time runs on each, with the tasks that carry
    the changes out."""

    def __init__(self, state: FleetState, loaders: Mapping[str, ServerLoader]) -> None:
        """`loaders` is by server; servers may join and leave it."""
        self.state = state
        self.tasks = TaskOwner("models cannot be loaded")
        self._loaders = loaders
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def turn(self, server: str) -> asyncio.Lock:
        """Return the lock that lets one load or unload run on the server at a time."""
        return self._locks[server]

    def loader_of(self, server: str) -> ServerLoader:
        """Return the server's loader. Raises UpstreamUnavailable: the server left the fleet while the caller
        waited for its turn."""
        if server not in self._loaders or server not in self.state.fleet.servers:
            raise UpstreamUnavailable(f"server '{server}' has left the fleet")
        return self._loaders[server]

    def forget(self, server: str) -> None:
        """Forget a server that has left; callers that still wait for a turn there find that out in
        `loader_of`."""
        self._locks.pop(server, None)

    def note_failure(self, facts: ModelFacts, server: str, error: Exception, *, has_begun: bool = True) -> None:
        """Record a failed load: quarantine the model if the failure may be its own, otherwise only pause. `has_begun`
        is whether the server was asked for it, as its files can be loaded."""
        # No fault of the model: the server went down or is frozen, the lease was lost, or another load took the room.
        at = self.state.fleet.servers.get(server)
        is_frozen = at is not None and at.is_silent and isinstance(error, DeadlineExceeded)
        if is_frozen or isinstance(error, UpstreamUnavailable | Overloaded | GatewayStopping):
            self.state.measurements.pause(facts, _PAUSE_S)
            return
        # Such a failure quarantines the model, too, but it is not put on trial for it.
        is_transient = isinstance(error, StoreUnavailable) or (isinstance(error, ModelLoadFailed) and error.is_transient)
        self.state.measurements.failed(facts, str(error), is_transient=is_transient, server=server, has_begun=has_begun)
        self.tell(FleetEventKind.FAILED, facts.name, server, str(error))
        unexpected = None if isinstance(error, ControlPlaneError) else error
        _log.error("model could not be loaded: %s", error, extra={"model": facts.name, "server": server}, exc_info=unexpected)

    def tell(self, kind: FleetEventKind, model: str, server: str, reason: str, seconds: float = 0.0) -> None:
        """Record an event."""
        self.state.events.record(kind, model=model, server=server, reason=reason, seconds=seconds)

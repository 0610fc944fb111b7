"""Loads and unloads that a worker asks its parent for, on behalf of its clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from control_plane.core.errors import DEFECT_TEXT, ControlPlaneError, ModelLoadFailed, UpstreamFailed, UpstreamUnavailable
from control_plane.core.model import ModelOverride, ModelVersion
from control_plane.models.ports import ModelAdministration
from control_plane.workers.messages.from_workers import LoadModel, ReadIndex, UnloadModel
from control_plane.workers.messages.to_workers import Changed, IndexRead
from control_plane.workers.parent.fleet_publisher import FleetPublisher
from control_plane.workers.ports import WorkerProcess

_log = logging.getLogger(__name__)


class PendingChanges:
    """The loads and unloads that one life of a worker has asked for."""

    tasks: asyncio.TaskGroup

    def __init__(self, models: ModelAdministration, fleet: FleetPublisher | None) -> None:
        self.models = models
        self._fleet = fleet
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, change: Coroutine[None, None, None], *, name: str) -> None:
        task = self.tasks.create_task(change, name=name)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def change(self, message: LoadModel | UnloadModel) -> None:
        """Load or unload; return when all workers have been sent the change, since any may get the next
        request."""
        if isinstance(message, LoadModel):
            await self.models.load(message.name, _override_of(message))
        else:
            await self.models.unload(message.name, unload_dependents=message.unload_dependents)
        if self._fleet is not None:
            self._fleet.publish_changes()

    async def index(self, server: str) -> list[ModelVersion]:
        """Return a server's index. Raises ControlPlaneError."""
        if self._fleet is None:
            raise UpstreamUnavailable("there is no fleet")
        return await self._fleet.index(server)

    def cancel(self) -> None:
        for task in self._under_way:
            task.cancel()


async def carry_out(worker: WorkerProcess, message: LoadModel | UnloadModel, pending: PendingChanges) -> None:
    """Carry out a change, and tell the worker what came of it."""
    try:
        await pending.change(message)
    except ControlPlaneError as exc:  # the worker raises it again for its caller, by code and text
        code = exc.upstream_code if isinstance(exc, ModelLoadFailed) else 0
        worker.send(Changed(message.number, exc.code.value, str(exc), code))
    except Exception:
        _log.exception("a worker's request for a change failed; this is a defect")
        worker.send(Changed(message.number, UpstreamFailed.code.value, DEFECT_TEXT))
    else:
        worker.send(Changed(message.number))


async def read_index(worker: WorkerProcess, message: ReadIndex, pending: PendingChanges) -> None:
    """Read a server's index for a worker."""
    try:
        lines = [(line.name, line.version, line.state.value, line.reason) for line in await pending.index(message.server)]
        worker.send(IndexRead(message.number, lines))
    except ControlPlaneError as exc:
        worker.send(IndexRead(message.number, None, str(exc)))


def _override_of(message: LoadModel) -> ModelOverride | None:
    if message.config is None and message.files is None:
        return None
    return ModelOverride(message.config, message.files or {})

"""Model loads and unloads from a worker process: forwarded to the parent, which performs them.

The frontends of a worker call this as `models/ports.ModelAdministration`; the parent's side is in
`workers/parent/workers`.
"""

from __future__ import annotations

from collections.abc import Callable

from control_plane.core.errors import ControlPlaneError, ModelLoadFailed
from control_plane.core.model import ModelOverride
from control_plane.workers.messages.from_workers import LoadModel, UnloadModel
from control_plane.workers.messages.to_workers import Changed
from control_plane.workers.replies import Replies

_ERRORS = {kind.code.value: kind for kind in ControlPlaneError.__subclasses__() if kind.__module__ == ControlPlaneError.__module__}


class RemoteModels:
    """Client proxy of the parent's model administration; the worker calls `answered` with each reply."""

    def __init__(self, send: Callable[[LoadModel | UnloadModel], None]) -> None:
        self._send = send
        self._replies = Replies[Changed]()

    async def load(self, name: str, override: ModelOverride | None = None) -> None:
        """See `models/ports.ModelAdministration.load`."""
        config = None if override is None else override.config
        files = None if override is None else dict(override.files)
        await self._ask(lambda number: LoadModel(number, name, config, files))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """See `models/ports.ModelAdministration.unload`."""
        await self._ask(lambda number: UnloadModel(number, name, unload_dependents))

    def answered(self, changed: Changed) -> None:
        """Take in the parent's reply."""
        self._replies.answered(changed.number, changed)

    async def _ask(self, message_of: Callable[[int], LoadModel | UnloadModel]) -> None:
        changed = await self._replies.ask(lambda number: self._send(message_of(number)))
        if changed.error_code:
            raise _error_of(changed)


def _error_of(changed: Changed) -> ControlPlaneError:
    if changed.error_code == ModelLoadFailed.code.value:
        return ModelLoadFailed(changed.message, upstream_code=changed.upstream_code)
    return _ERRORS[changed.error_code](changed.message)

"""Model loads and unloads from a worker process: forwarded to the parent, which performs them.

The frontends of a worker call this as `models/ports.ModelAdministration`; the parent's side is in
`workers/workers`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from control_plane.core.errors import ControlPlaneError, ModelLoadFailed
from control_plane.core.model import ModelOverride
from control_plane.workers.messages import Changed, LoadModel, UnloadModel

_ERRORS = {kind.code.value: kind for kind in ControlPlaneError.__subclasses__() if kind.__module__ == ControlPlaneError.__module__}


class RemoteModels:
    """Client proxy of the parent's model administration; the worker calls `answered` with each reply."""

    def __init__(self, send: Callable[[LoadModel | UnloadModel], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Changed]] = {}

    async def load(self, name: str, override: ModelOverride | None = None) -> None:
        """See `models/ports.ModelAdministration.load`."""
        number = next(self._numbers)
        files = dict(override.files) if override is not None else None
        await self._ask(LoadModel(number, name, override.config if override is not None else None, files))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """See `models/ports.ModelAdministration.unload`."""
        await self._ask(UnloadModel(next(self._numbers), name, unload_dependents))

    def answered(self, changed: Changed) -> None:
        """Give a reply to the caller that waits for it; the caller may have left."""
        waiting = self._waiting.get(changed.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(changed)

    async def _ask(self, message: LoadModel | UnloadModel) -> None:
        waiting = self._waiting[message.number] = asyncio.get_running_loop().create_future()
        try:
            self._send(message)
            changed = await waiting
        finally:
            del self._waiting[message.number]
        if changed.error_code:
            raise _error_of(changed)


def _error_of(changed: Changed) -> ControlPlaneError:
    if changed.error_code == ModelLoadFailed.code.value:
        return ModelLoadFailed(changed.message, upstream_code=changed.upstream_code)
    return _ERRORS[changed.error_code](changed.message)

"""A Triton whose model service runs in this process, embedded or attached, as `fleet/ports.ServerInstance`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, nullcontext

from control_plane.core.held_memory import HeldMemory
from control_plane.models.model_service import ModelService
from control_plane.models.prepared_load import PreparedLoad


class OwnInstance:
    """Server instance of this process; its files are described and fetched by the fleet, for all servers of
    this machine."""

    def __init__(self, models: ModelService, held_memory: Callable[[], HeldMemory | None] = lambda: None) -> None:
        """`held_memory` returns the memory that the server holds now, None where it cannot be read. It
        reads files, so it is called in threads."""
        self._models = models
        self._held_memory = held_memory

    def prepared(self, name: str) -> AbstractAsyncContextManager[PreparedLoad]:
        return self._models.prepared(name)

    async def unload_now(self, name: str, *, unload_dependents: bool = False) -> None:
        await self._models.unload_now(name, unload_dependents=unload_dependents)

    def replacing(self, models: Collection[str]) -> AbstractAsyncContextManager[None]:
        return self._models.replacing(models)

    async def held_memory(self) -> HeldMemory | None:
        return await asyncio.to_thread(self._held_memory)

    def held_locally(self, name: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def described(self) -> None:
        return None

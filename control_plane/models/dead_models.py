"""Models of one Triton that have lost a Python process and were not loaded anew since.

Triton (24.10) goes on listing such a model as READY, and takes a load of it for no change; an unload stays
UNLOADING for ever once a request has met the dead process. A load after the unload brings a new copy, and an
unload of that one ends as it should. Processes of the old copy that live on are never ended by Triton.
`models/model_service` keeps one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from control_plane.core.errors import UpstreamUnavailable
from control_plane.models.ports import ModelStubs


class DeadModels:
    """Set of a Triton's models with a dead stub."""

    def __init__(self, stubs: ModelStubs[Any] | None = None) -> None:
        """Without `stubs` the Triton's processes are not on this machine."""
        self._stubs = stubs
        self._names: set[str] = set()

    def note(self, name: str) -> None:
        """Note that a stub of the model has died."""
        self._names.add(name)

    def among(self, models: Collection[str]) -> list[str]:
        """Return those of these models that have a dead stub."""
        return [each for each in models if each in self._names]

    def clear(self) -> None:
        """Forget all: Triton was restarted."""
        self._names.clear()

    async def kill(self, models: Collection[str]) -> None:
        """Kill the stubs of these models, which hang; that is noticed as any other death."""
        if self._stubs is not None:
            self._stubs.kill_stubs(await self._stubs.stubs_of(models))

    @asynccontextmanager
    async def replacing(self, models: Collection[str]) -> AsyncIterator[None]:
        """Context manager around an unload and load of these models; at its end what lives on of their old
        processes is ended, unless Triton could not be reached."""
        had = self.among(models)
        old = [] if self._stubs is None else await self._stubs.stubs_of(models)
        self._names.difference_update(models)
        try:
            yield
        except UpstreamUnavailable:
            self._names.update(had)
            raise
        finally:
            # Also after a failed load: the old copy was unloaded for it.
            if self._stubs is not None and not self.among(models):
                self._stubs.end_stubs(old)

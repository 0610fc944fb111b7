"""Has answers that are kept found no more: those of one model or of all, on every gateway that shares the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import uuid4

from control_plane.objects.domain.purge import EVERY_MODEL, Purge
from control_plane.objects.mirror import KnownState
from control_plane.objects.objects import Objects

_WAIT_S = 1.0


class Purges:
    """Purges kept answers on every gateway, by objects in the store that `objects` writes to."""

    def __init__(
        self, objects: Objects, known: KnownState, *, dependents: Callable[[str], Iterable[str]] = lambda model: (), wait_s: float = _WAIT_S
    ) -> None:
        """`known` is this process's, which is waited for, up to `wait_s`; `dependents` of a model have answers that are made of its own."""
        self._objects = objects
        self._known = known
        self._dependents = dependents
        self._wait_s = wait_s

    async def purge(self, name: str = EVERY_MODEL) -> None:
        """Those of a model, or of the model behind a route, and of its dependents. Once it is stored it holds everywhere within a
        second, where the store can be followed; this process is waited for so long, and no longer.

        Cancelling, or a store that goes away, may leave some of it stored. Raises InvalidRequest (no model can have that name),
        StoreUnavailable.
        """
        route = self._known.routes.get(name)
        model = name if route is None else route.model
        newest = 0
        for each in dict.fromkeys((model, *self._dependents(model))):
            held = await self._objects.put(Purge(each, uuid4().hex))
            newest = held.resource_version
        await self._known.wait_for(newest, timeout_s=self._wait_s)

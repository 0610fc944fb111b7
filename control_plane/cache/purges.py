"""Cache invalidation: makes the cached responses of one model, or of all, unreachable on every gateway that shares the store.

Called by the admin API. A purge deletes nothing: it stores an object with a new id, which `cache/response_cache` puts into every
key. So older entries are never found again, and are evicted in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import uuid4

from control_plane.audit.domain.entry import Actor
from control_plane.objects.domain.purge import EVERY_MODEL, Purge
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.objects import Objects

_WAIT_S = 1.0


class Purges:
    """Cache invalidation across gateways, carried by `Purge` objects in the store that `objects`
    writes to.
    """

    def __init__(
        self,
        objects: Objects,
        known: ObjectMirror,
        *,
        dependents: Callable[[str], Iterable[str]] = lambda model: (),
        wait_s: float = _WAIT_S,
    ) -> None:
        """`known` is this process's mirror of the store; a purge waits up to `wait_s` until it shows there.

        `dependents` of a model are those whose responses are made from its own, such as ensembles.
        """
        self._objects = objects
        self._known = known
        self._dependents = dependents
        self._wait_s = wait_s

    def by(self, actor: Actor) -> Purges:
        """Return the same service on behalf of an actor, who is in the audit log with each purge."""
        return Purges(self._objects.by(actor), self._known, dependents=self._dependents, wait_s=self._wait_s)

    async def purge(self, name: str = EVERY_MODEL) -> None:
        """Purge the responses of a model, or of the models behind a route, and of their dependents.

        Other gateways follow the store and apply a stored purge within a second, as long as they can reach
        it. This call waits for its own process at most that long, so that the caller's next request does not
        find an old response.

        A cancellation, or a store that goes away, may leave some dependents purged and others not. Raises
        InvalidRequest (no model can have that name), StoreUnavailable.
        """
        route = self._known.routes.get(name)
        models = (name,) if route is None else route.models
        newest = 0
        # A model's dependents may list it again, or each other: one purge of each is enough.
        for each in dict.fromkeys(each for model in models for each in (model, *self._dependents(model))):
            held = await self._objects.put(Purge(each, uuid4().hex))
            newest = held.resource_version
        await self._known.wait_for(newest, timeout_s=self._wait_s)

"""Port of the state store, in which the control plane keeps its objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from control_plane.objects.domain.stored import Kind, Stored


class StateStore(Protocol):
    """Durable store of named objects, with a resource_version for each change and a watch, as Kubernetes' API
    server has.

    Each method raises StoreUnavailable if the store cannot be reached.
    """

    async def get(self, kind: Kind, name: str) -> Stored | None:
        """Return an object as it is now; None if there is none."""

    async def list_all(self, kind: Kind) -> list[Stored]:
        """Return every object of a kind, sorted by name."""

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
        """Create or replace an object; the write is durable when this returns.

        `expected` is the resource_version that the object must have now; 0 means that it must not exist, None
        that any will do. Raises Conflict.
        """

    async def delete(self, kind: Kind, name: str, *, expected: int | None = None) -> None:
        """Delete an object; `expected` as for `put`. Raises ObjectNotFound, Conflict."""

    async def changes(self, since: int, *, timeout_s: float) -> list[Stored]:
        """Return the objects that changed after the resource_version `since`: each once, in its newest form,
        in order of change.

        This is a long poll: it waits up to `timeout_s` for a first change, and returns an empty list if none
        comes. `since` 0 returns all objects. Ask for that after StoreUnavailable, since the store may have
        lost changes or be another one; a store whose last change is before `since` raises StoreUnavailable as
        well.
        """

    async def restore(self, objects: Iterable[Stored]) -> None:
        """Replace the whole contents by these objects, atomically; they get new resource_versions."""

    async def close(self) -> None: ...

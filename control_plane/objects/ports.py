"""What must be remembered, and what is told to the outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from control_plane.objects.domain.stored import Kind, Stored


class StateStore(Protocol):
    """What the control plane must remember, durably. Each method raises StoreUnavailable when the store cannot be reached."""

    async def get(self, kind: Kind, name: str) -> Stored | None:
        """As it is now; None where there is none."""

    async def list_all(self, kind: Kind) -> list[Stored]:
        """Every object of a kind, by name."""

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
        """Write it whole; durable when this returns.

        `expected` is the resource_version that it must have now, 0 that it must not exist. Raises Conflict.
        """

    async def delete(self, kind: Kind, name: str, *, expected: int | None = None) -> None:
        """Raises ObjectNotFound, Conflict."""

    async def changes(self, since: int, *, timeout_s: float) -> list[Stored]:
        """What has changed after `since`, each object once in its newest form, in order of change.

        Waits for a first change for `timeout_s` at most; then it is empty. `since` 0 gives everything, and is what to ask for
        after StoreUnavailable: the store may have lost changes, or be another one. (One whose last change is before
        `since` raises that too.)
        """

    async def restore(self, objects: Iterable[Stored]) -> None:
        """Hold these and nothing else, in one step; their resource_versions are new ones."""

    async def close(self) -> None: ...

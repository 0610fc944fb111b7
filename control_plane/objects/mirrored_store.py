"""State store whose puts are in force in this process when they return (read-your-writes); wraps any other state store.

The admin API writes through it, so that a key that was just made is accepted by the data ports beside it. Other processes
follow within a second, as their mirrors do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from control_plane.objects.domain.stored import Kind, Stored
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.ports import StateStore

_WAIT_S = 1.0
"""Longest wait for the mirror: what was written is durable, so an answer waits no longer for a store that has gone away since."""


class MirroredStore:
    """State store that answers a put once the mirror of this process has it, or after `wait_s`."""

    def __init__(self, store: StateStore, known: ObjectMirror, *, wait_s: float = _WAIT_S) -> None:
        self._store = store
        self._known = known
        self._wait_s = wait_s

    async def get(self, kind: Kind, name: str) -> Stored | None:
        return await self._store.get(kind, name)

    async def list_all(self, kind: Kind) -> list[Stored]:
        return await self._store.list_all(kind)

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
        written = await self._store.put(kind, name, body, expected=expected)
        await self._known.wait_for(written.resource_version, timeout_s=self._wait_s)
        return written

    async def delete(self, kind: Kind, name: str, *, expected: int | None = None) -> None:
        await self._store.delete(kind, name, expected=expected)

    async def changes(self, since: int, *, timeout_s: float) -> list[Stored]:
        return await self._store.changes(since, timeout_s=timeout_s)

    async def restore(self, objects: Iterable[Stored]) -> None:
        await self._store.restore(objects)

    async def close(self) -> None:
        await self._store.close()

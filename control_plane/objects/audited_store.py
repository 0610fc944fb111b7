"""State store whose every change is in the audit log before it is made; wraps any other state store.

All that administrators change passes here, of every kind, also of one that is added later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from control_plane.audit.domain.entry import Actor
from control_plane.audit.trail import AuditTrail
from control_plane.core.errors import Conflict
from control_plane.objects.domain.stored import Kind, Stored, check_expected
from control_plane.objects.ports import StateStore

_ATTEMPTS = 5
_NOT_RECORDED = frozenset((Kind.APPLIED,))
"""Kinds that are bookkeeping about a change which is in the log itself."""


class AuditedStore:
    """State store that records who changes what, on behalf of one actor."""

    def __init__(self, store: StateStore, trail: AuditTrail, actor: Actor) -> None:
        self._store = store
        self._trail = trail
        self._actor = actor

    def by(self, actor: Actor) -> AuditedStore:
        """Return the same store on behalf of another actor."""
        return AuditedStore(self._store, self._trail, actor)

    async def get(self, kind: Kind, name: str) -> Stored | None:
        return await self._store.get(kind, name)

    async def list_all(self, kind: Kind) -> list[Stored]:
        return await self._store.list_all(kind)

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
        if kind in _NOT_RECORDED:
            return await self._store.put(kind, name, body, expected=expected)
        for _ in range(_ATTEMPTS):
            # The write is made conditional on what the entry says was there before: so that is true.
            before = await self._store.get(kind, name)
            version = before.resource_version if before is not None else 0
            check_expected(kind, name, expected=expected, current=version)
            action, fields = ("create", None) if before is None else ("replace", before.body)
            try:
                async with self._trail.recorded(self._actor, action, kind, name, before=fields, after=body):
                    return await self._store.put(kind, name, body, expected=version)
            except Conflict:
                if expected is not None:
                    raise
        raise Conflict(f"{kind} {name[:100]!r} was changed by others {_ATTEMPTS} times in a row; try again")

    async def delete(self, kind: Kind, name: str, *, expected: int | None = None) -> None:
        before = await self._store.get(kind, name)
        if kind in _NOT_RECORDED or before is None:
            await self._store.delete(kind, name, expected=expected)
            return
        check_expected(kind, name, expected=expected, current=before.resource_version)
        async with self._trail.recorded(self._actor, "delete", kind, name, before=before.body):
            await self._store.delete(kind, name, expected=before.resource_version)

    async def changes(self, since: int, *, timeout_s: float) -> list[Stored]:
        return await self._store.changes(since, timeout_s=timeout_s)

    async def restore(self, objects: Iterable[Stored]) -> None:
        kept = list(objects)
        async with self._trail.recorded(self._actor, "restore", "backup", "all objects", after={"objects": len(kept)}):
            await self._store.restore(kept)

    async def close(self) -> None:
        await self._store.close()


def on_behalf(store: StateStore, actor: Actor) -> StateStore:
    """Return the store on behalf of an actor; one that is not audited as it is."""
    return store.by(actor) if isinstance(store, AuditedStore) else store

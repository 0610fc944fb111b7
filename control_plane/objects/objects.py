"""Service for tenants, routes, prices, purges, rollouts and their policies: validates objects and writes them with optimistic
concurrency.

Called by the admin API, the command line and `cache/purges`. API keys have a service of their own
(`auth/keys`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from control_plane.audit.domain.entry import Actor
from control_plane.core.errors import Conflict, InvalidRequest, ObjectNotFound
from control_plane.objects.audited_store import on_behalf
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.applied import Applied, record_name
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.purge import Purge
from control_plane.objects.domain.rollout import Rollout
from control_plane.objects.domain.rollout_policy import RolloutPolicy
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.stored import Kind, Stored
from control_plane.objects.domain.stored_objects import KIND_OF, StoredObject, from_stored, name_of, to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.ports import StateStore

_log = logging.getLogger(__name__)

ObjectT = TypeVar("ObjectT", bound=StoredObject)
PutT = TypeVar("PutT", Tenant, Route, Price, Purge, Rollout, RolloutPolicy, Applied)
PatchedT = TypeVar("PatchedT", Tenant, Route, Price)

_ATTEMPTS = 5
"""Optimistic writes of a patch before it gives up."""
_PAUSE_EVERY = 100
"""Objects between two yields to the event loop, as in the mirror: each takes some ten microseconds."""


@dataclass(frozen=True, slots=True)
class Versioned(Generic[ObjectT]):
    """Object with the resource_version that it had when it was read."""

    value: ObjectT
    resource_version: int
    """Passed to a write as `expected`, it makes sure that nobody has changed the object meanwhile."""


async def read(store: StateStore, type_: type[ObjectT], name: str) -> Versioned[ObjectT]:
    """Read one object of a type. Raises ObjectNotFound, InvalidRequest (the stored object cannot be read),
    StoreUnavailable.
    """
    kind = KIND_OF[type_]
    stored = await store.get(kind, name)
    if stored is None or stored.body is None:
        raise ObjectNotFound(f"no {kind.replace('_', ' ')} {name[:100]!r}")
    return _versioned(stored, type_)


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a list of objects, which are in the order of their names; by default all of it."""

    after: str | None = None
    """Name after which it begins; None: with the first."""
    most: int | None = None
    """Most objects; None: all that there are."""


ALL = Part()


async def read_all(store: StateStore, type_: type[ObjectT], part: Part = ALL) -> list[Versioned[ObjectT]]:
    """Read objects of a type, by name; those that cannot be read are logged and left out. Only those of the part are decoded, and
    of many others get their turn meanwhile. Raises StoreUnavailable.
    """
    listed = await store.list_all(KIND_OF[type_])
    first = 0 if part.after is None else bisect_right(listed, part.after, key=lambda stored: stored.name)
    found: list[Versioned[ObjectT]] = []
    for count, stored in enumerate(islice(listed, first, None), 1):
        if len(found) == part.most:
            break
        try:
            found.append(_versioned(stored, type_))
        except InvalidRequest as exc:
            _log.error("a stored object cannot be read and is passed over: %s", exc)
        if count % _PAUSE_EVERY == 0:
            await asyncio.sleep(0)
    return found


class Objects:
    """Service that reads and writes objects; each method raises StoreUnavailable if the store cannot be
    reached.
    """

    def __init__(self, store: StateStore, *, now_s: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now_s = now_s

    def by(self, actor: Actor) -> Objects:
        """Return the same service on behalf of an actor, who is in the audit log with each change."""
        return Objects(on_behalf(self._store, actor), now_s=self._now_s)

    async def put(self, value: PutT, expected: int | None = None) -> Versioned[PutT]:
        """Create or replace an object.

        `expected` is the resource_version that the object must have now; 0 means that it must not exist, None
        that any will do.

        Raises:
            InvalidRequest: values that are not allowed; the text names all of them.
            Conflict: the object has another resource_version.
        """
        stored = await self._store.put(KIND_OF[type(value)], name_of(value), to_body(value), expected=expected)
        return Versioned(value, stored.resource_version)

    async def patch(
        self, type_: type[PatchedT], name: str, change: Callable[[PatchedT], PatchedT], expected: int | None = None
    ) -> Versioned[PatchedT]:
        """Read an object, apply `change` and write the result, so that no concurrent change is lost.
        `expected` as for `put`.

        `change` may be called several times. Raises ObjectNotFound, InvalidRequest, Conflict (the object has
        another resource_version than expected, or others keep changing it).
        """
        for _ in range(_ATTEMPTS):
            held = await self.get(type_, name)
            try:
                return await self.put(change(held.value), held.resource_version if expected is None else expected)
            except Conflict:
                # Who names a version has decided on what it saw then: a second try would be on something else.
                if expected is not None:
                    raise
        raise Conflict(f"{KIND_OF[type_]} {name[:100]!r} was changed by others {_ATTEMPTS} times in a row; try again")

    async def get(self, type_: type[ObjectT], name: str) -> Versioned[ObjectT]:
        """Read one object. Raises ObjectNotFound, InvalidRequest (the stored object cannot be read)."""
        return await read(self._store, type_, name)

    async def list_all(self, type_: type[ObjectT], part: Part = ALL) -> list[Versioned[ObjectT]]:
        """Read the objects of a type, by name, or a part of them; those that cannot be read are logged and left out."""
        return await read_all(self._store, type_, part)

    async def delete(self, type_: type[Tenant | Route | Price | RolloutPolicy], name: str, expected: int | None = None) -> None:
        """Delete an object. Raises ObjectNotFound, Conflict (it has another resource_version, or a tenant has
        valid keys).

        A key that is created for a tenant while the tenant is deleted is left without a tenant, and
        authentication refuses it.
        """
        if type_ is Tenant:
            await self._refuse_with_keys(name)
        await self._store.delete(KIND_OF[type_], name, expected=expected)
        # Whoever makes an object of that name anew is not bound by what was applied to this one.
        await self.forget_applied(type_.__name__, name)

    async def forget_applied(self, kind: str, name: str) -> None:
        """Delete the record of what was applied to an object, if there is one."""
        with suppress(ObjectNotFound):
            await self._store.delete(Kind.APPLIED, record_name(kind, name))

    async def _refuse_with_keys(self, tenant: str) -> None:
        now_s = self._now_s()
        keys = [held.value for held in await read_all(self._store, ApiKey)]
        valid = [key.id for key in keys if key.tenant == tenant and key.is_valid_at(now_s)]
        if valid:
            more = f" and {len(valid) - 3} more" if len(valid) > 3 else ""
            raise Conflict(f"tenant {tenant!r} has keys that are valid: {', '.join(valid[:3])}{more}; revoke them first")


def _versioned(stored: Stored, type_: type[ObjectT]) -> Versioned[ObjectT]:
    value = from_stored(stored)
    assert isinstance(value, type_)
    return Versioned(value, stored.resource_version)

"""Tenants, routes, prices and purges: written with the rules that hold between them; the admin API's and the command line's way to them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from control_plane.core.errors import Conflict, InvalidRequest, ObjectNotFound
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.purge import Purge
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.stored import Stored
from control_plane.objects.domain.stored_objects import KIND_OF, StoredObject, from_stored, name_of, to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.ports import StateStore

_log = logging.getLogger(__name__)

ObjectT = TypeVar("ObjectT", bound=StoredObject)
PutT = TypeVar("PutT", Tenant, Route, Price, Purge)
PatchedT = TypeVar("PatchedT", Tenant, Route, Price)

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Held(Generic[ObjectT]):
    """An object as the store holds it."""

    value: ObjectT
    resource_version: int
    """Given back as `expected`, it makes sure that nobody has changed it meanwhile."""


async def read(store: StateStore, type_: type[ObjectT], name: str) -> Held[ObjectT]:
    """One object of a type. Raises ObjectNotFound, InvalidRequest (what is stored cannot be read), StoreUnavailable."""
    kind = KIND_OF[type_]
    stored = await store.get(kind, name)
    if stored is None or stored.body is None:
        raise ObjectNotFound(f"no {kind.replace('_', ' ')} {name[:100]!r}")
    return _held(stored, type_)


async def read_all(store: StateStore, type_: type[ObjectT]) -> list[Held[ObjectT]]:
    """Every object of a type that can be read, by name. Raises StoreUnavailable."""
    found = []
    for stored in await store.list_all(KIND_OF[type_]):
        try:
            found.append(_held(stored, type_))
        except InvalidRequest as exc:
            _log.error("a stored object cannot be read and is passed over: %s", exc)
    return found


class Objects:
    """Each method raises StoreUnavailable when the store cannot be reached."""

    def __init__(self, store: StateStore, *, now_s: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now_s = now_s

    async def put(self, value: PutT, expected: int | None = None) -> Held[PutT]:
        """Write it whole. `expected` is the resource_version that it must have now, 0 that it must not exist.

        Raises:
            InvalidRequest: a value that it may not have; the text names all of them. Conflict: it is not as expected.
        """
        stored = await self._store.put(KIND_OF[type(value)], name_of(value), to_body(value), expected=expected)
        return Held(value, stored.resource_version)

    async def patch(
        self, type_: type[PatchedT], name: str, change: Callable[[PatchedT], PatchedT], expected: int | None = None
    ) -> Held[PatchedT]:
        """Write what `change` makes of it, and lose nobody's change beside it. `expected` as for `put`.

        Raises ObjectNotFound, InvalidRequest, Conflict: it is not as expected, or others change it all the time.
        """
        for _ in range(_ATTEMPTS):
            held = await self.get(type_, name)
            try:
                return await self.put(change(held.value), held.resource_version if expected is None else expected)
            except Conflict:
                if expected is not None:
                    raise
        raise Conflict(f"{KIND_OF[type_]} {name[:100]!r} was changed by others {_ATTEMPTS} times in a row; try again")

    async def get(self, type_: type[ObjectT], name: str) -> Held[ObjectT]:
        """Raises ObjectNotFound, InvalidRequest (what is stored cannot be read)."""
        return await read(self._store, type_, name)

    async def list_all(self, type_: type[ObjectT]) -> list[Held[ObjectT]]:
        """By name, without those that cannot be read, which are told of in the log."""
        return await read_all(self._store, type_)

    async def delete(self, type_: type[Tenant] | type[Route] | type[Price], name: str, expected: int | None = None) -> None:
        """Raises ObjectNotFound, Conflict: it is not as expected, or a tenant has keys that are valid.

        A key that is made for the tenant at this very moment is left without one, and refused.
        """
        if type_ is Tenant:
            await self._refuse_with_keys(name)
        await self._store.delete(KIND_OF[type_], name, expected=expected)

    async def _refuse_with_keys(self, tenant: str) -> None:
        now_s = self._now_s()
        keys = [held.value for held in await read_all(self._store, ApiKey)]
        valid = [key.id for key in keys if key.tenant == tenant and key.is_valid_at(now_s)]
        if valid:
            more = f" and {len(valid) - 3} more" if len(valid) > 3 else ""
            raise Conflict(f"tenant {tenant!r} has keys that are valid: {', '.join(valid[:3])}{more}; revoke them first")


def _held(stored: Stored, type_: type[ObjectT]) -> Held[ObjectT]:
    value = from_stored(stored)
    assert isinstance(value, type_)
    return Held(value, stored.resource_version)

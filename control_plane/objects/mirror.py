"""What the store remembers, in memory: read on every request, kept up with the store in the background.

Each process has its own. While the store is away the last known state stays in force.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from control_plane.core.errors import InvalidRequest, StoreUnavailable
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.purge import EVERY_MODEL, Purge
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.stored import Kind, Stored
from control_plane.objects.domain.stored_objects import from_stored
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.ports import StateStore

_log = logging.getLogger(__name__)

_WAIT_S = 1.0
"""For a first change. Its end without one says that nothing has changed up to then."""

_LOOK_S = 0.005
"""Whoever waits for a change of its own looks so often: few do, and seldom."""

_MAX_SILENCE_S = 5.0
"""A store that neither answers nor fails for so long is away."""

_FIRST_RETRY_S = 0.1
_MAX_RETRY_S = 1.0
"""A revocation is to be known a second after the store is back."""

_PAUSE_EVERY = 100
"""Objects, of some ten microseconds each: requests are not held up while many are read."""

_Tables = dict[Kind, dict[str, Any]]


class KnownState:
    """The mirror; its mappings are replaced, never changed, so whoever holds one may go on reading it."""

    def __init__(self, store: StateStore, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now_s = now_s
        self.keys: Mapping[str, ApiKey] = {}
        self.tenants: Mapping[str, Tenant] = {}
        self.routes: Mapping[str, Route] = {}
        self.prices: Mapping[str, Price] = {}
        self.purges: Mapping[str, Purge] = {}
        self.resource_version = 0
        self.generation = 0
        """Grows with each change taken in: unlike `resource_version` also where a store has lost its last changes and counts anew."""
        self._confirmed_s = float("-inf")
        self._is_reachable = False
        self._unreadable: set[tuple[str, str, int]] = set()

    @property
    def is_current(self) -> bool:
        """Whether the store has confirmed just now that this is all."""
        return self._is_reachable and self._now_s() - self._confirmed_s < _MAX_SILENCE_S

    @property
    def behind_s(self) -> float:
        """Seconds since the store has last confirmed it; 0 while it is current, infinite before the first time."""
        return 0.0 if self.is_current else self._now_s() - self._confirmed_s

    def cache_generation_of(self, model: str) -> str:
        """What changes with each purge of a model, and of all."""
        of_all, own = self.purges.get(EVERY_MODEL), self.purges.get(model)
        return f"{of_all.generation if of_all else ''}.{own.generation if own else ''}"

    async def wait_for(self, resource_version: int, *, timeout_s: float) -> bool:
        """Whether that change is known here within that time."""
        ends_s = asyncio.get_running_loop().time() + timeout_s
        while self.resource_version < resource_version and asyncio.get_running_loop().time() < ends_s:
            await asyncio.sleep(_LOOK_S)
        return self.resource_version >= resource_version

    async def start(self) -> None:
        """Read everything. Raises StoreUnavailable."""
        await self._read_all()

    async def run(self) -> None:
        """Follow the store until cancelled, also through its outages."""
        while True:
            try:
                while True:
                    await self._follow()
            except StoreUnavailable as exc:
                _log.error("the state store cannot be reached, the last known state stays in force: %s", exc)
            self._is_reachable = False
            await self._wait_until_back()
            _log.info("the state store is back")

    async def _follow(self) -> None:
        changes = await self._store.changes(self.resource_version, timeout_s=_WAIT_S)
        if changes:
            await self._take(changes, onto=self._tables())
        self._confirm()

    async def _wait_until_back(self) -> None:
        delay_s = _FIRST_RETRY_S
        while True:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_RETRY_S)
            try:
                await self._read_all()
            except StoreUnavailable:
                continue
            return

    async def _read_all(self) -> None:
        """Everything anew: a store that comes back after a crash may have lost changes that were seen here, and reuse their numbers."""
        everything = await self._store.changes(0, timeout_s=0.0)
        self.resource_version = 0
        await self._take(everything, onto={kind: {} for kind in Kind})
        self._confirm()

    def _confirm(self) -> None:
        self._confirmed_s, self._is_reachable = self._now_s(), True

    def _tables(self) -> _Tables:
        return {
            Kind.API_KEY: dict(self.keys),
            Kind.TENANT: dict(self.tenants),
            Kind.ROUTE: dict(self.routes),
            Kind.PRICE: dict(self.prices),
            Kind.PURGE: dict(self.purges),
        }

    async def _take(self, changes: Iterable[Stored], *, onto: _Tables) -> None:
        newest = self.resource_version
        for count, stored in enumerate(changes, 1):
            if stored.kind in onto:  # others are a newer version's
                self._take_one(stored, onto[Kind(stored.kind)])
            newest = max(newest, stored.resource_version)
            if count % _PAUSE_EVERY == 0:
                await asyncio.sleep(0)
        self.keys, self.tenants = onto[Kind.API_KEY], onto[Kind.TENANT]
        self.routes, self.prices, self.purges = onto[Kind.ROUTE], onto[Kind.PRICE], onto[Kind.PURGE]
        self.resource_version = newest
        self.generation += 1

    def _take_one(self, stored: Stored, table: dict[str, Any]) -> None:
        """One that cannot be read counts as deleted: what a newer version wrote of a key may have been its revocation."""
        table.pop(stored.name, None)
        if stored.body is None:
            return
        try:
            table[stored.name] = from_stored(stored)
        except InvalidRequest as exc:
            if stored.kind == Kind.PURGE:
                table[stored.name] = Purge(stored.name, str(stored.resource_version))  # a purge all the same, and another one than before
            change = (stored.kind, stored.name, stored.resource_version)
            if change not in self._unreadable:
                self._unreadable.add(change)
                _log.error("a stored object cannot be read and is passed over: %s", exc)

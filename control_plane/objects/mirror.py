"""Mirror of the state store in memory (an informer cache): read on every request, kept up to date in the
background.

Each process has its own. While the store is away the last known state stays in force, and also when the
store comes back with less than was read from it before: emptied, or older. Nobody has made that change, and to
believe it would lock everybody out, or bring revoked keys back; only what is changed from then on counts. Rate
limits, authentication, routes and the response cache read it; nobody writes to it but its own `run`.
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
from control_plane.objects.domain.rollout import Phase, Rollout, in_force
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.stored import Kind, Stored
from control_plane.objects.domain.stored_objects import from_stored
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.domain.webhook_secret import WebhookSecret
from control_plane.objects.ports import StateStore

_log = logging.getLogger(__name__)

_WAIT_S = 1.0
"""Long poll for changes. A poll that ends without one confirms that the mirror is up to date."""

_LOOK_S = 0.005
"""Poll interval of `wait_for`; callers are few and rare, so there is no need for a notification."""

_MAX_SILENCE_S = 5.0
"""A store that neither answers nor fails for this long counts as away."""

_FIRST_RETRY_S = 0.1
_MAX_RETRY_S = 1.0
"""Longest pause between retries: a revocation must be known a second after the store is back."""

_PAUSE_EVERY = 100
"""Objects between two yields to the event loop; each takes some ten microseconds, and requests must not wait
for many of them.
"""

_MIRRORED = tuple(kind for kind in Kind if kind not in (Kind.APPLIED, Kind.ROLLOUT_POLICY))
"""Kinds that requests are decided by. Who applied an object matters only to those who apply, and a rollout has copied its policy."""

_ANYBODY = ""
"""No tenant has this name."""

_Tables = dict[Kind, dict[str, Any]]


class ObjectMirror:
    """Object mirror (informer cache) of one process. Its mappings are replaced, never changed, so a reader
    may keep one as a consistent snapshot.
    """

    def __init__(self, store: StateStore, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now_s = now_s
        self.keys: Mapping[str, ApiKey] = {}
        self.tenants: Mapping[str, Tenant] = {}
        self.routes: Mapping[str, Route] = {}
        self.prices: Mapping[str, Price] = {}
        self.purges: Mapping[str, Purge] = {}
        self.webhook_secrets: Mapping[str, WebhookSecret] = {}
        self.stored_routes: Mapping[str, Route] = {}
        """The routes as they are stored; `routes` has them as rollouts that are under way change them."""
        self.rollouts: Mapping[str, Rollout] = {}
        self.rollout_ids: Mapping[str, str] = {}
        """Ids of the rollouts under way, by route."""
        self.shadows: Mapping[str, Rollout] = {}
        """Rollouts whose next models get copies of requests, by route."""
        self._secrets: dict[str, str] = {}
        """The secret of each tenant that has a key in `_secrets_of`."""
        self._secrets_of: Mapping[str, ApiKey] | None = None
        self._given_up: frozenset[str] = frozenset()
        self.resource_version = 0
        self.generation = 0
        """Counter of applied changes. Unlike `resource_version` it grows even if the store has lost changes
        and reuses numbers.
        """
        self.regression = ""
        """Why the store is not believed, as a sentence: it has lost what was read from it; empty while it
        is.
        """
        self._confirmed_s = float("-inf")
        self._is_reachable = False
        self._unreadable: set[tuple[str, str, int]] = set()

    @property
    def is_current(self) -> bool:
        """Whether the store has confirmed within the last seconds that the mirror is up to date."""
        return self._is_reachable and not self.regression and self._now_s() - self._confirmed_s < _MAX_SILENCE_S

    @property
    def behind_s(self) -> float:
        """Seconds since the store last confirmed the mirror; 0 while it is current, infinite before the first
        time.
        """
        return 0.0 if self.is_current else self._now_s() - self._confirmed_s

    def purge_generation_of(self, model: str) -> str:
        """Return a text that changes with each purge of the model and with each purge of all models; part of
        cache keys.
        """
        of_all, own = self.purges.get(EVERY_MODEL), self.purges.get(model)
        return f"{of_all.generation if of_all else ''}.{own.generation if own else ''}"

    def webhook_secrets_of(self, tenant: str) -> list[str]:
        """Return what a tenant's webhooks are signed with, the newest first."""
        own = (each for each in self.webhook_secrets.values() if each.tenant == tenant)
        return [each.secret for each in sorted(own, key=lambda each: -each.created_s)]

    def secret_of(self, tenant: str) -> str:
        """Return what every process of this store knows of a tenant, for as long as it exists, and other tenants do not: the
        digest in its first API key, since no key is ever deleted. A tenant that has tokens alone gets that of the store's
        first key, which is an administrator's as a rule; empty if there is no key at all.
        """
        if self._secrets_of is not self.keys:  # which each change of a key replaces
            oldest: dict[str, ApiKey] = {}
            for key in self.keys.values():  # once, and not sorted: a store may have tens of thousands
                for whose in (key.tenant, _ANYBODY):
                    known = oldest.setdefault(whose, key)
                    if key.created_s <= known.created_s and (key.created_s, key.id) < (known.created_s, known.id):
                        oldest[whose] = key
            self._secrets = {whose: key.secret_sha256 for whose, key in oldest.items()}
            self._secrets_of = self.keys
        return self._secrets.get(tenant) or self._secrets.get(_ANYBODY, "")

    def weight_of(self, tenant: str) -> float:
        """Return a tenant's share, relative to other tenants' weights; 1 where it has no limits of its own."""
        known = self.tenants.get(tenant)
        return 1.0 if known is None else known.weight

    def model_of(self, name: str) -> str:
        """Return the model that a route leads to without a rollout, or the name of a model as it is."""
        route = self.routes.get(name)
        return name if route is None else route.model

    async def wait_for(self, resource_version: int, *, timeout_s: float) -> bool:
        """Wait until the change is in the mirror, at most `timeout_s`; return whether it is."""
        ends_s = asyncio.get_running_loop().time() + timeout_s
        while self.resource_version < resource_version and asyncio.get_running_loop().time() < ends_s:
            await asyncio.sleep(_LOOK_S)
        return self.resource_version >= resource_version

    async def start(self) -> None:
        """Read all objects, before the first request. Raises StoreUnavailable."""
        await self._read_all()

    async def run(self) -> None:
        """Apply the store's changes until cancelled, also through outages of the store."""
        while True:
            try:
                while True:
                    await self._follow()
            except StoreUnavailable as exc:
                _log.error("the state store cannot be reached, the last known state stays in force: %s", exc)
            self._is_reachable = False
            await self._wait_until_back()
            if not self.regression:
                _log.info("the state store is back")

    async def _follow(self) -> None:
        changes = await self._store.changes(self.resource_version, timeout_s=_WAIT_S)
        if changes:
            await self._apply(changes, onto=self._tables())
            if self.regression and await self._agrees(await self._store.changes(0, timeout_s=0.0)):
                self.regression = ""
                _log.info("the state store holds again what is in force here")
        self._confirm()

    async def _wait_until_back(self) -> None:
        """Read all objects again and again, with backoff, until the store answers."""
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
        """Read all objects anew, as after an outage: the store may be another one by now. One that has lost
        changes is only followed from here on.
        """
        everything = await self._store.changes(0, timeout_s=0.0)
        newest = everything[-1].resource_version if everything else 0
        if newest < self.resource_version:
            if not await self._agrees(everything):
                self._hold(newest)
            self.resource_version = newest
        elif not self.regression:
            self.resource_version = 0
            await self._apply(everything, onto={kind: {} for kind in _MIRRORED})
        self._confirm()

    def _hold(self, newest: int) -> None:
        """Keep the last known state, since the store has come back with changes up to `newest` only."""
        what = f"with change {newest} as its last, though {self.resource_version} was read before" if newest else "empty"
        self.regression = (
            f"the state store has come back {what}: the last known state stays in force, and what is changed from now on; "
            "restore a backup, or restart the gateway to believe the store as it is"
        )
        _log.error("%s", self.regression)

    async def _agrees(self, everything: Iterable[Stored]) -> bool:
        """Whether the store's objects are those in force here; purges that it lacks have been carried out."""
        missing = self._tables()
        del missing[Kind.PURGE]
        for count, stored in enumerate(everything, 1):
            if stored.kind in missing:
                there: dict[str, Any] = {}
                self._apply_one(stored, there)
                if there.get(stored.name) != missing[Kind(stored.kind)].pop(stored.name, None):
                    return False
            if count % _PAUSE_EVERY == 0:
                await asyncio.sleep(0)
        return not any(missing.values())

    def _confirm(self) -> None:
        self._is_reachable = True
        if not self.regression:
            self._confirmed_s = self._now_s()

    def _tables(self) -> _Tables:
        return {
            Kind.API_KEY: dict(self.keys),
            Kind.TENANT: dict(self.tenants),
            Kind.ROUTE: dict(self.stored_routes),
            Kind.PRICE: dict(self.prices),
            Kind.PURGE: dict(self.purges),
            Kind.ROLLOUT: dict(self.rollouts),
            Kind.WEBHOOK_SECRET: dict(self.webhook_secrets),
        }

    async def _apply(self, changes: Iterable[Stored], *, onto: _Tables) -> None:
        """Apply changes to the tables `onto`, then publish these as the new state."""
        newest = self.resource_version
        for count, stored in enumerate(changes, 1):
            if stored.kind in onto:  # other kinds were written by a newer version of the gateway
                self._apply_one(stored, onto[Kind(stored.kind)])
            newest = max(newest, stored.resource_version)
            if count % _PAUSE_EVERY == 0:
                await asyncio.sleep(0)
        # All tables change in one step, without an await in between: no request sees half of the changes.
        if onto[Kind.API_KEY] != self.keys:  # else the same ones are kept, and what has been made of them (`secret_of`)
            self.keys = onto[Kind.API_KEY]
        self.tenants = onto[Kind.TENANT]
        self.stored_routes, self.prices, self.purges = onto[Kind.ROUTE], onto[Kind.PRICE], onto[Kind.PURGE]
        self.rollouts, self.webhook_secrets = onto[Kind.ROLLOUT], onto[Kind.WEBHOOK_SECRET]
        self._apply_rollouts()
        self.resource_version = newest
        self.generation += 1

    def give_up(self, rollout_id: str) -> None:
        """Send this process's requests to the route's present model, whatever the store says of that rollout: it is worse, and
        the store is away."""
        if rollout_id not in self._given_up:
            self._given_up |= {rollout_id}
            self._apply_rollouts()
            self.generation += 1

    def _apply_rollouts(self) -> None:
        under_way = {name: each for name, each in self.rollouts.items() if each.is_under_way and each.id not in self._given_up}
        self.routes = in_force(self.stored_routes, under_way)
        self.rollout_ids = {name: each.id for name, each in under_way.items()}
        self.shadows = {name: each for name, each in under_way.items() if each.phase is Phase.SHADOW and each.shadow and each.shadow.weight}

    def _apply_one(self, stored: Stored, table: dict[str, Any]) -> None:
        """Apply one change to a table. An object that cannot be read counts as deleted: if a newer version
        wrote a key, that may have been its revocation.
        """
        table.pop(stored.name, None)
        if stored.body is None:
            return
        try:
            table[stored.name] = from_stored(stored)
        except InvalidRequest as exc:
            if stored.kind == Kind.PURGE:
                # It is certain that something was purged, so the cache keys must change.
                table[stored.name] = Purge(stored.name, str(stored.resource_version))
            change = (stored.kind, stored.name, stored.resource_version)
            if change not in self._unreadable:
                self._unreadable.add(change)
                _log.error("a stored object cannot be read and is passed over: %s", exc)

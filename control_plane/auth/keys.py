"""Lifecycle of API keys: create, list, rotate and revoke. Called by the admin API and the command line.

A key's text leaves this module once, as the result of `create` or `rotate`; only a digest of its secret is
stored.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from secrets import token_bytes

from control_plane.audit.domain.entry import Actor
from control_plane.core.errors import Conflict, ControlPlaneError, InvalidRequest, ObjectNotFound
from control_plane.core.scope import Scope
from control_plane.objects.audited_store import on_behalf
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import ALL, Part, Versioned, read, read_all
from control_plane.objects.ports import StateStore

_ID_BYTES = 6
_SECRET_BYTES = 32
_REVOKE_ATTEMPTS = 5
"""Optimistic writes before giving up: another administrator may change the key between a read and its
write.
"""


class Keys:
    """Service that creates, rotates and revokes API keys; each method raises StoreUnavailable if the store
    cannot be reached.
    """

    def __init__(self, store: StateStore, *, now_s: Callable[[], float] = time.time, random: Callable[[int], bytes] = token_bytes) -> None:
        self._store = store
        self._now_s = now_s
        self._random = random

    def by(self, actor: Actor) -> Keys:
        """Return the same service on behalf of an actor, who is in the audit log with each change."""
        return Keys(on_behalf(self._store, actor), now_s=self._now_s, random=self._random)

    async def create(
        self, tenant: str, scopes: Sequence[Scope], *, expires_s: float | None = None, description: str = ""
    ) -> tuple[ApiKey, str]:
        """Create a key and return it with its text, which is not stored anywhere. `expires_s` is in seconds
        since 1970.

        Raises:
            InvalidRequest: no scopes, an expiry in the past, a tenant that does not exist.
        """
        now_s = self._now_s()
        if expires_s is not None and expires_s <= now_s:
            raise InvalidRequest("expires_s is in the past; a key that expires needs a time to come, in seconds since 1970")
        try:
            await read(self._store, Tenant, tenant)
        except ObjectNotFound as exc:
            raise InvalidRequest(f"{exc}; make it before its keys") from exc
        secret = urlsafe_b64encode(self._random(_SECRET_BYTES)).rstrip(b"=").decode()
        key = ApiKey(
            id=self._random(_ID_BYTES).hex(),
            tenant=tenant,
            scopes=tuple(scopes),
            secret_sha256=sha256(secret.encode()).hexdigest(),
            created_s=now_s,
            expires_s=expires_s,
            description=description,
        )
        # Only if there is none: an id that is drawn a second time must not overwrite the first one's key.
        await self._store.put(Kind.API_KEY, key.id, to_body(key), expected=0)
        return key, f"tg_{key.id}_{secret}"

    async def list_all(self, part: Part = ALL) -> list[ApiKey]:
        """Return the keys by id, or a part of them, expired and revoked ones included."""
        return [held.value for held in await read_all(self._store, ApiKey, part)]

    async def rotate(self, id: str, *, overlap_s: float) -> tuple[ApiKey, str]:  # noqa: A002
        """Replace key `id`: create a key with its tenant, scopes, lifetime and description, and revoke `id`
        in `overlap_s` seconds.

        Raises:
            ObjectNotFound: there is no key `id`.
            InvalidRequest: a negative overlap.
            Conflict: `id` is no longer valid, or is being changed by others; then no new key remains either.
        """
        now_s = self._now_s()
        if not 0 <= overlap_s < float("inf"):
            raise InvalidRequest("overlap_s must be seconds from 0 on")
        old = await read(self._store, ApiKey, id)
        if not old.value.is_valid_at(now_s):
            raise Conflict(f"API key {id!r} is no longer valid; make a new one")
        lifetime_s = None if old.value.expires_s is None else old.value.expires_s - old.value.created_s
        expires_s = None if lifetime_s is None else now_s + lifetime_s
        new, text = await self.create(old.value.tenant, old.value.scopes, expires_s=expires_s, description=old.value.description)
        # The new key is stored first: if this process dies in between, the old key still works.
        try:
            await self._revoke_at(old, now_s + overlap_s)
        except ControlPlaneError:
            await self._store.delete(Kind.API_KEY, new.id)
            raise
        return new, text

    async def revoke(self, id: str) -> ApiKey:  # noqa: A002
        """Revoke a key at once; idempotent. Raises ObjectNotFound, Conflict (others keep changing the
        key).
        """
        for attempt in range(1, _REVOKE_ATTEMPTS + 1):
            held = await read(self._store, ApiKey, id)
            try:
                return await self._revoke_at(held, self._now_s(), at_once=True)
            except Conflict:
                if attempt == _REVOKE_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def _revoke_at(self, held: Versioned[ApiKey], moment_s: float, *, at_once: bool = False) -> ApiKey:
        """Revoke a key as of `moment_s`; a revocation that is due earlier stays as it is."""
        old = held.value
        is_soon_enough = old.revoked_s is not None and old.revoked_s <= moment_s
        if old.is_revoked or (is_soon_enough and not at_once):
            return old
        key = replace(old, revoked_s=old.revoked_s if is_soon_enough else moment_s, is_revoked=at_once)
        await self._store.put(Kind.API_KEY, key.id, to_body(key), expected=held.resource_version)
        return key

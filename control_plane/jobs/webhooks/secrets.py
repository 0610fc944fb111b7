"""Lifecycle of the secrets that webhooks are signed with: create, list and delete. Called by the admin API.

A tenant may have several: a receiver that is being moved from one to the other accepts each message by either.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable
from secrets import token_bytes

from control_plane.audit.domain.entry import Actor
from control_plane.core.errors import Conflict, InvalidRequest, ObjectNotFound
from control_plane.jobs.webhooks.domain.message import SECRET_BYTES, SECRET_PREFIX
from control_plane.objects.audited_store import on_behalf
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.domain.webhook_secret import WebhookSecret
from control_plane.objects.objects import ALL, Part, read, read_all
from control_plane.objects.ports import StateStore

MAX_OF_TENANT = 4
_ID_BYTES = 6


class WebhookSecrets:
    """Service that creates and deletes secrets; each method raises StoreUnavailable if the store cannot be reached."""

    def __init__(self, store: StateStore, *, now_s: Callable[[], float] = time.time, random: Callable[[int], bytes] = token_bytes) -> None:
        """`now_s` is seconds since 1970."""
        self._store = store
        self._now_s = now_s
        self._random = random

    def by(self, actor: Actor) -> WebhookSecrets:
        """Return the same service on behalf of an actor, who is in the audit log with each change."""
        return WebhookSecrets(on_behalf(self._store, actor), now_s=self._now_s, random=self._random)

    async def create(self, tenant: str) -> WebhookSecret:
        """Create a secret, with which the tenant's webhooks are signed from now on, beside those that it has.

        Raises:
            InvalidRequest: there is no such tenant.
            Conflict: it has as many as it may.
        """
        if tenant:
            try:
                await read(self._store, Tenant, tenant)
            except ObjectNotFound as exc:
                raise InvalidRequest(f"{exc}; make it before its secrets") from exc
        if sum(each.tenant == tenant for each in await self.list_all()) >= MAX_OF_TENANT:
            raise Conflict(f"tenant {tenant!r} has {MAX_OF_TENANT} webhook secrets, as many as may be; delete one that no receiver needs")
        secret = SECRET_PREFIX + b64encode(self._random(SECRET_BYTES)).decode()
        made = WebhookSecret(self._random(_ID_BYTES).hex(), tenant, secret, self._now_s())
        await self._store.put(Kind.WEBHOOK_SECRET, made.id, to_body(made), expected=0)
        return made

    async def list_all(self, part: Part = ALL) -> list[WebhookSecret]:
        """Return the secrets by id, or a part of them."""
        return [held.value for held in await read_all(self._store, WebhookSecret, part)]

    async def delete(self, id: str) -> None:  # noqa: A002
        """Delete a secret: within a second nothing is signed with it any more. Raises ObjectNotFound, Conflict."""
        await self._store.delete(Kind.WEBHOOK_SECRET, id)

"""Paths of the admin API for the secrets that jobs' webhooks are signed with."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import FastAPI, Path
from pydantic import Field

from control_plane.admin.actor import By
from control_plane.admin.errors import CHANGE_ERRORS, LIST_ERRORS, MAKE_ERRORS
from control_plane.admin.idempotency.middleware import Once
from control_plane.admin.paging import Paged
from control_plane.admin.schema.described import Described
from control_plane.admin.schema.views import NAME, Spec
from control_plane.jobs.webhooks.secrets import WebhookSecrets
from control_plane.objects.domain.validation import KEY_ID
from control_plane.objects.domain.webhook_secret import WebhookSecret

SecretId = Annotated[str, Path(pattern=f"^{KEY_ID.pattern}$", description="The secret's id, which is no part of it.")]


class WebhookSecretSpec(Spec):
    """Tenant of a new webhook secret."""

    tenant: Annotated[str, Field(pattern=f"^({NAME.strip('^$')})?$")] = ""
    """Tenant whose webhooks are signed with it; empty: callers without a key, where authentication is off."""


class WebhookSecretView(Described):
    """A webhook secret's id and tenant, without the secret itself."""

    id: str
    tenant: str
    created_s: float
    """In seconds since 1970."""

    @classmethod
    def of(cls, made: WebhookSecret, **more: str) -> Self:
        return cls(id=made.id, tenant=made.tenant, created_s=made.created_s, **more)


class NewWebhookSecretView(WebhookSecretView):
    """A new webhook secret."""

    secret: str
    """`whsec_...`, as verifiers of Standard Webhooks take it. It is shown here and never again."""


def add_webhook_paths(app: FastAPI, secrets: WebhookSecrets) -> None:
    """Add `/webhook-secrets` and the path below it."""

    @app.get("/webhook-secrets", tags=["webhooks"], responses=LIST_ERRORS)
    async def list_webhook_secrets(paging: Paged) -> list[WebhookSecretView]:
        """List every webhook secret by id, without the secrets themselves."""
        return [WebhookSecretView.of(each) for each in paging.cut(await secrets.list_all(paging.part), key=lambda each: each.id)]

    @app.post("/webhook-secrets", tags=["webhooks"], status_code=201, responses=MAKE_ERRORS, dependencies=[Once])
    async def create_webhook_secret(spec: WebhookSecretSpec, by: By) -> NewWebhookSecretView:
        """Make a secret, with which the tenant's webhooks are signed from now on, beside its others."""
        made = await secrets.by(by).create(spec.tenant)
        return NewWebhookSecretView.of(made, secret=made.secret)

    @app.delete("/webhook-secrets/{id}", tags=["webhooks"], status_code=204, responses=CHANGE_ERRORS)
    async def delete_webhook_secret(id: SecretId, by: By) -> None:  # noqa: A002
        """Delete a secret: within a second nothing is signed with it any more."""
        await secrets.by(by).delete(id)

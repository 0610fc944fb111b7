"""Secrets that webhooks are signed with, as they are stored: whole, since signing needs them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WebhookSecret:
    """Secret that a tenant's webhooks are signed with. It is shown once, when it is made."""

    id: str
    tenant: str
    """Empty: of callers without a key, where authentication is off."""
    secret: str = field(repr=False)
    """`whsec_` and base64, as Standard Webhooks writes it."""
    created_s: float
    """In seconds since 1970."""

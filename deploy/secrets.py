"""Secrets of an installation that nobody has to choose: the password between the gateways and their Redis."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from hashlib import sha256

OURS = frozenset(("tidegate-redis", "tidegate-state"))
"""Names of the Secrets that can be made; they belong together."""

_USER = "tidegate"


def make_secrets(password: Callable[[], str] = lambda: secrets.token_urlsafe(32)) -> Mapping[str, Mapping[str, str]]:
    """Return the Secrets by name, as file -> content, around one new password.

    Redis gets the digest only. Everybody may ping, which its probe does; the gateways' user may do everything but
    administer the server, of which it needs to read the configuration.
    """
    chosen = password()
    users = (
        "user default on nopass resetkeys resetchannels -@all +ping\n"
        f"user {_USER} on #{sha256(chosen.encode()).hexdigest()} ~* &* +@all -@admin +config|get\n"
    )
    return {
        "tidegate-redis": {"users.acl": users},
        "tidegate-state": {"state-url": f"redis://{_USER}:{chosen}@redis:6379/0"},
    }

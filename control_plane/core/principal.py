"""Who asks."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.core.scope import EVERYTHING, Scopes


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request shows, as it came, and where it came from; never logged."""

    authorization: str | None
    """The header `authorization`."""
    api_key: str | None
    """The header `x-api-key`."""
    source: str
    """The address that the request came from, as far as it is believed; empty on a Unix socket."""

    def __repr__(self) -> str:
        return f"Credentials(source={self.source!r})"


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever showed a valid key or token."""

    tenant: str
    key_id: str
    """Of an API key; of a token, its subject."""
    scopes: Scopes
    expires_s: float | None = None
    """When what was shown is no longer valid, in seconds since 1970."""
    is_known: bool = False
    """Whether it stays valid until it expires or what is known changes: a key's does, of a token its issuer may think otherwise."""


NOBODY = Principal(tenant="", key_id="", scopes=EVERYTHING, is_known=True)
"""Every caller where authentication is off, which it can be on loopback only."""

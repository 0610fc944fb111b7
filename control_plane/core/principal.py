"""The caller of a request: the credentials that it shows, and who it is by them."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.core.scope import EVERYTHING, Scopes


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a request, unchecked, and the address that it came from. Never logged."""

    authorization: str | None
    """Value of the header `authorization`."""
    api_key: str | None
    """Value of the header `x-api-key`."""
    source: str
    """Client's address: the peer's, or the one that a trusted proxy forwards; empty on a Unix socket."""

    def __repr__(self) -> str:
        # Without the secrets, should one ever be formatted into a log line or traceback.
        return f"Credentials(source={self.source!r})"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller: the holder of a valid key or token."""

    tenant: str
    key_id: str
    """Id of the API key, or the subject of the token."""
    scopes: Scopes
    expires_s: float | None = None
    """When the key or token expires, in seconds since 1970."""
    is_known: bool = False
    """Whether it stays valid until it expires or the state store changes. True for keys; a token's issuer may
    withdraw its signing key before that."""


@dataclass(frozen=True, slots=True)
class Identified:
    """A principal that `is_known`, and when that was found out."""

    principal: Principal
    generation: int
    """The state store's, which changes with each object."""


ANONYMOUS = Principal(tenant="", key_id="", scopes=EVERYTHING, is_known=True)
"""The anonymous principal: every caller where authentication is off, which is allowed on loopback only."""

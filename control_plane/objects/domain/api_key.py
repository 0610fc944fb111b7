"""API keys as they are stored: with a digest in place of the secret."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.core.scope import Scope


@dataclass(frozen=True, slots=True)
class ApiKey:
    """API key of a tenant. Its text, `tg_<id>_<secret>`, is shown once, when the key is created."""

    id: str
    tenant: str
    scopes: tuple[Scope, ...]
    secret_sha256: str
    """Hexadecimal digest. The secret has 256 random bits, so a fast digest is safe: nobody can guess what it
    was made of.
    """
    created_s: float
    """In seconds since 1970, as all times here."""
    expires_s: float | None = None
    revoked_s: float | None = None
    """When the key was revoked or will be: a key that is rotated stays valid for an overlap."""
    description: str = ""
    is_revoked: bool = False
    """Whether the key was revoked at once, which holds even on a machine whose clock is behind
    `revoked_s`.
    """

    def is_revoked_at(self, now_s: float) -> bool:
        """Whether the key is revoked at `now_s`."""
        return self.is_revoked or (self.revoked_s is not None and self.revoked_s <= now_s)

    def is_valid_at(self, now_s: float) -> bool:
        """Whether the key is neither expired nor revoked at `now_s`."""
        return not self.is_revoked and not any(end_s is not None and end_s <= now_s for end_s in (self.expires_s, self.revoked_s))

"""API keys as they are stored: without the secret."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.core.scope import Scope


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. Its text, `tg_<id>_<secret>`, is shown once, when it is made."""

    id: str
    tenant: str
    scopes: tuple[Scope, ...]
    secret_sha256: str
    """Hexadecimal. The secret has 256 random bits, so nobody guesses it from a fast digest."""
    created_s: float
    """In seconds since 1970, as all times here."""
    expires_s: float | None = None
    revoked_s: float | None = None
    """When it was revoked, or will be: a key that is rotated goes on for an overlap."""
    description: str = ""
    is_revoked: bool = False
    """Whether it was revoked at once: that holds whatever another machine's clock says."""

    def is_revoked_at(self, now_s: float) -> bool:
        return self.is_revoked or (self.revoked_s is not None and self.revoked_s <= now_s)

    def is_valid_at(self, now_s: float) -> bool:
        """Whether it is neither expired nor revoked."""
        return not self.is_revoked and not any(end_s is not None and end_s <= now_s for end_s in (self.expires_s, self.revoked_s))

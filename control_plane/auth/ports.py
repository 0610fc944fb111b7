"""What authentication needs of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from control_plane.core.principal import Principal


class TokenVerifier(Protocol):
    """Checks the tokens (JWTs) of another issuer; without waiting, since every request asks."""

    def verify(self, token: str, *, before_signature: Callable[[], None]) -> Principal:
        """Whom it speaks for; `before_signature` is called before what is costly, and may raise.

        Raises Unauthenticated: why it does not count, in words that repeat nothing of it.
        """

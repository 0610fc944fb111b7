"""Port of authentication: the verifier of tokens that another issuer has signed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from control_plane.core.principal import Principal


class TokenVerifier(Protocol):
    """Verifier of another issuer's tokens (JWTs). It never waits for the issuer, since every request
    asks it.
    """

    def verify(self, token: str, *, before_signature: Callable[[], None]) -> Principal:
        """Return the principal that the token speaks for.

        `before_signature` is called just before the costly check of the signature, and may raise to prevent
        it. Raises Unauthenticated: why the token is not valid, in a text that repeats nothing of the token.
        """

    async def run(self) -> None:
        """Keep the issuer's keys up to date until cancelled."""

"""Ports of webhooks: the request to a receiver, and the resolver of names. The index of deliveries is of `jobs/ports`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from control_plane.jobs.webhooks.domain.url import WebhookUrl


class Post(Protocol):
    """Client of webhook receivers that callers have named."""

    async def post(self, url: WebhookUrl, headers: Sequence[tuple[str, str]], body: bytes) -> int:
        """Send a message, and return the status of the answer: within ten seconds, whatever the receiver does.

        Raises `jobs/ports.NotDelivered`, whose text may be shown to the caller.
        """

    async def close(self) -> None: ...


class Resolver(Protocol):
    """Resolver of host names."""

    async def addresses(self, host: str) -> Sequence[str]:
        """Return every address of a host; none where there is no such host."""

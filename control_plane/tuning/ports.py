"""What a tuner needs of others: servers to measure, and load."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from control_plane.tuning.domain.candidates import Candidate, Level


class LoadGenerator(Protocol):
    """Sends a model the requests of a mix."""

    async def measure(self, address: str, *, concurrency: int, duration_s: float) -> Level:
        """Keep so many requests in flight for about so long. Cancelling ends it. Raises UpstreamFailed, StartupError."""


class TuningServers(Protocol):
    """Serves one model in each of the ways that a tuner tries."""

    def serve(self, candidate: Candidate) -> AbstractAsyncContextManager[str]:
        """`HOST:PORT` of a server of its own, ready, until the block ends. Raises ControlPlaneError: it cannot be served that way."""

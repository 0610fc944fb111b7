"""Ports of the tuner: servers to measure, and a load generator."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from control_plane.tuning.domain.candidates import Candidate, Level


class LoadGenerator(Protocol):
    """Load generator that sends a model the requests of a mix."""

    async def measure(self, address: str, *, concurrency: int, duration_s: float) -> Level:
        """Keep `concurrency` requests in flight for about `duration_s`, and measure; ends when cancelled.

        Raises UpstreamFailed, StartupError.
        """


class TuningServers(Protocol):
    """Maker of servers that serve one model in a candidate's configuration."""

    def serve(self, candidate: Candidate) -> AbstractAsyncContextManager[str]:
        """Run a server of its own until the block ends; yield its gRPC address when it is ready.

        Raises ControlPlaneError if the model cannot be served that way.
        """

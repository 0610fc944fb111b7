"""Processes that the control plane starts, beside Triton."""

from __future__ import annotations

from typing import Protocol

from control_plane.workers.messages import FromWorker, ToWorker


class WorkerProcess(Protocol):
    """One life of a process that answers the data ports."""

    def send(self, message: ToWorker) -> None:
        """Without waiting; to one that has ended it goes nowhere."""

    async def receive(self) -> FromWorker | None:
        """Its next message; None when it says no more."""

    async def wait(self) -> str:
        """Return when it has ended: how."""

    def kill(self) -> None:
        """End it at once; idempotent."""


class WorkerLauncher(Protocol):
    """Starts workers."""

    async def start(self, number: int) -> WorkerProcess:
        """Start the one of that number, from 0; it listens when it is told to. Raises StartupError."""

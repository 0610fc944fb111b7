"""Ports for worker processes; `workers/adapters/process` implements them, `workers/parent/workers` uses them."""

from __future__ import annotations

from typing import Protocol

from control_plane.workers.messages import FromWorker, ToWorker


class WorkerProcess(Protocol):
    """Handle of one running worker process, which serves the data ports; a restarted worker gets another
    handle."""

    def send(self, message: ToWorker) -> None:
        """Send a message without waiting; to a process that has ended, it is dropped."""

    async def receive(self) -> FromWorker | None:
        """The worker's next message; None when it has closed its end."""

    async def wait(self) -> str:
        """Wait until the process has ended; return how it ended, in words."""

    def stop_accepting(self) -> None:
        """Take the worker's TCP ports from it: it gets no new connections, also if it does not run. It must be
        replaced to get any again."""

    def kill(self) -> None:
        """Kill the process at once; idempotent."""


class WorkerLauncher(Protocol):
    """Launcher of worker processes."""

    async def start(self, number: int) -> WorkerProcess:
        """Start worker `number` (from 0); it opens its ports when it gets `Listen`. Raises StartupError."""

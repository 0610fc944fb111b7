"""Ownership of background tasks by a service that begins them on request, while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from control_plane.concurrency.shared_task import join, outcome
from control_plane.core.errors import UpstreamUnavailable

ResultT = TypeVar("ResultT")


class TaskOwner:
    """Task group that may be asked for tasks at any time, but has them only while it is open."""

    def __init__(self, refusal: str) -> None:
        """`refusal` says what cannot be done while no tasks are owned, such as "models cannot be loaded"."""
        self._refusal = refusal
        self._group: asyncio.TaskGroup | None = None

    @property
    def is_open(self) -> bool:
        """Whether tasks may be created."""
        return self._group is not None

    async def run(self) -> None:
        """Own tasks until cancelled, which cancels those that are left."""
        async with self.open():
            await asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Context manager: own tasks within the block, at whose end those that are left are awaited, or
        cancelled with it."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None  # before the group ends: it would refuse new tasks with a RuntimeError

    def create_task(self, work: Coroutine[Any, Any, ResultT], *, name: str) -> asyncio.Task[ResultT]:
        """Begin a task. An exception that leaves it cancels all others. Raises UpstreamUnavailable: the
        gateway starts or stops."""
        if self._group is None:
            work.close()
            raise UpstreamUnavailable(f"{self._refusal} while the gateway starts or stops; try again shortly")
        return self._group.create_task(work, name=name)

    async def run_shielded(self, work: Callable[[], Awaitable[ResultT]], *, name: str) -> ResultT:
        """Do `work` in a task that goes on when the caller is cancelled. Raises what it raises, and as
        `create_task`."""
        return await join(self.create_task(outcome(work), name=name))

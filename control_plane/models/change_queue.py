"""Singleflight for loads and unloads: one change of a model at a time, each in a task that outlives its
callers.

Triton cannot cancel a load. So a load whose caller has left goes on, and another caller who asks for the same
meanwhile joins it. Used by `models/model_service`, but not in a fleet, whose `fleet/loading/replica_loader` owns
a task for each load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from control_plane.concurrency.shared_task import join, outcome
from control_plane.concurrency.task_owner import TaskOwner


@dataclass(frozen=True, slots=True)
class _Change:
    """Load or unload that is under way or waits for its turn."""

    intent: object
    task: asyncio.Task[Exception | None]


class ChangeQueue:
    """Singleflight with a queue per model: equal changes are joined, different ones follow each other. `run`
    owns the tasks.
    """

    def __init__(self) -> None:
        self._tasks = TaskOwner("models cannot be changed")
        self._latest: dict[str, _Change] = {}

    async def run(self) -> None:
        """Own the tasks until cancelled, which cancels those that are left."""
        await self._tasks.run()

    async def carry_out(self, name: str, intent: object, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` after all earlier changes of the model, or join the latest change if it has an equal
        `intent`.

        Raises what the work raises, to each caller that waits for it. A cancellation ends only the caller's
        wait.
        """
        latest = self._latest.get(name)
        if latest is None or latest.intent != intent:
            latest = self._begin(name, intent, work, latest)
        await join(latest.task)

    def _begin(self, name: str, intent: object, work: Callable[[], Awaitable[None]], previous: _Change | None) -> _Change:
        task = self._tasks.create_task(outcome(partial(_after, previous, work)), name=f"change-{name}")
        change = self._latest[name] = _Change(intent, task)
        task.add_done_callback(lambda _: self._forget(name, change))
        return change

    def _forget(self, name: str, change: _Change) -> None:
        if self._latest.get(name) is change:
            del self._latest[name]


async def _after(previous: _Change | None, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` once `previous` is over."""
    if previous is not None:
        await asyncio.wait([previous.task])
    await work()

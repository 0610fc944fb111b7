"""Singleflight for loads and unloads: one change of a model at a time, each in a task that outlives its
callers.

Triton cannot cancel a load. So a load whose caller has left goes on, and another caller who asks for the same
meanwhile joins it. Used by `models/model_service`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from control_plane.core.errors import UpstreamUnavailable


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
        self._tasks: asyncio.TaskGroup | None = None
        self._latest: dict[str, _Change] = {}

    async def run(self) -> None:
        """Own the tasks until cancelled, which cancels those that are left."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._tasks = None  # cleared before the group ends: it would refuse new tasks with a RuntimeError

    async def carry_out(self, name: str, intent: object, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` after all earlier changes of the model, or join the latest change if it has an equal
        `intent`.

        Raises what the work raises, to each caller that waits for it. A cancellation ends only the caller's
        wait.
        """
        latest = self._latest.get(name)
        if latest is None or latest.intent != intent:
            latest = self._begin(name, intent, work, latest)
        try:
            error = await asyncio.shield(latest.task)
        except asyncio.CancelledError:
            # Either this caller was cancelled, or `run` was and has cancelled the task: only the first may
            # look like a cancellation.
            if latest.task.cancelled() and not _caller_is_cancelled():
                raise UpstreamUnavailable("the gateway is stopping") from None
            raise
        if error is not None:
            raise error

    def _begin(self, name: str, intent: object, work: Callable[[], Awaitable[None]], previous: _Change | None) -> _Change:
        if self._tasks is None:
            raise UpstreamUnavailable("models cannot be changed while the gateway starts or stops; try again shortly")
        task = self._tasks.create_task(_after(previous, work), name=f"change-{name}")
        change = self._latest[name] = _Change(intent, task)
        task.add_done_callback(lambda _: self._forget(name, change))
        return change

    def _forget(self, name: str, change: _Change) -> None:
        if self._latest.get(name) is change:
            del self._latest[name]


async def _after(previous: _Change | None, work: Callable[[], Awaitable[None]]) -> Exception | None:
    """Do `work` once `previous` is over. Return its error: if it was raised it would cancel the task group
    with all other changes.
    """
    if previous is not None:
        await asyncio.wait([previous.task])
    try:
        await work()
    except Exception as exc:
        return exc
    return None


def _caller_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

"""Loads and unloads under way: of one model one at a time, each a task of its own, since its callers may leave.

Triton cannot cancel a load, so one whose caller has left goes on, and whoever asks for the same in the meantime waits
for it. Used by `models/model_service`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from control_plane.core.errors import UpstreamUnavailable


@dataclass(frozen=True, slots=True)
class _Change:
    intent: object
    task: asyncio.Task[Exception | None]


class ModelChanges:
    """The changes of all models; `run` owns their tasks."""

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
                self._tasks = None  # before the group ends, which takes no more tasks then

    async def carry_out(self, name: str, intent: object, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, after every earlier change of the model; join the latest one instead if its intent is equal.

        Raises what the work raises, to everyone who waits for it. Cancelling ends only the waiting.
        """
        latest = self._latest.get(name)
        if latest is None or latest.intent != intent:
            latest = self._begin(name, intent, work, latest)
        try:
            error = await asyncio.shield(latest.task)
        except asyncio.CancelledError:
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
    """The error is the result: raised, it would end the group, and with it everybody else's changes."""
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

"""Tasks whose outcome several callers wait for, each of whom may leave without ending the task.

Such a task returns its exception (`outcome`), which `join` raises to each caller: raised in the task, it
would cancel the whole task group that owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from control_plane.core.errors import GatewayStopping

ResultT = TypeVar("ResultT")


async def outcome(work: Callable[[], Awaitable[ResultT]]) -> ResultT | Exception:
    """Return what the work returns, or the exception that it raises."""
    try:
        return await work()
    except Exception as exc:
        return exc


async def join(task: asyncio.Task[ResultT | Exception]) -> ResultT:
    """Wait for a shared task, and raise the exception that it returns. A cancellation ends only this wait.

    Raises GatewayStopping: the task was cancelled by its owner.
    """
    try:
        result = await asyncio.shield(task)
    except asyncio.CancelledError:
        # The task's cancellation and the caller's look the same here. Only the caller's may go on as one.
        if task.cancelled() and not _caller_is_cancelled():
            raise GatewayStopping from None
        raise
    if isinstance(result, Exception):
        raise result
    return result


def _caller_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

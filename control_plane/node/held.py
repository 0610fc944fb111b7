"""Contexts that gateways hold open at a node, each in a task of its own: a prepared load, models that are being
replaced, files that are kept.

A gateway that leaves, or whose connection breaks, ends what it held; a load that Triton was asked for goes on to
its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

from control_plane.concurrency.task_owner import TaskOwner
from control_plane.core.errors import ControlPlaneError, UpstreamFailed, UpstreamUnavailable

_log = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")


class HeldContext(Generic[ValueT]):
    """Context manager that one task has entered, and leaves when others say so."""

    def __init__(self, context: AbstractAsyncContextManager[ValueT], model: str = "") -> None:
        """`model` is the one that it is about."""
        self.model = model
        loop = asyncio.get_running_loop()
        self._context = context
        self._entered: asyncio.Future[None] = loop.create_future()
        self._todo: asyncio.Future[Callable[[ValueT], Awaitable[None]]] = loop.create_future()
        self._left: asyncio.Future[ControlPlaneError | None] = loop.create_future()
        self._task: asyncio.Task[None] | None = None

    async def enter(self, tasks: TaskOwner, *, name: str) -> None:
        """Enter the context in a task of `tasks`. Raises what that raises."""
        self._task = tasks.create_task(self._hold(), name=name)
        await asyncio.wait((self._entered, self._left, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not self._entered.done() and not self._left.done():  # given up before the task began, so that nothing of it ran
            self._left.set_result(_given_up())
        if self._left.done() and (error := self._left.result()) is not None:
            raise error

    async def carry_out(self, work: Callable[[ValueT], Awaitable[None]]) -> None:
        """Do `work` within the context, and leave it. Raises what both raise; UpstreamUnavailable: it has been
        left meanwhile."""
        if self._todo.done():
            raise UpstreamUnavailable("this load has been given up already")
        self._todo.set_result(work)
        await self.ended()

    def leave(self, *, is_well: bool) -> None:
        """Leave the context, unless work is being done within it. If it is not well, by an error; what is not
        entered yet is given up."""
        if self._todo.done():
            return
        if is_well:
            self._todo.set_result(_nothing)
        else:
            self._todo.set_exception(UpstreamUnavailable("the gateway has given this up, or its connection broke"))
            self._todo.exception()  # it is no error if nobody looks
            if not self._entered.done() and self._task is not None:
                self._task.cancel()

    async def ended(self) -> None:
        """Wait until the context has been left. Raises what it has ended with."""
        await asyncio.wait((self._left,))
        if (error := self._left.result()) is not None:
            raise error

    async def _hold(self) -> None:
        error: ControlPlaneError | None = _given_up()
        try:
            async with self._context as value:
                self._entered.set_result(None)
                await (await self._todo)(value)
            error = None
        except ControlPlaneError as exc:
            error = exc
        except Exception as exc:  # the root of a task: one model must not end the node
            _log.exception("a gateway's call failed", extra={"model": self.model})
            error = UpstreamFailed(f"the node failed: {exc!r}")
        finally:
            self._left.set_result(error)


def _given_up() -> ControlPlaneError:
    return UpstreamUnavailable("the node is stopping, or the gateway has given this up")


async def _nothing(value: object) -> None:
    return None

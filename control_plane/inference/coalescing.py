"""Computations under way, each for everybody who wants the same at the same time.

One is a task of its own: that its first caller leaves does not end it for the others, and that the last one leaves does. It
has its first caller's permit and is charged to that one, whoever is left to take what it brings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from control_plane.core.errors import DeadlineExceeded, LimitExceeded, Overloaded, UpstreamUnavailable
from control_plane.inference.running_request import RunningRequest

ResultT = TypeVar("ResultT")

_OF_ITS_CALLER = (DeadlineExceeded, LimitExceeded, Overloaded)
"""Errors of a computation that tell nothing about the next."""


@dataclass(slots=True)
class _Flight(Generic[ResultT]):
    task: asyncio.Task[ResultT | Exception]
    leader: RunningRequest
    waiting: int = 0


class Flights(Generic[ResultT]):
    """By key."""

    def __init__(self) -> None:
        self._tasks: asyncio.TaskGroup | None = None
        self._under_way: dict[Hashable, _Flight[ResultT]] = {}

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """From now on they can be led, as tasks of this group; each ends with the last of those who wait for it."""
        self._tasks = tasks

    def place(self, key: Hashable, running: RunningRequest) -> Hashable:
        """Under which key `running` is to join one or lead it: not one that still waits for its turn in another tenant's line."""
        flight = self._under_way.get(key)
        if flight is None or not flight.leader.waits_for_its_turn:
            return key
        tenant = running.principal.tenant
        return key if flight.leader.principal.tenant == tenant else (key, tenant)

    def is_under_way(self, key: Hashable) -> bool:
        return key in self._under_way

    async def lead(self, key: Hashable, running: RunningRequest, compute: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Compute it for everybody who joins meanwhile, with the permit that `running` has handed over, and on its account.

        Raises what `compute` raises; cancelling ends it if nobody else waits.
        """
        assert self._tasks is not None, "it has not begun"
        assert key not in self._under_way, "join it instead"
        flight = _Flight(self._tasks.create_task(_outcome(compute), name="flight"), running)
        self._under_way[key] = flight
        flight.task.add_done_callback(lambda _: self._land(key, flight))
        flight.task.add_done_callback(lambda _: running.computed())
        return await self._wait(key, flight)

    async def join(self, key: Hashable, running: RunningRequest, *, timeout_s: float) -> ResultT | None:
        """Let `running` wait for one that is under way; None when nothing but its first caller's own limits or deadline has ended it.

        Raises what it raises, DeadlineExceeded.
        """
        flight = self._under_way[key]
        try:
            async with asyncio.timeout(timeout_s):
                return await self._wait(key, flight)
        except TimeoutError as exc:
            raise DeadlineExceeded("Deadline Exceeded") from exc
        except _OF_ITS_CALLER:
            return None
        finally:
            running.server = flight.leader.server

    async def _wait(self, key: Hashable, flight: _Flight[ResultT]) -> ResultT:
        flight.waiting += 1
        try:
            result = await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            if flight.task.cancelled() and not _caller_is_cancelled():
                raise UpstreamUnavailable("the gateway is stopping") from None
            raise
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.task.done():
                self._land(key, flight)  # at once: whoever comes now must not join what is about to end
                flight.task.cancel()
        if isinstance(result, Exception):
            raise result
        return result

    def _land(self, key: Hashable, flight: _Flight[ResultT]) -> None:
        if self._under_way.get(key) is flight:
            del self._under_way[key]


async def _outcome(compute: Callable[[], Awaitable[ResultT]]) -> ResultT | Exception:
    """The error is a result: raised, it would end the group, and with it everybody else's flights."""
    try:
        return await compute()
    except Exception as exc:
        return exc


def _caller_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

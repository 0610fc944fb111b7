"""Request coalescing (singleflight): equal requests that arrive while one is being computed share that computation.

A flight is a task of its own, so it outlives the caller that started it (its *leader*). It is cancelled only when the last
of its callers has left. It holds the leader's permit and is charged to the leader's tenant, even if only others receive the
result. Used by `inference/caching/cached_inference` and `embeddings/embeddings`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from control_plane.admission.permit import Permit
from control_plane.concurrency.shared_task import join, outcome
from control_plane.core.errors import DeadlineExceeded, LimitExceeded, Overloaded
from control_plane.inference.in_flight.running_request import AuthorizedRequest

ResultT = TypeVar("ResultT")

_LEADERS_OWN_ERRORS = (DeadlineExceeded, LimitExceeded, Overloaded)
"""Errors caused by the leader's own limits or deadline: they say nothing about a follower's chances, who may
try again."""


@dataclass(slots=True)
class _Flight(Generic[ResultT]):
    """Computation under way, with the number of callers that wait for it."""

    task: asyncio.Task[ResultT | Exception]
    leader: AuthorizedRequest
    permit: Permit
    """The leader's, which it has handed over."""
    waiting: int = 0


class Singleflight(Generic[ResultT]):
    """Singleflight: computations under way by key, each shared by all who want it at the same time."""

    def __init__(self) -> None:
        self._tasks: asyncio.TaskGroup | None = None
        self._under_way: dict[Hashable, _Flight[ResultT]] = {}

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Allow flights from now on, as tasks of this group; each is cancelled when the last of its waiters
        leaves."""
        self._tasks = tasks

    def key_for(self, key: Hashable, running: AuthorizedRequest) -> Hashable:
        """The key under which `running` is to join or lead a flight.

        A flight that still queues for its model's slot queues in its leader's tenant's line. A request of
        another tenant does not join it there, or that tenant's backlog would delay it: it gets a key of its
        own tenant instead.
        """
        flight = self._under_way.get(key)
        if flight is None or not flight.permit.is_waiting:
            return key
        tenant = running.principal.tenant
        return key if flight.leader.principal.tenant == tenant else (key, tenant)

    def is_under_way(self, key: Hashable) -> bool:
        return key in self._under_way

    async def lead(self, key: Hashable, running: AuthorizedRequest, compute: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Start a flight for `running` and everybody who joins; `running` has handed its permit over and is
        charged.

        Raises what `compute` raises. Cancelling the caller cancels the flight only if nobody else waits for
        it.
        """
        assert self._tasks is not None, "`begin` has not been called"
        assert key not in self._under_way, "a flight of this key is under way: join it instead"
        flight = _Flight(self._tasks.create_task(outcome(compute), name="flight"), running, running.permit)
        self._under_way[key], running.flight = flight, flight.task
        # Callbacks, as the leader may leave before the flight ends. The key is free again before the permit
        # is given back.
        flight.task.add_done_callback(lambda _: self._finish(key, flight))
        flight.task.add_done_callback(lambda _: running.flight_ended(flight.permit))
        return await self._wait(key, flight)

    async def join(
        self,
        key: Hashable,
        running: AuthorizedRequest,
        *,
        timeout_s: float,
        is_leaders_own: Callable[[ResultT], bool] = lambda _: False,
    ) -> ResultT | None:
        """Wait for a flight that is under way; None: the leader's own limits or deadline ended it, by an error or by a result that
        `is_leaders_own`, so try again.

        Raises what the flight raises, and DeadlineExceeded after `timeout_s`; the flight goes on for the
        others.
        """
        flight = self._under_way[key]
        try:
            async with asyncio.timeout(timeout_s):
                result = await self._wait(key, flight)
            if not is_leaders_own(result):
                return result
        except TimeoutError as exc:
            raise DeadlineExceeded("Deadline Exceeded") from exc
        except _LEADERS_OWN_ERRORS:
            pass
        finally:
            running.server = flight.leader.server  # for the request log, also after an error
        self._finish(key, flight)  # before the task's callback does: who tries again would find this flight, for ever in one turn
        return None

    async def _wait(self, key: Hashable, flight: _Flight[ResultT]) -> ResultT:
        flight.waiting += 1
        try:
            return await join(flight.task)  # only a stopping gateway cancels a flight that somebody waits for
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.task.done():
                self._finish(key, flight)  # before the task's callback does: nobody must join a flight that is being cancelled
                flight.task.cancel()

    def _finish(self, key: Hashable, flight: _Flight[ResultT]) -> None:
        if self._under_way.get(key) is flight:  # it may be the next flight of the same key already
            del self._under_way[key]

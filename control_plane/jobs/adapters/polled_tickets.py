"""Queue of tickets without a broker: while the store has jobs that may be claimed there are tickets.

Nothing is written for a ticket, so nothing of it can be lost. Runners of this process are woken by `publish`, those
of other processes look every quarter of a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.ports import EVERY_JOB, JobStore

_POLL_S = 0.25
_RETRY_S = 1.0
_AHEAD = 64
"""Jobs that are counted at a time where nobody else claims any: the tickets of the next turns need no look then."""
_GATHER_S = 0.003
"""Time from a first new job to the tickets, for more to come: they are claimed at once, which costs less."""

_log = logging.getLogger(__name__)


class PolledTickets:
    """Queue of tickets that are made by a look at the job store; implements `jobs/ports.JobQueue`."""

    def __init__(self, store: JobStore, *, is_only: bool = False, today_s: Callable[[], float] = time.time) -> None:
        """`is_only`: no other process is known to claim jobs; `today_s` is seconds since 1970."""
        self._store = store
        self._ahead = _AHEAD if is_only else 0
        self._today_s = today_s
        self._wake = asyncio.Event()
        self._taken = 0
        self._counted = 0
        """Jobs that were seen to be ready beyond those that tickets were taken for."""

    async def publish(self, count: int = 1) -> None:
        self._wake.set()

    async def take(self, most: int = 1) -> list[PolledTicket]:
        while True:
            if self._counted:
                return self._taken_of(most)
            self._wake.clear()
            try:
                # Tickets that were taken are about to claim jobs that still count as ready.
                ready = await self._store.ready(self._today_s(), limit=self._taken + max(most, self._ahead))
                self._counted = max(0, ready - self._taken)
                if self._counted:
                    return self._taken_of(most)
                pause_s = _POLL_S
            except StoreUnavailable as exc:
                _log.warning("the store of jobs cannot be read: %s", exc)
                pause_s = _RETRY_S
            with suppress(TimeoutError):
                # Not `wait_for`, which on Python 3.11 swallows a cancellation that comes just as it is woken.
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
                await asyncio.sleep(_GATHER_S)

    async def depth(self) -> int:
        return await self._store.ready(self._today_s(), limit=EVERY_JOB)

    def _taken_of(self, most: int) -> list[PolledTicket]:
        count = min(most, self._counted)
        self._counted -= count
        self._taken += count
        return [PolledTicket(self) for _ in range(count)]

    def ended(self, *, wakes: bool) -> None:
        """A ticket was given up, or its job has been claimed."""
        self._taken -= 1
        if wakes:
            self._wake.set()
        else:
            self._counted = 0  # there was no job for it: others have what was counted

    async def run(self) -> None: ...

    async def close(self) -> None: ...


class PolledTicket:
    """Ticket of this process; it counts until it has claimed a job, for which `claimed` is called."""

    def __init__(self, queue: PolledTickets) -> None:
        self._queue: PolledTickets | None = queue

    def claimed(self) -> None:
        self._end(wakes=True)

    async def ack(self) -> None:
        self._end(wakes=False)

    async def give_back(self) -> None:
        self._end(wakes=True)

    def _end(self, *, wakes: bool) -> None:
        if self._queue is not None:
            self._queue.ended(wakes=wakes)
            self._queue = None

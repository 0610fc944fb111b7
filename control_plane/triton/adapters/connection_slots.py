"""Fair sharing of a pool's connections among models, so that the requests of one slow model cannot occupy all
of them.

A model that holds as many connections as are free gets no more (dynamic thresholds, Choudhury and Hahne
1998): one busy model gets half of them, two get a third each, and one is always left for the next model.
Requests queue by model, and models take turns.
"""

from __future__ import annotations

import asyncio
from collections import deque

from control_plane.core.errors import DeadlineExceeded


class ConnectionSlots:
    """Semaphore with dynamic thresholds by lane and a queue per lane; it knows no connections.

    A lane is the name of a model, or empty for calls that name none.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._held: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting requests by lane; the lane whose turn is next comes first."""

    async def acquire(self, lane: str, deadline: float) -> None:
        """Acquire a slot; after an exception none is held. Raises DeadlineExceeded at the loop's time
        `deadline`.
        """
        if lane not in self._waiting and self._may_take(lane):
            self._hold(lane)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(lane, deque()).append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except BaseException as exc:
            self._withdraw(lane, waiter)
            if isinstance(exc, TimeoutError):
                raise DeadlineExceeded("all connections to Triton that this model may use were busy until the request's deadline") from exc
            raise

    def release(self, lane: str) -> None:
        """Give a slot back."""
        held = self._held[lane] - 1
        if held:
            self._held[lane] = held
        else:
            del self._held[lane]
        self._free += 1
        if self._waiting:
            self._grant()

    def fail(self, error: Exception) -> None:
        """Make all waiting requests fail with `error`."""
        for waiters in self._waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        self._waiting.clear()

    def _may_take(self, lane: str) -> bool:
        return self._held.get(lane, 0) < self._free

    def _hold(self, lane: str) -> None:
        self._held[lane] = self._held.get(lane, 0) + 1
        self._free -= 1

    def _withdraw(self, lane: str, waiter: asyncio.Future[None]) -> None:
        """Leave the queue after a timeout or a cancellation."""
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self.release(lane)  # the slot was granted in the turn of the loop in which the wait ended
            return
        waiters = self._waiting.get(lane)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[lane]

    def _grant(self) -> None:
        """Grant free slots round robin: one to each lane that may have one, before a second to any."""
        granted = True
        while granted:
            granted = False
            for lane in tuple(self._waiting):
                if self._may_take(lane):
                    granted = True
                    self._grant_first(lane)

    def _grant_first(self, lane: str) -> None:
        waiters = self._waiting.pop(lane)
        waiter = waiters.popleft()
        if waiters:
            self._waiting[lane] = waiters  # inserted again, so that the lane comes after all others
        if not waiter.done():
            self._hold(lane)
            waiter.set_result(None)

"""Semaphore whose holders take any number of units, such as bytes of memory; with units of one it is an
ordinary semaphore that can be taken without a coroutine.

Used by `frontends/common/body_budget` and `triton/adapters/http/client`.
"""

from __future__ import annotations

from control_plane.concurrency.waiter_queue import WaiterQueue


class WeightedSemaphore:
    """Semaphore over a number of units; first come, first served, so that small holders cannot starve a large
    one.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        """Units that nobody holds."""
        self._queue: WaiterQueue[int] = WaiterQueue(self.release)
        self._waiting = self._queue.waiting  # looked at by each request: without a call

    def try_acquire(self, units: int = 1) -> bool:
        """Take units without waiting; False: they are not free, or others wait before us."""
        if self._waiting or units > self.free:
            return False
        self.free -= units
        return True

    def try_acquire_both(self, other: WeightedSemaphore) -> bool:
        """Take a unit of this and one of `other` without waiting, or neither: `try_acquire` of two in one call."""
        if self._waiting or other._waiting or self.free < 1 or other.free < 1:
            return False
        self.free -= 1
        other.free -= 1
        return True

    async def acquire(self, units: int = 1, *, deadline_s: float) -> None:
        """Wait in turn for units until the loop's time `deadline_s` at most. Raises TimeoutError.

        After an exception, cancellation included, nothing is held.
        """
        if self.try_acquire(units):
            return
        try:
            await self._queue.wait(units, deadline_s)
        except BaseException:
            self._grant()  # smaller ones behind this one may fit now
            raise

    def release(self, units: int = 1) -> None:
        """Give back units, and grant them to those who wait."""
        self.free += units
        if self._waiting:
            self._grant()

    def release_both(self, other: WeightedSemaphore) -> None:
        """Give back a unit of this and one of `other`."""
        self.free += 1
        other.free += 1
        if self._waiting:
            self._grant()
        if other._waiting:
            other._grant()

    def _grant(self) -> None:
        # Only the first is looked at: were those behind it let by, a large one might wait for ever.
        while self._waiting and (units := self._queue.first) <= self.free:
            if self._queue.grant_first():
                self.free -= units

"""Queues of tasks that wait for a shared resource, and the race between a grant and a task that leaves.

A task leaves the queue by its deadline or by a cancellation, and either may come in the same turn of the
event loop as its grant. `Waiter` settles that race for any order of waiting; `WaiterQueue` is first come,
first served. Used by `concurrency/weighted_semaphore` and `admission/concurrency_limiter`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

GrantT = TypeVar("GrantT")
ItemT = TypeVar("ItemT")


class Waiter(Generic[GrantT]):
    """Pending wait of one task for a grant; whoever keeps the queue grants it."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn: asyncio.Future[GrantT] = asyncio.get_running_loop().create_future()

    def grant(self, what: GrantT) -> bool:
        """End the wait with a grant; False if the task has left already, and nothing is granted."""
        if self._turn.done():
            return False
        self._turn.set_result(what)
        return True

    async def wait(self, deadline_s: float, *, leave: Callable[[], object], give_back: Callable[[GrantT], object]) -> GrantT:
        """Wait for the grant until the loop's time `deadline_s` at most. Raises TimeoutError.

        A task that leaves without a grant calls `leave`, which takes it out of its queue. One that was
        granted something in the turn of the loop in which it left calls `give_back` with that.
        """
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self._turn
        except BaseException:
            # The grant came in the turn of the loop in which the task left, and nobody else knows of it.
            if self._turn.done() and not self._turn.cancelled():
                give_back(self._turn.result())
            else:
                leave()
            raise


class WaiterQueue(Generic[ItemT]):
    """FIFO queue of tasks, each of which waits for an item of its own, such as a number of bytes."""

    def __init__(self, give_back: Callable[[ItemT], object]) -> None:
        """`give_back` takes what was granted to a task that left at that moment."""
        self._give_back = give_back
        self.waiting: OrderedDict[Waiter[ItemT], ItemT] = OrderedDict()
        """Item of each task, the first one first; for others to look at only. Not a deque: a task would be looked for among
        all others as it leaves, and thousands may leave at once."""

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def first(self) -> ItemT:
        """Item that the first task waits for; the queue must not be empty."""
        return next(iter(self.waiting.values()))

    def grant_first(self) -> bool:
        """Grant the first task its item; False if that task has left, and is only no longer in the queue."""
        waiter, item = self.waiting.popitem(last=False)
        return waiter.grant(item)

    async def wait(self, item: ItemT, deadline_s: float) -> None:
        """Wait in turn for the item until the loop's time `deadline_s` at most. Raises TimeoutError."""
        waiter = Waiter[ItemT]()
        self.waiting[waiter] = item
        # It is no longer there where `grant_first` has just met a task that was leaving.
        await waiter.wait(deadline_s, leave=lambda: self.waiting.pop(waiter, None), give_back=self._give_back)

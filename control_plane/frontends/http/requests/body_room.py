"""Room in the budget of all bodies that one HTTP connection takes for the body it receives.

Used by `frontends/http/connection`; the budget itself is `frontends/common/body_budget`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from control_plane.core.errors import Overloaded
from control_plane.frontends.common.body_budget import BodyBudget


class BodyRoom:
    """Reservation of one connection in the budget of all bodies, for the body that arrives; a task waits where there
    is no room."""

    def __init__(
        self,
        budget: BodyBudget,
        tasks: asyncio.TaskGroup,
        *,
        patience_s: float,
        granted: Callable[[], None],
        refused: Callable[[Overloaded], None],
    ) -> None:
        """A wait ends with `granted`, or after `patience_s` with `refused`; cancelled with neither."""
        self._budget = budget
        self._tasks = tasks
        self._patience_s = patience_s
        self._granted, self._refused = granted, refused
        self._held_bytes = self._owed_bytes = 0
        self.waiting: asyncio.Task[None] | None = None
        """The task that waits for room, during which the socket is not read; None while there is none."""

    def reserve(self, size_bytes: int) -> None:
        """Take room for so many bytes more, now or by a task that waits for it (`waiting`)."""
        if self.waiting is None and self._budget.try_acquire(size_bytes):
            self._held_bytes += size_bytes
            return
        # Of a chunked body more may have arrived than one chunk: the task that waits takes all that is owed.
        self._owed_bytes += size_bytes
        if self.waiting is None:
            self.waiting = self._tasks.create_task(self._wait(), name="http-body-budget")

    def hand_over(self) -> int:
        """The body is whole, or nobody wants it any more: wait for no more room, and return the bytes that are
        held, which the caller has to release."""
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting, self._owed_bytes = None, 0
        held_bytes, self._held_bytes = self._held_bytes, 0
        return held_bytes

    def release(self, held_bytes: int) -> None:
        """Give back what `hand_over` has returned."""
        if held_bytes:
            self._budget.release(held_bytes)

    async def _wait(self) -> None:
        try:
            while self._owed_bytes:
                size_bytes, self._owed_bytes = self._owed_bytes, 0
                await self._budget.acquire(size_bytes, self._patience_s)
                self._held_bytes += size_bytes
        except Overloaded as exc:
            self.waiting = None
            self._refused(exc)
        else:
            self.waiting = None
            self._granted()

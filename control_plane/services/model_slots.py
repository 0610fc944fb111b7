"""The requests of one model that may be at Triton at a time, and the queue of those that wait; `services/admission` has one per model.

Somebody waits only while all slots are taken: each slot that comes free goes to the next at once. One tenant alone has many, which fill
batches; while several use the model there are few, since what is at Triton nobody overtakes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.domain.shed_reason import ShedReason
from control_plane.policy.deadline import Pace, can_be_met, time_needed_s
from control_plane.policy.fair_queue import Claim, FairQueue, QueueLimits

# What a refused caller is told: no sooner than it takes a client to come back, no later than anybody would plan for.
_SOONEST_RETRY_S, _LATEST_RETRY_S = 1.0, 60.0

# A tenant that asks once in so long is still there: it is not to find the model full of another's requests each time.
_SHARED_FOR_S = 10.0


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """How many a model has."""

    alone: int
    """While one tenant uses it."""
    shared: int
    """While several do."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    turn: asyncio.Future[ShedReason | None]
    """None is a slot."""

    def end(self, reason: ShedReason | None) -> bool:
        """False for one that has left already; it takes itself out."""
        if self.turn.done():
            return False
        self.turn.set_result(reason)
        return True


class ModelSlots:
    """Counts slots and hands them on; knows no requests."""

    def __init__(self, slots: SlotLimits, limits: QueueLimits, now_s: Callable[[], float]) -> None:
        """`now_s` is the loop's time."""
        self._slots = slots
        self._last_tenant: str | None = None
        self._shared_until_s = float("-inf")
        self._taken = 0
        self._queue: FairQueue[_Waiter] = FairQueue(limits)
        self._pace = Pace()
        self._now_s = now_s

    @property
    def are_idle(self) -> bool:
        return not self._taken

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def retry_after_s(self) -> float:
        """When what waits now should be done."""
        needed_s = time_needed_s(self._pace, ahead=self._queue.cost, cost=0.0, slots=self._count()) or 0.0
        return min(max(needed_s, _SOONEST_RETRY_S), _LATEST_RETRY_S)

    def take_at_once(self, tenant: str) -> bool:
        """Take a free slot; there is none while somebody waits."""
        if tenant != self._last_tenant:
            if self._last_tenant is not None:
                self._shared_until_s = self._now_s() + _SHARED_FOR_S
            self._last_tenant = tenant
        if self._queue or self._taken >= self._count():
            return False
        self._taken += 1
        return True

    async def take(self, claim: Claim, deadline_s: float) -> ShedReason | None:
        """Wait for a slot, until the loop's time `deadline_s` at most. Returns why not; cancelled or refused it holds none."""
        needed_s = time_needed_s(self._pace, ahead=self._queue.ahead(claim), cost=claim.cost, slots=self._count())
        if not can_be_met(deadline_s, now_s=self._now_s(), needed_s=needed_s):
            return ShedReason.DEADLINE
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future())
        refused = self._queue.push(waiter, claim)
        if refused is not None:
            refused.end(ShedReason.QUEUE_FULL)
        timer = loop.call_at(deadline_s, self._expire, waiter)
        try:
            return await waiter.turn
        except BaseException:
            self._withdraw(waiter)
            raise
        finally:
            timer.cancel()

    def give(self, *, cost: float, held_s: float) -> None:
        """Give a slot back that was held so long for work of this cost."""
        self._pace = self._pace.after(cost, held_s)
        self._hand_on()

    def _count(self) -> int:
        return self._slots.shared if self._now_s() < self._shared_until_s else self._slots.alone

    def _hand_on(self) -> None:
        """Give the slot that has come free to the next, and others that there are by now; none while more are taken than there are."""
        self._taken -= 1
        while self._queue and self._taken < self._count():
            if self._queue.pop().end(None):
                self._taken += 1

    def _expire(self, waiter: _Waiter) -> None:
        if self._queue.remove(waiter):
            waiter.end(ShedReason.DEADLINE)

    def _withdraw(self, waiter: _Waiter) -> None:
        was_waiting = self._queue.remove(waiter)
        if not was_waiting and not waiter.turn.cancelled() and waiter.turn.result() is None:
            self._hand_on()  # its slot came as it left

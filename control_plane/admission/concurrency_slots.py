"""The requests of one model that may be at Triton at a time, and the queue of those that wait; `admission/admission` has one per model.

Somebody waits only while all slots are taken: each slot that comes free goes to the next at once. One tenant alone has many, which fill
batches; while several use the model there are as few as it makes use of
(`admission/domain/slot_limit`), since what is at Triton nobody overtakes.
And a tenant that keeps to its share need not wait until one comes free: what it sends goes on at once, beyond the number of slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.admission.domain.deadline import Pace, can_be_met, time_needed_s
from control_plane.admission.domain.fair_queue import Claim, FairQueue, QueueLimits
from control_plane.admission.domain.slot_limit import SlotLimit
from control_plane.telemetry.shed_reason import ShedReason

# What a refused caller is told: no sooner than it takes a client to come back, no later than anybody would plan for.
_SOONEST_RETRY_S, _LATEST_RETRY_S = 1.0, 60.0

# A tenant that asks once in so long is still there: it is not to find the model full of another's requests each time.
_SHARED_FOR_S = 10.0

# How many may be taken at a time, times the number there is, when tenants that keep to their share have sent what they may.
_TAKEN_AT_MOST = 2


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """How many a model has."""

    alone: int
    """While one tenant uses it."""
    shared: int
    """While several do, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    tenant: str
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
        self._alone = slots.alone
        self._shared = SlotLimit(slots.shared)
        self._last_tenant: str | None = None
        self._shared_until_s = float("-inf")
        self._taken = 0
        self._held: dict[str, int] = {}
        """By tenant that holds any."""
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
        needed_s = time_needed_s(self._pace, ahead=self._queue.cost, cost=0.0, slots=self._most_taken()) or 0.0
        return min(max(needed_s, _SOONEST_RETRY_S), _LATEST_RETRY_S)

    def take_at_once(self, tenant: str) -> bool:
        """Take a free slot; there is none while somebody waits."""
        if tenant != self._last_tenant:
            if self._last_tenant is not None:
                self._shared_until_s = self._now_s() + _SHARED_FOR_S
            self._last_tenant = tenant
        if self._queue or self._taken >= self._count():
            return False
        self._hold(tenant)
        return True

    async def take(self, claim: Claim, deadline_s: float) -> ShedReason | None:
        """Wait for a slot, until the loop's time `deadline_s` at most. Returns why not; cancelled or refused it holds none."""
        if self._goes_by(claim):
            self._hold(claim.tenant)
            return None
        needed_s = time_needed_s(self._pace, ahead=self._queue.ahead(claim), cost=claim.cost, slots=self._most_taken())
        if not can_be_met(deadline_s, now_s=self._now_s(), needed_s=needed_s):
            return ShedReason.DEADLINE
        loop = asyncio.get_running_loop()
        waiter = _Waiter(claim.tenant, loop.create_future())
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

    def give(self, tenant: str, *, cost: float, held_s: float) -> None:
        """Give a slot back that it has held so long for work of this cost."""
        self._pace = self._pace.after(cost, held_s)
        somebody_waits = bool(self._queue)  # or would, had there not been some that need not
        if (somebody_waits or self._taken > self._shared.slots) and self._is_shared():
            self._shared.ended(cost, self._now_s())
        elif self._shared.is_busy:
            self._shared.interrupt(self._now_s())
        self._let_go(tenant)
        if somebody_waits:
            self._hand_on()

    def _is_shared(self) -> bool:
        return self._now_s() < self._shared_until_s

    def _count(self) -> int:
        return self._shared.slots if self._now_s() < self._shared_until_s else self._alone

    def _most_taken(self) -> int:
        """More than there are, just after a change: estimates are to err on the side of the caller."""
        return max(self._count(), self._taken)

    def _goes_by(self, claim: Claim) -> bool:
        """Whether a request may go on beyond the number: its tenant holds less than an equal part, and what waits is not owed more."""
        slots, held = self._shared.slots, self._held.get(claim.tenant, 0)
        holders = len(self._held) + (held == 0)
        if not self._is_shared() or held * holders >= slots or self._taken >= min(_TAKEN_AT_MOST * slots, self._alone):
            return False
        return not self._queue or self._queue.pass_by(claim, slots)

    def _hold(self, tenant: str) -> None:
        self._taken += 1
        self._held[tenant] = self._held.get(tenant, 0) + 1

    def _let_go(self, tenant: str) -> None:
        self._taken -= 1
        held = self._held[tenant] - 1
        if held:
            self._held[tenant] = held
        else:
            del self._held[tenant]

    def _hand_on(self) -> None:
        """Give what has come free to the next, and others that there are by now; nothing while more are taken than there are."""
        while self._queue and self._taken < self._count():
            waiter = self._queue.pop()
            if waiter.end(None):
                self._hold(waiter.tenant)

    def _expire(self, waiter: _Waiter) -> None:
        if self._queue.remove(waiter):
            waiter.end(ShedReason.DEADLINE)

    def _withdraw(self, waiter: _Waiter) -> None:
        was_waiting = self._queue.remove(waiter)
        if not was_waiting and not waiter.turn.cancelled() and waiter.turn.result() is None:
            self._let_go(waiter.tenant)  # its slot came as it left
            self._hand_on()
